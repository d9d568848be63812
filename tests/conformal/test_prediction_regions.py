"""What regions answer."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from credibly.conformal.intervals import Intervals, sum_down, sum_up
from credibly.conformal.sets import PredictionSets
from credibly.core.errors import NotFiniteError, ShapeError, SupportError

SETS = PredictionSets(torch.tensor([[True, False, True], [False, False, False], [True, True, True]]))


def test_sets():
    assert SETS.size.tolist() == [2, 0, 3]
    assert SETS.labels == [[0, 2], [], [0, 1, 2]]
    assert SETS.contains([0, 0, 0]).tolist() == [True, False, True]
    assert SETS.contains(np.array([1.0, 2.0, 2.0])).tolist() == [False, False, True]
    assert SETS.contains(torch.tensor([[2], [1], [1]])).tolist() == [True, False, True]
    assert SETS.empirical_coverage([0, 0, 0]).item() == pytest.approx(2 / 3)


@pytest.mark.parametrize("targets", [[0, 0, 3], [-1, 0, 0], [0.5, 0, 0], [math.nan, 0, 0]])
def test_sets_refuse_what_is_no_class(targets):
    with pytest.raises(SupportError, match="0 to 2"):
        SETS.contains(targets)


def test_sets_refuse_other_shapes():
    with pytest.raises(ShapeError, match=r"\(3,\).*\(2,\)"):
        SETS.contains([0, 1])
    with pytest.raises(ShapeError, match="empty"):
        PredictionSets(torch.zeros(0, 3, dtype=torch.bool)).empirical_coverage([])


def test_intervals():
    lower = torch.tensor([0.0, 2.0, -math.inf, math.inf, 1.0], dtype=torch.float64)
    upper = torch.tensor([1.0, 1.0, math.inf, math.inf, 1.0], dtype=torch.float64)
    regions = Intervals.between(lower, upper)
    assert regions.empty.tolist() == [False, True, False, True, False]
    assert regions.width.tolist() == [1.0, 0.0, math.inf, 0.0, 0.0]
    assert regions.contains([1.0, 1.5, 1e308, 0.0, 1.0]).tolist() == [True, False, True, False, True]
    assert regions.empirical_coverage([1.0, 1.5, 1e308, 0.0, 1.0]).item() == pytest.approx(0.6)
    assert lower.tolist()[1] == 2.0


def test_intervals_refuse_nan_and_other_shapes():
    regions = Intervals.between(torch.zeros(2), torch.ones(2))
    with pytest.raises(NotFiniteError, match="targets"):
        regions.contains([0.0, math.nan])
    with pytest.raises(ShapeError, match=r"\(2,\).*\(3,\)"):
        regions.contains([0.0, 1.0, 2.0])


def test_directed_sums_enclose_the_exact_sum(dtype):
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(500, generator=generator, dtype=dtype)
    b = torch.randn(500, generator=generator, dtype=dtype) * 10.0 ** torch.arange(-10, 10).repeat(25)
    low, high = sum_down(a, b), sum_up(a, b)
    for x, y, below, above in zip(a.tolist(), b.tolist(), low.tolist(), high.tolist(), strict=True):
        exact = Fraction(x) + Fraction(y)
        assert below <= exact <= above
        if below == above:
            assert exact == below
    gap = torch.nextafter(low, torch.full_like(low, math.inf))
    assert bool(((high == low) | (high == gap)).all())
