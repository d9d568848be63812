"""The exact law of the empirical coverage of split conformal prediction."""

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.stats import betabinom

from credibly.core.errors import ShapeError
from credibly.metrics.coverage_law import clopper_pearson, coverage_interval, coverage_tails, rank


@pytest.mark.parametrize("num_calibration", [1, 9, 20, 100, 1003])
@pytest.mark.parametrize("num_test", [1, 7, 300, 5000])
@pytest.mark.parametrize("coverage", [0.5, 0.8, 0.9, 0.95])
@pytest.mark.parametrize("confidence", [0.5, 0.98])
def test_interval_holds_its_mass_and_no_more(num_calibration, num_test, coverage, confidence):
    low, high = coverage_interval(num_calibration, num_test, coverage, confidence)
    k = rank(num_calibration, coverage)
    if k > num_calibration:
        assert (low, high) == (1.0, 1.0)
        return
    law = betabinom(num_test, k, num_calibration + 1 - k)
    tail, slack = (1 - confidence) / 2, 1e-9
    first, last = round(low * num_test), round(high * num_test)
    assert law.cdf(first - 1) <= tail + slack
    assert law.cdf(first) >= tail - slack
    assert law.sf(last) <= tail + slack
    assert law.sf(last - 1) >= tail - slack


def test_interval_covers_simulated_coverage_at_its_rate():
    # 4000 repeats of n = 40 uniform scores and 100 test scores; 5 standard errors, failure rate below 1e-6
    generator = torch.Generator().manual_seed(5)
    scores = torch.rand(4000, 40, generator=generator).sort(-1).values
    k = rank(40, 0.9)
    covered = (torch.rand(4000, 100, generator=generator) <= scores[:, k - 1 : k]).double().mean(-1)
    low, high = coverage_interval(40, 100, 0.9, 0.98)
    law = betabinom(100, k, 41 - k)
    inside = law.cdf(round(high * 100)) - law.cdf(round(low * 100) - 1)
    assert 0.98 <= inside < 1
    rate = ((covered >= low) & (covered <= high)).double().mean().item()
    assert abs(rate - inside) < 5 * (inside * (1 - inside) / 4000) ** 0.5


def test_coverage_zero_and_one_are_certain():
    assert coverage_interval(10, 10, 0) == (0.0, 0.0)
    assert coverage_interval(10, 10, 1) == (1.0, 1.0)


def test_refusals():
    with pytest.raises(ValueError, match="num_test"):
        coverage_interval(10, 0, 0.9)
    with pytest.raises(ValueError, match="num_calibration"):
        coverage_interval(0, 10, 0.9)
    with pytest.raises(ValueError, match="confidence"):
        coverage_interval(10, 10, 0.9, 1.0)
    with pytest.raises(ValueError, match="coverage"):
        coverage_interval(10, 10, 1.5)
    with pytest.raises(ShapeError, match="one shape"):
        clopper_pearson([1, 2], [3])
    with pytest.raises(ValueError, match="between 0 and `counts`"):
        clopper_pearson([4], [3])
    with pytest.raises(ValueError, match="confidence"):
        clopper_pearson([1], [3], 0.0)


@pytest.mark.parametrize("num_test", [1, 7, 300])
@pytest.mark.parametrize("coverage", [0.0, 0.005, 0.5, 0.995, 1.0])
@pytest.mark.parametrize("num_calibration", [None, 20, 1003])
def test_tails_are_those_of_the_exact_law(num_test, coverage, num_calibration):
    law = stats.binom(num_test, coverage)
    if num_calibration is not None:
        k = rank(num_calibration, coverage)
        certain = k in (0, num_calibration + 1)
        law = stats.binom(num_test, float(k > 0)) if certain else betabinom(num_test, k, num_calibration + 1 - k)
    for x in {0, num_test // 2, num_test}:
        at_most, at_least = coverage_tails(x, num_test, coverage, num_calibration)
        assert (at_most, at_least) == pytest.approx((law.cdf(x), law.sf(x - 1)), abs=1e-10)


def test_clopper_and_pearson_equal_scipys():
    counts = np.array([1, 1, 10, 10, 10, 1000, 10**6])
    hits = np.array([0, 1, 0, 3, 10, 995, 5000])
    for confidence in (0.5, 0.95, 0.999):
        lower, upper = clopper_pearson(hits, counts, confidence)
        exact = [stats.binomtest(x, n).proportion_ci(confidence, "exact") for x, n in zip(hits, counts, strict=True)]
        np.testing.assert_allclose(lower, [e.low for e in exact], rtol=1e-9)
        np.testing.assert_allclose(upper, [e.high for e in exact], rtol=1e-9)
    assert [end.item() for end in clopper_pearson(torch.tensor(0), torch.tensor(0))] == [0, 1]


@pytest.mark.parametrize("truth", [0.005, 0.5, 0.9, 0.995])
def test_the_exact_interval_covers_at_its_rate_whatever_the_truth(truth):
    for count in (1, 20, 300):  # no simulation: the sum of the masses of all outcomes whose interval holds the truth
        hits = torch.arange(count + 1)
        lower, upper = clopper_pearson(hits, torch.full_like(hits, count), 0.9)
        mass = stats.binom.pmf(hits.numpy(), count, truth)
        assert mass[((lower <= truth) & (truth <= upper)).numpy()].sum() >= 0.9
