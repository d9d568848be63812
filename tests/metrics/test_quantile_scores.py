"""Pinball, interval and weighted interval scores: hand values, their identities, and what they refuse."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import mean_pinball_loss
from torch import Tensor
from torch.distributions import Bernoulli, Independent, Normal, Poisson

from credibly.core.errors import NotFiniteError, NotSupportedError, ShapeError
from credibly.distributions.entry import from_draws, from_probs, from_quantiles
from credibly.metrics.quantile_scores import (
    interval_score,
    interval_score_rows,
    pinball,
    pinball_rows,
    weighted_interval_score,
    weighted_interval_score_rows,
)

GOLDEN = 0.6024413576  # the CRPS of a standard Gaussian at 1


def _gaussian(rows: int, dtype: torch.dtype = torch.float64) -> Normal:
    return Normal(torch.zeros(rows, dtype=dtype), torch.ones(rows, dtype=dtype))


def test_hand_values(dtype: torch.dtype, device: torch.device) -> None:
    d = from_quantiles([0.05, 0.5, 0.95], torch.tensor([[1.0, 3.0, 5.0]] * 3, dtype=dtype, device=device))
    y = torch.tensor([4.0, 0.5, 6.0], dtype=dtype, device=device)
    interval = torch.tensor([4.0, 4 + 20 * 0.5, 4 + 20 * 1.0], dtype=torch.float64, device=device)
    torch.testing.assert_close(interval_score_rows(d, y, 0.9), interval)
    median = torch.tensor([1.0, 2.5, 3.0], dtype=torch.float64, device=device)
    torch.testing.assert_close(weighted_interval_score_rows(d, y, [0.9]), (median / 2 + 0.05 * interval) / 1.5)
    torch.testing.assert_close(weighted_interval_score_rows(d, y, []), median)
    torch.testing.assert_close(pinball_rows(d, y, 0.5), median / 2)
    below = torch.tensor([0.05 * 3, 0.95 * 0.5, 0.05 * 5], dtype=torch.float64, device=device)
    torch.testing.assert_close(pinball_rows(d, y, 0.05), below, atol=1e-6, rtol=1e-6)


def test_pinball_equals_scikit_learns() -> None:
    d, y = _gaussian(50), torch.randn(50, dtype=torch.float64)
    for level in (0.01, 0.3, 0.9):
        expected = mean_pinball_loss(y.numpy(), d.icdf(torch.tensor(level, dtype=torch.float64)).numpy(), alpha=level)
        assert float(pinball(d, y, level)) == pytest.approx(expected, rel=1e-9)


@given(st.sets(st.integers(1, 999), min_size=1, max_size=6), st.integers(0, 2**31))
def test_the_weighted_interval_score_is_twice_the_pinball_loss(per_mille: set[int], seed: int) -> None:
    coverages = [k / 1000 for k in per_mille]
    levels = sorted({(1000 + s * k) / 2000 for k in per_mille for s in (-1, 1)} | {0.5})
    y = 3 * torch.randn(7, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    twice = 2 * pinball_rows(_gaussian(7), y, levels)
    torch.testing.assert_close(weighted_interval_score_rows(_gaussian(7), y, coverages), twice)


def test_many_levels_come_to_the_crps() -> None:
    levels = (torch.arange(1000) + 0.5) / 1000
    assert 2 * float(pinball(_gaussian(1), [1.0], levels)) == pytest.approx(GOLDEN, abs=1e-3)
    coverages = [k / 500 for k in range(1, 500)]
    assert float(weighted_interval_score(_gaussian(1), [1.0], coverages)) == pytest.approx(GOLDEN, abs=3e-3)


def test_scores_are_in_the_units_of_the_targets(dtype: torch.dtype) -> None:
    y = torch.randn(5, dtype=dtype)
    one, ten = _gaussian(5, dtype), Normal(torch.full((5,), 3.0, dtype=dtype), torch.full((5,), 10.0, dtype=dtype))
    for score in (
        lambda d, t: interval_score(d, t, 0.8),
        lambda d, t: weighted_interval_score(d, t, [0.5, 0.8]),
        lambda d, t: pinball(d, t, [0.1, 0.5]),
    ):
        torch.testing.assert_close(score(ten, 3 + 10 * y), 10 * score(one, y), rtol=1e-5, atol=1e-5)


def test_the_truth_scores_best() -> None:
    """Proper: among Gaussians of other scale and place the true one has the least expected score."""
    y = torch.randn(20_000, dtype=torch.float64)
    for score in (lambda d: interval_score_rows(d, y, 0.8), lambda d: weighted_interval_score_rows(d, y, [0.5, 0.9])):
        truth = score(Normal(torch.zeros_like(y), torch.ones_like(y)))
        for loc, scale in ((0.3, 1.0), (0.0, 0.7), (0.0, 1.5)):
            worse = score(Normal(torch.full_like(y, loc), torch.full_like(y, scale))) - truth
            assert float(worse.mean()) > 5 * float(worse.std()) / math.sqrt(len(y))  # fails by chance: 3e-7


def test_rows_are_means_over_outputs(dtype: torch.dtype) -> None:
    y = torch.randn(4, 3, dtype=dtype)
    d = Independent(Normal(torch.zeros(4, 3, dtype=dtype), torch.ones(4, 3, dtype=dtype)), 1)
    for score in (
        lambda p, t: interval_score_rows(p, t, 0.8),
        lambda p, t: weighted_interval_score_rows(p, t, [0.5, 0.8]),
        lambda p, t: pinball_rows(p, t, [0.1, 0.5]),
    ):
        rows = score(d, y)
        assert rows.shape == (4,)
        assert rows.dtype == torch.float64
        each = torch.stack([score(_gaussian(4, dtype), column) for column in y.T])
        torch.testing.assert_close(rows, each.mean(0))


def test_counts_and_draws_have_quantiles(dtype: torch.dtype) -> None:
    counts = Poisson(torch.full((2,), 4.0, dtype=dtype))
    assert interval_score_rows(counts, [0, 4], 0.9).tolist() == [7 + 20 * 1, 7]
    draws = from_draws(torch.arange(1.0, 21.0, dtype=dtype).unsqueeze(-1))
    assert float(interval_score(draws, [10.0], 0.9)) == 18  # from the 1st to the 19th draw, exactly


def test_a_median_alone_is_the_interval_of_coverage_0() -> None:
    y = torch.tensor([2.0, -1.0], dtype=torch.float64)
    torch.testing.assert_close(interval_score_rows(_gaussian(2), y, 0.0), 2 * y.abs())


@given(st.floats(1e-6, 1 - 1e-6), st.floats(-1e6, 1e6))
def test_scores_are_finite_and_not_negative(level: float, y: float) -> None:
    target: Tensor = torch.tensor([y], dtype=torch.float64)
    for value in (
        pinball(_gaussian(1), target, level),
        interval_score(_gaussian(1), target, level),
        weighted_interval_score(_gaussian(1), target, [level]),
    ):
        assert math.isfinite(float(value))
        assert float(value) >= 0


def test_what_they_refuse() -> None:
    d, y = _gaussian(2), [0.0, 1.0]
    for levels in ([], [0.0], [0.5, 1.0], [math.nan]):
        with pytest.raises(ValueError, match="levels"):
            pinball(d, y, np.array(levels))
    with pytest.raises(ShapeError, match="levels"):
        pinball(d, y, [[0.5]])
    for coverage in (1.0, 1.5, -0.1, math.nan):
        with pytest.raises(ValueError, match="coverage"):
            interval_score(d, y, coverage)
    for coverages in ([0.0], [1.0], [0.5, 0.5], [math.nan]):
        with pytest.raises(ValueError, match="coverages"):
            weighted_interval_score(d, y, coverages)
    for score in (
        lambda p, t: interval_score(p, t, 0.8),
        lambda p, t: weighted_interval_score(p, t, [0.8]),
        lambda p, t: pinball(p, t, 0.5),
    ):
        for classes in (Bernoulli(torch.tensor([0.5, 0.5])), from_probs([[0.5, 0.5], [0.1, 0.9]])):
            with pytest.raises(NotSupportedError, match="classes: use brier"):
                score(classes, [0, 1])
        with pytest.raises(ShapeError):
            score(d, torch.zeros(2, 2))
        with pytest.raises(NotFiniteError):
            score(d, [0.0, math.nan])
        with pytest.raises(ShapeError, match="at least one row"):
            score(_gaussian(0), torch.zeros(0))
