"""The CRPS of mixtures over draws.

Of Gaussians it is closed: E|X - y| - E|X - X'|/2, the latter over all pairs of draws (Eric Grimit, Tilmann Gneiting,
Veronica Berrocal, Nicholas Johnson, "The continuous ranked probability score for circular variables and its
application to mesoscale forecast ensemble verification", 2006). Of others it is integrated from the mixture's cdf, and
of counts summed.
"""

from typing import Any

import torch
from torch import Tensor
from torch.distributions import Beta, Dirichlet, Distribution, Independent, Normal, StudentT

from credibly.core.errors import NotSupportedError
from credibly.distributions.classes import class_probs
from credibly.distributions.crps import crps, expected_distance, integrated
from credibly.distributions.crps_numeric import cheap_density, outline
from credibly.distributions.cumulative import icdf
from credibly.distributions.density import element_log_prob
from credibly.distributions.kinds import base_of, kind
from credibly.distributions.mixture import MixturePredictive, in_row_chunks, weighted_mean
from credibly.distributions.mixture_count_crps import count_mixture_crps
from credibly.distributions.operations import Operation

__all__ = ["gaussian_parameters"]

LOWER_TAIL = 1e-3


@crps.register(MixturePredictive)
def _(d: MixturePredictive, y: Tensor) -> Tensor:
    if kind(d) == "class":
        return _crps_classes(d, y)
    if d.num_draws == 1:
        return crps.formula(d.components, y.unsqueeze(0)).squeeze(0)
    try:
        gaussian_parameters(d.components)
    except NotSupportedError:
        return count_mixture_crps(d, y) if kind(d) == "count" else integrated(d, y)
    return in_row_chunks(d, y, _crps_gaussian, per_row=d.num_draws**2)


def _crps_classes(d: MixturePredictive, y: Tensor) -> Tensor:
    """A mixture of Bernoullis is a Bernoulli; other classes are refused by their own entry."""
    probs = class_probs(d)
    return (probs - y) ** 2 if probs.shape == y.shape else crps.formula(base_of(d), y)


@Operation
def gaussian_parameters(d: Distribution) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of a Gaussian, per element.

    Raises:
        NotSupportedError: another distribution.
    """
    gaussian_parameters.refuse(d, "only Gaussians are told by their mean and standard deviation")


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


@outline.register(MixturePredictive)
def _(d: MixturePredictive, levels: Tensor) -> Tensor:
    """The draws' quantiles: the outermost in the tails, their mean between."""
    axis = -2 - len(d.event_shape)

    def bounds(part: MixturePredictive, some: Tensor) -> Tensor:
        each = icdf.formula(part.components, some.unsqueeze(axis))
        each = each[:, part.log_weights > float("-inf")]
        inner = torch.where(some > 1 - LOWER_TAIL, each.amax(axis), each.mean(axis))
        return torch.where(some < LOWER_TAIL, each.amin(axis), inner)

    return in_row_chunks(d, levels, bounds)


@Operation
def _has_dear_cdf(d: Distribution) -> bool:  # noqa: ARG001
    """Whether the cdf is an incomplete beta function, and the density smooth."""
    return False


@_has_dear_cdf.register(Beta, Dirichlet, StudentT)
def _(d: Distribution) -> bool:  # noqa: ARG001
    return True


@cheap_density.register(MixturePredictive)
def _(d: MixturePredictive, x: Tensor) -> Tensor | None:
    return in_row_chunks(d, x, _density) if _has_dear_cdf(base_of(d)) else None


def _density(d: MixturePredictive, x: Tensor) -> Tensor:
    axis = -2 - len(d.event_shape)
    return weighted_mean(d, element_log_prob(d.components, x.unsqueeze(axis)).exp(), axis)
