"""The continuous ranked probability score in closed form, element by element, in the units of the targets.

CRPS(F, y) = integral of (F(x) - 1{y <= x})^2 dx = E|X - y| - E|X - X'|/2; smaller is better. The closed forms
are collected in: Alexander Jordan, Fabian Krueger, Sebastian Lerch, "Evaluating Probabilistic Forecasts with
scoringRules", 2019.
"""

import math
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.distributions import (
    Bernoulli,
    Categorical,
    Distribution,
    Exponential,
    Gamma,
    Independent,
    Laplace,
    LogNormal,
    Normal,
    Poisson,
    Uniform,
)

from credibly.distributions.classes import class_log_probs
from credibly.distributions.cumulative import cdf
from credibly.distributions.kinds import reference
from credibly.distributions.operations import elementwise
from credibly.distributions.special import gammaincc, ndtr
from credibly.distributions.targets import match_targets

__all__ = ["crps", "expected_distance"]


@elementwise(match_targets)
def crps(d: Distribution, y: Tensor) -> Tensor:  # noqa: ARG001
    """The continuous ranked probability score of every element: shape batch_shape + event_shape.

    Args:
        d: the distribution.
        y: targets of shape (rows, *event_shape).

    Raises:
        ShapeError, NotFiniteError, SupportError: see `match_targets`.
        NotSupportedError: no closed form is known.
    """
    crps.refuse(d, "no closed form is known here; use the ensemble form: crps(from_draws(d.sample((1000,))), y)")


@crps.register(Categorical)
def _(d: Categorical, y: Tensor) -> NoReturn:  # noqa: ARG001
    crps.refuse(d, "classes have no order; use the Brier score")


@crps.register(Independent)
def _(d: "Independent[Any]", y: Tensor) -> Tensor:
    return crps.formula(d.base_dist, y)


def expected_distance(mean: Tensor, scale: Tensor) -> Tensor:
    """E|X| of a Gaussian, also for a scale of 0."""
    z = mean / torch.where(scale > 0, scale, 1.0)
    density = torch.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    value = scale * (2 * density + z * torch.erf(z / math.sqrt(2)))
    return torch.where(scale > 0, value, mean.abs())


@crps.register(Normal)
def _(d: Normal, y: Tensor) -> Tensor:
    return expected_distance(y - d.loc, d.scale) - d.scale / math.sqrt(math.pi)


@crps.register(Laplace)
def _(d: Laplace, y: Tensor) -> Tensor:
    z = ((y - d.loc) / d.scale).abs()
    return d.scale * (z + torch.exp(-z) - 0.75)


@crps.register(LogNormal)
def _(d: LogNormal, y: Tensor) -> Tensor:
    z = (torch.log(y) - d.loc) / d.scale
    inner = ndtr(z - d.scale) + ndtr(d.scale / math.sqrt(2)) - 1
    return y * (2 * ndtr(z) - 1) - 2 * torch.exp(d.loc + d.scale**2 / 2) * inner


@crps.register(Exponential)
def _(d: Exponential, y: Tensor) -> Tensor:
    return y + (2 * torch.exp(-d.rate * y) - 1.5) / d.rate


@crps.register(Uniform)
def _(d: Uniform, y: Tensor) -> Tensor:
    width = d.high - d.low
    f = (y - d.low) / width
    return width * (f * f - f + 1 / 3)


@crps.register(Gamma)
def _(d: Gamma, y: Tensor) -> Tensor:
    shape, rate = d.concentration, d.rate
    above = cdf.formula(Gamma(shape + 1, rate, validate_args=False), y)
    log_beta = torch.lgamma(shape) + math.lgamma(0.5) - torch.lgamma(shape + 0.5)
    return y * (2 * cdf.formula(d, y) - 1) - shape / rate * (2 * above - 1) - torch.exp(-log_beta) / rate


@crps.register(Bernoulli)
def _(d: Bernoulli, y: Tensor) -> Tensor:
    probs = class_log_probs(d)[..., 1].exp()
    return ((probs - y) ** 2).to(reference(d).dtype)


@crps.register(Poisson)
def _(d: Poisson, y: Tensor) -> Tensor:
    rate, count = d.rate.double(), y.double()
    below = gammaincc(count + 1, rate)
    mass = torch.exp(torch.special.xlogy(count, rate) - rate - torch.lgamma(count + 1))
    spread: Tensor = rate * (torch.special.i0e(2 * rate) + torch.special.i1e(2 * rate))
    score: Tensor = (count - rate) * (2 * below - 1) + 2 * rate * mass - spread
    return score.to(y.dtype)
