"""Conformal p-values against their definition, multiple tests by hand, and outliers against the exact FDR."""

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from credibly.conformal.comparisons import at_most, exact_number
from credibly.conformal.multiple_testing import BenjaminiHochberg, Bonferroni, FixedSequence, Holm
from credibly.conformal.p_values import OutlierTest, conformal_p_values, retained, smoothed_p_values
from credibly.conformal.ranks import threshold
from credibly.core.errors import NotFiniteError, ShapeError, SupportError

SOME = st.sampled_from([-math.inf, -1.5, -0.0, 0.0, 0.25, 1.0, 2.0, math.inf])
PROCEDURES = (Bonferroni(), Holm(), FixedSequence(), FixedSequence(num_starts=2), BenjaminiHochberg())


@given(st.lists(SOME, max_size=12), st.lists(SOME, max_size=6), st.floats(0, 1))
def test_p_values_by_counting(calibration, scores, u):
    cal, test = torch.tensor(calibration, dtype=torch.float64), torch.tensor(scores, dtype=torch.float64)
    n = len(calibration)
    plain = [Fraction(sum(c >= s for c in calibration) + 1, n + 1) for s in scores]
    assert conformal_p_values(test, cal).tolist() == [float(p) for p in plain]
    above = [sum(c > s for c in calibration) for s in scores]
    tied = [sum(c == s for c in calibration) for s in scores]
    smooth = [(a + u * (t + 1)) / (n + 1) for a, t in zip(above, tied, strict=True)]
    found = smoothed_p_values(test, cal, u=torch.full((len(scores),), u, dtype=torch.float64))
    assert found.tolist() == pytest.approx(smooth, abs=1e-15)


@given(st.lists(SOME, max_size=12), st.integers(0, 1000))
def test_large_p_values_are_the_threshold_rule(calibration, thousandths):
    # in rationals on one side, by the library on the other; every kind of candidate, ties and infinities included
    level = Fraction(thousandths, 1000)
    candidates = [-math.inf, -2.0, -1.5, -0.5, 0.0, 0.1, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, math.inf]
    by_hand = [Fraction(sum(c >= s for c in calibration) + 1, len(calibration) + 1) > 1 - level for s in candidates]
    cal = torch.tensor(calibration, dtype=torch.float64).sort().values
    values = torch.tensor(candidates, dtype=torch.float64)
    assert retained(conformal_p_values(values, cal), thousandths / 1000).tolist() == by_hand
    if thousandths:  # at coverage 0 the threshold is -infinity, which a score of -infinity does not exceed
        assert (values <= threshold(cal, thousandths / 1000)).tolist() == by_hand


def test_the_threshold_rule_holds_for_every_level_and_size():
    wrong_in_floats = 0
    for n in [*range(1, 31), 57, 99, 100, 119]:
        cal = torch.arange(1, n + 1, dtype=torch.float64)
        p = conformal_p_values(cal, cal)
        for i in range(101):
            expected = [Fraction(n - k + 1, n + 1) > 1 - Fraction(i, 100) for k in range(n)]
            assert retained(p, i / 100).tolist() == expected, (n, i)
            assert (cal <= threshold(cal, i / 100)).tolist() == expected
            wrong_in_floats += (p > 1 - i / 100).tolist() != expected
    assert wrong_in_floats > 0


def test_p_values_of_tables_and_of_other_types(dtype, device):
    generator = torch.Generator().manual_seed(0)
    cal = torch.randint(0, 30, (200,), generator=generator).to(device, dtype)
    table = torch.randint(0, 30, (9, 40), generator=generator).to(device, dtype)
    before = cal.clone()
    found = conformal_p_values(table.T, cal)  # not contiguous
    assert torch.equal(found, ((cal >= table.T.unsqueeze(-1)).sum(-1) + 1).double() / 201)
    assert torch.equal(cal, before)
    assert torch.equal(conformal_p_values(table.T, cal.repeat_interleave(2)[::2]), found)
    assert found.dtype == torch.float64
    assert torch.equal(conformal_p_values(table.long(), cal.double()), found.T)
    u = torch.rand(9, generator=generator, dtype=torch.float64).to(device)
    smooth = smoothed_p_values(table, cal, u=u)
    above, tied = ((cal > table.unsqueeze(-1)).sum(-1), (cal == table.unsqueeze(-1)).sum(-1))
    assert torch.allclose(smooth, (above + u[:, None] * (tied + 1)) / 201, rtol=1e-15)
    # float32 scores against float64 ones are not rounded to each other
    assert conformal_p_values(torch.tensor([0.1]), torch.tensor([0.1], dtype=torch.float64)).item() == 0.5
    assert conformal_p_values(torch.tensor([0.1]).double(), torch.tensor([0.1])).item() == 1.0


def test_p_values_at_the_edges():
    assert conformal_p_values([], [1.0]).shape == (0,)
    assert conformal_p_values([5.0], []).tolist() == [1.0]
    assert smoothed_p_values([5.0], [], u=[0.3]).tolist() == [0.3]
    assert conformal_p_values(2.0, [1.0, 3.0, 5.0]).item() == 0.75
    for bad in (([math.nan], [1.0]), ([1.0], [math.nan])):
        with pytest.raises(NotFiniteError, match="NaN"):
            conformal_p_values(*bad)
    with pytest.raises(ShapeError, match="calibration_scores"):
        conformal_p_values([1.0], [[1.0]])
    with pytest.raises(ShapeError, match="u"):
        smoothed_p_values([1.0, 2.0], [1.0], u=[0.5])
    with pytest.raises(ValueError, match="u"):
        smoothed_p_values([1.0], [1.0], u=[1.5])
    with pytest.raises(ValueError, match="coverage"):
        retained([0.5], 1.5)
    assert retained(torch.tensor([1e-12, 1.0]), 1).tolist() == [True, True]
    assert retained(torch.tensor([1e-12, 1.0]), 0).tolist() == [False, False]


def test_smoothed_p_values_are_uniform_and_seeded():
    # heavy ties; n + 1 exchangeable rows give exactly uniform p-values. 20,000 of them from disjoint sets: KS at 1e-6.
    generator = torch.Generator().manual_seed(1)
    found = []
    for i in range(2000):
        cal = torch.randint(0, 3, (9,), generator=generator)
        found.append(smoothed_p_values(torch.randint(0, 3, (1,), generator=generator), cal, seed=i))
    assert stats.kstest(torch.cat(found).numpy(), "uniform").pvalue > 1e-6
    state = torch.get_rng_state()
    one, same = (smoothed_p_values(torch.zeros(5), torch.zeros(3), seed=7) for _ in range(2))
    assert torch.equal(one, same)
    assert torch.equal(torch.get_rng_state(), state)


def test_levels_are_read_as_rationals():
    assert exact_number(0.1) == Fraction(1, 10)
    assert exact_number(1 - 0.9) == Fraction(1, 10)
    assert exact_number(1e-9) == Fraction(1e-9)
    third = torch.tensor([3 * 0.1, 0.3000001], dtype=torch.float64)
    assert at_most(third, Fraction(3, 10)).tolist() == [True, False]
    assert at_most(-third, Fraction(-3, 10)).tolist() == [True, True]
    assert at_most(torch.tensor([-0.2999999], dtype=torch.float64), Fraction(-3, 10)).tolist() == [False]


def test_multiple_tests_by_hand():
    p = [0.01, 0.04, 0.03, 0.005, 0.6]
    assert Bonferroni().reject(p, 0.05).tolist() == [True, False, False, True, False]
    # Holm: .005 <= .01, .01 <= .0125, .03 > .05 / 3
    assert Holm().reject(p, 0.05).tolist() == [True, False, False, True, False]
    # BH: .005 <= .01, .01 <= .02, .03 <= .03, .04 <= .04
    assert BenjaminiHochberg().reject(p, 0.05).tolist() == [True, True, True, True, False]
    assert FixedSequence().reject(p, 0.05).tolist() == [True, True, True, True, False]
    assert FixedSequence().reject([0.2, 0.0], 0.05).tolist() == [False, False]
    assert FixedSequence(num_starts=2).reject([0.2, 0.0, 0.01, 0.04], 0.05).tolist() == [False, False, True, False]
    # stepping over a gap: only the last comparison counts
    assert BenjaminiHochberg().reject([0.04, 0.03, 0.045], 0.05).tolist() == [True, True, True]
    assert Holm().reject([0.04, 0.03, 0.045], 0.05).tolist() == [False, False, False]
    assert Holm().reject([0.01, 0.03, 0.04], 0.05).tolist() == [True, False, False]


def exact_step_up(counts, total, level):
    """Benjamini and Hochberg on p-values that are counts of a total, in rationals."""
    m = len(counts)
    ordered = sorted(counts)
    passed = [k for k in range(1, m + 1) if Fraction(ordered[k - 1], total) <= level * k / m]
    return [bool(passed) and c <= ordered[passed[-1] - 1] for c in counts]


@given(st.integers(1, 400), st.lists(st.integers(1, 400), min_size=1, max_size=12), st.integers(0, 100))
def test_procedures_on_exact_boundaries(total, counts, percent):
    counts = [min(c, total) for c in counts]
    p = torch.tensor([c / total for c in counts], dtype=torch.float64)
    level, m = Fraction(percent, 100), len(counts)
    assert BenjaminiHochberg().reject(p, percent / 100).tolist() == exact_step_up(counts, total, level)
    fractions = [Fraction(c, total) for c in counts]
    assert Bonferroni().reject(p, percent / 100).tolist() == [f <= level / m for f in fractions]
    order = sorted(range(m), key=lambda i: fractions[i])
    expected, going = [False] * m, True
    for k, i in enumerate(order):
        going = going and fractions[i] <= level / (m - k)
        expected[i] = going
    assert Holm().reject(p, percent / 100).tolist() == expected


@pytest.mark.parametrize("procedure", PROCEDURES, ids=repr)
def test_procedures_on_batches_and_edges(procedure, device):
    generator = torch.Generator().manual_seed(2)
    p = torch.rand(6, 5, 7, generator=generator).to(device) ** 3
    together = procedure.reject(p, 0.2)
    assert torch.equal(together[3, 2], procedure.reject(p[3, 2], 0.2))
    assert procedure.reject(torch.empty(0), 0.2).shape == (0,)
    assert procedure.reject([0.0, 0.5, 1.0], 0).tolist() == [True, False, False]
    if procedure != FixedSequence(num_starts=2) and procedure != Bonferroni():
        assert procedure.reject([1.0, 1.0], 1).tolist() in ([True, True], [False, False])
    for bad, error in (([math.nan], NotFiniteError), ([1.5], SupportError), (0.5, ShapeError)):
        with pytest.raises(error, match="p_values"):
            procedure.reject(bad, 0.1)
    with pytest.raises(ValueError, match="level"):
        procedure.reject([0.5], 1.1)
    assert procedure.controls_family_wise_error == (procedure != BenjaminiHochberg())


def test_holm_rejects_all_that_bonferroni_does():
    p = torch.rand(500, 20, generator=torch.Generator().manual_seed(3)) ** 4
    bonferroni, holm, bh = (each.reject(p, 0.1) for each in (Bonferroni(), Holm(), BenjaminiHochberg()))
    assert bool((holm | ~bonferroni).all())
    assert bool((bh | ~holm).all())
    assert int(holm.sum()) > int(bonferroni.sum())


@pytest.mark.parametrize("procedure", [Bonferroni(), Holm(), FixedSequence(), FixedSequence(num_starts=4)], ids=repr)
def test_family_wise_error(procedure):
    # 20 hypotheses, the last 15 true with uniform p-values; 20,000 families, 4 standard errors: failure rate 3e-5
    generator = torch.Generator().manual_seed(4)
    p = torch.rand(20_000, 20, generator=generator, dtype=torch.float64)
    p[:, :5] = p[:, :5] ** 6
    wrong = procedure.reject(p, 0.1)[:, 5:].any(-1).double().mean().item()
    assert wrong <= 0.1 + 4 * math.sqrt(0.09 / 20_000)


def test_outliers_are_found_at_the_exact_false_discovery_rate():
    # For continuous scores and level (n + 1) / m a whole number, the FDR is exactly level * (share of inliers): 0.08
    # here. 3000 repeats, 5 standard errors: failure rate 6e-7. And power: outliers 3 sd away are found.
    generator = torch.Generator().manual_seed(5)
    n, m, inliers, level = 499, 50, 40, 0.1
    shift = torch.tensor([0.0] * inliers + [3.0] * (m - inliers), dtype=torch.float64)
    proportions, found = [], []
    for _ in range(3000):
        cal = torch.randn(n, generator=generator, dtype=torch.float64)
        result = OutlierTest(level=level).detect(torch.randn(m, generator=generator, dtype=torch.float64) + shift, cal)
        wrong, right = int(result.flagged[:inliers].sum()), int(result.flagged[inliers:].sum())
        proportions.append(wrong / max(wrong + right, 1))
        found.append(right / (m - inliers))
    rate = torch.tensor(proportions, dtype=torch.float64)
    assert abs(rate.mean().item() - level * inliers / m) < 5 * rate.std().item() / math.sqrt(len(rate))
    assert sum(found) / len(found) > 0.5


def test_outlier_test_by_hand():
    cal = torch.arange(1.0, 20.0)  # 19 scores: p-values are multiples of 1/20
    result = OutlierTest(level=0.1).detect(torch.tensor([30.0, 0.0, 30.0, 18.5]), cal)
    assert result.p_values.tolist() == [0.05, 1.0, 0.05, 0.1]
    assert result.flagged.tolist() == [True, False, True, False]  # .05 <= .1 * 2 / 4, .1 > .1 * 3 / 4
    assert result.indices.tolist() == [0, 2]
    assert OutlierTest(level=0.2, procedure=Bonferroni()).detect([30.0, 30.0], cal).flagged.tolist() == [True, True]
    assert OutlierTest(level=0).detect([30.0], cal).flagged.tolist() == [False]
    assert OutlierTest(level=1).detect([0.0, 30.0], cal).flagged.tolist() == [True, True]
    assert OutlierTest().detect([], cal).flagged.shape == (0,)
    with pytest.raises(ValueError, match="level"):
        OutlierTest(level=1.5)
    with pytest.raises(ShapeError, match="rows"):
        OutlierTest().detect([[1.0]], cal)
