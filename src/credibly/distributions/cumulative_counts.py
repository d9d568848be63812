"""Distribution functions and quantiles of counts.

F(y) = P(Y <= y), and the quantile is the smallest count with F >= q, computed from the very same rounded F, so that
the two are inverse to each other wherever F still increases.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.distributions import Binomial, Geometric, NegativeBinomial, Poisson

from credibly.distributions.cumulative_tables import cdf, icdf
from credibly.distributions.roots import solve_counts
from credibly.distributions.shapes import broadcast
from credibly.distributions.special import betainc, gammaincc
from credibly.distributions.trials import log_of_success_and_failure, success_and_failure

__all__ = ["at_counts", "lower_binomial", "lower_geometric", "lower_negative_binomial", "lower_poisson"]


def at_counts(value: Tensor, below: float, formula: Callable[[Tensor], Tensor]) -> Tensor:
    """A function of whole counts, at any real number: constant between them, `below` under 0, 1 - `below` at infinity.

    Args:
        value: real numbers.
        below: 0 for a lower tail, 1 for an upper tail.
        formula: takes float64 counts of 0 or more.
    """
    count = torch.floor(value.double())
    inside = (count >= 0) & torch.isfinite(count)
    values = formula(torch.where(inside, count, 0.0))
    return torch.where(inside, values, torch.where(count < 0, below, 1 - below)).to(value.dtype)


def lower_poisson(d: Poisson, count: Tensor) -> Tensor:
    """P(Y <= count) in float64."""
    return gammaincc(count + 1, d.rate.double())


@cdf.register(Poisson)
def _(d: Poisson, value: Tensor) -> Tensor:
    return at_counts(value, 0, lambda count: lower_poisson(d, count))


@icdf.register(Poisson)
def _(d: Poisson, q: Tensor) -> Tensor:
    rate = d.rate.detach().double()
    return _quantile(lambda count: lower_poisson(d, count), q, rate + 4 * rate.sqrt())


def lower_negative_binomial(d: NegativeBinomial, count: Tensor) -> Tensor:
    """P(Y <= count) = I_{1-p}(total_count, count + 1) in float64; all mass is at 0 for a total_count of 0."""
    success, failure = success_and_failure(d)
    total = d.total_count.double()
    none = total == 0
    return torch.where(none, 1.0, betainc(torch.where(none, 1.0, total), count + 1, failure, success))


@cdf.register(NegativeBinomial)
def _(d: NegativeBinomial, value: Tensor) -> Tensor:
    return at_counts(value, 0, lambda count: lower_negative_binomial(d, count))


@icdf.register(NegativeBinomial)
def _(d: NegativeBinomial, q: Tensor) -> Tensor:
    success, failure = (p.detach() for p in success_and_failure(d))
    mean = d.total_count.detach().double() * success / failure
    return _quantile(lambda count: lower_negative_binomial(d, count), q, mean + 4 * (mean / failure).sqrt())


def lower_binomial(d: Binomial, count: Tensor) -> Tensor:
    """P(Y <= count) = I_{1-p}(total_count - count, count + 1) in float64."""
    success, failure = success_and_failure(d)
    remaining = d.total_count.double() - count
    whole = remaining <= 0
    return torch.where(whole, 1.0, betainc(torch.where(whole, 1.0, remaining), count + 1, failure, success))


@cdf.register(Binomial)
def _(d: Binomial, value: Tensor) -> Tensor:
    return at_counts(value, 0, lambda count: lower_binomial(d, count))


@icdf.register(Binomial)
def _(d: Binomial, q: Tensor) -> Tensor:
    total, level = broadcast(d.total_count.detach().double(), q.detach())
    zero = torch.zeros_like(total)
    counts = solve_counts(lambda k: lower_binomial(d, k).to(q.dtype), level, zero, total)
    return torch.where(lower_binomial(d, zero).isnan(), torch.nan, torch.where(level < 1, counts, total)).to(q.dtype)


def lower_geometric(d: Geometric, count: Tensor) -> Tensor:
    """P(Y <= count) = 1 - (1 - p)^(count + 1) in float64."""
    return -torch.expm1((count + 1) * log_of_success_and_failure(d)[1])


@cdf.register(Geometric)
def _(d: Geometric, value: Tensor) -> Tensor:
    return at_counts(value, 0, lambda count: lower_geometric(d, count))


@icdf.register(Geometric)
def _(d: Geometric, q: Tensor) -> Tensor:
    success, failure = (p.detach() for p in success_and_failure(d))
    mean = failure / success
    return _quantile(lambda count: lower_geometric(d, count), q, mean + 4 * (mean / success).sqrt())


def _quantile(lower_tail: Callable[[Tensor], Tensor], q: Tensor, reach: Tensor) -> Tensor:
    """The smallest count with F >= q, infinity for q = 1: an upper end by doubling, then bisection.

    Args:
        lower_tail: F of float64 counts.
        q: levels.
        reach: a first guess of the upper end.
    """
    level, high = broadcast(q.detach(), torch.ceil(reach) + 4)
    inner = torch.where(level < 1, level, 0.0)

    def rounded(count: Tensor) -> Tensor:
        return lower_tail(count).detach().to(q.dtype)

    while bool((short := rounded(high) < inner).any()):
        high = torch.where(short, 2 * high, high)
    zero = torch.zeros_like(high)
    counts = solve_counts(rounded, inner, zero, high)
    return torch.where(rounded(zero).isnan(), torch.nan, torch.where(level < 1, counts, torch.inf)).to(q.dtype)
