"""Cumulative functions, quantiles and CRPS of mixtures.

The cdf is the weighted mean of the draws' cdfs. A quantile lies between the smallest and the largest of
the draws' quantiles; Newton's method finds it there, in float64, in a handful of evaluations. The CRPS of
a mixture of Gaussians is closed: E|X - y| - E|X - X'|/2 over all pairs of draws (Eric Grimit, Tilmann
Gneiting, Veronica Berrocal, Nicholas Johnson, "The continuous ranked probability score for circular
variables and its application to mesoscale forecast ensemble verification", 2006).
"""

from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, Independent, Normal

from credibly.core.errors import NotSupportedError
from credibly.distributions.classes import class_log_probs, class_probs
from credibly.distributions.crps import crps, expected_distance
from credibly.distributions.cumulative import cdf, class_cdf, class_icdf, icdf
from credibly.distributions.density import element_log_prob
from credibly.distributions.kinds import base_of, kind, reference
from credibly.distributions.mixture import MixturePredictive, in_row_chunks, weighted_mean
from credibly.distributions.operations import Operation
from credibly.distributions.roots import solve_continuous, solve_counts
from credibly.distributions.rows import to

__all__ = ["gaussian_parameters"]


@cdf.register(MixturePredictive)
def _(d: MixturePredictive, value: Tensor) -> Tensor:
    if kind(d) == "class":
        return class_cdf(class_log_probs(d), value).to(reference(d).dtype)
    return in_row_chunks(d, value, _cdf)


@icdf.register(MixturePredictive)
def _(d: MixturePredictive, q: Tensor) -> Tensor:
    if kind(d) == "class":
        return class_icdf(class_log_probs(d), q, reference(d).dtype)
    return in_row_chunks(d, q.detach(), _icdf_counts if kind(d) == "count" else _icdf_real)


def _over_draws(d: MixturePredictive, value: Tensor) -> tuple[Tensor, int]:
    """The values with an axis for the draws in front of the rows, and that axis counted from the end."""
    axis = -2 - len(d.event_shape)
    return value.unsqueeze(axis), axis


def _cdf(d: MixturePredictive, value: Tensor) -> Tensor:
    spread, axis = _over_draws(d, value)
    return weighted_mean(d, cdf.formula(d.components, spread), axis)


def _density(d: MixturePredictive, value: Tensor) -> Tensor:
    spread, axis = _over_draws(d, value)
    return weighted_mean(d, element_log_prob(d.components, spread).exp(), axis)


def _bracket(d: MixturePredictive, q: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The smallest, the largest and the mean of the quantiles of the draws that have weight."""
    spread, axis = _over_draws(d, q)
    each = icdf.formula(d.components, spread)
    weightless = torch.isneginf(d.log_weights).reshape(-1, *(1,) * (-1 - axis))
    low = torch.where(weightless, float("inf"), each).amin(axis)
    high = torch.where(weightless, float("-inf"), each).amax(axis)
    return low, high, weighted_mean(d, torch.where(weightless, 0.0, each), axis)


def _icdf_real(d: MixturePredictive, q: Tensor) -> Tensor:
    dtype = q.dtype
    precise = to(d, dtype=torch.float64)
    assert isinstance(precise, MixturePredictive)
    level = q.double()
    inner = torch.where((level > 0) & (level < 1), level, 0.5)
    low, high, middle = _bracket(precise, inner)
    root = solve_continuous(lambda x: (_cdf(precise, x), _density(precise, x)), inner, low, high, middle)
    if bool((inner == level).all()):
        return root.to(dtype)
    bottom, top, _ = _bracket(precise, level)
    return torch.where(level == 0, bottom, torch.where(level == 1, top, root)).to(dtype)


def _icdf_counts(d: MixturePredictive, q: Tensor) -> Tensor:
    low, high, _ = _bracket(d, torch.where(q < 1, q, 0.5))
    # one more on either side: the mean of the cdfs is rounded apart from each of them
    counts = solve_counts(lambda k: _cdf(d, k), q, (low - 1).clamp(min=0), high + 1)
    return torch.where(q < 1, counts, float("inf"))


@crps.register(MixturePredictive)
def _(d: MixturePredictive, y: Tensor) -> Tensor:
    if kind(d) != "class":
        if d.num_draws == 1:
            return crps.formula(d.components, y.unsqueeze(0)).squeeze(0)
        gaussian_parameters(d.components)
        return in_row_chunks(d, y, _crps_gaussian, per_row=d.num_draws**2)
    probs = class_probs(d)
    if probs.shape != y.shape:  # a Categorical
        return crps.formula(base_of(d), y)
    return (probs - y) ** 2


@Operation
def gaussian_parameters(d: Distribution) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of a Gaussian, per element.

    Raises:
        NotSupportedError: another distribution.
    """
    raise NotSupportedError(
        f"crps is closed for mixtures of Gaussians, not of {type(base_of(d)).__name__}; "
        "use the ensemble form: crps(from_draws(d.sample((1000,))), y)"
    )


@gaussian_parameters.register(Normal)
def _(d: Normal) -> tuple[Tensor, Tensor]:
    return d.loc, d.scale


@gaussian_parameters.register(Independent)
def _(d: "Independent[Any]") -> tuple[Tensor, Tensor]:
    return gaussian_parameters(d.base_dist)


def _crps_gaussian(d: MixturePredictive, y: Tensor) -> Tensor:
    loc, scale = gaussian_parameters(d.components)
    far = weighted_mean(d, expected_distance(y - loc, scale))
    between = torch.hypot(scale.unsqueeze(1), scale.unsqueeze(0))
    near = expected_distance(loc.unsqueeze(1) - loc.unsqueeze(0), between)
    return far - weighted_mean(d, weighted_mean(d, near)) / 2
