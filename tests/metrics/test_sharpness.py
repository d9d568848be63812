"""Sharpness and ENCE against brute force, with intervals that cover simulated truth."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributions import Independent, Normal, StudentT

from credibly.core.errors import NotFiniteError, ShapeError
from credibly.distributions.mixture import MixturePredictive
from credibly.metrics.sharpness import ENCE, Sharpness, error_spread, sharpness


def forecast(rows, *, stretch=1.0, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    scale = 0.5 + torch.rand(rows, generator=generator, dtype=torch.float64)
    y = stretch * scale * torch.randn(rows, generator=generator, dtype=torch.float64)
    return Normal(torch.zeros_like(scale).to(dtype), scale.to(dtype), validate_args=False), y.to(dtype)


def test_sharpness_is_the_mean_standard_deviation(dtype):
    scale = torch.tensor([[1.0, 2.0], [3.0, 6.0]], dtype=dtype)
    d = Independent(Normal(torch.zeros(2, 2, dtype=dtype), scale, validate_args=False), 1)
    assert sharpness(d).item() == 3.0
    assert Sharpness()(d, torch.zeros(2, 2)).item() == 3.0
    mixture = MixturePredictive(Normal(torch.tensor([[-1.0], [1.0]], dtype=dtype), torch.ones(2, 1, dtype=dtype)))
    assert sharpness(mixture).item() == pytest.approx(math.sqrt(2))
    assert sharpness(StudentT(torch.tensor([2.0]), 0.0, 1.0)).item() == math.inf


def test_ence_by_brute_force(dtype):
    predicted, y = forecast(103, stretch=1.3, dtype=dtype)
    scale, error = predicted.scale.double().numpy(), y.double().numpy()
    order = np.argsort(scale)
    parts = np.split(order, [math.ceil(103 * j / 10) for j in range(1, 10)])
    table = error_spread(predicted, y)
    assert table.counts.tolist() == [len(part) for part in parts]
    spread = np.array([np.sqrt((scale[part] ** 2).mean()) for part in parts])
    rmse = np.array([np.sqrt((error[part] ** 2).mean()) for part in parts])
    tolerance = 1e-6 if dtype == torch.float32 else 1e-12
    np.testing.assert_allclose(table.root_mean_variance, spread, rtol=tolerance)
    np.testing.assert_allclose(table.rmse, rmse, rtol=tolerance)
    weights = np.array([len(part) for part in parts]) / 103
    expected = (weights * np.abs(spread - rmse) / spread).sum()
    assert ENCE()(predicted, y).item() == pytest.approx(expected, rel=tolerance)


def test_equal_variances_share_a_bin():
    predicted = Normal(torch.zeros(6), torch.tensor([1.0, 1.0, 1.0, 1.0, 2.0, 2.0]))
    y = torch.tensor([1.0, 1.0, 2.0, 2.0, 2.0, 2.0])
    table = error_spread(predicted, y, num_bins=3)
    assert table.counts.tolist() == [4, 2]
    assert ENCE(3)(predicted, y).item() == pytest.approx(4 / 6 * (math.sqrt(2.5) - 1), rel=1e-6)
    flat = Normal(torch.zeros(5), torch.full((5,), 2.0))
    assert ENCE()(flat, torch.ones(5)).item() == pytest.approx(0.5)


@given(sizes=st.lists(st.integers(0, 12), min_size=1, max_size=5), seed=st.integers(0, 5), ties=st.booleans())
def test_streams_give_what_the_whole_gives(sizes, seed, ties):
    rows = sum(sizes)
    predicted, y = forecast(rows, seed=seed)
    scale = predicted.scale.mul(2).round().div(2).clamp(min=0.5) if ties else predicted.scale
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(seed))
    for metric in (ENCE(4), Sharpness()):
        one, other = metric.stream(), metric.stream()
        start = 0
        for index, size in enumerate(sizes):
            part = order[start : start + size]
            (one if index % 2 else other).update(Normal(torch.zeros(size).double(), scale[part]), y[part])
            start += size
        whole = one.merge(other)
        if not rows:
            with pytest.raises(ShapeError, match="at least one row"):
                whole.compute()
            continue
        expected = metric(Normal(torch.zeros(rows).double(), scale), y).item()
        assert whole.compute().item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("stretch", [1.0, 1.6])
def test_intervals_of_ence_cover_calibrated_and_miscalibrated_truth(stretch):
    metric = ENCE(4)
    found = [
        metric.bootstrap(*forecast(120, stretch=stretch, seed=seed), num_replicates=100, seed=seed)
        for seed in range(500)
    ]
    covered = np.mean([float(e.lower) <= stretch - 1 <= float(e.upper) for e in found])
    assert covered > 0.95 - 5 * math.sqrt(0.95 * 0.05 / 500)  # at its rate or above: a failure in 3 million
    seen = np.mean([float(e.lower) > 0 for e in found])
    assert (seen > 0.9) if stretch > 1 else (seen < 0.1)


def test_intervals_of_sharpness_cover_the_mean_of_all_rows():
    found = [Sharpness().bootstrap(*forecast(120, seed=seed), num_replicates=200, seed=seed) for seed in range(500)]
    covered = np.mean([float(e.lower) <= 1 <= float(e.upper) for e in found])
    # percentiles of 200 replicates leave some 1 % too little; 5 standard errors beyond, a failure in a million
    assert 0.94 - 5 * math.sqrt(0.94 * 0.06 / 500) < covered < 0.95 + 5 * math.sqrt(0.95 * 0.05 / 500)


@given(
    scale=st.lists(st.sampled_from([0.0, 1e-30, 1.0, 1e30, math.inf, math.nan]), max_size=4),
    y=st.sampled_from([0.0, 1e30, -3.0, math.nan, math.inf]),
)
def test_only_documented_errors(scale, y):
    d = Normal(torch.zeros(len(scale)).double(), torch.tensor(scale, dtype=torch.float64), validate_args=False)
    targets = torch.full((len(scale),), y)
    for metric in (ENCE(3), Sharpness()):
        try:
            value = metric(d, targets)
        except (ValueError, NotFiniteError):
            continue
        assert value >= 0


def test_refusals():
    with pytest.raises(NotFiniteError, match="1 of 1 are NaN"):
        sharpness(StudentT(torch.tensor([0.5]), 0.0, 1.0))
    for scale in (0.0, math.inf):
        with pytest.raises(ValueError, match="finite variances above 0"):
            ENCE()(Normal(torch.zeros(1), torch.tensor([scale]), validate_args=False), torch.zeros(1))
    with pytest.raises(ShapeError, match="at least one row"):
        sharpness(Normal(torch.zeros(0), torch.ones(0)))
    with pytest.raises(ShapeError, match="at least one row"):
        error_spread(Normal(torch.zeros(0), torch.ones(0)), torch.zeros(0))
    with pytest.raises(ShapeError, match="at least one row"):
        ENCE().bootstrap(Normal(torch.zeros(0), torch.ones(0)), torch.zeros(0), seed=0)
    with pytest.raises(ValueError, match="`num_bins`"):
        ENCE(num_bins=0)
