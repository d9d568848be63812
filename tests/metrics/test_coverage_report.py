"""Coverage of intervals as a metric, and the report with its verdict."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch.distributions import Independent, Normal, Poisson

from credibly.core.errors import CrediblyError, NotFiniteError, ShapeError
from credibly.distributions.quantiles import QuantileForecast
from credibly.metrics.coverage_law import rank
from credibly.metrics.coverage_report import coverage_report
from credibly.metrics.intervals import Coverage, Width, contained, coverage, width


def standard(rows, dtype=torch.float64):
    return Normal(torch.zeros(rows, dtype=dtype), torch.ones(rows, dtype=dtype), validate_args=False)


# -- the report ----------------------------------------------------------------------------------------------------


def test_the_report_of_a_hand_case():
    held = torch.tensor([True] * 80 + [False] * 20)
    report = coverage_report(held, 0.9)
    exact = stats.binomtest(80, 100, 0.9).proportion_ci(0.95, "exact")
    assert (report.observed, report.num_contained, report.num_rows) == (0.8, 80, 100)
    assert (report.lower, report.upper) == pytest.approx((exact.low, exact.high))
    assert report.p_value == pytest.approx(2 * stats.binom.cdf(80, 100, 0.9))
    assert report.expected == (0.84, 0.95)
    assert report.verdict == "below"
    assert "0.8 of 100 rows held, 0.9 asked: below" in str(report)
    assert coverage_report(held, 0.8).verdict == "holds"
    assert coverage_report(held, 0.7).verdict == "above"
    # a threshold from 30 calibration rows is itself uncertain
    conformal = coverage_report(held, 0.9, num_calibration=30)
    assert conformal.verdict == "holds"
    assert conformal.expected[0] < 0.8


@given(hits=st.integers(0, 60), misses=st.integers(0, 60), asked=st.sampled_from([0, 0.005, 0.5, 0.9, 0.995, 1]))
def test_verdict_interval_expectation_and_p_value_agree(hits, misses, asked):
    held = torch.arange(hits + misses) < hits
    if not len(held):
        with pytest.raises(ShapeError, match="at least one row"):
            coverage_report(held, asked)
        return
    report = coverage_report(held, asked, confidence=0.9)
    holds = report.verdict == "holds"
    assert holds == (report.lower - 1e-12 <= asked <= report.upper + 1e-12)
    assert holds == (report.p_value >= 0.1 - 1e-12)
    assert holds == (report.expected[0] <= report.observed <= report.expected[1])
    assert report.verdict == ("holds" if holds else "below" if report.observed < asked else "above")


@pytest.mark.parametrize("asked", [0.5, 0.9])
def test_true_claims_hold_and_false_ones_do_not(asked):
    # 500 sets of 200 rows; exact tests reject at most 5 % of true claims: 5 standard errors, a failure in 3 million
    generator = torch.Generator().manual_seed(0)
    uniform = torch.rand(500, 200, generator=generator)
    allowed = 0.05 + 5 * math.sqrt(0.05 * 0.95 / 500)
    verdicts = [coverage_report(row < asked, asked).verdict for row in uniform]
    assert np.mean([verdict != "holds" for verdict in verdicts]) < allowed
    verdicts = [coverage_report(row < asked - 0.15, asked).verdict for row in uniform]
    assert np.mean([verdict == "below" for verdict in verdicts]) > 0.9


def test_split_conformal_claims_hold_at_their_rate():
    # thresholds from 40 scores: the binomial verdict would reject far too often, the Beta-binomial one does not
    generator = torch.Generator().manual_seed(1)
    scores = torch.rand(500, 40, generator=generator).sort(-1).values
    held = torch.rand(500, 300, generator=generator) <= scores[:, rank(40, 0.9) - 1, None]
    conformal = np.mean([coverage_report(row, 0.9, num_calibration=40).verdict != "holds" for row in held])
    plain = np.mean([coverage_report(row, 0.9).verdict != "holds" for row in held])
    assert conformal < 0.05 + 5 * math.sqrt(0.05 * 0.95 / 500)
    assert plain > 0.2


def test_the_report_refuses_what_is_not_one_boolean_a_row():
    for bad in (torch.ones(3), torch.ones(3, 2, dtype=torch.bool), []):
        with pytest.raises(ShapeError, match=r"`contained` must be one boolean a row"):
            coverage_report(bad, 0.9)
    with pytest.raises(ValueError, match="`coverage`"):
        coverage_report([True], 1.5)
    with pytest.raises(ValueError, match="`confidence`"):
        coverage_report([True], 0.5, confidence=1)
    with pytest.raises(ValueError, match="`num_calibration`"):
        coverage_report([True], 0.5, num_calibration=0)


# -- central intervals ---------------------------------------------------------------------------------------------


def test_recipes_are_the_functions(dtype):
    generator = torch.Generator().manual_seed(0)
    y = torch.randn(50, 2, generator=generator).to(dtype)
    predicted = Independent(Normal(torch.zeros_like(y), torch.ones_like(y), validate_args=False), 1)
    inside = contained(predicted, y, 0.8)
    assert inside.shape == (50, 2)
    assert torch.equal(inside, y.abs() <= stats.norm.ppf(0.9))
    assert Coverage(0.8)(predicted, y).item() == pytest.approx(coverage(predicted, y, 0.8).item())
    assert Width(0.8)(predicted, y).item() == pytest.approx(width(predicted, 0.8).item())


def test_intervals_of_coverage_are_exact_where_a_row_is_held_or_not():
    estimate = Coverage(0.9).bootstrap(standard(40), torch.zeros(40), num_replicates=40, seed=0)
    exact = stats.binomtest(40, 40).proportion_ci(0.95, "exact")
    assert (estimate.lower.item(), estimate.upper.item()) == pytest.approx((exact.low, exact.high))
    two = Independent(Normal(torch.zeros(30, 2), torch.ones(30, 2)), 1)
    y = torch.randn(30, 2, generator=torch.Generator().manual_seed(0)) * 2
    estimate = Coverage(0.9).bootstrap(two, y, seed=0, num_replicates=100)
    assert estimate.lower < estimate.value < estimate.upper


@pytest.mark.parametrize("stretch", [1.0, 1.5])
def test_intervals_cover_at_their_rate(stretch):
    truth = 2 * stats.norm.cdf(stats.norm.ppf(0.95) / stretch) - 1
    generator, found, widths = torch.Generator().manual_seed(3), [], []
    for seed in range(500):
        scale = 0.5 + torch.rand(100, generator=generator, dtype=torch.float64)
        y = stretch * scale * torch.randn(100, generator=generator, dtype=torch.float64)
        d = Normal(torch.zeros(100, dtype=torch.float64), scale, validate_args=False)
        estimate = Coverage().bootstrap(d, y, num_replicates=40, seed=seed)
        found.append(float(estimate.lower) <= truth <= float(estimate.upper))
        estimate = Width().bootstrap(d, y, num_replicates=100, seed=seed)
        widths.append(float(estimate.lower) <= 2 * stats.norm.ppf(0.95) <= float(estimate.upper))
    error = math.sqrt(0.95 * 0.05 / 500)
    assert np.mean(found) > 0.95 - 5 * error  # exact: at its rate or above; a failure in 3 million
    # percentiles of 100 replicates leave some 1 % too little; 5 standard errors beyond
    assert 0.94 - 5 * math.sqrt(0.94 * 0.06 / 500) < np.mean(widths) < 0.95 + 5 * error


@given(sizes=st.lists(st.integers(0, 9), min_size=1, max_size=5), seed=st.integers(0, 3))
def test_streams_give_what_the_whole_gives(sizes, seed):
    rows = sum(sizes)
    generator = torch.Generator().manual_seed(seed)
    rate = 0.5 + 4 * torch.rand(rows, generator=generator)
    y = torch.poisson(rate, generator=generator)
    order = torch.randperm(rows, generator=generator)
    for metric in (Coverage(0.7), Width(0.7)):
        stream = metric.stream()
        for part in order.split(sizes):
            stream.update(Poisson(rate[part]), y[part])
        if rows:
            assert stream.compute().item() == pytest.approx(metric(Poisson(rate), y).item(), abs=1e-12)
        else:
            with pytest.raises(ShapeError, match="at least one row"):
                stream.compute()


@given(
    scale=st.lists(st.sampled_from([0.0, 1e-30, 1.0, 1e30, math.inf, math.nan]), max_size=4),
    y=st.sampled_from([0.0, 1e30, math.nan, math.inf]),
    level=st.sampled_from([0, 0.005, 0.5, 0.995, 1]),
)
def test_only_documented_errors(scale, y, level):
    d = Normal(torch.zeros(len(scale)), torch.tensor(scale), validate_args=False)
    for metric in (Coverage(level), Width(level)):
        try:
            value = metric(d, torch.full((len(scale),), y))
        except CrediblyError:
            continue
        assert value >= 0


def test_infinite_intervals_hold_everything_and_nan_ends_nothing():
    forecast = QuantileForecast([0.05, 0.95], torch.tensor([[-math.inf, math.inf], [0.0, 1.0]]))
    assert contained(forecast, [1e30, 2.0], 0.9).tolist() == [True, False]
    assert Width(0.9)(forecast, [0.0, 0.0]).item() == math.inf
    broken = Normal(torch.tensor([0.0, math.nan]), torch.ones(2), validate_args=False)
    for use in (lambda: contained(broken, [0.0, 0.0], 0.9), lambda: width(broken, 0.9)):
        with pytest.raises(NotFiniteError, match="1 of 2 intervals end in NaN"):
            use()
    for metric in (Coverage, Width):
        with pytest.raises(ValueError, match="`coverage`"):
            metric(1.5)
