"""Distribution functions and quantiles of real numbers.

Torch's own Gaussian forms go through erf and lose the lower tail; here they go through erfc and ndtri. A quantile
above one half is computed from 1 - q, which is exact there.
"""

import math

import torch
from torch import Tensor
from torch.distributions import (
    Beta,
    Exponential,
    Gamma,
    HalfNormal,
    Laplace,
    LogNormal,
    Normal,
    Uniform,
    Weibull,
)

from credibly.distributions.cumulative_tables import cdf, icdf
from credibly.distributions.shapes import broadcast
from credibly.distributions.special import (
    betainc,
    betaincinv,
    gammainc,
    gammainccinv,
    gammaincinv,
    ndtr,
    ndtri,
)

__all__ = ["log_of_positive", "weibull_exponent"]


@cdf.register(Normal)
def _(d: Normal, value: Tensor) -> Tensor:
    return ndtr((value - d.loc) / d.scale)


@icdf.register(Normal)
def _(d: Normal, q: Tensor) -> Tensor:
    return d.loc + d.scale * ndtri(q)


def log_of_positive(value: Tensor) -> Tensor:
    """The logarithm, -inf for 0 and below, where it has no gradient."""
    return torch.where(value > 0, torch.log(torch.where(value > 0, value, 1.0)), float("-inf"))


@cdf.register(LogNormal)
def _(d: LogNormal, value: Tensor) -> Tensor:
    return torch.where(value > 0, ndtr((log_of_positive(value.clamp(min=0)) - d.loc) / d.scale), 0.0)


@icdf.register(LogNormal)
def _(d: LogNormal, q: Tensor) -> Tensor:
    return torch.exp(d.loc + d.scale * ndtri(q))


@cdf.register(HalfNormal)
def _(d: HalfNormal, value: Tensor) -> Tensor:
    return torch.erf(value.clamp(min=0) / (d.scale * math.sqrt(2)))


@icdf.register(HalfNormal)
def _(d: HalfNormal, q: Tensor) -> Tensor:
    lower: Tensor = math.sqrt(2) * torch.special.erfinv(q.double())
    upper = -ndtri((1 - q.double()) / 2)
    return d.scale * torch.where(q < 0.5, lower, upper).to(q.dtype)


@cdf.register(Laplace)
def _(d: Laplace, value: Tensor) -> Tensor:
    z = (value - d.loc) / d.scale
    tail = 0.5 * torch.exp(-z.abs())
    return torch.where(z < 0, tail, 1 - tail)


@icdf.register(Laplace)
def _(d: Laplace, q: Tensor) -> Tensor:
    tail = torch.minimum(q, 1 - q)
    return d.loc - d.scale * torch.sign(0.5 - q) * -torch.log(2 * tail)


@cdf.register(Exponential)
def _(d: Exponential, value: Tensor) -> Tensor:
    return -torch.expm1(-d.rate * value.clamp(min=0))


@icdf.register(Exponential)
def _(d: Exponential, q: Tensor) -> Tensor:
    return -torch.log1p(-q) / d.rate


@cdf.register(Weibull)
def _(d: Weibull, value: Tensor) -> Tensor:
    return -torch.expm1(-weibull_exponent(d, value)).to(value.dtype)


def weibull_exponent(d: Weibull, value: Tensor) -> Tensor:
    """(value / scale)^concentration in float64, 0 below 0: minus the logarithm of the upper tail."""
    return torch.exp(d.concentration.double() * (log_of_positive(value.double()) - torch.log(d.scale.double())))


@icdf.register(Weibull)
def _(d: Weibull, q: Tensor) -> Tensor:
    return (d.scale.double() * (-torch.log1p(-q.double())) ** (1 / d.concentration.double())).to(q.dtype)


@cdf.register(Uniform)
def _(d: Uniform, value: Tensor) -> Tensor:
    return ((value - d.low) / (d.high - d.low)).clamp(0, 1)


@icdf.register(Uniform)
def _(d: Uniform, q: Tensor) -> Tensor:
    return torch.lerp(*broadcast(d.low, d.high, q))


@cdf.register(Gamma)
def _(d: Gamma, value: Tensor) -> Tensor:
    return gammainc(d.concentration, d.rate.double() * value.clamp(min=0).double()).to(value.dtype)


@icdf.register(Gamma)
def _(d: Gamma, q: Tensor) -> Tensor:
    shape, level = broadcast(d.concentration.double(), q.double())
    lower, upper = gammaincinv(shape, level.clamp(max=0.5)), gammainccinv(shape, (1 - level).clamp(max=0.5))
    return (torch.where(level < 0.5, lower, upper) / d.rate.double()).to(q.dtype)


@cdf.register(Beta)
def _(d: Beta, value: Tensor) -> Tensor:
    x = value.double().clamp(0, 1)
    return betainc(d.concentration1, d.concentration0, x, 1 - x).to(value.dtype)


@icdf.register(Beta)
def _(d: Beta, q: Tensor) -> Tensor:
    return betaincinv(*broadcast(d.concentration1, d.concentration0, q))
