"""The rank kernel and its thresholds against rational arithmetic."""

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from credibly.conformal.ranks import rank, threshold, weighted_threshold
from credibly.conformal.rows import scaled_thresholds


def exact_rank(n, numerator, denominator):
    return -((-(n + 1) * numerator) // denominator)


@pytest.mark.parametrize("denominator", [100, 1000])
def test_rank_equals_rational_arithmetic(denominator):
    for n in [*range(130), 463, 999, 1000, 2999, 3000, 2**24 + 1, 10**12 + 7]:
        for i in range(denominator + 1):
            assert rank(n, i / denominator) == exact_rank(n, i, denominator), (n, i)


def test_floats_get_the_golden_case_wrong_and_we_do_not():
    assert math.ceil(25 * 0.28) == 8
    assert rank(24, 0.28) == 7


def test_a_level_that_went_through_its_complement_is_the_same_level():
    for i in range(101):
        assert rank(99, 1 - (1 - i / 100)) == i
    assert rank(99, 0.5800000000000001) == 58


@pytest.mark.parametrize("coverage", [0.005, 0.995, 1 / 3, 2 / 7, 1 / 999_983])
def test_rare_levels(coverage):
    level = Fraction(coverage).limit_denominator(10**6)
    for n in range(300):
        assert rank(n, coverage) == math.ceil((n + 1) * level)


@pytest.mark.parametrize(("n", "expected"), [(18, 18.0), (8, math.inf), (9, 9.0), (0, math.inf)])
def test_too_few_scores_give_an_infinite_threshold(n, expected, dtype):
    scores = torch.arange(1, n + 1, dtype=dtype)
    assert threshold(scores, 0.9).item() == expected


def test_one_sided_levels_of_too_few_scores():
    # 0.95 of 18 + 1 is rank 19 of 18: no finite bound is valid; 19 scores are enough
    assert threshold(torch.arange(18.0), 0.95).item() == math.inf
    assert threshold(torch.arange(19.0), 0.95).item() == 18.0


def test_coverage_zero_is_nothing_and_one_is_everything():
    scores = torch.arange(5.0)
    assert threshold(scores, 0).item() == -math.inf
    assert threshold(scores, 1).item() == math.inf
    for outside in (-0.1, 1.1, math.nan):
        with pytest.raises(ValueError, match="coverage"):
            threshold(scores, outside)


def test_threshold_keeps_batch_axes_and_ties(dtype):
    scores = torch.tensor([[1.0, 1.0, 1.0, 2.0], [0.0, math.inf, math.inf, math.inf]], dtype=dtype)
    assert threshold(scores, 0.5).tolist() == [1.0, math.inf]
    assert threshold(scores, 0.8).tolist() == [2.0, math.inf]
    assert threshold(scores, 0.9).tolist() == [math.inf, math.inf]
    assert threshold(scores, 0.2).tolist() == [1.0, 0.0]
    assert threshold(scores, 0.5).dtype == dtype


@given(
    st.integers(1, 60),
    st.integers(0, 1000),
    st.sampled_from([1.0, 0.1, 1 / 3, 1e-8, 7e5]),
)
def test_equal_weights_are_no_weights(n, thousandths, weight):
    scores = torch.arange(n, dtype=torch.float64)
    weights = torch.full((n,), weight, dtype=torch.float64)
    weighted = weighted_threshold(scores, weights, weights[:1].expand(3), thousandths / 1000)
    assert weighted.tolist() == [threshold(scores, thousandths / 1000).item()] * 3


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 12)), min_size=1, max_size=15),
    st.integers(0, 12),
    st.integers(1, 99),
)
def test_whole_weights_are_repetitions(rows, test_weight, percent):
    rows = sorted(rows)
    scores = torch.tensor([s for s, _ in rows], dtype=torch.float64)
    weights = torch.tensor([w for _, w in rows], dtype=torch.float64)
    total, mass, expected = sum(w for _, w in rows) + test_weight, 0, math.inf
    for score, weight in rows:
        mass += weight
        if 100 * mass >= percent * total and total > 0:
            expected = float(score)
            break
    # powers of two as units keep the quotients exact
    found = weighted_threshold(scores, weights, torch.tensor([test_weight], dtype=torch.float64), percent / 100)
    if weights.amax().item() in (0, 1, 2, 4, 8):
        assert found.item() == expected
    else:  # rounding may move an exact tie of masses to the neighbour
        tie = any(100 * m == percent * total for m in torch.cumsum(weights, 0).tolist())
        assert tie or found.item() == expected


def test_weights_at_the_ends():
    scores = torch.tensor([1.0, 2.0], dtype=torch.float64)
    ones, zeros = torch.ones(2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    assert weighted_threshold(scores, ones, zeros, 0.5).tolist() == [1.0, 1.0]
    assert weighted_threshold(scores, ones, ones, 0).tolist() == [-math.inf] * 2
    assert weighted_threshold(scores, ones, zeros, 1).tolist() == [math.inf] * 2
    assert weighted_threshold(scores, zeros, ones, 0.1).tolist() == [math.inf] * 2
    assert weighted_threshold(scores, zeros, zeros, 0.1).tolist() == [math.inf] * 2
    heavy = weighted_threshold(scores, ones, torch.tensor([0.0, 1e300], dtype=torch.float64), 0.9)
    assert heavy.tolist() == [2.0, math.inf]


@given(st.floats(1e-280, 1e12) | st.floats(-1e12, -1e-280), st.floats(1e-6, 1e6))
def test_scaled_thresholds_invert_the_division(limit, difficulty):
    limits = torch.tensor([limit, -math.inf, math.inf], dtype=torch.float64)
    d = torch.tensor([difficulty] * 3, dtype=torch.float64)
    scaled = scaled_thresholds(limits, d)
    assert scaled[1:].tolist() == [-math.inf, math.inf]
    assert (scaled / d)[0] <= limit
    above = torch.nextafter(scaled, torch.full_like(scaled, math.inf))
    assert (above / d)[0] > limit
