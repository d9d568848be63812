"""Coverage by group, class and size, and in the worst slab: exact tables, intervals that hold together, no optimism."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from credibly.core.errors import NotFiniteError, ShapeError
from credibly.metrics.conditional_coverage import class_coverage, group_coverage, size_stratified_coverage
from credibly.metrics.worst_slab import least_mean_runs, worst_slab_coverage


def test_a_table_of_groups_by_hand():
    held = [True, True, False, True, False, True]
    table = group_coverage(held, [7, -1, 7, 7, 3, -1], 0.9, confidence=0.9)
    assert table.groups.tolist() == [-1, 3, 7]
    assert table.counts.tolist() == [2, 1, 3]
    assert table.hits.tolist() == [2, 0, 2]
    assert table.observed.tolist() == [1, 0, pytest.approx(2 / 3)]
    assert table.worst == 0
    assert table.violation == pytest.approx(0.9)
    for simultaneous, confidence in ((False, 0.9), (True, 1 - 0.1 / 3)):
        exact = [stats.binomtest(x, n).proportion_ci(confidence, "exact") for x, n in ((2, 2), (0, 1), (2, 3))]
        lower, upper = table.interval(simultaneous=simultaneous)
        np.testing.assert_allclose(lower, [e.low for e in exact], atol=1e-12)
        np.testing.assert_allclose(upper, [e.high for e in exact], rtol=1e-9)
    assert class_coverage(held, torch.tensor([1.0, 0, 1, 1, 2, 0]), 0.9).groups.tolist() == [0, 1, 2]


def test_strata_are_closed_on_the_right_and_may_be_infinite():
    held = torch.ones(7, dtype=torch.bool)
    table = size_stratified_coverage(held, [0, 1, 2, 3, 4, 101, 11], 0.9)
    assert table.groups.tolist() == [0, 1, 2, 3, 4]
    assert table.counts.tolist() == [2, 2, 1, 1, 1]
    widths = torch.tensor([0.0, 0.5, math.inf])
    assert size_stratified_coverage(held[:3], widths, 0.9, edges=[0.4]).counts.tolist() == [1, 2]


@given(rows=st.lists(st.tuples(st.booleans(), st.integers(-2, 2)), min_size=2, max_size=30), cut=st.integers(1, 29))
def test_tables_of_shards_add_up(rows, cut):
    cut = min(cut, len(rows) - 1)
    held, groups = (torch.tensor(column) for column in zip(*rows, strict=True))
    whole = group_coverage(held, groups, 0.9)
    first, second = (group_coverage(held[part], groups[part], 0.9) for part in (slice(cut), slice(cut, None)))
    for merged in (first.merged(second), second.merged(first)):
        for name in ("groups", "counts", "hits"):
            assert torch.equal(getattr(merged, name), getattr(whole, name))
    with pytest.raises(ValueError, match="one coverage and confidence"):
        whole.merged(group_coverage(held, groups, 0.8))


@pytest.mark.parametrize("dip", [0.0, 0.2])
def test_intervals_hold_for_all_groups_together(dip):
    # 500 data sets of 8 groups; Bonferroni: all 8 hold in 95 % at least; 5 standard errors, a failure in 3 million
    generator = torch.Generator().manual_seed(0)
    truth = torch.full((8,), 0.9, dtype=torch.float64)
    truth[3] -= dip
    together, violation, alone = [], [], []
    for _ in range(500):
        groups = torch.randint(8, (400,), generator=generator)
        held = torch.rand(400, generator=generator, dtype=torch.float64) < truth[groups]
        table = group_coverage(held, groups, 0.9)
        for results, simultaneous in ((together, True), (alone, False)):
            lower, upper = table.interval(simultaneous=simultaneous)
            results.append(bool(((lower <= truth) & (truth <= upper)).all()))
        lower, upper = table.violation_interval()
        violation.append(bool(lower <= dip + 1e-12) and bool(dip - 1e-12 <= upper))
    allowed = 0.95 - 5 * math.sqrt(0.95 * 0.05 / 500)
    assert np.mean(together) > allowed
    assert np.mean(violation) > allowed
    assert np.mean(alone) < np.mean(together)


# -- the worst slab --------------------------------------------------------------------------------------------------


@given(
    hits=st.lists(st.booleans(), min_size=1, max_size=12),
    data=st.data(),
)
def test_least_mean_runs_by_brute_force(hits, data):
    rows = len(hits)
    keys = sorted(data.draw(st.lists(st.integers(0, 6), min_size=rows, max_size=rows)))
    shortest = data.draw(st.integers(1, rows))
    allowed = [
        (i, j)
        for i, j in itertools.combinations_with_replacement(range(rows), 2)
        if j - i + 1 >= shortest and (i == 0 or keys[i - 1] < keys[i]) and (j == rows - 1 or keys[j] < keys[j + 1])
    ]
    least = min(np.mean(hits[i : j + 1]) for i, j in allowed)
    mean, starts, ends = least_mean_runs(torch.tensor([hits]), torch.tensor([keys]), shortest)
    assert mean.item() == pytest.approx(least, abs=1e-12)
    assert (starts.item(), ends.item()) in allowed
    assert np.mean(hits[starts.item() : ends.item() + 1]) == pytest.approx(least, abs=1e-12)


def test_a_slab_of_low_coverage_is_found():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4000, 3, generator=generator)
    low = (x[:, 1] > 0.5) & (x[:, 1] < 1.5)
    held = torch.rand(4000, generator=generator) < torch.where(low, 0.5, 0.97)
    slab = worst_slab_coverage(held, x, 0.9, num_directions=500, seed=0)
    assert slab.lower < 0.62
    assert slab.observed < 0.7
    assert abs(slab.direction[1]) > 0.8
    assert slab.num_rows >= 0.05 * 3000
    again = worst_slab_coverage(held, x, 0.9, num_directions=500, seed=0)
    assert (again.observed, again.bounds) == (slab.observed, slab.bounds)


def test_judging_on_other_rows_takes_the_optimism_out():
    # coverage .9 everywhere: 500 searches on pure noise; the exact interval covers at 95 % or above
    generator = torch.Generator().manual_seed(5)
    covered, observed, searched = [], [], []
    for seed in range(500):
        x = torch.randn(160, 2, generator=generator)
        held = torch.rand(160, generator=generator) < 0.9
        slab = worst_slab_coverage(held, x, 0.9, mass=0.3, num_directions=20, search_share=0.5, seed=seed)
        covered.append(slab.lower <= 0.9 <= slab.upper)
        observed.append(slab.observed)
        searched.append(slab.searched)
    assert np.mean(covered) > 0.95 - 5 * math.sqrt(0.95 * 0.05 / 500)  # a failure in 3 million
    assert np.mean(observed) == pytest.approx(0.9, abs=5 * np.std(observed) / 500**0.5)
    assert np.mean(searched) < 0.85


def test_one_feature_has_one_direction_and_all_rows_alike_one_slab():
    held = torch.arange(40) % 4 > 0
    slab = worst_slab_coverage(held, torch.ones(40), 0.9, seed=0)
    assert slab.direction.tolist() == [1]
    assert slab.bounds == (1, 1)
    assert slab.num_rows == 30


def test_refusals():
    held = torch.ones(10, dtype=torch.bool)
    with pytest.raises(ShapeError, match="`groups` has 9 rows"):
        group_coverage(held, torch.zeros(9, dtype=torch.long), 0.9)
    with pytest.raises(TypeError, match="whole numbers"):
        group_coverage(held, torch.zeros(10), 0.9)
    with pytest.raises(TypeError, match="whole numbers"):
        class_coverage(held, torch.full((10,), 0.5), 0.9)
    with pytest.raises(ShapeError, match=r"`groups` must have shape \(rows,\)"):
        group_coverage(held, torch.zeros(10, 1, dtype=torch.long), 0.9)
    with pytest.raises(ShapeError, match="at least one row"):
        group_coverage(held[:0], [], 0.9)
    for edges in ([], [2, 1]):
        with pytest.raises(ValueError, match="`edges` must increase"):
            size_stratified_coverage(held, torch.ones(10), 0.9, edges=edges)
    with pytest.raises(NotFiniteError, match="`sizes`"):
        size_stratified_coverage(held, torch.full((10,), math.nan), 0.9)
    with pytest.raises(NotFiniteError, match="`inputs`"):
        worst_slab_coverage(held, torch.full((10, 2), math.inf), 0.9)
    with pytest.raises(ShapeError, match=r"\(rows, num_features\)"):
        worst_slab_coverage(held, torch.ones(10, 2, 2), 0.9)
    with pytest.raises(ShapeError, match="others to judge; got 1 rows"):
        worst_slab_coverage(held[:1], torch.ones(1, 2), 0.9)
    for share in ("mass", "search_share"):
        with pytest.raises(ValueError, match=f"`{share}` must lie between 0 and 1"):
            worst_slab_coverage(held, torch.ones(10, 2), 0.9, **{share: 1.0})
