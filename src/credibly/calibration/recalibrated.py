r"""A distribution whose distribution function goes through a piecewise linear one: R(F(y)).

R increases strictly from (0, 0) to (1, 1), so that quantiles are those of F at R^-1(q), and the log density is that
of F plus log R'(F(y)). A count k has the mass R(F(k)) - R(F(k - 1)). Of several outputs each has its own R; their
joint density is known where they are independent given the row.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from credibly.calibration.piecewise import interpolate, segment
from credibly.calibration.recalibrated_crps import piecewise_crps
from credibly.core.errors import NotSupportedError, ShapeError
from credibly.distributions.crps import crps, integrated
from credibly.distributions.cumulative import cdf, icdf
from credibly.distributions.density import element_log_prob, safe_log_prob
from credibly.distributions.kinds import base_of, kind, reference
from credibly.distributions.pit import cdf_below
from credibly.distributions.predictive import Predictive
from credibly.distributions.rows import Change, rebuild
from credibly.distributions.shapes import broadcast_shape
from credibly.distributions.targets import inside_support

__all__ = ["RecalibratedPredictive"]


class RecalibratedPredictive(Predictive):
    """R(F(y)) for the F of a base.

    Args:
        base: a distribution of real numbers or counts, with a cdf.
        levels: F at the knots of R, (outputs, knots), from 0 to 1; padding repeats the last knot.
        recalibrated: R at the knots.

    Raises:
        NotSupportedError: the base is over classes.
        ShapeError: another number of outputs, or tables of different shapes.
    """

    def __init__(self, base: Distribution, levels: Tensor, recalibrated: Tensor) -> None:
        if kind(base) == "class":
            raise NotSupportedError(f"RecalibratedPredictive is for numbers and counts; got {type(base).__name__}")
        outputs = base.event_shape.numel()
        if levels.shape != recalibrated.shape or levels.dim() != 2 or len(levels) != outputs:
            raise ShapeError(
                f"`levels` and `recalibrated` must have shape (outputs, knots) with {outputs} outputs; "
                f"got {tuple(levels.shape)} and {tuple(recalibrated.shape)}"
            )
        super().__init__(base.batch_shape, base.event_shape)
        self.base = base
        device = reference(base).device
        self.levels, self.recalibrated = (table.to(device, torch.float64) for table in (levels, recalibrated))

    def corrected(self, probs: Tensor) -> Tensor:
        """R of levels (..., *event_shape), float64."""
        return self._each(probs, lambda points: interpolate(self.levels, self.recalibrated, points))

    def inverse(self, probs: Tensor) -> Tensor:
        """R^-1 of levels (..., *event_shape), float64."""
        return self._each(probs, lambda points: interpolate(self.recalibrated, self.levels, points))

    def piece(self, probs: Tensor) -> Tensor:
        """The linear piece of R in which levels (..., *event_shape) lie."""
        last = (self.levels.diff(dim=-1) > 0).sum(-1, keepdim=True) - 1  # padding has no length
        return self._each(probs, lambda points: torch.minimum(segment(self.levels, points), last))

    def log_slope(self, probs: Tensor) -> Tensor:
        """Log R' at levels (..., *event_shape), float64."""
        slopes = torch.log(self.recalibrated.diff(dim=-1)) - torch.log(self.levels.diff(dim=-1))
        index = self.piece(probs).reshape(-1, len(self.levels)).t()
        return slopes.gather(-1, index).t().reshape(probs.shape)

    def _each(self, probs: Tensor, curve: Any) -> Tensor:
        outputs = len(self.levels)
        flat = probs.double().reshape(-1, outputs).t()
        return curve(flat).t().reshape(probs.shape)  # type: ignore[no-any-return]

    def _draw(self, shape: torch.Size) -> Tensor:
        like = reference(self.base)
        size = shape + self.batch_shape + self.event_shape
        return icdf.formula(self, torch.rand(size, dtype=like.dtype, device=like.device))


@base_of.register(RecalibratedPredictive)
def _(d: RecalibratedPredictive) -> Distribution:
    return base_of(d.base)


@rebuild.register(RecalibratedPredictive)
def _(d: RecalibratedPredictive, others: Sequence[Any], change: Change) -> Distribution:
    every = (d, *others)
    base = rebuild(d.base, [e.base for e in others], change)
    return RecalibratedPredictive(
        base, change([e.levels for e in every], None), change([e.recalibrated for e in every], None)
    )


@inside_support.register(RecalibratedPredictive)
def _(d: RecalibratedPredictive, targets: Tensor) -> Tensor:
    return inside_support(d.base, targets)


@cdf.register(RecalibratedPredictive)
def _(d: RecalibratedPredictive, value: Tensor) -> Tensor:
    below = cdf.formula(d.base, value)
    return d.corrected(below).to(below.dtype)


@cdf_below.register(RecalibratedPredictive)
def _(d: RecalibratedPredictive, value: Tensor) -> Tensor:
    below = cdf_below.formula(d.base, value)
    return d.corrected(below).to(below.dtype)


@icdf.register(RecalibratedPredictive)
def _(d: RecalibratedPredictive, q: Tensor) -> Tensor:
    levels = d.inverse(q.expand(broadcast_shape(q.shape, d.batch_shape + d.event_shape)))
    return icdf.formula(d.base, levels.to(q.dtype))


@element_log_prob.register(RecalibratedPredictive)
def _(d: RecalibratedPredictive, y: Tensor) -> Tensor:
    if kind(d) == "count":
        return _log_mass(d, y)
    given = _given(d, y)
    values = given.double() + d.log_slope(cdf.formula(d.base, y))
    return torch.where(given.isneginf(), given.double(), values).to(given.dtype)


def _given(d: RecalibratedPredictive, y: Tensor) -> Tensor:
    """Log densities of the base's elements; with one output any base that has a density will do."""
    return element_log_prob(d.base, y) if d.event_shape else safe_log_prob(d.base, y)


def _log_mass(d: RecalibratedPredictive, y: Tensor) -> Tensor:
    """Within one piece of R the mass of F times the slope, which has digits also where F is all but 1."""
    given = _given(d, y)
    below, at = cdf_below.formula(d.base, y), cdf.formula(d.base, y)
    mass = d.corrected(at) - d.corrected(below)
    one_piece = d.piece(below) == d.piece(at)
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
    return integrated(d, y) if kind(d) == "count" else piecewise_crps(d.base, d.levels, d.recalibrated, y)
