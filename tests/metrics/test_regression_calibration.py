"""Calibration curves, histograms and their lengths, against the ECDF, exact areas and simulated truth."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch.distributions import Independent, Normal, Poisson

from credibly.core.errors import NotFiniteError, ShapeError
from credibly.metrics.pit import pit
from credibly.metrics.regression_calibration import (
    MiscalibrationArea,
    RegressionCalibrationError,
    central_calibration_curve,
    one_sided_calibration_curve,
    pit_histogram,
)

METRICS = [
    metric(num_levels=levels, central=central)
    for metric in (MiscalibrationArea, RegressionCalibrationError)
    for levels, central in ((100, False), (20, True))
]
EVERY = pytest.mark.parametrize("metric", METRICS, ids=str)


def gaussian(rows, *, shift=0.0, stretch=1.0, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    scale = 0.5 + torch.rand(rows, generator=generator, dtype=torch.float64)
    y = scale * (shift + stretch * torch.randn(rows, generator=generator, dtype=torch.float64))
    return Normal(torch.zeros_like(scale).to(dtype), scale.to(dtype), validate_args=False), y.to(dtype)


def counts(rows, seed=0):
    generator = torch.Generator().manual_seed(seed)
    rate = 0.5 + 3 * torch.rand(rows, 2, generator=generator, dtype=torch.float64)
    return Independent(Poisson(rate), 1), torch.poisson(1.3 * rate, generator=generator)


# -- curves and histograms -------------------------------------------------------------------------------------------


def test_curves_are_the_ecdf_with_exact_intervals():
    values = pit(*gaussian(300))
    levels = [0.0, 0.2, 0.5, 1.0]
    for curve, ecdf in (
        (one_sided_calibration_curve(values, levels=levels), values.numpy()),
        (central_calibration_curve(values, levels=levels), np.abs(2 * values.numpy() - 1)),
    ):
        expected = [(ecdf <= level).sum() for level in levels]
        assert curve.counts.tolist() == expected
        assert curve.num_values == 300
        assert curve.observed.tolist() == [hits / 300 for hits in expected]
        for hits, lower, upper in zip(expected, curve.lower, curve.upper, strict=True):
            exact = stats.binomtest(int(hits), 300).proportion_ci(0.95, method="exact")
            assert (lower.item(), upper.item()) == pytest.approx((exact.low, exact.high), abs=1e-10)


def test_pits_on_a_level_are_at_or_below_it():
    curve = one_sided_calibration_curve([0.0, 0.05, 0.1, 1.0], levels=[0.0, 0.05, 0.1, 0.9, 1.0])
    assert curve.counts.tolist() == [1, 2, 3, 3, 4]
    assert len(one_sided_calibration_curve([0.5]).levels) == 19
    histogram = pit_histogram([0.0, 0.25, 0.2500001, 0.5, 1.0], num_bins=4)
    assert histogram.counts.tolist() == [2, 2, 0, 1]
    assert histogram.expected == 1.25


def test_central_intervals_hold_as_often_as_their_curve_says():
    predicted, y = gaussian(500, stretch=1.4)
    half = 1.6448536269514722 * predicted.scale
    assert central_calibration_curve(pit(predicted, y), levels=[0.9]).counts.item() == int((y.abs() <= half).sum())


def test_bands_hold_at_their_rate():
    # 500 uniform samples of 80; exact binomial laws: pointwise at least .95 each, all together at least .95
    generator = torch.Generator().manual_seed(2)
    pointwise, together, bins = [], [], []
    for _ in range(500):
        values = torch.rand(80, generator=generator, dtype=torch.float64)
        curve, histogram = one_sided_calibration_curve(values), pit_histogram(values, num_bins=5)
        pointwise.append(((curve.lower <= curve.levels) & (curve.levels <= curve.upper)).double())
        lower, upper = curve.simultaneous()
        together.append(bool(((lower <= curve.levels) & (curve.levels <= upper)).all()))
        bins.append(((histogram.lower <= histogram.counts) & (histogram.counts <= histogram.upper)).double())
    error = math.sqrt(0.95 * 0.05 / 500)
    # 5 standard errors at the nominal rate, one side: a failure in 3 million for each of 25 numbers
    assert bool((torch.stack(pointwise).mean(0) > 0.95 - 5 * error).all())
    assert bool((torch.stack(bins).mean(0) > 0.95 - 5 * error).all())
    assert np.mean(together) > 0.95 - 5 * error
    assert pointwise[0].mean() < 1 or torch.stack(pointwise).mean() < 0.99  # and are no wider than they must be
    shifted = one_sided_calibration_curve(torch.rand(2000, generator=generator) ** 2)
    assert not bool(((shifted.lower <= shifted.levels) & (shifted.levels <= shifted.upper)).any())


# -- lengths -----------------------------------------------------------------------------------------------------------


def test_areas_of_known_curves():
    point = Normal(torch.zeros(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64))
    at_median, far = torch.zeros(3), torch.full((3,), 40.0)
    assert MiscalibrationArea()(point, at_median).item() == pytest.approx(0.25, abs=1e-12)
    assert MiscalibrationArea(central=True)(point, at_median).item() == pytest.approx(0.5, abs=1e-12)
    assert MiscalibrationArea()(point, far).item() == pytest.approx(0.5, abs=1e-12)
    levels = (np.arange(100) + 0.5) / 100
    assert RegressionCalibrationError()(point, far).item() == pytest.approx((levels**2).mean(), abs=1e-12)


@EVERY
def test_lengths_are_those_of_the_ecdf(metric, dtype):
    predicted, y = gaussian(211, shift=0.3, dtype=dtype)
    values = pit(predicted, y).numpy()
    values = np.abs(2 * values - 1) if metric.central else values
    levels = (np.arange(metric.num_levels) + 0.5) / metric.num_levels
    gaps = (values[:, None] <= levels).mean(0) - levels
    expected = np.abs(gaps).mean() if isinstance(metric, MiscalibrationArea) else (gaps**2).mean()
    assert metric(predicted, y).item() == pytest.approx(expected, abs=1e-12)


@EVERY
def test_counts_give_the_mean_over_u(metric):
    predicted, y = counts(30)
    u = (torch.arange(2000, dtype=torch.float64) + 0.5) / 2000
    below, at = (pit(predicted, y, u=torch.full((30,), end)) for end in (0.0, 1.0))
    values = below.unsqueeze(-1) + u * (at - below).unsqueeze(-1)
    values = (2 * values - 1).abs() if metric.central else values
    levels = (torch.arange(metric.num_levels, dtype=torch.float64) + 0.5) / metric.num_levels
    gaps = (values.unsqueeze(-1) <= levels).double().mean((0, 1, 2)) - levels
    expected = gaps.abs().mean() if isinstance(metric, MiscalibrationArea) else gaps.square().mean()
    assert metric(predicted, y).item() == pytest.approx(expected.item(), abs=1e-3)


@EVERY
@given(sizes=st.lists(st.integers(0, 20), min_size=1, max_size=6), seed=st.integers(0, 5))
def test_streams_give_what_the_whole_gives(metric, sizes, seed):
    rows = sum(sizes)
    predicted, y = counts(rows, seed)
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(seed))
    one, other = metric.stream(), metric.stream()
    start = 0
    for index, size in enumerate(sizes):
        part = order[start : start + size]
        shard = Independent(Poisson(predicted.base_dist.rate[part]), 1)
        (one if index % 2 else other).update(shard, y[part])
        start += size
    if not rows:
        with pytest.raises(ShapeError, match="at least one row"):
            one.merge(other).compute()
        return
    assert one.merge(other).compute().item() == pytest.approx(metric(predicted, y).item(), abs=1e-12)
    assert all(part.numel() <= metric.num_levels for part in one.merge(other).state.values())


@pytest.mark.parametrize(("shift", "stretch"), [(0.0, 1.0), (0.4, 1.0)])
@pytest.mark.parametrize(
    "metric", [MiscalibrationArea(num_levels=20), RegressionCalibrationError(num_levels=20)], ids=str
)
def test_intervals_cover_calibrated_and_miscalibrated_truth(metric, shift, stretch):
    levels = (np.arange(20) + 0.5) / 20
    gaps = stats.norm.cdf((stats.norm.ppf(levels) - shift) / stretch) - levels
    truth = np.abs(gaps).mean() if isinstance(metric, MiscalibrationArea) else (gaps**2).mean()
    truth = truth if shift else 0.0
    found = [
        metric.bootstrap(*gaussian(120, shift=shift, stretch=stretch, seed=seed), num_replicates=150, seed=seed)
        for seed in range(500)
    ]
    covered = np.mean([float(e.lower) <= truth <= float(e.upper) for e in found])
    assert covered > 0.95 - 5 * math.sqrt(0.95 * 0.05 / 500)  # at its rate or above: a failure in 3 million
    seen = np.mean([float(e.lower) > 0 for e in found])
    assert (seen > 0.9) if shift else (seen < 0.1)  # miscalibration is told from noise


def test_an_interval_of_two_rows_and_equal_seeds():
    predicted, y = gaussian(2)
    estimate = MiscalibrationArea().bootstrap(predicted, y, num_replicates=40, seed=0)
    assert float(estimate.lower) <= float(estimate.value) <= float(estimate.upper)
    predicted, y = gaussian(50)
    one, two = (MiscalibrationArea().bootstrap(predicted, y, seed=4, num_replicates=40) for _ in range(2))
    assert torch.equal(one.replicates, two.replicates)


def test_refusals():
    predicted, _ = gaussian(4)
    empty = Normal(torch.zeros(0), torch.ones(0))
    for metric in METRICS:
        with pytest.raises(ShapeError, match="at least one row"):
            metric(empty, torch.zeros(0))
        with pytest.raises(ShapeError, match="at least one row"):
            metric.bootstrap(empty, torch.zeros(0), seed=0)
        with pytest.raises(NotFiniteError):
            metric(predicted, torch.full((4,), float("nan")))
        with pytest.raises(ShapeError):
            metric(predicted, torch.zeros(3))
    with pytest.raises(ValueError, match="`num_levels`"):
        MiscalibrationArea(num_levels=0)
    with pytest.raises(ShapeError, match="at least one value"):
        one_sided_calibration_curve([])
    for bad in ([1.5], [float("nan")]):
        with pytest.raises(ValueError, match=r"`pits` must lie in \[0, 1\]"):
            pit_histogram(bad)
    with pytest.raises(ValueError, match="`levels` must increase"):
        central_calibration_curve([0.5], levels=[0.5, 0.5])
    with pytest.raises(ValueError, match="`confidence`"):
        one_sided_calibration_curve([0.5], confidence=1.0)
