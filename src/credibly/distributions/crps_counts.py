"""CRPS of counts in closed form: CRPS(F, y) = E|X - y| - E|X - X'|/2.

The first term follows from the partial means sum_{k <= y} k p(k), which all three families have in terms of F and p.
The second is Bessel functions for a Poisson and hypergeometric for the others (Alexander Jordan, Fabian Krueger,
Sebastian Lerch, "Evaluating Probabilistic Forecasts with scoringRules", 2019; Gyula Wei, Leonhard Held, "Calibration
tests for count data", 2014). The hypergeometric series are unstable for large counts, so they are taken in integral
form. Fejer's kernel gives |k| = (1/2 pi) int (1 - cos kt)/(1 - cos t) dt over a period, hence with the characteristic
function phi

    E|X - X'| = (1/2 pi) int (1 - |phi(t)|^2)/(1 - cos t) dt,

where |phi|^2 depends on s = sin(t/2)^2 alone: (1 + 4 o (1 + o) s)^-r for a negative binomial with odds o,
(1 - 4 p q s)^n for a binomial. In the logit of s the integrand is analytic and falls off exponentially, so that the
trapezoidal rule has it to 13 digits with a fixed number of nodes, whatever the parameters. Of a geometric distribution
F(k) = 1 - q^(k + 1), and the sum of (F(k) - 1{y <= k})^2 is one of powers,

    y - 2 (q / p) (1 - q^y) + q^2 / (p (2 - p)),   q = 1 - p.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.distributions import Binomial, Geometric, NegativeBinomial, Poisson

from credibly.distributions.cumulative import cdf
from credibly.distributions.density import safe_log_prob
from credibly.distributions.rows import to
from credibly.distributions.special import gammaincc
from credibly.distributions.trials import log_of_success_and_failure, success_and_failure

__all__ = ["binomial_crps", "geometric_crps", "negative_binomial_crps", "poisson_crps"]

STEP, REACH, NUM_STEPS = 0.3, 62.0, 600


def poisson_crps(d: Poisson, y: Tensor) -> Tensor:
    """The CRPS of a Poisson."""
    rate, count = d.rate.double(), y.double()
    below = gammaincc(count + 1, rate)
    mass = torch.exp(torch.special.xlogy(count, rate) - rate - torch.lgamma(count + 1))
    spread: Tensor = rate * (torch.special.i0e(2 * rate) + torch.special.i1e(2 * rate))
    score: Tensor = (count - rate) * (2 * below - 1) + 2 * rate * mass - spread
    return score.to(y.dtype)


def negative_binomial_crps(d: NegativeBinomial, y: Tensor) -> Tensor:
    """The CRPS of the number of successes before `total_count` failures."""
    precise, count = to(d, dtype=torch.float64), y.double()
    assert isinstance(precise, NegativeBinomial)
    shape, odds = precise.total_count.double(), precise.logits.exp()
    mass = safe_log_prob(precise, count).exp()
    distance = (count - shape * odds) * (2 * cdf.formula(precise, count) - 1) + 2 * odds * (shape + count) * mass
    rise = 4 * odds * (1 + odds)
    return (distance - _half_mean_difference(lambda s: -shape * torch.log1p(rise * s), shape * rise)).to(y.dtype)


def binomial_crps(d: Binomial, y: Tensor) -> Tensor:
    """The CRPS of a number of successes out of `total_count`."""
    precise, count = to(d, dtype=torch.float64), y.double()
    assert isinstance(precise, Binomial)
    total, probs = precise.total_count.double(), precise.probs
    mass = safe_log_prob(precise, count).exp()
    distance = (count - total * probs) * (2 * cdf.formula(precise, count) - 1) + 2 * probs * (total - count) * mass
    fall = 4 * probs * (1 - probs)
    return (distance - _half_mean_difference(lambda s: total * torch.log1p(-fall * s), total * fall)).to(y.dtype)


def geometric_crps(d: Geometric, y: Tensor) -> Tensor:
    """The CRPS of the number of failures before the first success."""
    (success, failure), log_failure = success_and_failure(d), log_of_success_and_failure(d)[1]
    count = y.double()
    before = -torch.expm1(torch.where(count > 0, count * log_failure, 0.0))
    spread = failure**2 / (success * (1 + failure))
    return (count - 2 * failure / success * before + spread).to(y.dtype)


def _half_mean_difference(log_square: Callable[[Tensor], Tensor], slope: Tensor) -> Tensor:
    """E|X - X'|/2 from log |phi|^2 as a function of s, which begins as -slope * s."""
    logit = -torch.log1p(slope.detach()) - REACH
    total = torch.zeros_like(logit)
    for _ in range(NUM_STEPS):
        total = total - torch.expm1(log_square(torch.sigmoid(logit))) * torch.exp(-logit / 2)
        logit = logit + STEP
    return total * (STEP / (4 * math.pi))
