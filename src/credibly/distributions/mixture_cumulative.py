"""Cumulative functions and quantiles of mixtures.

The cdf is the weighted mean of the draws' cdfs. A quantile lies between the smallest and the largest of
the draws' quantiles; Newton's method finds it there, in float64, in a handful of evaluations.
"""

import torch
from torch import Tensor

from credibly.distributions.classes import class_log_probs
from credibly.distributions.cumulative import cdf, class_cdf, class_icdf, icdf
from credibly.distributions.density import element_log_prob
from credibly.distributions.kinds import kind, reference
from credibly.distributions.mixture import MixturePredictive, in_row_chunks, weighted_mean
from credibly.distributions.mixture_crps import gaussian_parameters
from credibly.distributions.mixture_quantiles import mixture_gap, staircase_level
from credibly.distributions.roots import solve_counts, solve_increasing
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


def _weights(d: MixturePredictive, axis: int) -> Tensor:
    """The weights in float64, with as many axes after the draws as the values have."""
    weights = d.log_weights.double().exp()
    return (weights / weights.sum()).reshape(-1, *(1,) * (-1 - axis))


def _bracket(d: MixturePredictive, q: Tensor) -> tuple[Tensor, Tensor]:
    """The smallest and the largest of the quantiles of the draws that have weight."""
    spread, axis = _over_draws(d, q)
    each = icdf.formula(d.components, spread)
    weightless = _weights(d, axis) == 0
    return (
        torch.where(weightless, float("inf"), each).amin(axis),
        torch.where(weightless, float("-inf"), each).amax(axis),
    )


def _start(d: MixturePredictive, q: Tensor) -> Tensor:
    """The quantile as it would be if the draws did not overlap."""
    spread, axis = _over_draws(d, q)
    medians = icdf.formula(d.components, torch.full_like(spread, 0.5))
    place, level, first, last = staircase_level(medians, _weights(d, axis), q, axis)
    return icdf.formula(d.components, level).gather(axis, place).clamp(first, last).squeeze(axis)


def _icdf_real(d: MixturePredictive, q: Tensor) -> Tensor:
    dtype = q.dtype
    precise = to(d, dtype=torch.float64)
    assert isinstance(precise, MixturePredictive)
    level = q.double()
    inner = torch.where((level > 0) & (level < 1), level, 0.5)
    low, high = _bracket(precise, inner)

    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        spread, axis = _over_draws(precise, x)
        cdfs = cdf.formula(precise.components, spread)
        densities = element_log_prob(precise.components, spread).exp()
        return mixture_gap(cdfs, densities, _weights(precise, axis), inner, axis)

    root = solve_increasing(function, low, high, _start(precise, inner))
    if bool((inner == level).all()):
        return root.to(dtype)
    bottom, top = _bracket(precise, level)
    return torch.where(level == 0, bottom, torch.where(level == 1, top, root)).to(dtype)


def _icdf_counts(d: MixturePredictive, q: Tensor) -> Tensor:
    low, high = _bracket(d, torch.where(q < 1, q, 0.5))
    # one more on either side: the mean of the cdfs is rounded apart from each of them
    counts = solve_counts(lambda k: _cdf(d, k), q, (low - 1).clamp(min=0), high + 1)
    return torch.where(q < 1, counts, float("inf"))
