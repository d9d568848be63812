"""A prediction given by quantiles at stated levels, as a quantile network makes it.

Crossing quantiles are sorted. Between the levels the quantile function is interpolated linearly, which beside an
infinite quantile is infinite; beyond the outer ones nothing is known, and it is refused. The CRPS is twice the mean
pinball loss over the levels (Tilmann Gneiting, Roopesh Ranjan, "Comparing Density Forecasts Using Threshold- and
Quantile-Weighted Scoring Rules", 2011).

Several forecasts of the same rows combine by averaging their quantiles level by level (Roger Ratcliff, "Group reaction
time distributions and an analysis of distribution statistics", 1979, after Vincent). Averaging their distribution
functions, as mixtures do, would need each of them where the others have their outer quantiles, which is beyond what a
forecast says; and the pinball loss is convex, so that the averaged quantiles score at least as well as the
forecasts do on average (Kenneth Lichtendahl, Yael Grushka-Cockayne, Robert Winkler, "Is It Better to Average
Probabilities or Quantiles?", 2013).
"""

from collections.abc import Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

from credibly.core.checks import as_tensor
from credibly.core.errors import NotFiniteError, NotSupportedError, ShapeError
from credibly.core.typing import ArrayLike
from credibly.distributions.affine import affine
from credibly.distributions.crps import crps
from credibly.distributions.cumulative import cdf, icdf
from credibly.distributions.density import safe_log_prob
from credibly.distributions.mixture import combined
from credibly.distributions.predictive import Predictive
from credibly.distributions.rows import Change, rebuild
from credibly.distributions.shapes import broadcast_shape
from credibly.distributions.weights import normalised_log_weights

__all__ = ["QuantileForecast", "pinball_loss"]


class QuantileForecast(Predictive):
    """Quantiles of every row.

    Args:
        levels: (levels,) increasing, strictly between 0 and 1.
        values: (batch, levels) the quantiles at these levels, in the units of the targets; sorted here. Axes before
            the batch are draws, which `combined` averages.

    Raises:
        ShapeError: the shapes do not fit each other.
        ValueError: levels that do not increase, or lie outside (0, 1).
        NotFiniteError: values that are NaN; infinite ones are fine.
    """

    def __init__(self, levels: ArrayLike, values: ArrayLike) -> None:
        quantiles = as_tensor(values)
        quantiles = quantiles if quantiles.is_floating_point() else quantiles.to(torch.get_default_dtype())
        grid = as_tensor(levels, dtype=quantiles.dtype, device=quantiles.device).to(quantiles.dtype)
        if grid.dim() != 1 or quantiles.dim() < 2 or quantiles.shape[-1] != len(grid) or len(grid) == 0:
            raise ShapeError(
                "`levels` must have shape (levels,) and `values` (batch, levels); "
                f"got {tuple(grid.shape)} and {tuple(quantiles.shape)}"
            )
        if not bool(((grid > 0) & (grid < 1)).all()) or not bool((grid.diff() > 0).all()):
            raise ValueError(f"`levels` must increase strictly inside (0, 1); got {grid.tolist()}")
        if bool(quantiles.isnan().any()):
            raise NotFiniteError("`values` must not be NaN")
        super().__init__(quantiles.shape[:-1], torch.Size())
        self.levels = grid
        self.values = quantiles.sort(dim=-1).values

    def _element_support(self) -> Any:
        """Quantiles do not say where targets may lie: all real numbers."""
        return constraints.real

    def _draw(self, shape: torch.Size) -> Tensor:
        self._refuse("sample", "the tails beyond the outer levels are not known")


@rebuild.register(QuantileForecast)
def _(d: QuantileForecast, others: Sequence[Any], change: Change) -> Distribution:
    every = (d, *others)
    return QuantileForecast(change([e.levels for e in every], None), change([e.values for e in every], 1))


@affine.register(QuantileForecast)
def _(d: QuantileForecast, loc: Tensor, scale: Tensor) -> Distribution:
    return QuantileForecast(d.levels, loc.unsqueeze(-1) + scale.unsqueeze(-1) * d.values)


@safe_log_prob.register(QuantileForecast)
def _(d: QuantileForecast, y: Tensor) -> NoReturn:  # noqa: ARG001
    raise NotSupportedError(
        "log_prob is not available for QuantileForecast: quantiles have no density; score them with crps"
    )


@icdf.register(QuantileForecast)
def _(d: QuantileForecast, q: Tensor) -> Tensor:
    lowest, highest = d.levels[0], d.levels[-1]
    slack = 4 * torch.finfo(q.dtype).eps  # a level computed from a coverage is rounded
    if not bool(((q >= lowest - slack) & (q <= highest + slack)).all()):
        raise ValueError(
            f"`q` must lie between the outer levels, {float(lowest):g} and {float(highest):g}; "
            "beyond them this forecast says nothing"
        )
    q = q.expand(broadcast_shape(q.shape, d.batch_shape))
    upper = torch.searchsorted(d.levels, q.contiguous()).clamp(1 if len(d.levels) > 1 else 0, len(d.levels) - 1)
    lower = (upper - 1).clamp(min=0)
    below, above = _at(d, lower), _at(d, upper)
    gap = d.levels[upper] - d.levels[lower]
    weight = torch.where(gap > 0, (q - d.levels[lower]) / torch.where(gap > 0, gap, 1.0), 0.0).clamp(0, 1)
    weight = torch.where(q - d.levels[lower] <= slack, 0.0, torch.where(d.levels[upper] - q <= slack, 1.0, weight))
    return _between(below, above, weight)


def _at(d: QuantileForecast, index: Tensor) -> Tensor:
    """The quantiles (..., batch) at an index for every row."""
    return d.values.expand(index.shape + d.values.shape[-1:]).gather(-1, index.unsqueeze(-1)).squeeze(-1)


def _between(below: Tensor, above: Tensor, weight: Tensor) -> Tensor:
    """Linear interpolation that is exact at both ends, also infinite ones; between two infinities the nearer one."""
    opposite = below.isinf() & above.isinf()
    nearer = torch.where(weight <= 0.5, below, above)
    inner = torch.where(opposite, nearer, torch.where(below.isinf(), below, below + weight * (above - below)))
    return torch.where(weight <= 0, below, torch.where((weight >= 1) | (below == above), above, inner))


@cdf.register(QuantileForecast)
def _(d: QuantileForecast, value: Tensor) -> Tensor:
    low, high = d.values[..., 0], d.values[..., -1]
    if not bool(((value >= low) & (value <= high)).all()):
        raise ValueError(
            "`values` must lie between each row's outer quantiles; beyond them this forecast says nothing "
            f"but that the cdf is below {float(d.levels[0]):g} or above {float(d.levels[-1]):g}"
        )
    rank = _rank(d, value)
    lower = (rank - 1).clamp(min=0)
    upper = rank.clamp(max=len(d.levels) - 1)
    below, above = _at(d, lower), _at(d, upper)
    gap = above - below
    weight = torch.where(gap > 0, (value - below) / torch.where(gap > 0, gap, 1.0), 0.0)
    weight = torch.where(torch.isfinite(weight), weight, 0.0)
    return d.levels[lower] + weight * (d.levels[upper] - d.levels[lower])


def _rank(d: QuantileForecast, value: Tensor) -> Tensor:
    """How many of its row's quantiles are at most the value: (..., *batch)."""
    shape = broadcast_shape(value.shape, d.batch_shape)
    points = value.to(d.values.dtype).expand(shape).reshape(-1, *d.batch_shape)
    grid = points.movedim(0, -1).contiguous()
    return torch.searchsorted(d.values, grid, right=True).movedim(-1, 0).reshape(shape)


@crps.register(QuantileForecast)
def _(d: QuantileForecast, y: Tensor) -> Tensor:
    return 2 * pinball_loss(d.levels, d.values, y)


def pinball_loss(levels: Tensor, quantiles: Tensor, targets: Tensor) -> Tensor:
    """The mean over levels of `max(q e, (q - 1) e)` for the error e of the quantile at level q.

    Args:
        levels: (levels,).
        quantiles: (*batch, levels), in any order of size.
        targets: (*batch,).
    """
    error = targets.unsqueeze(-1) - quantiles
    return torch.maximum(levels * error, (levels - 1) * error).mean(-1)


@combined.register(QuantileForecast)
def _(d: QuantileForecast, log_weights: Tensor | None) -> Predictive:
    """The quantiles of all draws, averaged level by level."""
    weights = normalised_log_weights(log_weights, d.batch_shape[0], d.values).double().exp()
    averaged = torch.einsum("k,k...->...", weights, d.values.double())
    return QuantileForecast(d.levels, averaged.to(d.values.dtype))
