"""The jackknife+, CV+ and the jackknife+-after-bootstrap against their definitions, tables and all."""

import math

import numpy as np
import pytest
import torch
from torch.distributions import Normal

import credibly
from credibly.conformal import shifted_sums
from credibly.conformal.intervals import sum_down
from credibly.conformal.jackknife import CVPlus, JackknifePlus, JackknifePlusAfterBootstrap
from credibly.conformal.ranks import rank
from credibly.conformal.shifted_sums import kth_smallest_sum
from credibly.core.errors import NotFiniteError, ShapeError

F64 = {"dtype": torch.float64}


def definition(centres, residuals, coverage):
    """From the table (rows, n) of leave-out predictions, with numpy."""
    k = rank(len(residuals), coverage)
    low = np.sort(centres.numpy() - residuals.numpy(), -1)[:, len(residuals) - k]
    high = np.sort(centres.numpy() + residuals.numpy(), -1)[:, k - 1]
    return low, high


def example(n=60, rows=25, folds=5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    left_out = torch.randn(n, generator=generator, **F64)
    targets = left_out + torch.randn(n, generator=generator, **F64)
    members = torch.randn(folds, rows, generator=generator, **F64)
    return left_out, targets, torch.randperm(n, generator=generator) % folds, members


@pytest.mark.parametrize("coverage", [0.5, 0.8, 0.9, 0.95])
def test_cv_plus_and_jackknife_plus_equal_their_definition(coverage):
    left_out, targets, folds, members = example()
    residuals = (targets - left_out).abs()
    region = CVPlus().calibrate(left_out, targets, folds).predict(members, coverage)
    low, high = definition(members[folds].T, residuals, coverage)
    crossed = low > high
    assert region.empty.tolist() == crossed.tolist()
    assert np.allclose(region.lower.numpy()[~crossed], low[~crossed], atol=1e-12)
    assert np.allclose(region.upper.numpy()[~crossed], high[~crossed], atol=1e-12)
    every = torch.randn(60, 25, **F64) / 10
    region = JackknifePlus().calibrate(left_out, targets).predict(every, coverage)
    low, high = definition(every.T, residuals, coverage)
    assert np.allclose(region.lower.numpy(), low, atol=1e-12)
    assert np.allclose(region.upper.numpy(), high, atol=1e-12)


def test_the_search_equals_the_table_to_the_last_bit(monkeypatch):
    monkeypatch.setattr(shifted_sums, "_MEMBERS_OF_A_FOLD", 0)
    generator = torch.Generator().manual_seed(1)
    for trial in range(60):
        folds = 1 + trial % 6
        residuals = [torch.randn(1 + 23 * f + trial, generator=generator, **F64).abs() for f in range(folds)]
        if trial % 3 == 0:
            residuals = [(2 * each).round() for each in residuals]
        if trial % 5 == 0:
            residuals[0][:3] = math.inf
        residuals = [each.sort().values for each in residuals]
        centres = torch.randn(folds, 7, generator=generator, **F64)
        centres = centres.round() if trial % 2 else centres
        sizes = torch.tensor([len(each) for each in residuals])
        table = sum_down(centres.T.repeat_interleave(sizes, 1), torch.cat(residuals)).sort(-1).values
        n = table.shape[1]
        for k in {1, n, (n + 1) // 2, max(1, round(0.9 * n))}:
            assert torch.equal(kth_smallest_sum(centres, residuals, k), table[:, k - 1])


def test_many_ties():
    left_out, targets = torch.zeros(2000, **F64), torch.ones(2000, **F64)
    members = torch.tensor([[0.0, 5.0], [0.0, 5.0]], **F64)
    region = CVPlus().calibrate(left_out, targets, torch.arange(2000) % 2).predict(members, 0.9)
    assert region.lower.tolist() == [-1.0, 4.0]
    assert region.upper.tolist() == [1.0, 6.0]
    assert region.contains([1.0, 6.0]).tolist() == [True, True]


def test_too_few_rows_and_extreme_coverages():
    left_out, targets, folds, members = example(n=8, folds=2)
    fitted = CVPlus().calibrate(left_out, targets, folds)
    assert fitted.predict(members, 0.9).width.tolist() == [math.inf] * 25  # rank 9 of 8
    assert bool(fitted.predict(members, 0.88).width.isfinite().all())
    assert fitted.predict(members, 1).width.tolist() == [math.inf] * 25
    assert bool(fitted.predict(members, 0).empty.all())
    assert fitted.predict(members[:, :0], 0.5).width.shape == (0,)
    with pytest.raises(ValueError, match="coverage"):
        fitted.predict(members, 1.5)


@pytest.mark.parametrize("aggregate", ["mean", "median"])
def test_after_bootstrap_equals_its_definition(aggregate):
    rng = np.random.default_rng(0)
    members, rows, n = 15, 12, 40
    train, new, targets = rng.normal(size=(members, n)), rng.normal(size=(members, rows)), rng.normal(size=n)
    in_bag = np.stack([np.bincount(rng.integers(0, n, n), minlength=n) for _ in range(members)])
    combine = {"mean": np.mean, "median": np.median}[aggregate]
    own = np.array([combine(train[in_bag[:, i] == 0, i]) for i in range(n)])
    table = np.array([[combine(new[in_bag[:, i] == 0, x]) for i in range(n)] for x in range(rows)])
    fitted = JackknifePlusAfterBootstrap(aggregate=aggregate).calibrate(train, targets, in_bag)
    region = fitted.predict(new, 0.8)
    low, high = definition(torch.tensor(table), torch.tensor(np.abs(targets - own)), 0.8)
    assert np.allclose(region.lower.numpy(), low, atol=1e-12)
    assert np.allclose(region.upper.numpy(), high, atol=1e-12)
    in_bag[:, 0] = 1  # a row that every member saw counts as infinitely far
    fitted = JackknifePlusAfterBootstrap(aggregate=aggregate).calibrate(train, targets, in_bag)
    assert fitted.scores[0].item() == math.inf
    assert fitted.predict(new, 0.97).width.tolist() == [math.inf] * rows
    assert bool(fitted.predict(new, 0.95).width.isfinite().all())


def test_forecasts_from_anywhere(dtype):
    left_out, targets, folds, members = example()
    arrays = CVPlus().calibrate(left_out.to(dtype).numpy(), targets.to(dtype).numpy(), folds.numpy())
    kept = left_out.clone(), members.clone()
    spread = CVPlus().calibrate(Normal(left_out.to(dtype), 1.0), targets.to(dtype), folds)
    expected = arrays.predict(members.to(dtype).numpy(), 0.8)
    for given in (Normal(members.to(dtype), 2.0), [Normal(row.to(dtype), 2.0) for row in members]):
        assert torch.equal(spread.predict(given, 0.8).width, expected.width)
    order = torch.randperm(60)
    shuffled = CVPlus().calibrate(left_out[order], targets[order], folds[order]).predict(members.T.contiguous().T, 0.8)
    whole = CVPlus().calibrate(left_out, targets, folds).predict(members, 0.8)
    assert torch.equal(shuffled.lower, whole.lower)
    parts = [CVPlus().calibrate(left_out, targets, folds).predict(some, 0.8).upper for some in members.split(4, 1)]
    assert torch.equal(torch.cat(parts), whole.upper)
    assert torch.equal(left_out, kept[0])
    assert torch.equal(members, kept[1])


def test_files(tmp_path):
    left_out, targets, folds, members = example()
    bagged = JackknifePlusAfterBootstrap().calibrate(members, targets[:25], torch.rand(5, 25) < 0.6)
    for fitted in (CVPlus().calibrate(left_out, targets, folds), bagged):
        credibly.save(fitted, tmp_path / "plus")
        again = credibly.load(tmp_path / "plus")
        assert torch.equal(again.predict(members, 0.6).upper, fitted.predict(members, 0.6).upper)


def test_guarantees():
    left_out, targets, folds, _ = example()
    assert JackknifePlus().calibrate(left_out, targets).guaranteed_coverage(0.9) == pytest.approx(0.8)
    fitted = CVPlus().calibrate(left_out, targets, folds)
    assert fitted.guaranteed_coverage(0.9) == pytest.approx(0.8 - 2 * 0.8 / 13)
    assert fitted.guaranteed_coverage(0.9) >= 0.8 - math.sqrt(2 / 60)
    assert fitted.guaranteed_coverage(0.4) == 0.0


def test_refusals_by_name():
    left_out, targets, folds, members = example()
    fitted = CVPlus().calibrate(left_out, targets, folds)
    with pytest.raises(ShapeError, match=r"members.*\(5, rows\)"):
        fitted.predict(members[:4], 0.9)
    with pytest.raises(ShapeError, match="targets"):
        JackknifePlus().calibrate(left_out, targets[:5])
    with pytest.raises(ShapeError, match="2 rows"):
        JackknifePlus().calibrate(left_out[:1], targets[:1])
    with pytest.raises(ValueError, match="folds"):
        CVPlus().calibrate(left_out, targets, folds + 1)
    with pytest.raises(NotFiniteError, match="left_out"):
        JackknifePlus().calibrate(left_out / 0, targets)
    with pytest.raises(ShapeError, match="in_bag"):
        JackknifePlusAfterBootstrap().calibrate(members, targets[:25], torch.zeros(5, 3))
    with pytest.raises(ValueError, match="aggregate"):
        JackknifePlusAfterBootstrap(aggregate="mode")
