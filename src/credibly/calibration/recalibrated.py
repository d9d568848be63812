r"""A distribution whose distribution function goes through a piecewise linear one: R(F(y)).

R increases strictly from (0, 0) to (1, 1), so that quantiles are those of F at R^-1(q), and the log density is that
of F plus log R'(F(y)). A count k has the mass R(F(k)) - R(F(k - 1)). Of several outputs each has its own R; their
joint density is known where they are independent given the row. All is computed in float64 from both F and 1 - F.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from credibly.calibration.piecewise import interpolate_tails, segment
from credibly.calibration.recalibrated_integrals import recalibrated_crps, recalibrated_moments
from credibly.calibration.tails import Tails, distance, level, place, tails_at, tails_below
from credibly.calibration.upper_quantiles import quantile_at, upper_quantile
from credibly.core.checks import check_coverage
from credibly.core.errors import NotSupportedError, ShapeError
from credibly.distributions.crps import crps, integrated
from credibly.distributions.cumulative import cdf, icdf
from credibly.distributions.density import element_log_prob, safe_log_prob
from credibly.distributions.kinds import base_of, kind, reference
from credibly.distributions.moments import mean, variance
from credibly.distributions.pit import cdf_below
from credibly.distributions.predictive import Predictive
from credibly.distributions.rows import Change, rebuild, to
from credibly.distributions.shapes import broadcast_shape
from credibly.distributions.survival import survival
from credibly.distributions.targets import inside_support

__all__ = ["RecalibratedPredictive"]


class RecalibratedPredictive(Predictive):
    """R(F(y)) for the F of a base.

    Mean and variance are integrals of R(F), within a relative 1e-4 for a smooth F and nearly exact for counts and
    draws. They are NaN or infinite where the base's are; of a quantile forecast, whose tails are not known, there are
    none.

    Args:
        base: a distribution of real numbers or counts, with a cdf.
        levels: F and 1 - F at the knots of R, (outputs, knots, 2), from (0, 1) to (1, 0); padding repeats the last.
        recalibrated: R and 1 - R at the knots.

    Raises:
        NotSupportedError: the base is over classes.
        ShapeError: another number of outputs, or tables of different shapes.
    """

    def __init__(self, base: Distribution, levels: Tensor, recalibrated: Tensor) -> None:
        if kind(base) == "class":
            raise NotSupportedError(f"RecalibratedPredictive is for numbers and counts; got {type(base).__name__}")
        outputs = base.event_shape.numel()
        if levels.shape != recalibrated.shape or levels.dim() != 3 or (len(levels), levels.shape[-1]) != (outputs, 2):
            raise ShapeError(
                f"`levels` and `recalibrated` must have shape (outputs, knots, 2) with {outputs} outputs; "
                f"got {tuple(levels.shape)} and {tuple(recalibrated.shape)}"
            )
        super().__init__(base.batch_shape, base.event_shape)
        self.base = base
        device = reference(base).device
        self.levels, self.recalibrated = (table.to(device, torch.float64) for table in (levels, recalibrated))

    @property
    def precise(self) -> Distribution:
        """The base in float64."""
        return to(self.base, dtype=torch.float64)

    @property
    def curve(self) -> tuple[Tails, Tails]:
        """The knots of R: levels of F, and what becomes of them."""
        return Tails(*self.levels.unbind(-1)), Tails(*self.recalibrated.unbind(-1))

    def corrected(self, tails: Tails) -> Tails:
        """R of levels (..., *event_shape)."""
        levels, recalibrated = self.curve
        return self._each(tails, lambda points: interpolate_tails(levels, recalibrated, points))

    def inverse(self, tails: Tails) -> Tails:
        """R^-1 of levels (..., *event_shape)."""
        levels, recalibrated = self.curve
        return self._each(tails, lambda points: interpolate_tails(recalibrated, levels, points))

    def piece(self, tails: Tails) -> Tensor:
        """The linear piece of R in which levels (..., *event_shape) lie, (outputs, points)."""
        levels, _ = self.curve
        last = (place(levels).diff(dim=-1) > 0).sum(-1, keepdim=True) - 1  # padding has no length
        return torch.minimum(segment(place(levels), place(self._flat(tails))), last)

    def log_slope(self, tails: Tails) -> Tensor:
        """Log R' at levels (..., *event_shape), float64."""
        run, rise = (distance(_from(each, None, -1), _from(each, 1, None)) for each in self.curve)
        slopes = torch.log(rise) - torch.log(run)
        return slopes.gather(-1, self.piece(tails)).t().reshape(tails.lower.shape)

    def interval(self, coverage: float) -> tuple[Tensor, Tensor]:
        """The equal-tailed interval (lower, upper), each (batch, *event); see `Predictive.interval`."""
        like, shape = reference(self.base), self.batch_shape + self.event_shape
        tail = torch.full(shape, (1 - check_coverage(coverage)) / 2, dtype=torch.float64, device=like.device)
        low, high = level(tail)
        ends = (quantile_at.formula(self.precise, self.inverse(pair)) for pair in (Tails(low, high), Tails(high, low)))
        lower, upper = (end.to(like.dtype) for end in ends)
        return lower, upper

    def _flat(self, tails: Tails) -> Tails:
        return Tails(*(tail.reshape(-1, len(self.levels)).t() for tail in tails))

    def _each(self, tails: Tails, curve: Callable[[Tails], Tails]) -> Tails:
        return Tails(*(tail.t().reshape(tails.lower.shape) for tail in curve(self._flat(tails))))

    def _draw(self, shape: torch.Size) -> Tensor:
        like = reference(self.base)
        size = shape + self.batch_shape + self.event_shape
        uniform = torch.rand(size, dtype=torch.float64, device=like.device) + 2.0**-54  # never 0 or 1
        return quantile_at.formula(self.precise, self.inverse(level(uniform))).to(like.dtype)


def _from(tails: Tails, start: int | None, stop: int | None) -> Tails:
    return Tails(*(tail[..., start:stop] for tail in tails))


@base_of.register(RecalibratedPredictive)
def _(d: RecalibratedPredictive) -> Distribution:
    return base_of(d.base)


@rebuild.register(RecalibratedPredictive)
def _(d: RecalibratedPredictive, others: Sequence[Any], change: Change) -> Distribution:
    """The tables go through as whole numbers, which no change of precision rounds: a tail of 1e-300 is no 0."""
    every = (d, *others)
    base = rebuild(d.base, [e.base for e in others], change)
    levels, recalibrated = (
        change([getattr(e, name).view(torch.int64) for e in every], None).view(torch.float64)
        for name in ("levels", "recalibrated")
    )
    return RecalibratedPredictive(base, levels, recalibrated)


@inside_support.register(RecalibratedPredictive)
def _(d: RecalibratedPredictive, targets: Tensor) -> Tensor:
    return inside_support(d.base, targets)


def _at(d: RecalibratedPredictive, value: Tensor) -> Tails:
    return tails_at(d.precise, value.double())


def _below(d: RecalibratedPredictive, value: Tensor) -> Tails:
    return tails_below(d.precise, value.double())


@cdf.register(RecalibratedPredictive)
def _(d: RecalibratedPredictive, value: Tensor) -> Tensor:
    return d.corrected(_at(d, value)).lower.to(value.dtype)


@cdf_below.register(RecalibratedPredictive)
def _(d: RecalibratedPredictive, value: Tensor) -> Tensor:
    return d.corrected(_below(d, value)).lower.to(value.dtype)


@survival.register(RecalibratedPredictive)
def _(d: RecalibratedPredictive, value: Tensor) -> Tensor:
    return d.corrected(_at(d, value)).upper.to(value.dtype)


@icdf.register(RecalibratedPredictive)
def _(d: RecalibratedPredictive, q: Tensor) -> Tensor:
    levels = level(q.expand(broadcast_shape(q.shape, d.batch_shape + d.event_shape)))
    return quantile_at.formula(d.precise, d.inverse(levels)).to(q.dtype)


@upper_quantile.register(RecalibratedPredictive)
def _(d: RecalibratedPredictive, q: Tensor) -> Tensor:
    return quantile_at.formula(d.precise, d.inverse(Tails(1 - q, q)))


@element_log_prob.register(RecalibratedPredictive)
def _(d: RecalibratedPredictive, y: Tensor) -> Tensor:
    if kind(d) == "count":
        return _log_mass(d, y)
    given = _given(d, y)
    values = given.double() + d.log_slope(_at(d, y))
    return torch.where(given.isneginf(), given.double(), values).to(given.dtype)


def _given(d: RecalibratedPredictive, y: Tensor) -> Tensor:
    """Log densities of the base's elements; with one output any base that has a density will do."""
    return element_log_prob(d.base, y) if d.event_shape else safe_log_prob(d.base, y)


def _log_mass(d: RecalibratedPredictive, y: Tensor) -> Tensor:
    """Within one piece of R the mass of F times the slope, which has digits also where F is all but 1."""
    given = _given(d, y)
    below, at = _below(d, y), _at(d, y)
    mass = distance(d.corrected(below), d.corrected(at))
    one_piece = (d.piece(below) == d.piece(at)).t().reshape(mass.shape)
    positive = ~one_piece & (mass > 0)
    across = torch.where(positive, torch.log(torch.where(positive, mass, 1.0)), float("-inf"))
    values = torch.where(one_piece, given.double() + d.log_slope(at), across)
    return torch.where(given.isneginf(), float("-inf"), values).to(given.dtype)


@safe_log_prob.register(RecalibratedPredictive)
def _(d: RecalibratedPredictive, y: Tensor) -> Tensor:
    each = element_log_prob(d, y)
    axes = tuple(range(-len(d.event_shape), 0))
    return each.sum(axes) if axes else each


@crps.register(RecalibratedPredictive)
def _(d: RecalibratedPredictive, y: Tensor) -> Tensor:
    return integrated(d, y) if kind(d) == "count" else recalibrated_crps(d.base, d.curve, y)


@mean.register(RecalibratedPredictive)
def _(d: RecalibratedPredictive) -> Tensor:
    return recalibrated_moments(d.base, d.curve)[0]


@variance.register(RecalibratedPredictive)
def _(d: RecalibratedPredictive) -> Tensor:
    return recalibrated_moments(d.base, d.curve)[1]
