"""Means, variances and entropies, element by element, refused where they would mean nothing.

The entropy of a count is the sum of -p log p between two quantiles beyond which hardly any mass lies. Of Poisson's with
a large rate it is the expansion of Ronald Evans and Jonathan Boersma, "The entropy of a Poisson distribution" (1988):
log(2 pi e rate)/2 - 1/(12 rate) - 1/(24 rate^2) - 19/(360 rate^3) - ...
"""

import math
from typing import Any, NoReturn

import torch
from scipy.special import zeta
from torch import Tensor
from torch.distributions import (
    Bernoulli,
    Beta,
    Binomial,
    Categorical,
    Distribution,
    Gamma,
    Geometric,
    Independent,
    NegativeBinomial,
    Poisson,
    StudentT,
    Weibull,
)

from credibly.distributions.classes import class_entropy, class_log_probs
from credibly.distributions.cumulative import icdf
from credibly.distributions.density import safe_log_prob
from credibly.distributions.kinds import reference
from credibly.distributions.operations import Operation, own_method
from credibly.distributions.rows import to
from credibly.distributions.special import log_gamma_ratio
from credibly.distributions.trials import success_and_failure

__all__ = ["entropy", "entropy_of_counts", "mean", "variance"]

BLOCK = 1024  # counts that are summed at once
LONGEST_SUM = 2**24
_SMALL_INVERSE = 1e-3
_WEIBULL_SERIES = tuple((-1) ** n * (2**n - 2) / n * float(zeta(n)) for n in range(2, 8))
LARGE_RATE = 100.0  # from here on the expansion of Poisson's entropy is exact to the last digits
NO_MOMENTS = "class indices are names, not numbers; use `probs` or class_log_probs(d)"


@Operation
def mean(d: Distribution) -> Tensor:
    """The mean of every element: shape batch_shape + event_shape, in the units of the targets.

    Raises:
        NotSupportedError: unordered classes, or a distribution without a stated mean.
    """
    value = own_method(d, "mean")
    return mean.refuse(d) if value is NotImplemented else value  # type: ignore[no-any-return]


@Operation
def variance(d: Distribution) -> Tensor:
    """The variance of every element: shape batch_shape + event_shape.

    Raises:
        NotSupportedError: unordered classes, or a distribution without a stated variance.
    """
    value = own_method(d, "variance")
    return variance.refuse(d) if value is NotImplemented else value  # type: ignore[no-any-return]


@mean.register(Categorical)
def _(d: Categorical) -> NoReturn:
    mean.refuse(d, NO_MOMENTS)


@variance.register(Categorical)
def _(d: Categorical) -> NoReturn:
    variance.refuse(d, NO_MOMENTS)


@mean.register(Independent)
def _(d: "Independent[Any]") -> Tensor:
    return mean(d.base_dist)


@variance.register(Independent)
def _(d: "Independent[Any]") -> Tensor:
    return variance(d.base_dist)


@mean.register(NegativeBinomial)
def _(d: NegativeBinomial) -> Tensor:
    success, failure = success_and_failure(d)
    return (d.total_count.double() * success / failure).to(d.total_count.dtype)


@variance.register(NegativeBinomial)
def _(d: NegativeBinomial) -> Tensor:
    success, failure = success_and_failure(d)
    return (d.total_count.double() * success / failure**2).to(d.total_count.dtype)


@mean.register(Binomial)
def _(d: Binomial) -> Tensor:
    return (d.total_count.double() * success_and_failure(d)[0]).to(d.total_count.dtype)


@variance.register(Binomial)
def _(d: Binomial) -> Tensor:
    success, failure = success_and_failure(d)
    return (d.total_count.double() * success * failure).to(d.total_count.dtype)


@mean.register(Geometric)
def _(d: Geometric) -> Tensor:
    success, failure = success_and_failure(d)
    return (failure / success).to(reference(d).dtype)


@variance.register(Geometric)
def _(d: Geometric) -> Tensor:
    success, failure = success_and_failure(d)
    return (failure / success**2).to(reference(d).dtype)


@mean.register(StudentT)
def _(d: StudentT) -> Tensor:
    return torch.where(d.df > 1, d.loc, float("nan"))


@variance.register(StudentT)
def _(d: StudentT) -> Tensor:
    """NaN to one degree of freedom, infinite to two."""
    finite = d.df > 2
    df = torch.where(finite, d.df, 3.0)
    value = torch.where(finite, d.scale**2 * df / (df - 2), float("inf"))
    return torch.where(d.df > 1, value, float("nan"))


@variance.register(Weibull)
def _(d: Weibull) -> Tensor:
    """mean^2 (Gamma(1 + 2/k) / Gamma(1 + 1/k)^2 - 1); for large k the difference of logarithms by its power series."""
    inverse = 1 / d.concentration.double()
    log_mean = torch.lgamma(1 + inverse)
    tail = torch.zeros_like(inverse)
    for coefficient in reversed(_WEIBULL_SERIES):
        tail = inverse * tail + coefficient
    direct = torch.lgamma(1 + 2 * inverse) - 2 * log_mean
    excess = torch.expm1(torch.where(inverse < _SMALL_INVERSE, inverse**2 * tail, direct))
    return ((d.scale.double() * torch.exp(log_mean)) ** 2 * excess).to(d.scale.dtype)


@Operation
def entropy(d: Distribution) -> Tensor:
    """Entropy in nats of every element: shape batch_shape + event_shape.

    Raises:
        NotSupportedError: no closed form is known.
    """
    value = own_method(d, "entropy")
    return entropy.refuse(d) if value is NotImplemented else value  # type: ignore[no-any-return]


@entropy.register(Independent)
def _(d: "Independent[Any]") -> Tensor:
    return entropy(d.base_dist)


@entropy.register(Bernoulli, Categorical)
def _(d: Distribution) -> Tensor:
    return class_entropy(class_log_probs(d)).to(reference(d).dtype)


def entropy_of_counts(d: Distribution) -> Tensor:
    """The entropy of a distribution of counts by summation; its cost grows with the widest row.

    Args:
        d: counts with an entry in `icdf` and in `safe_log_prob`.

    Raises:
        NotSupportedError: the widest row has more than 2^24 likely counts.
    """
    precise = to(d, dtype=torch.float64)
    with torch.no_grad():
        levels = torch.full(precise.batch_shape, 1e-18, dtype=torch.float64, device=reference(precise).device)
        first, last = icdf.formula(precise, levels), icdf.formula(precise, 1 - 1e-16 * torch.ones_like(levels))
        last = last + 2 + (last - first)  # the upper level is as close to 1 as numbers come
    width = (last - first).nan_to_num(0.0)
    if width.numel() and float(width.max()) > LONGEST_SUM:
        entropy.refuse(d, f"it is a sum over all likely counts, and a row has {float(width.max()):.3g} of them")
    total = torch.where(last.isnan(), torch.nan, torch.zeros_like(first))
    for begin in range(0, int(width.max()) + 1 if width.numel() else 0, BLOCK):
        offsets = torch.arange(begin, begin + BLOCK, dtype=torch.float64, device=first.device)
        log_probs = safe_log_prob.formula(precise, first + offsets.reshape(-1, *(1,) * first.dim()))
        probs = log_probs.exp()
        total = total - torch.where(probs > 0, probs * log_probs, 0.0).sum(0)
    return total.to(reference(d).dtype)


@entropy.register(NegativeBinomial, Binomial)
def _(d: Distribution) -> Tensor:
    return entropy_of_counts(d)


@entropy.register(Geometric)
def _(d: Geometric) -> Tensor:
    """That of one trial, by as many trials as there are on average until a success."""
    success, failure = success_and_failure(d)
    one_trial: Tensor = torch.special.entr(success) + torch.special.entr(failure)
    return (one_trial / success).to(reference(d).dtype)


@entropy.register(Poisson)
def _(d: Poisson) -> Tensor:
    rate = d.rate.double()
    small = rate <= LARGE_RATE
    summed = entropy_of_counts(Poisson(torch.where(small, rate, 1.0), validate_args=False))
    inverse = 1 / torch.where(small, LARGE_RATE, rate)
    series = inverse * (1 / 12 + inverse * (1 / 24 + inverse * (19 / 360 + inverse * (9 / 80 + inverse * 863 / 2520))))
    expanded = 0.5 * (math.log(2 * math.pi * math.e) - torch.log(inverse)) - series
    return torch.where(small, summed, expanded).to(d.rate.dtype)


@entropy.register(StudentT)
def _(d: StudentT) -> Tensor:
    """Of many degrees of freedom the Gaussian's plus 1/df."""
    df = d.df.double()
    many = df > 1e6
    few = torch.where(many, 1.0, df)
    half = torch.full_like(few, 0.5)
    difference = torch.digamma((few + 1) / 2) - torch.digamma(few / 2)
    standard = (few + 1) / 2 * difference + 0.5 * torch.log(math.pi * few) - log_gamma_ratio(few / 2, half)
    gaussian = 0.5 * math.log(2 * math.pi * math.e) + 1 / df
    return (torch.where(many, gaussian, standard) + torch.log(d.scale.double())).to(d.df.dtype)


@entropy.register(Gamma, Beta)
def _(d: Distribution) -> Tensor:
    return to(d, dtype=torch.float64).entropy().to(reference(d).dtype)
