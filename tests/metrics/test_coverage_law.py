"""The exact law of the empirical coverage of split conformal prediction."""

import pytest
import torch
from scipy.stats import betabinom

from credibly.metrics.coverage_law import coverage_interval, rank


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
