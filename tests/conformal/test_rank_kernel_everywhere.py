"""The rank kernel at every pair of a number of scores and a coverage where floating point would go wrong.

Whole numbers are the oracle. Of the 297,000 pairs of n <= 3000 and i/100 the ceiling of a float is wrong for 463, and
by way of the complement for more; these are put through every entrance of the kernel.
"""

import math
from fractions import Fraction

import pytest
import torch

from credibly.conformal.ranks import group_thresholds, rank, ranks, threshold, weighted_threshold
from credibly.conformal.thresholds import thresholds_of_rows


def exact(n, i, denominator):
    return -(-(n + 1) * i // denominator)


def hard_pairs(denominator):
    """Where the float's ceiling, or that of its complement, is not the rank."""
    n = torch.arange(1, 3001)
    for i in range(1, denominator):
        k = -(-(n + 1) * i // denominator)
        float_ceil = torch.ceil((n + 1).double() * (i / denominator)).long()
        complement = torch.ceil((n + 1).double() * (1 - (denominator - i) / denominator)).long()
        for each in n[(float_ceil != k) | (complement != k)].tolist():
            yield each, i


HARD = {100: list(hard_pairs(100)), 1000: list(hard_pairs(1000))}


def test_there_are_as_many_hard_pairs_as_counted():
    assert len(HARD[100]) >= 1738


@pytest.mark.parametrize("denominator", [100, 1000])
def test_the_rank_of_one_number_at_every_hard_pair(denominator):
    step = 1 if denominator == 100 else 7
    for n, i in HARD[denominator][::step]:
        k = exact(n, i, denominator)
        assert rank(n, i / denominator) == k, (n, i)
        assert rank(n, 1 - (denominator - i) / denominator) == k, (n, i)


@pytest.mark.parametrize("denominator", [100, 1000])
def test_thresholds_weights_and_groups_at_hard_pairs(denominator, dtype):
    """The score of rank k is k; scores are tied in pairs below the middle, so that ties change nothing above it."""
    pairs = HARD[denominator]
    for n, i in pairs[:: max(1, len(pairs) // 60)]:
        coverage, k = i / denominator, exact(n, i, denominator)
        scores = torch.arange(1, n + 1, dtype=dtype)
        tied = torch.where(scores <= n // 2, 2 * torch.ceil(scores / 2), scores.clamp(min=2 * math.ceil(n // 2 / 2)))
        tied = tied.sort().values
        for each in (scores, tied):
            expected = each[k - 1].item() if k <= n else math.inf
            assert threshold(each, coverage).item() == expected
            batch = threshold(each.expand(2, 3, n), coverage)
            assert batch.shape == (2, 3)
            assert batch.unique().tolist() == [expected]
            groups = torch.ones(n, dtype=torch.int64)
            assert group_thresholds(each, groups, 3, coverage).tolist() == [math.inf, expected, math.inf]
            for weight in (1.0, 0.1):
                weights = torch.full((n,), weight, dtype=torch.float64)
                found = weighted_threshold(each, weights, weights[:1], coverage)
                assert found.item() == expected
                assert found.dtype == dtype


def test_groups_of_every_size_at_once(dtype):
    """Groups of 0 to 300 scores in one table, every coverage i/100."""
    sizes = torch.arange(301)
    groups = sizes.repeat_interleave(sizes)
    scores = torch.cat([torch.arange(1, n + 1, dtype=dtype) for n in range(301)])
    scores, order = scores.sort(stable=True)
    asked = torch.arange(301)
    for i in range(101):
        found = thresholds_of_rows(scores, i / 100, 301, calibration_groups=groups[order], groups=asked)
        k = -(-(sizes + 1) * i // 100)
        expected = torch.where(k > sizes, math.inf, torch.where(k > 0, k.to(dtype), -math.inf))
        assert torch.equal(found, expected.to(dtype))


def test_not_contiguous_and_batched_scores(dtype):
    generator = torch.Generator().manual_seed(0)
    scores = torch.rand(23, 4, 5, generator=generator, dtype=dtype).round(decimals=1).sort(0).values
    moved = scores.movedim(0, -1)  # not contiguous
    for i in range(101):
        k = exact(23, i, 100)
        found = threshold(moved, i / 100)
        assert found.shape == (4, 5)
        expected = scores[k - 1] if 0 < k <= 23 else torch.full((4, 5), math.inf if k else -math.inf, dtype=dtype)
        assert torch.equal(found, expected)


def test_groups_beyond_two_to_the_24():
    """In float32 neither the group's size nor its rank can be written down."""
    n, coverage = 2**24 + 5, 0.999
    k = exact(n, round(coverage * 1000), 1000)
    scores = torch.zeros(n + 3, dtype=torch.float32)
    scores[k + 3 - 1] = 1  # 3 scores of another group come first
    groups = torch.ones(n + 3, dtype=torch.int8).long()
    groups[:3] = 0
    assert ranks(torch.tensor([3, n]), coverage).tolist() == [rank(3, coverage), k]
    scores[k + 3 :] = 2
    assert group_thresholds(scores, groups, 2, coverage)[1].item() == 1


def exact_place(weights, test_weight, level):
    """The first score whose mass suffices, in rational arithmetic."""
    mass, total = Fraction(0), sum(map(Fraction, weights)) + Fraction(test_weight)
    for place, weight in enumerate(weights):
        mass += Fraction(weight)
        if mass >= level * total:
            return place
    return len(weights)


def tied_masses():
    """Weights in tenths, one that differs first, whose masses meet i/100 of the total exactly when read as decimals."""
    for first, each, test in ((5, 1, 2), (5, 1, 1), (5, 3, 2), (2, 3, 2)):
        for n in range(2, 60):
            total = first + each * (n - 1) + test
            for i in range(1, 100):
                place, rest = divmod(i * total - 100 * first, 100 * each)
                if rest == 0 and 0 <= place < n:
                    yield [first / 10] + [each / 10] * (n - 1), test / 10, i


def test_masses_that_meet_the_level_are_compared_exactly():
    """Sums of floats decide these wrongly in more than a hundred cases; rational arithmetic decides them."""
    wrong_in_floats = 0
    for weights, test, i in tied_masses():
        level, w = Fraction(i, 100), torch.tensor(weights, dtype=torch.float64)
        expected = [*map(float, range(len(weights))), math.inf][exact_place(weights, test, level)]
        scores = torch.arange(len(weights), dtype=torch.float64)
        tests = torch.tensor([test, 1e9, test], dtype=torch.float64)
        assert weighted_threshold(scores, w, tests, i / 100).tolist() == [expected, math.inf, expected]
        mass = w.cumsum(0)
        wrong_in_floats += int((mass * 100 < i * (mass[-1] + test)).sum()) != exact_place(weights, test, level)
    assert wrong_in_floats > 100


def test_an_unseen_group_with_weights_gets_everything_or_nothing():
    scores, groups = torch.arange(20, dtype=torch.float64), torch.arange(20) % 2
    ones = torch.ones(20, dtype=torch.float64)
    for coverage, expected in ((0.0, -math.inf), (0.01, math.inf), (0.9, math.inf), (1.0, math.inf)):
        found = thresholds_of_rows(
            scores,
            coverage,
            2,
            calibration_groups=groups,
            groups=torch.tensor([7, -1]),
            calibration_weights=ones,
            weights=ones[:2],
        )
        assert found.tolist() == [expected] * 2
