"""The rank kernel and its thresholds against rational arithmetic."""

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from credibly.conformal.ranks import rank, ranks, threshold, weighted_threshold
from credibly.conformal.rows import scaled_thresholds
from credibly.conformal.thresholds import thresholds_of_rows


def exact_rank(n, numerator, denominator):
    return -((-(n + 1) * numerator) // denominator)


@pytest.mark.parametrize("denominator", [100, 1000])
def test_rank_equals_rational_arithmetic(denominator):
    for n in [*range(30), 463, 999, 1000, 2999, 3000, 2**24 + 1, 10**12 + 7]:
        for i in range(denominator + 1):
            assert rank(n, i / denominator) == exact_rank(n, i, denominator), (n, i)


@pytest.mark.parametrize("denominator", [100, 1000])
def test_all_ranks_up_to_3000_equal_rational_arithmetic(denominator):
    # whole numbers are their own oracle: k is the smallest with k * denominator >= (n + 1) * i
    n = torch.arange(3001)
    for i in range(denominator + 1):
        k = ranks(n, i / denominator)
        assert k.dtype == torch.int64
        least = (n + 1) * i
        assert bool((k * denominator >= least).all())
        assert bool(((k - 1) * denominator < least).all())
        assert torch.equal(ranks(n, 1 - (1 - i / denominator)), k)


def test_floats_get_hundreds_of_the_ranks_wrong():
    # 463 of the 297,000 pairs of n <= 3000 and i/100, and 1738 by way of the complement: the counts of DEFINITIONS
    n, wrong, worse = torch.arange(1, 3001), 0, 0
    for i in range(1, 100):
        k = ranks(n, i / 100)
        wrong += int((torch.ceil((n + 1).double() * (i / 100)).long() != k).sum())
        worse += int((torch.ceil((n + 1).double() * (1 - (100 - i) / 100)).long() != k).sum())
    assert (wrong, worse) == (463, 1738)


def test_ranks_of_many_scores_are_those_of_one_number():
    numbers = [0, 1, 24, 463, 2**24 + 1, 10**9 + 7, 9 * 10**12]
    for coverage in (0.0, 0.005, 0.28, 1 / 3, 0.9, 999_999 / 1_000_000, 1.0):
        assert ranks(torch.tensor(numbers), coverage).tolist() == [rank(n, coverage) for n in numbers]


def test_more_scores_than_float32_can_count(dtype):
    # float32 has no 2^24 + 1: its neighbours would be selected
    n = 2**24 + 5
    k = rank(n, 0.9)
    assert k == math.ceil(Fraction(9, 10) * (n + 1))
    scores = torch.zeros(n, dtype=dtype)
    scores[k - 1 :] = 1
    assert threshold(scores, 0.9).item() == 1
    scores[k - 1] = 0
    assert threshold(scores, 0.9).item() == 0
    counts = torch.bincount(torch.zeros(n, dtype=torch.int64))
    assert ranks(counts, 0.9).tolist() == [k]


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
    st.lists(st.tuples(st.sampled_from([-3, 0, 7, 10**12]), st.sampled_from([0.0, 1.0, 2.0, math.inf])), max_size=30),
    st.integers(0, 100),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_groups_are_ranked_by_themselves(rows, percent, dtype):
    rows = sorted([*rows, (0, 1.0)], key=lambda row: row[1])
    scores, groups = torch.tensor([s for _, s in rows], dtype=dtype), torch.tensor([g for g, _ in rows])
    asked = torch.tensor([7, -3, 0, 10**12, 5, 0])
    found = thresholds_of_rows(scores, percent / 100, 6, calibration_groups=groups, groups=asked)
    assert found.tolist() == [threshold(scores[groups == group], percent / 100).item() for group in asked]
    assert found.dtype == dtype
    weights = torch.full_like(scores, 0.3)
    weighted = thresholds_of_rows(
        scores,
        percent / 100,
        6,
        calibration_groups=groups,
        groups=asked,
        calibration_weights=weights,
        weights=weights[:1].expand(6),
    )
    assert torch.equal(weighted, found)


def exact_weighted(scores, weights, test_weight, level):
    """The definition, in rational arithmetic."""
    total, mass = sum(map(Fraction, weights)) + Fraction(test_weight), Fraction(0)
    for score, weight in zip(scores, weights, strict=True):
        mass += Fraction(weight)
        if mass >= level * total and total > 0:
            return score
    return math.inf


@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.sampled_from([0.0, 0.1, 0.2, 0.3, 1 / 3, 0.7, 1.0, 3.0, 5.0, 1e-9, 1e9])),
        min_size=1,
        max_size=20,
    ),
    st.sampled_from([0.0, 0.1, 0.3, 1.0, 7.0, 1e-12, 1e12]),
    st.integers(1, 999),
)
def test_weights_equal_rational_arithmetic(rows, test_weight, thousandths):
    rows = sorted(rows)
    scores, weights = ([float(row[column]) for row in rows] for column in (0, 1))
    found = weighted_threshold(
        torch.tensor(scores, dtype=torch.float64),
        torch.tensor(weights, dtype=torch.float64),
        torch.tensor([test_weight, 1.0], dtype=torch.float64),
        thousandths / 1000,
    )
    level = Fraction(thousandths, 1000)
    assert found.tolist() == [exact_weighted(scores, weights, w, level) for w in (test_weight, 1.0)]


@pytest.mark.parametrize("n", [9, 99, 999, 2999])
def test_masses_that_tie_with_the_level_are_decided_exactly(n):
    # equal weights 0.3 beside one of 0.1 and a test point of 0.2: masses meet the level in exact arithmetic only
    weights = torch.full((n,), 0.3, dtype=torch.float64)
    weights[0] = 0.1
    scores, tests = torch.arange(n, dtype=torch.float64), torch.tensor([0.2, 0.5], dtype=torch.float64)
    for i in range(1, 100, 7):
        expected = [exact_weighted(scores.tolist(), weights.tolist(), w, Fraction(i, 100)) for w in tests.tolist()]
        assert weighted_threshold(scores, weights, tests, i / 100).tolist() == expected


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
    found = weighted_threshold(scores, weights, torch.tensor([test_weight], dtype=torch.float64), percent / 100)
    assert found.item() == expected


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
