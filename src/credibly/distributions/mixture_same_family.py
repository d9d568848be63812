"""Mixtures within a row, torch's MixtureSameFamily: each row has its own weights and components.

Like the mixture over draws, but with one set of weights a row, on the last batch axis of the components. A vector
target has components over vectors that share the weights; cdf, quantiles and CRPS are those of each element's own
mixture. The CRPS of Gaussians is closed, E|X - y| - E|X - X'|/2 over all pairs of components (Grimit, Gneiting,
Berrocal, Johnson, "The continuous ranked probability score for circular variables", 2006).
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, MixtureSameFamily

from credibly.core.errors import NotSupportedError
from credibly.distributions.affine import affine
from credibly.distributions.crps import crps, expected_distance, integrated
from credibly.distributions.cumulative import cdf, icdf
from credibly.distributions.density import element_log_prob, safe_log_prob
from credibly.distributions.kinds import base_of, kind
from credibly.distributions.mixture_crps import gaussian_parameters
from credibly.distributions.moments import entropy, mean, variance
from credibly.distributions.pit import cdf_below
from credibly.distributions.roots import solve_continuous, solve_counts
from credibly.distributions.rows import Change, rebuild, to
from credibly.distributions.survival import survival
from credibly.distributions.targets import inside_support

__all__ = ["component_log_weights"]


def component_log_weights(d: MixtureSameFamily, *, elementwise: bool) -> Tensor:
    """The normalised log weights (*batch, components), with an axis for every axis of the event where asked for."""
    weights = torch.log_softmax(d.mixture_distribution.logits, -1)
    return weights.reshape(weights.shape + (1,) * len(d.event_shape)) if elementwise else weights


def _axis(d: MixtureSameFamily) -> int:
    """Where the components lie beside rows and elements, counted from the end."""
    return -1 - len(d.event_shape)


def _average(d: MixtureSameFamily, values: Tensor) -> Tensor:
    """The mean over components of values (..., components, *event)."""
    return (component_log_weights(d, elementwise=True).exp() * values).sum(_axis(d))


@base_of.register(MixtureSameFamily)
def _(d: MixtureSameFamily) -> Distribution:
    return base_of(d.component_distribution)


@rebuild.register(MixtureSameFamily)
def _(d: MixtureSameFamily, others: Sequence[Any], change: Change) -> Distribution:
    def change_components(tensors: Sequence[Tensor], event_dim: int | None) -> Tensor:
        return change(tensors, None if event_dim is None else event_dim + 1)

    weights: Any = rebuild(d.mixture_distribution, [e.mixture_distribution for e in others], change)
    components = rebuild(d.component_distribution, [e.component_distribution for e in others], change_components)
    return MixtureSameFamily(weights, components, validate_args=False)


@affine.register(MixtureSameFamily)
def _(d: MixtureSameFamily, loc: Tensor, scale: Tensor) -> Distribution:
    shape = (*d.component_distribution.batch_shape, *d.event_shape)
    spread = [units.unsqueeze(_axis(d)).expand(shape) for units in (loc, scale)]
    components = affine.formula(d.component_distribution, *spread)
    return MixtureSameFamily(d.mixture_distribution, components, validate_args=False)


@inside_support.register(MixtureSameFamily)
def _(d: MixtureSameFamily, targets: Tensor) -> Tensor:
    inside = inside_support.formula(d.component_distribution, targets.unsqueeze(_axis(d)))
    return inside.any(-1 - (inside.dim() - (targets.dim() + 1 - len(d.event_shape))))


@safe_log_prob.register(MixtureSameFamily)
def _(d: MixtureSameFamily, y: Tensor) -> Tensor:
    each = safe_log_prob.formula(d.component_distribution, y.unsqueeze(_axis(d)))
    return torch.logsumexp(component_log_weights(d, elementwise=False) + each, -1)


@element_log_prob.register(MixtureSameFamily)
def _(d: MixtureSameFamily, y: Tensor) -> Tensor:
    each = element_log_prob.formula(d.component_distribution, y.unsqueeze(_axis(d)))
    return torch.logsumexp(component_log_weights(d, elementwise=True) + each, _axis(d))


@mean.register(MixtureSameFamily)
def _(d: MixtureSameFamily) -> Tensor:
    return _average(d, mean.formula(d.component_distribution))


@variance.register(MixtureSameFamily)
def _(d: MixtureSameFamily) -> Tensor:
    """By the law of total variance, about the mean."""
    distance = mean.formula(d.component_distribution) - mean.formula(d).unsqueeze(_axis(d))
    return _average(d, variance.formula(d.component_distribution) + distance.square())


@entropy.register(MixtureSameFamily)
def _(d: MixtureSameFamily) -> Tensor:
    return entropy.refuse(d, "a mixture has no closed form; average -log_prob over draws")


@cdf.register(MixtureSameFamily)
def _(d: MixtureSameFamily, value: Tensor) -> Tensor:
    return _average(d, cdf.formula(d.component_distribution, value.unsqueeze(_axis(d))))


@survival.register(MixtureSameFamily)
def _(d: MixtureSameFamily, value: Tensor) -> Tensor:
    return _average(d, survival.formula(d.component_distribution, value.unsqueeze(_axis(d))))


@cdf_below.register(MixtureSameFamily)
def _(d: MixtureSameFamily, value: Tensor) -> Tensor:
    return _average(d, cdf_below.formula(d.component_distribution, value.unsqueeze(_axis(d))))


@icdf.register(MixtureSameFamily)
def _(d: MixtureSameFamily, q: Tensor) -> Tensor:
    if kind(d) == "class":
        icdf.refuse(d, "a mixture of classes is a Categorical of the averaged probabilities")
    if kind(d) == "count":
        return _icdf_counts(d, q.detach())
    return _icdf_real(d, q.detach())


def _bracket(d: MixtureSameFamily, q: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The smallest, the largest and the mean of the quantiles of the components that have weight."""
    each = icdf.formula(d.component_distribution, q.unsqueeze(_axis(d)))
    weights = component_log_weights(d, elementwise=True)
    weightless = torch.isneginf(weights)
    low = torch.where(weightless, float("inf"), each).amin(_axis(d))
    high = torch.where(weightless, float("-inf"), each).amax(_axis(d))
    return low, high, (weights.exp() * torch.where(weightless, 0.0, each)).sum(_axis(d))


def _icdf_real(d: MixtureSameFamily, q: Tensor) -> Tensor:
    """Newton's method between the quantiles of the components, in float64."""
    precise: Any = to(d, dtype=torch.float64)
    level = q.double()
    inner = torch.where((level > 0) & (level < 1), level, 0.5)
    low, high, start = _bracket(precise, inner)

    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        return cdf.formula(precise, x), element_log_prob.formula(precise, x).exp()

    root = solve_continuous(function, inner, low, high, start)
    bottom, top, _ = _bracket(precise, level)
    return torch.where(level == 0, bottom, torch.where(level == 1, top, root)).to(q.dtype)


def _icdf_counts(d: MixtureSameFamily, q: Tensor) -> Tensor:
    low, high, _ = _bracket(d, torch.where(q < 1, q, 0.5))
    # one more on either side: the mean of the cdfs is rounded apart from each of them
    counts = solve_counts(lambda k: cdf.formula(d, k), q, (low - 1).clamp(min=0), high + 1)
    return torch.where(q < 1, counts, float("inf"))


@crps.register(MixtureSameFamily)
def _(d: MixtureSameFamily, y: Tensor) -> Tensor:
    try:
        loc, scale = gaussian_parameters(d.component_distribution)
    except NotSupportedError:
        return integrated(d, y)
    weights, axis = component_log_weights(d, elementwise=True).exp(), _axis(d)
    far = (weights * expected_distance(y.unsqueeze(axis) - loc, scale)).sum(axis)
    between = torch.hypot(scale.unsqueeze(axis - 1), scale.unsqueeze(axis))
    near = expected_distance(loc.unsqueeze(axis - 1) - loc.unsqueeze(axis), between)
    pairs = weights.unsqueeze(axis - 1) * weights.unsqueeze(axis) * near
    return far - pairs.sum((axis - 1, axis)) / 2
