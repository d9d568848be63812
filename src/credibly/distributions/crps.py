"""The continuous ranked probability score, element by element, in the units of the targets.

CRPS(F, y) = integral of (F(x) - 1{y <= x})^2 dx = E|X - y| - E|X - X'|/2; smaller is better. The closed forms
are collected in: Alexander Jordan, Fabian Krueger, Sebastian Lerch, "Evaluating Probabilistic Forecasts with
scoringRules", 2019. That of a Weibull follows from incomplete gamma integrals of 1 - F and (1 - F)^2. Whatever has
none, but a cdf and quantiles, is integrated.
"""

import math
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.distributions import (
    Bernoulli,
    Beta,
    Binomial,
    Categorical,
    Distribution,
    Exponential,
    Gamma,
    Geometric,
    Independent,
    Laplace,
    LogNormal,
    NegativeBinomial,
    Normal,
    Poisson,
    StudentT,
    Uniform,
    Weibull,
)

from credibly.core.errors import NotSupportedError
from credibly.distributions.classes import class_log_probs
from credibly.distributions.crps_counts import (
    binomial_crps,
    geometric_crps,
    negative_binomial_crps,
    poisson_crps,
)
from credibly.distributions.crps_numeric import numeric_crps
from credibly.distributions.cumulative import cdf
from credibly.distributions.kinds import kind, reference
from credibly.distributions.operations import elementwise
from credibly.distributions.special import gammainc, ndtr
from credibly.distributions.targets import match_targets

__all__ = ["crps", "expected_distance", "integrated"]


@elementwise(match_targets)
def crps(d: Distribution, y: Tensor) -> Tensor:
    """The continuous ranked probability score of every element: shape batch_shape + event_shape.

    Where there is no closed form it is integrated from the cdf to a relative error below 1e-6 in float64, and then
    carries no gradients.

    Args:
        d: the distribution.
        y: targets of shape (rows, *event_shape).

    Raises:
        ShapeError, NotFiniteError, SupportError: see `match_targets`.
        NotSupportedError: there is no order, or neither a closed form nor a cdf with quantiles.
    """
    return integrated(d, y)


def integrated(d: Distribution, y: Tensor) -> Tensor:
    """The CRPS from the cdf by numerical integration, of checked targets.

    Raises:
        NotSupportedError: classes, or a distribution without cdf or quantiles.
    """
    if kind(d) == "class":
        crps.refuse(d, NO_ORDER)
    try:
        return numeric_crps(d, y)
    except NotSupportedError as error:
        advice = "use the ensemble form: crps(from_draws(d.sample((1000,))), y)"
        raise NotSupportedError(f"crps has no closed form for {type(d).__name__}, and {error}; {advice}") from error


NO_ORDER = "classes have no order; use the Brier score"


@crps.register(Categorical)
def _(d: Categorical, y: Tensor) -> NoReturn:  # noqa: ARG001
    crps.refuse(d, NO_ORDER)


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
    value, loc, scale = y.double(), d.loc.double(), d.scale.double()
    z = (torch.log(value) - loc) / scale
    log_mean = loc + scale**2 / 2  # of which the mean itself may overflow
    above, spread = (torch.exp(log_mean + torch.special.log_ndtr(part)) for part in (z - scale, -scale / math.sqrt(2)))
    return (value * (2 * ndtr(z) - 1) - 2 * (above - spread)).to(y.dtype)


@crps.register(Exponential)
def _(d: Exponential, y: Tensor) -> Tensor:
    return y + (2 * torch.exp(-d.rate * y) - 1.5) / d.rate


@crps.register(Weibull)
def _(d: Weibull, y: Tensor) -> Tensor:
    """With S = 1 - F = exp(-(x/scale)^k) it is y - 2 int_0^y S + int_0^inf S^2."""
    value, scale, inverse = y.double(), d.scale.double(), 1 / d.concentration.double()
    mean = scale * torch.exp(torch.lgamma(1 + inverse))
    below = gammainc(inverse, (value / scale) ** (1 / inverse))
    return (value + mean * (torch.exp2(-inverse) - 2 * below)).to(y.dtype)


@crps.register(Uniform)
def _(d: Uniform, y: Tensor) -> Tensor:
    width = d.high - d.low
    f = (y - d.low) / width
    return width * (f * f - f + 1 / 3)


@crps.register(Gamma)
def _(d: Gamma, y: Tensor) -> Tensor:
    value, shape, rate = y.double(), d.concentration.double(), d.rate.double()
    below = cdf.formula(Gamma(shape, rate, validate_args=False), value)
    above = cdf.formula(Gamma(shape + 1, rate, validate_args=False), value)
    spread = torch.exp(_log_half_step(shape)) / math.sqrt(math.pi)
    return (value * (2 * below - 1) - (shape * (2 * above - 1) + spread) / rate).to(y.dtype)


@crps.register(Beta)
def _(d: Beta, y: Tensor) -> Tensor:
    value, a, b = y.double(), d.concentration1.double(), d.concentration0.double()
    below = cdf.formula(Beta(a, b, validate_args=False), value)
    above = cdf.formula(Beta(a + 1, b, validate_args=False), value)
    spread = 2 * torch.exp(_log_beta(2 * a, 2 * b) - 2 * _log_beta(a, b)) / a
    return (value * (2 * below - 1) - a / (a + b) * (2 * above - 1 + spread)).to(y.dtype)


def _log_beta(a: Tensor, b: Tensor) -> Tensor:
    return torch.lgamma(a) + torch.lgamma(b) - torch.lgamma(a + b)


@crps.register(StudentT)
def _(d: StudentT, y: Tensor) -> Tensor:
    """The integral is finite from 1/2 degree of freedom on; the form has a gap at 1, which is interpolated."""
    z = ((y - d.loc) / d.scale).double()
    df = d.df.double().expand(z.shape)
    near = (df - 1).abs() < GAP
    score = _student_t(torch.where(near, 2.0, df), z)
    if bool(near.any()):
        score = torch.where(near, _student_t_near_1(df, z), score)
    return (d.scale * torch.where(df > 0.5, score, float("inf"))).to(y.dtype)


GAP = 1e-3


def _student_t(df: Tensor, z: Tensor) -> Tensor:
    below = cdf.formula(StudentT(df, validate_args=False), z)
    step = _log_half_step(df / 2)
    partial = torch.exp(step - (df - 1) / 2 * torch.log1p(z * z / df)) * torch.sqrt(df)
    spread = torch.exp(2 * step - _log_half_step(df - 0.5)) * torch.sqrt(df)
    return z * (2 * below - 1) + 2 * (partial - spread) / (math.sqrt(math.pi) * (df - 1))


def _student_t_near_1(df: Tensor, z: Tensor) -> Tensor:
    """The cubic through four numbers of degrees of freedom around 1."""
    offsets = (-3 * GAP, -GAP, GAP, 3 * GAP)
    score = torch.zeros_like(z)
    for at in offsets:
        others = [other for other in offsets if other != at]
        weight = math.prod(1 / (at - other) for other in others)
        score = score + weight * math.prod(df - 1 - other for other in others) * _student_t(1 + at + 0 * df, z)
    return score


def _log_half_step(x: Tensor) -> Tensor:
    """The logarithm of Gamma(x + 1/2)/Gamma(x), by Stirling's series where the difference would cancel."""
    large = torch.where(x > 20, x, 20.0)
    inverse = 1 / (large * large)
    series = 1 / 8 - inverse * (1 / 192 - inverse * (1 / 640 - inverse * (17 / 14336 - inverse * 31 / 18432)))
    small = torch.where(x > 20, 20.0, x)
    return torch.where(x > 20, torch.log(large) / 2 - series / large, torch.lgamma(small + 0.5) - torch.lgamma(small))


@crps.register(Bernoulli)
def _(d: Bernoulli, y: Tensor) -> Tensor:
    probs = class_log_probs(d)[..., 1].exp()
    return ((probs - y) ** 2).to(reference(d).dtype)


crps.register(Poisson)(poisson_crps)
crps.register(NegativeBinomial)(negative_binomial_crps)
crps.register(Geometric)(geometric_crps)
crps.register(Binomial)(binomial_crps)
