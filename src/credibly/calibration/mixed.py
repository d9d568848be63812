r"""Equally weighted mixtures of forecasts of the same rows, of any type: what several maps make of one forecast.

F(y) = mean_j F_j(y), and quantiles solve it. Families are stacked and mixtures joined, so that the result is a mixture
over draws like any other. Of one base F the recalibrations R_j(F) average to (mean_j R_j)(F), with the knots of all:
for one output the mixture is itself a recalibrated forecast. Conformal predictive distributions about the same
means average to one with the errors of all. Both are kept beside their parts, which tell how much the parts differ.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from credibly.calibration.conformal_predictive import ConformalPredictive
from credibly.calibration.piecewise import interpolate_tails, padded
from credibly.calibration.recalibrated import RecalibratedPredictive
from credibly.calibration.tails import Tails, place
from credibly.calibration.upper_quantiles import upper_quantile
from credibly.core.errors import NotSupportedError, ShapeError
from credibly.distributions.affine import AffineView
from credibly.distributions.crps import crps, integrated
from credibly.distributions.cumulative import cdf, icdf
from credibly.distributions.density import element_log_prob, safe_log_prob
from credibly.distributions.empirical import Empirical
from credibly.distributions.kinds import base_of, kind, reference
from credibly.distributions.mixture import MixturePredictive
from credibly.distributions.moments import mean, variance
from credibly.distributions.operations import ElementwiseOperation, Operation
from credibly.distributions.pit import cdf_below
from credibly.distributions.predictive import Predictive
from credibly.distributions.quantiles import QuantileForecast
from credibly.distributions.roots import solve_counts, solve_increasing
from credibly.distributions.rows import Change, rebuild
from credibly.distributions.survival import survival
from credibly.distributions.targets import inside_support

__all__ = ["MixedPredictive", "mixture_of"]


class MixedPredictive(Predictive):
    """An equally weighted mixture of forecasts of the same rows.

    Args:
        parts: the forecasts, with one batch_shape and event_shape.
        whole: the same mixture, output by output, as one distribution; None where there is none.

    Raises:
        ShapeError: no parts, or parts of different shapes.
    """

    def __init__(self, parts: Sequence[Distribution], whole: Predictive | None = None) -> None:
        shapes = {(part.batch_shape, part.event_shape) for part in parts}
        if len(shapes) != 1:
            raise ShapeError(f"`parts` must be forecasts of one shape, at least one; got {len(parts)} of {shapes}")
        super().__init__(parts[0].batch_shape, parts[0].event_shape)
        self.first, self.parts, self.whole = parts[0], tuple(parts), whole

    @property
    def aleatoric_variance(self) -> Tensor:
        """The mean over parts of the variance, (batch, *event): what would remain if the right part were known."""
        return self.average(variance)

    @property
    def epistemic_variance(self) -> Tensor:
        """The variance over parts of the mean, (batch, *event)."""
        return self.stacked(mean).double().var(0, correction=0).to(mean(self.first).dtype)

    def interval(self, coverage: float) -> tuple[Tensor, Tensor]:
        """The equal-tailed interval (lower, upper), each (batch, *event); see `Predictive.interval`."""
        return super().interval(coverage) if self.whole is None else self.whole.interval(coverage)

    def stacked(self, operation: Callable[..., Tensor], *args: Tensor) -> Tensor:
        """What an operation gives for every part, along a new first axis."""
        return torch.stack([operation(part, *args) for part in self.parts])

    def average(self, operation: Callable[..., Tensor], *args: Tensor) -> Tensor:
        """The mean over parts, accumulated in float64."""
        values = self.stacked(operation, *args)
        return values.double().mean(0).to(values.dtype)

    def _element_support(self) -> Any:
        return getattr(self.first, "support", None)

    def _draw(self, shape: torch.Size) -> Tensor:
        chosen, like = torch.randint(len(self.parts), shape), reference(self.first)
        draws = torch.empty(shape + self.batch_shape + self.event_shape, dtype=like.dtype, device=like.device)
        for index, part in enumerate(self.parts):
            own = chosen == index
            draws[own] = part.sample(torch.Size([int(own.sum())])).to(like.dtype)
        return draws


@base_of.register(MixedPredictive)
def _(d: MixedPredictive) -> Distribution:
    return base_of(d.first)


@rebuild.register(MixedPredictive)
def _(d: MixedPredictive, others: Sequence[Any], change: Change) -> Distribution:
    parts = [rebuild(p, [e.parts[i] for e in others], change) for i, p in enumerate(d.parts)]
    whole: Any = None if d.whole is None else rebuild(d.whole, [e.whole for e in others], change)
    return MixedPredictive(parts, whole)


@inside_support.register(MixedPredictive)
def _(d: MixedPredictive, targets: Tensor) -> Tensor:
    return d.stacked(inside_support, targets).any(0)


def _averaged(operation: ElementwiseOperation | Operation[[Tensor], Tensor]) -> None:
    @operation.register(MixedPredictive)
    def _(d: MixedPredictive, value: Tensor) -> Tensor:
        return d.average(operation.formula, value) if d.whole is None else operation.formula(d.whole, value)


for _operation in (cdf, cdf_below, survival):
    _averaged(_operation)


def _log_averaged(operation: Operation[[Tensor], Tensor]) -> None:
    @operation.register(MixedPredictive)
    def _(d: MixedPredictive, y: Tensor) -> Tensor:
        return torch.logsumexp(d.stacked(operation.formula, y), 0) - math.log(len(d.parts))


for _density in (safe_log_prob, element_log_prob):
    _log_averaged(_density)


@mean.register(MixedPredictive)
def _(d: MixedPredictive) -> Tensor:
    return d.average(mean) if d.whole is None else mean(d.whole)


@variance.register(MixedPredictive)
def _(d: MixedPredictive) -> Tensor:
    return d.aleatoric_variance + d.epistemic_variance if d.whole is None else variance(d.whole)


@crps.register(MixedPredictive)
def _(d: MixedPredictive, y: Tensor) -> Tensor:
    return integrated(d, y) if d.whole is None else crps.formula(d.whole, y)


@icdf.register(MixedPredictive)
def _(d: MixedPredictive, q: Tensor) -> Tensor:
    if d.whole is not None:
        return icdf.formula(d.whole, q)
    each = d.stacked(icdf.formula, q)
    low, high = each.amin(0), each.amax(0)
    if kind(d) == "count":  # one more on either side: the mean of the cdfs is rounded apart from each of them
        return solve_counts(lambda k: cdf.formula(d, k), q, (low - 1).clamp(min=0), high + 1)
    return _bisected(lambda y: cdf.formula(d, y) < q, low, high)


@upper_quantile.register(MixedPredictive)
def _(d: MixedPredictive, q: Tensor) -> Tensor:
    if d.whole is not None:
        return upper_quantile.formula(d.whole, q)
    each = d.stacked(upper_quantile.formula, q)
    low, high = each.amin(0), each.amax(0)
    if kind(d) == "count":
        return solve_counts(lambda k: -survival.formula(d, k), -q, (low - 1).clamp(min=0), high + 1)
    return _bisected(lambda y: survival.formula(d, y) > q, low, high)


def _bisected(below: Callable[[Tensor], Tensor], low: Tensor, high: Tensor) -> Tensor:
    """Where a condition ends that holds at the lower end; a common end, such as infinity, is the answer."""
    none = torch.full_like(low, math.nan)  # no slope: every step halves the bracket
    inside = (low < high) & low.isfinite() & high.isfinite()
    start, stop = torch.where(inside, low, 0.0), torch.where(inside, high, 0.0)
    found = solve_increasing(lambda y: (torch.where(below(y), -1.0, 1.0).to(y.dtype), none), start, stop, none)
    return torch.where(inside, found, torch.where(low.isfinite(), low, high))


# -- mixtures by type ----------------------------------------------------------------------------------------------


@Operation
def mixture_of(first: Distribution, others: Sequence[Any]) -> Predictive:
    """The equally weighted mixture of distributions of one type.

    Args:
        first: the first of them; the general entry is for torch's own families, (rows,).
        others: the rest.

    Raises:
        TypeError: they are of different types.
        NotSupportedError: quantile forecasts.
    """
    return MixturePredictive(rebuild(first, _alike(first, others), _stack))


def _alike(first: Distribution, others: Sequence[Any]) -> Sequence[Any]:
    for other in others:
        if type(other) is not type(first):
            raise TypeError(
                f"the maps must give distributions of one type; got {type(first).__name__} and {type(other).__name__}"
            )
    return others


def _stack(tensors: Sequence[Tensor], event_dim: int | None) -> Tensor:
    if event_dim is None:
        raise NotSupportedError("forecasts that share numbers between their rows cannot be stacked")
    return torch.stack(tuple(tensors))


@mixture_of.register(Predictive)
def _(first: Predictive, others: Sequence[Any]) -> Predictive:
    return MixedPredictive([first, *_alike(first, others)])


@mixture_of.register(AffineView)
def _(first: AffineView, others: Sequence[Any]) -> Predictive:
    if isinstance(first.base, Predictive):
        return MixedPredictive([first, *_alike(first, others)])
    return MixturePredictive(rebuild(first, _alike(first, others), _stack))


@mixture_of.register(MixturePredictive)
def _(first: MixturePredictive, others: Sequence[Any]) -> Predictive:
    """The draws of all: (maps * num_draws, rows)."""

    def join(tensors: Sequence[Tensor], event_dim: int | None) -> Tensor:
        return _stack(tensors, None) if event_dim is None else torch.cat(tuple(tensors))

    every = (first, *_alike(first, others))
    components = rebuild(first.components, [e.components for e in every[1:]], join)
    return MixturePredictive(components, torch.cat([e.log_weights for e in every]))


@mixture_of.register(Empirical)
def _(first: Empirical, others: Sequence[Any]) -> Predictive:
    every = (first, *_alike(first, others))
    weights = None if all(e.equal_weights for e in every) else torch.cat([e.log_weights for e in every])
    return Empirical(torch.cat([e.draws for e in every]), weights)


@mixture_of.register(QuantileForecast)
def _(first: QuantileForecast, others: Sequence[Any]) -> Predictive:  # noqa: ARG001
    raise NotSupportedError("quantile forecasts have no mixture: nothing is known beyond their outer quantiles")


@mixture_of.register(RecalibratedPredictive)
def _(first: RecalibratedPredictive, others: Sequence[Any]) -> Predictive:
    every = (first, *_alike(first, others))
    if not all(e.base is first.base for e in every):
        return MixedPredictive(every)
    curves = [_mean_curve([e.curve for e in every], output) for output in range(len(first.levels))]
    tables = [torch.stack([padded(tail) for tail in zip(*side, strict=True)], -1) for side in zip(*curves, strict=True)]
    return MixedPredictive(every, RecalibratedPredictive(first.base, tables[0], tables[1]))


def _mean_curve(curves: Sequence[tuple[Tails, Tails]], output: int) -> tuple[Tails, Tails]:
    """The knots of all curves of one output, and the mean of the curves there."""
    own = [[Tails(*(tail[output].unsqueeze(0) for tail in side)) for side in curve] for curve in curves]
    knots = Tails(*(torch.cat([side[0][tail][0] for side in own]) for tail in (0, 1)))
    keys, order = place(knots).sort()
    first = torch.cat([keys.new_ones(1, dtype=torch.bool), keys.diff() != 0])
    knots = Tails(*(tail[order][first] for tail in knots))
    points = Tails(*(tail.unsqueeze(0) for tail in knots))
    values = [interpolate_tails(levels, recalibrated, points) for levels, recalibrated in own]
    return knots, Tails(*(torch.stack([each[tail][0] for each in values]).mean(0) for tail in (0, 1)))


@mixture_of.register(ConformalPredictive)
def _(first: ConformalPredictive, others: Sequence[Any]) -> Predictive:
    every = (first, *_alike(first, others))
    same = all(torch.equal(getattr(e, name), getattr(first, name)) for e in every for name in ("loc", "scale", "u"))
    if not same or len({(len(e.errors), e.num_fits) for e in every}) > 1:
        return MixedPredictive(every)
    errors = torch.cat([e.errors for e in every]).sort().values
    num_fits = sum(e.num_fits for e in every)
    return MixedPredictive(every, ConformalPredictive(first.loc, first.scale, errors, first.u, num_fits))
