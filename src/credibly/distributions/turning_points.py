"""Where a density turns: what is needed to find every place at which it crosses a level.

A mixture is taken apart into components, and of each component the points are known at which its density changes from
rising to falling or back. Between neighbouring turning points of all components each of them is monotone, so that its
values at the ends of a segment bound it inside. For a type without an entry the turning points are looked for on a
grid of quantiles.
"""

from typing import Any

import torch
from torch import Tensor
from torch.distributions import (
    Beta,
    Distribution,
    Exponential,
    Gamma,
    HalfNormal,
    Independent,
    Laplace,
    LogNormal,
    MixtureSameFamily,
    Normal,
    StudentT,
    Uniform,
    Weibull,
)

from credibly.distributions.affine import AffineView
from credibly.distributions.cumulative import icdf
from credibly.distributions.density import element_log_prob
from credibly.distributions.marginal import MarginalPredictive
from credibly.distributions.mixture import MixturePredictive
from credibly.distributions.mixture_same_family import component_log_weights
from credibly.distributions.operations import Operation

__all__ = ["component_log_probs", "turning_points"]

_GRID = 512  # quantiles between which a density of unknown form is taken to turn once at most
_GOLDEN = (5**0.5 - 1) / 2


@Operation
def component_log_probs(d: Distribution, y: Tensor) -> Tensor:
    """Log weight plus log density of every component, (components, *y.shape); one component unless d is a mixture.

    Args:
        d: a distribution of numbers.
        y: (*batch, *event), unchecked; -inf comes back outside the support.
    """
    return element_log_prob.formula(d, y).unsqueeze(0)


@Operation
def turning_points(d: Distribution) -> Tensor:
    """Points between which the density of every component is monotone, (points, *batch, *event), in any order."""
    with torch.no_grad():
        return _on_a_grid(d)


def _on_a_grid(d: Distribution) -> Tensor:
    """Every local extreme among a grid of quantiles, made exact by golden section; flat elsewhere."""
    shape = d.batch_shape + d.event_shape
    first: Any = icdf.formula(d, torch.full(shape, 0.5))
    levels = (torch.arange(_GRID, dtype=first.dtype, device=first.device) + 0.5) / _GRID
    grid = torch.stack([icdf.formula(d, torch.full_like(first, float(level))) for level in levels])
    heights = element_log_prob.formula(d, grid)
    middle = heights[1:-1]
    sign = torch.where((middle >= heights[:-2]) & (middle >= heights[2:]), 1.0, -1.0)
    turns = (sign > 0) | ((middle <= heights[:-2]) & (middle <= heights[2:]))
    low, high = grid[:-2], grid[2:]
    for _ in range(80):
        left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
        rising = sign * element_log_prob.formula(d, left) < sign * element_log_prob.formula(d, right)
        low, high = torch.where(rising, left, low), torch.where(rising, high, right)
    return torch.where(turns, (low + high) / 2, grid[1:-1])


@component_log_probs.register(Independent)
def _(d: "Independent[Any]", y: Tensor) -> Tensor:
    return component_log_probs.formula(d.base_dist, y)


@turning_points.register(Independent)
def _(d: "Independent[Any]") -> Tensor:
    return turning_points.formula(d.base_dist)


@component_log_probs.register(MarginalPredictive)
def _(d: MarginalPredictive, y: Tensor) -> Tensor:
    return component_log_probs.formula(d.marginal, y)


@turning_points.register(MarginalPredictive)
def _(d: MarginalPredictive) -> Tensor:
    return turning_points.formula(d.marginal)


@component_log_probs.register(AffineView)
def _(d: AffineView, y: Tensor) -> Tensor:
    return component_log_probs.formula(d.base, d.standard(y)) - torch.log(d.scale)


@turning_points.register(AffineView)
def _(d: AffineView) -> Tensor:
    return d.loc + d.scale * turning_points.formula(d.base)


@component_log_probs.register(MixturePredictive)
def _(d: MixturePredictive, y: Tensor) -> Tensor:
    dims = 1 + len(d.event_shape)
    each = component_log_probs.formula(d.components, y.unsqueeze(-1 - dims))  # (inner, ..., draws, rows, *event)
    weighted = d.log_weights.reshape(-1, *(1,) * dims) + each
    return weighted.movedim(-1 - dims, 1).flatten(0, 1)


@turning_points.register(MixturePredictive)
def _(d: MixturePredictive) -> Tensor:
    return turning_points.formula(d.components).flatten(0, 1)


@component_log_probs.register(MixtureSameFamily)
def _(d: MixtureSameFamily, y: Tensor) -> Tensor:
    axis = -1 - len(d.event_shape)
    each = component_log_probs.formula(d.component_distribution, y.unsqueeze(axis))
    weighted = component_log_weights(d, elementwise=True) + each
    return weighted.movedim(axis, 1).flatten(0, 1)


@turning_points.register(MixtureSameFamily)
def _(d: MixtureSameFamily) -> Tensor:
    axis = -1 - len(d.event_shape)
    return turning_points.formula(d.component_distribution).movedim(axis, 1).flatten(0, 1)


@turning_points.register(Normal, Laplace, StudentT)
def _(d: Any) -> Tensor:
    return _expanded(d, d.loc)


@turning_points.register(LogNormal)
def _(d: LogNormal) -> Tensor:
    return _expanded(d, torch.exp(d.loc - d.scale**2))


@turning_points.register(Exponential, HalfNormal)
def _(d: Any) -> Tensor:
    return _expanded(d, torch.zeros_like(d.mean))


@turning_points.register(Uniform)
def _(d: Uniform) -> Tensor:
    return torch.stack([d.low.expand(d.batch_shape), d.high.expand(d.batch_shape)])


@turning_points.register(Gamma)
def _(d: Gamma) -> Tensor:
    return _expanded(d, (d.concentration - 1).clamp(min=0) / d.rate)


@turning_points.register(Weibull)
def _(d: Weibull) -> Tensor:
    inverse = 1 / d.concentration
    return _expanded(d, d.scale * (1 - inverse).clamp(min=0) ** inverse)


@turning_points.register(Beta)
def _(d: Beta) -> Tensor:
    a, b = d.concentration1 - 1, d.concentration0 - 1
    turns = a * b > 0  # both ends rise, or both fall; else it is monotone
    return _expanded(d, torch.where(turns, a / torch.where(turns, a + b, 1.0), 0.0))


def _expanded(d: Distribution, values: Tensor) -> Tensor:
    """One point for every element."""
    return values.expand(d.batch_shape).unsqueeze(0)
