"""Log densities and moments where formulas cancel: large parameters, certain trials, values outside the support."""

import math

import pytest
import scipy.stats
import torch
from distribution_cases import SCIPY, pair
from torch.distributions import (
    Beta,
    Binomial,
    Gamma,
    Geometric,
    NegativeBinomial,
    Poisson,
    StudentT,
    Weibull,
)

from credibly.distributions.cumulative import cdf, icdf
from credibly.distributions.density import log_prob, safe_log_prob
from credibly.distributions.moments import entropy, mean, variance
from credibly.distributions.survival import survival

# Parameters whose log-gamma functions have no digits left in float32; they are exact in it.
DENSITIES = {
    "student_t": (lambda t: StudentT(*pair(t, 2.0**20, 0, 1)), scipy.stats.t(2**20), [0.0, 1.5, -4.0]),
    "beta": (lambda t: Beta(*pair(t, 2.0**17, 2.0**17)), scipy.stats.beta(2**17, 2**17), [0.5, 0.5 + 2.0**-9]),
    "gamma": (lambda t: Gamma(*pair(t, 2.0**20, 1)), scipy.stats.gamma(2**20), [2.0**20, 2.0**20 + 2048]),
    "poisson": (lambda t: Poisson(pair(t, 2.0**20)[0]), scipy.stats.poisson(2**20), [2.0**20, 2.0**20 - 3000]),
    "negative_binomial": (
        lambda t: NegativeBinomial(*pair(t, 2.0**20, 2.0**-17)),
        scipy.stats.nbinom(2**20, 1 - 2.0**-17),
        [0.0, 8.0, 20.0],
    ),
    "binomial": (
        lambda t: Binomial(*pair(t, 2.0**20, 0.25)),
        scipy.stats.binom(2**20, 0.25),
        [2.0**18, 2.0**18 + 999],
    ),
    "weibull_far": (lambda t: Weibull(*pair(t, 2, 0.5)), scipy.stats.weibull_min(0.5, scale=2), [1e-30, 1e6, 1e20]),
}


@pytest.mark.parametrize("name", DENSITIES)
def test_log_prob_keeps_its_digits(name: str, dtype: torch.dtype) -> None:
    make, frozen, values = DENSITIES[name]
    density = getattr(frozen, "logpmf", None) or frozen.logpdf
    for value in values:
        y = torch.tensor([value], dtype=dtype)
        assert float(log_prob(make(dtype), y)) == pytest.approx(float(density(float(y))), rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("name", SCIPY)
def test_log_prob_outside_the_support_has_finite_gradients(name: str, dtype: torch.dtype) -> None:
    make, frozen = SCIPY[name]
    low, high = frozen.support()
    outside = [low - 1.5, high + 1.5, *([0.25] if hasattr(frozen, "pmf") else [])]
    for value in [v for v in outside if math.isfinite(v)]:
        y = torch.tensor([value], dtype=dtype, requires_grad=True)
        got = safe_log_prob(make(dtype), y)
        assert got.tolist() == [-math.inf]
        if got.requires_grad:
            assert torch.isfinite(torch.autograd.grad(got.sum(), y)[0]).all()


def test_trials_that_always_or_never_succeed(dtype: torch.dtype) -> None:
    probs, counts = torch.tensor([0.0, 1.0], dtype=dtype), torch.tensor([3.0, 3.0], dtype=dtype)
    d = Binomial(counts, probs, validate_args=False)
    assert log_prob(d, [0.0, 3.0]).tolist() == [0, 0]
    assert log_prob(d, [1.0, 2.0]).tolist() == [-math.inf, -math.inf]
    assert (cdf(d, 2.0).tolist(), icdf(d, 0.5).tolist()) == ([1, 0], [0, 3])
    none = NegativeBinomial(0 * counts, torch.tensor([0.5, 0.0], dtype=dtype), validate_args=False)
    assert log_prob(none, [0.0, 0.0]).tolist() == [0, 0]
    assert (cdf(none, 0.0).tolist(), survival(none, 0.0).tolist(), icdf(none, 0.9).tolist()) == ([1, 1], [0, 0], [0, 0])


def test_logits_keep_what_probabilities_lose(dtype: torch.dtype) -> None:
    """At a log odds of 60, 1 - p is 1e-26, and p rounds to 1."""
    d = NegativeBinomial(*pair(dtype, 2), logits=pair(dtype, 60)[0], validate_args=False)
    assert float(mean(d)) == pytest.approx(2 * math.exp(60), rel=1e-5)
    assert float(log_prob(d, [0.0])) == pytest.approx(-120, rel=1e-6)
    # (total_count / mean)-scaled, it is a Gamma(2): P(Y <= mean) = P(2, 2)
    assert float(cdf(d, mean(d))) == pytest.approx(scipy.stats.gamma(2).cdf(2), rel=1e-5)
    assert float(cdf(d, icdf(d, 0.5))) == pytest.approx(0.5, rel=1e-5)


GAUSSIAN = 0.5 * math.log(2 * math.pi * math.e)
ENTROPIES = {
    "poisson": (lambda t: Poisson(pair(t, 101)[0]), scipy.stats.poisson(101).entropy()),
    "poisson_small": (lambda t: Poisson(pair(t, 0.25)[0]), scipy.stats.poisson(0.25).entropy()),
    "binomial": (lambda t: Binomial(*pair(t, 3000, 0.25)), scipy.stats.binom(3000, 0.25).entropy()),
    "geometric": (lambda t: Geometric(*pair(t, 2.0**-7)), scipy.stats.geom(2.0**-7).entropy()),
    "geometric_certain": (lambda t: Geometric(*pair(t, 1)), 0.0),
    "negative_binomial": (lambda t: NegativeBinomial(*pair(t, 2, 0.875)), scipy.stats.nbinom(2, 0.125).entropy()),
    "student_t": (lambda t: StudentT(*pair(t, 2.0**21, 0, 1)), GAUSSIAN + 2.0**-21),
    "student_t_below": (lambda t: StudentT(*pair(t, 2.0**19, 0, 1)), GAUSSIAN + 2.0**-19),
    "gamma": (lambda t: Gamma(*pair(t, 2.0**20, 1)), GAUSSIAN + math.log(2.0**10) - 2.0**-20 / 3),
}


@pytest.mark.parametrize("name", ENTROPIES)
def test_entropy_equals_scipy_or_its_expansion(name: str, dtype: torch.dtype) -> None:
    make, expected = ENTROPIES[name]
    tolerance = 1e-6 if dtype == torch.float32 else 1e-9
    assert float(entropy(make(dtype))) == pytest.approx(float(expected), rel=tolerance)


def test_entropy_of_trials_is_per_row(dtype: torch.dtype) -> None:
    d = Binomial(torch.tensor([5.0, 40.0], dtype=dtype), torch.tensor([0.5, 0.25], dtype=dtype))
    expected = [scipy.stats.binom(5, 0.5).entropy(), scipy.stats.binom(40, 0.25).entropy()]
    assert entropy(d).tolist() == pytest.approx(expected, rel=1e-6)


def test_variances_that_cancel_or_do_not_exist(dtype: torch.dtype) -> None:
    narrow = Weibull(*pair(dtype, 2, 1024))
    first_order = 4 * math.pi**2 / 6 / 1024**2
    assert float(variance(narrow)) == pytest.approx(first_order, rel=3 / 1024)
    wide = 9 * scipy.stats.weibull_min(0.5).var()
    assert float(variance(Weibull(*pair(dtype, 3, 0.5)))) == pytest.approx(wide, rel=1e-6)
    heavy = StudentT(torch.tensor([0.5, 1.5, 4.0], dtype=dtype))
    assert mean(heavy).isnan().tolist() == [True, False, False]
    torch.testing.assert_close(variance(heavy), torch.tensor([math.nan, math.inf, 2.0], dtype=dtype), equal_nan=True)
