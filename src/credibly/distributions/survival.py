"""The upper tail P(Y > y), accurate where 1 - F(y) has no digits left: for censored targets and far outcomes."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.distributions import (
    Beta,
    Binomial,
    Distribution,
    Exponential,
    Gamma,
    Geometric,
    HalfNormal,
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

from credibly.distributions.affine import AffineView
from credibly.distributions.cumulative import cdf
from credibly.distributions.cumulative_counts import at_counts
from credibly.distributions.cumulative_real import log_of_positive, weibull_exponent
from credibly.distributions.cumulative_student import lower_student
from credibly.distributions.kinds import kind
from credibly.distributions.marginal import MarginalPredictive
from credibly.distributions.mixture import MixturePredictive, in_row_chunks, weighted_mean
from credibly.distributions.operations import elementwise
from credibly.distributions.special import betainc, gammainc, gammaincc, ndtr
from credibly.distributions.targets import match_values
from credibly.distributions.trials import log_of_success_and_failure, success_and_failure

__all__ = ["survival"]


@elementwise(match_values)
def survival(d: Distribution, value: Tensor) -> Tensor:
    """P(Y > value), element by element. A type without an entry has 1 - F(value), which is 0 from 1e-16 on.

    Args:
        d: the distribution.
        value: one number, one a row, or a grid (..., rows, *event_shape).

    Raises:
        ShapeError, NotFiniteError: see `match_values`.
        NotSupportedError: no cdf is known.
    """
    return 1 - cdf.formula(d, value)


@survival.register(Independent)
def _(d: "Independent[Any]", value: Tensor) -> Tensor:
    return survival.formula(d.base_dist, value)


@survival.register(MarginalPredictive)
def _(d: MarginalPredictive, value: Tensor) -> Tensor:
    return survival.formula(d.marginal, value)


@survival.register(AffineView)
def _(d: AffineView, value: Tensor) -> Tensor:
    return survival.formula(d.base, d.standard(value))


@survival.register(MixturePredictive)
def _(d: MixturePredictive, value: Tensor) -> Tensor:
    return 1 - cdf.formula(d, value) if kind(d) == "class" else in_row_chunks(d, value, _of_mixture)


def _of_mixture(d: MixturePredictive, value: Tensor) -> Tensor:
    axis = -2 - len(d.event_shape)
    return weighted_mean(d, survival.formula(d.components, value.unsqueeze(axis)), axis)


@survival.register(Normal)
def _(d: Normal, value: Tensor) -> Tensor:
    return ndtr((d.loc - value) / d.scale)


@survival.register(LogNormal)
def _(d: LogNormal, value: Tensor) -> Tensor:
    return torch.where(value > 0, ndtr((d.loc - log_of_positive(value.clamp(min=0))) / d.scale), 1.0)


@survival.register(HalfNormal)
def _(d: HalfNormal, value: Tensor) -> Tensor:
    return torch.erfc(value.clamp(min=0) / (d.scale * math.sqrt(2)))


@survival.register(Laplace)
def _(d: Laplace, value: Tensor) -> Tensor:
    z = (value - d.loc) / d.scale
    tail = 0.5 * torch.exp(-z.abs())
    return torch.where(z > 0, tail, 1 - tail)


@survival.register(Exponential)
def _(d: Exponential, value: Tensor) -> Tensor:
    return torch.exp(-d.rate * value.clamp(min=0))


@survival.register(Weibull)
def _(d: Weibull, value: Tensor) -> Tensor:
    return torch.exp(-weibull_exponent(d, value)).to(value.dtype)


@survival.register(Uniform)
def _(d: Uniform, value: Tensor) -> Tensor:
    return ((d.high - value) / (d.high - d.low)).clamp(0, 1)


@survival.register(Gamma)
def _(d: Gamma, value: Tensor) -> Tensor:
    return gammaincc(d.concentration, d.rate.double() * value.clamp(min=0).double()).to(value.dtype)


@survival.register(Beta)
def _(d: Beta, value: Tensor) -> Tensor:
    x = value.double().clamp(0, 1)
    return betainc(d.concentration0, d.concentration1, 1 - x, x).to(value.dtype)


@survival.register(StudentT)
def _(d: StudentT, value: Tensor) -> Tensor:
    return lower_student(d, 2 * d.loc.double() - value.double()).to(value.dtype)


@survival.register(Poisson)
def _(d: Poisson, value: Tensor) -> Tensor:
    return at_counts(value, 1, lambda count: gammainc(count + 1, d.rate.double()))


@survival.register(NegativeBinomial)
def _(d: NegativeBinomial, value: Tensor) -> Tensor:
    success, failure = success_and_failure(d)
    none = d.total_count == 0
    total = torch.where(none, 1.0, d.total_count).double()
    return at_counts(value, 1, lambda k: torch.where(none, 0.0, betainc(k + 1, total, success, failure)))


@survival.register(Geometric)
def _(d: Geometric, value: Tensor) -> Tensor:
    return at_counts(value, 1, lambda count: torch.exp((count + 1) * log_of_success_and_failure(d)[1]))


@survival.register(Binomial)
def _(d: Binomial, value: Tensor) -> Tensor:
    success, failure = success_and_failure(d)

    def upper(count: Tensor) -> Tensor:
        remaining = d.total_count.double() - count
        whole = remaining <= 0
        return torch.where(whole, 0.0, betainc(count + 1, torch.where(whole, 1.0, remaining), success, failure))

    return at_counts(value, 1, upper)
