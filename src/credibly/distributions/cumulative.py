"""Cumulative distribution functions and quantiles, accurate in the tails.

Torch's own Gaussian forms go through erf and lose the lower tail; here they go through erfc and ndtri.
Counts and classes have F(y) = P(Y <= y) and the quantile is the smallest value with F >= q, computed from
the very same rounded F, so that the two are inverse to each other wherever F still increases.
"""

from typing import Any

import torch
from torch import Tensor
from torch.distributions import (
    Bernoulli,
    Beta,
    Categorical,
    Distribution,
    Exponential,
    Gamma,
    Independent,
    Laplace,
    LogNormal,
    Normal,
    Poisson,
    StudentT,
    Uniform,
)

from credibly.distributions.classes import class_log_probs
from credibly.distributions.kinds import reference
from credibly.distributions.operations import elementwise, own_method
from credibly.distributions.roots import solve_continuous, solve_counts
from credibly.distributions.shapes import broadcast, broadcast_shape
from credibly.distributions.special import betainc, gammainc, gammaincc, ndtr, ndtri
from credibly.distributions.targets import match_levels, match_values

__all__ = ["cdf", "class_cdf", "class_icdf", "icdf"]


@elementwise(match_values)
def cdf(d: Distribution, value: Tensor) -> Tensor:
    """P(Y <= value), element by element; any real number may be asked for: outside the support it is 0 or 1.

    Args:
        d: the distribution.
        value: one number, one a row, or a grid (..., rows, *event_shape).

    Raises:
        ShapeError, NotFiniteError: see `match_values`.
        NotSupportedError: no formula is known.
    """
    result = own_method(d, "cdf", value)
    return cdf.refuse(d) if result is NotImplemented else result  # type: ignore[no-any-return]


@elementwise(match_levels)
def icdf(d: Distribution, q: Tensor) -> Tensor:
    """The quantile: the smallest value with F(value) >= q, element by element.

    Args:
        d: the distribution.
        q: a level in [0, 1], one a row, or anything that broadcasts against (rows, *event_shape).

    Raises:
        ValueError: a level outside [0, 1].
        ShapeError: see `match_levels`.
        NotSupportedError: no formula is known.
    """
    result = own_method(d, "icdf", q)
    return icdf.refuse(d) if result is NotImplemented else result  # type: ignore[no-any-return]


@cdf.register(Independent)
def _(d: "Independent[Any]", value: Tensor) -> Tensor:
    return cdf.formula(d.base_dist, value)


@icdf.register(Independent)
def _(d: "Independent[Any]", q: Tensor) -> Tensor:
    return icdf.formula(d.base_dist, q)


@cdf.register(Normal)
def _(d: Normal, value: Tensor) -> Tensor:
    return ndtr((value - d.loc) / d.scale)


@icdf.register(Normal)
def _(d: Normal, q: Tensor) -> Tensor:
    return d.loc + d.scale * ndtri(q)


@cdf.register(LogNormal)
def _(d: LogNormal, value: Tensor) -> Tensor:
    logarithm = torch.log(torch.where(value > 0, value, 1.0))
    return torch.where(value > 0, ndtr((logarithm - d.loc) / d.scale), 0.0)


@icdf.register(LogNormal)
def _(d: LogNormal, q: Tensor) -> Tensor:
    return torch.exp(d.loc + d.scale * ndtri(q))


@cdf.register(Laplace)
def _(d: Laplace, value: Tensor) -> Tensor:
    z = (value - d.loc) / d.scale
    tail = 0.5 * torch.exp(-z.abs())
    return torch.where(z < 0, tail, 1 - tail)


@icdf.register(Laplace)
def _(d: Laplace, q: Tensor) -> Tensor:
    tail = torch.minimum(q, 1 - q)  # 1 - q is exact above one half
    return d.loc - d.scale * torch.sign(0.5 - q) * -torch.log(2 * tail)


@cdf.register(Exponential)
def _(d: Exponential, value: Tensor) -> Tensor:
    return -torch.expm1(-d.rate * value.clamp(min=0))


@icdf.register(Exponential)
def _(d: Exponential, q: Tensor) -> Tensor:
    return -torch.log1p(-q) / d.rate


@cdf.register(Uniform)
def _(d: Uniform, value: Tensor) -> Tensor:
    return ((value - d.low) / (d.high - d.low)).clamp(0, 1)


@icdf.register(Uniform)
def _(d: Uniform, q: Tensor) -> Tensor:
    return torch.lerp(*broadcast(d.low, d.high, q))


@cdf.register(Gamma)
def _(d: Gamma, value: Tensor) -> Tensor:
    shape, scaled = broadcast(d.concentration.double(), d.rate.double() * value.clamp(min=0).double())
    return gammainc(shape, scaled).to(value.dtype)


@icdf.register(Gamma)
def _(d: Gamma, q: Tensor) -> Tensor:
    """Solved for the logarithm, which resolves the very small quantiles of small shapes.

    F(x) <= x^a / Gamma(a + 1) gives the lower end of the bracket, Cornish and Fisher's expansion the start.
    """
    shape, level = broadcast(d.concentration.detach().double(), q.detach().double())
    inner = level.clamp(torch.finfo(torch.float64).tiny, 1 - 1e-16)

    def function(log_x: Tensor) -> tuple[Tensor, Tensor]:
        x = log_x.exp()
        density = torch.exp(shape * log_x - x - torch.lgamma(shape))
        return gammainc(shape, x), density

    lower = (torch.log(inner) + torch.lgamma(shape + 1)) / shape
    upper = torch.maximum(torch.log(shape + 40 * shape.sqrt() + 800), lower)
    cube = 1 - 1 / (9 * shape) + ndtri(inner) / (3 * shape.sqrt())
    start = torch.where(cube > 0.1, torch.log(shape) + 3 * torch.log(cube.clamp(min=0.1)), lower)
    root = solve_continuous(function, inner, lower, upper, start).exp()
    root = torch.where(level == 0, 0.0, torch.where(level == 1, float("inf"), root))
    return (root / d.rate).to(q.dtype)


@cdf.register(Beta)
def _(d: Beta, value: Tensor) -> Tensor:
    x = value.double().clamp(0, 1)
    return betainc(d.concentration1, d.concentration0, x, 1 - x).to(value.dtype)


@icdf.register(Beta)
def _(d: Beta, q: Tensor) -> Tensor:
    """Solved for the logit."""
    a, b, level = broadcast(d.concentration1.detach().double(), d.concentration0.detach().double(), q.detach().double())
    inner = level.clamp(torch.finfo(torch.float64).tiny, 1 - 1e-16)
    log_beta = torch.lgamma(a) + torch.lgamma(b) - torch.lgamma(a + b)

    def function(logit: Tensor) -> tuple[Tensor, Tensor]:
        x, y = torch.sigmoid(logit), torch.sigmoid(-logit)
        log_density = -a * torch.nn.functional.softplus(-logit) - b * torch.nn.functional.softplus(logit)
        return betainc(a, b, x, y), torch.exp(log_density - log_beta)

    end = torch.full_like(level, 700.0)
    spread = ((a + b) / (a * b)).sqrt()
    start = torch.log(a / b) + spread * ndtri(inner)
    root = torch.sigmoid(solve_continuous(function, inner, -end, end, start))
    return torch.where(level == 0, 0.0, torch.where(level == 1, 1.0, root)).to(q.dtype)


@cdf.register(StudentT)
def _(d: StudentT, value: Tensor) -> Tensor:
    z = ((value - d.loc) / d.scale).double()
    tail = _student_tail(d.df.double(), z)
    return torch.where(z < 0, tail, 1 - tail).to(value.dtype)


def _student_tail(df: Tensor, z: Tensor) -> Tensor:
    """P(T < -|z|)."""
    ratio = z * z / df
    x = torch.where(torch.isinf(z), 0.0, 1 / (1 + ratio))
    complement = torch.where(torch.isinf(z), 1.0, ratio / (1 + ratio))
    return 0.5 * betainc(df / 2, torch.full_like(df, 0.5), x, complement)


@icdf.register(StudentT)
def _(d: StudentT, q: Tensor) -> Tensor:
    """Solved in the lower tail for asinh, which reaches the far quantiles of few degrees of freedom."""
    df, level = broadcast(d.df.detach().double(), q.detach().double())
    tail = torch.minimum(level, 1 - level)
    inner = tail.clamp(torch.finfo(torch.float64).tiny, 0.5)
    constant = torch.lgamma((df + 1) / 2) - torch.lgamma(df / 2) - 0.5 * torch.log(df * torch.pi)

    def function(u: Tensor) -> tuple[Tensor, Tensor]:
        t = torch.sinh(u)
        log_density = constant - (df + 1) / 2 * torch.log1p(t * t / df)
        return _student_tail(df, t), torch.exp(log_density) * torch.cosh(u)

    end = torch.full_like(level, -350.0)
    root = torch.sinh(solve_continuous(function, inner, end, torch.zeros_like(end), torch.asinh(ndtri(inner))))
    root = torch.where(tail == 0, float("-inf"), root) * torch.sign(0.5 - level)
    root = torch.where(level == 0.5, 0.0, root)
    return d.loc + d.scale * root.to(q.dtype)


@cdf.register(Poisson)
def _(d: Poisson, value: Tensor) -> Tensor:
    count, rate = broadcast(torch.floor(value).double(), d.rate.double())
    inside = count >= 0
    values = gammaincc(torch.where(inside, count, 0.0) + 1, rate)
    return torch.where(inside, values, 0.0).to(value.dtype)


@icdf.register(Poisson)
def _(d: Poisson, q: Tensor) -> Tensor:
    """An upper end by doubling from the mean plus some standard deviations, then bisection."""
    rate, level = broadcast(d.rate.detach(), q.detach())
    inner = torch.where(level < 1, level, 0.0)
    reach = torch.ceil(rate + 4 * rate.sqrt() + 4)
    while bool((cdf.formula(d, reach) < inner).any()):
        reach = torch.where(cdf.formula(d, reach) < inner, 2 * reach, reach)
    counts = solve_counts(lambda k: cdf.formula(d, k), inner, torch.zeros_like(reach), reach)
    return torch.where(level < 1, counts, float("inf"))


@cdf.register(Bernoulli, Categorical)
def _(d: Distribution, value: Tensor) -> Tensor:
    return class_cdf(class_log_probs(d), value).to(reference(d).dtype)


@icdf.register(Bernoulli, Categorical)
def _(d: Distribution, q: Tensor) -> Tensor:
    return class_icdf(class_log_probs(d), q, reference(d).dtype)


def class_cdf(log_probs: Tensor, value: Tensor) -> Tensor:
    """P(class <= value) in float64, from log probabilities over the last axis."""
    table = _cumulated(log_probs)
    index = torch.floor(value).clamp(-1, table.shape[-1] - 1).long()
    index = index.expand(broadcast_shape(index.shape, table.shape[:-1]))
    table = table.expand(index.shape + table.shape[-1:])
    return torch.where(index < 0, 0.0, table.gather(-1, index.clamp(min=0).unsqueeze(-1)).squeeze(-1))


def class_icdf(log_probs: Tensor, q: Tensor, dtype: torch.dtype) -> Tensor:
    """The smallest class with P(class <= value) >= q, where both are rounded to `dtype` first."""
    table = _cumulated(log_probs).to(dtype)
    return (table < q.unsqueeze(-1)).sum(-1).to(dtype)


def _cumulated(log_probs: Tensor) -> Tensor:
    sums = log_probs.exp().cumsum(-1)
    return sums / sums[..., -1:]
