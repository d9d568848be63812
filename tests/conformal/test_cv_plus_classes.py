"""CV+ for classes: the rule against its definition, its bound, the counting kernel, large inputs, files."""

import copy
import math
import pickle
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributions import Categorical, Normal

import credibly
from credibly.conformal.aps import APS
from credibly.conformal.cv_plus import ClassCVPlus
from credibly.conformal.fold_counts import count_at_most, count_below, row_folds, sort_by_fold
from credibly.conformal.lac import LAC
from credibly.conformal.margin import Margin
from credibly.conformal.rows import row_uniforms
from credibly.conformal.top_k import TopK
from credibly.core.errors import NotSupportedError, ShapeError

SCORES = {"lac": LAC(), "aps": APS(), "aps_deterministic": APS(randomized=False), "margin": Margin(), "top_k": TopK()}


def forecasts(rows, num_folds=3, test_rows=12, classes=4, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(rows, classes, generator=generator, dtype=dtype)
    tests = 2 * torch.randn(num_folds, test_rows, classes, generator=generator, dtype=dtype)
    targets = torch.randint(classes, (rows,), generator=generator)
    folds = torch.randperm(rows, generator=generator) % num_folds
    return Categorical(logits=logits), targets, folds, [Categorical(logits=z) for z in tests]


@pytest.mark.parametrize("name", SCORES)
@pytest.mark.parametrize("percent", [0, 28, 50, 90, 96, 97, 100])
def test_the_rule_is_its_definition(name, percent, dtype):
    score = SCORES[name]
    predicted, targets, folds, tests = forecasts(24, dtype=dtype)
    predictor = ClassCVPlus(score).calibrate(predicted, targets, folds, seed=1)
    sets = predictor.predict(tests, percent / 100, seed=2)
    u = [
        row_uniforms(rows, seed, name, targets.device)
        for rows, seed, name in ((24, 1, "calibrate"), (12, 2, "predict"))
    ]
    u = u if score.uses_uniforms else [None, None]
    own = score.score(predicted, targets, u[0]).tolist()
    tables = [score.scores_of_classes(each, u[1]).tolist() for each in tests]
    limit = Fraction(percent, 100) * 25
    for row in range(12):
        for y in range(4):
            below = sum(s < tables[k][row][y] for s, k in zip(own, folds.tolist(), strict=True))
            assert bool(sets.members[row, y]) == (below < limit)


def test_models_that_agree_give_split_sets():
    # if all models predict alike, #{s_i < s(y)} < ceil(c (n + 1)) says that s(y) is at most the split threshold
    predicted, targets, folds, tests = forecasts(50)
    for score in SCORES.values():
        cross = ClassCVPlus(score).calibrate(predicted, targets, folds, seed=1).predict([tests[0]] * 3, 0.8, seed=2)
        split = score.calibrate(predicted, targets, seed=1).predict(tests[0], 0.8, seed=2)
        assert torch.equal(cross.members, split.members)


def test_coverage_holds_its_bound():
    # 200 repeats of n = 40 rows in 4 folds; the "model" is the table of class frequencies by the sign of x
    repeats, n, m, num_folds, coverage = 200, 40, 25, 4, 0.8
    generator = torch.Generator().manual_seed(2)
    truth = torch.tensor([[0.6, 0.3, 0.1], [0.1, 0.2, 0.7]])
    folds, covered = torch.arange(n) % num_folds, []
    for repeat in range(repeats):
        x = torch.randint(2, (n + m,), generator=generator)
        y = torch.multinomial(truth[x], 1, generator=generator).squeeze(-1)
        tables = torch.ones(num_folds, 2, 3)
        for fold in range(num_folds):
            rows = (folds != fold).nonzero().squeeze(-1)
            tables[fold].index_put_((x[rows], y[rows]), torch.ones(()), accumulate=True)
        probs = tables / tables.sum(-1, keepdim=True)
        left_out = Categorical(probs=probs[folds, x[:n]])
        tests = [Categorical(probs=table[x[n:]]) for table in probs]
        predictor = ClassCVPlus(APS()).calibrate(left_out, y[:n], folds, seed=repeat)
        covered.append(float(predictor.predict(tests, coverage, seed=repeat).empirical_coverage(y[n:])))
    mean, error = sum(covered) / repeats, torch.tensor(covered).std().item() / math.sqrt(repeats)
    assert mean > 2 * coverage - 1 - math.sqrt(2 / n) - 5 * error  # the theorem; failure rate 3e-7
    assert mean > coverage - 0.03 - 5 * error  # and what is seen in practice: about c


def test_coverage_zero_is_nothing_and_one_is_everything():
    predicted, targets, folds, tests = forecasts(20)
    predictor = ClassCVPlus(LAC()).calibrate(predicted, targets, folds)
    assert not bool(predictor.predict(tests, 0).members.any())
    assert bool(predictor.predict(tests, 1).members.all())
    assert bool(predictor.predict(tests, 0.96).members.all())  # 20 rows are too few
    for outside in (-0.1, 1.1, math.nan):
        with pytest.raises(ValueError, match="coverage"):
            predictor.predict(tests, outside)


@given(
    st.lists(st.tuples(st.sampled_from([0.0, 1.0, 1.5, math.inf, -math.inf]), st.integers(0, 2)), max_size=30),
    st.lists(st.sampled_from([0.0, 1.0, 1.25, math.inf, -math.inf]), min_size=3, max_size=3),
)
def test_counts_by_fold_equal_the_table_of_all_pairs(rows, values):
    rows = [(0.5, 0), (0.5, 1), (0.5, 2), *rows]
    scores = torch.tensor([s for s, _ in rows], dtype=torch.float64)
    folds, num_folds = row_folds([k for _, k in rows], len(rows), scores.device)
    by_fold = sort_by_fold(scores, folds, num_folds)
    assert [len(part) for part in by_fold] == [sum(k == fold for _, k in rows) for fold in range(3)]
    compared = torch.tensor(values, dtype=torch.float64)
    assert int(count_below(by_fold, compared)) == sum(s < values[k] for s, k in rows)
    assert int(count_at_most(by_fold, compared)) == sum(s <= values[k] for s, k in rows)


def test_large_inputs_need_no_table_of_all_pairs():
    # 100,000 test rows against 100,000 scores in 10 folds: a table of all pairs would hold 80 GB
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(100_000, generator=generator, dtype=torch.float64)
    values = torch.randn(10, 100_000, generator=generator, dtype=torch.float64)
    folds = torch.arange(100_000) % 10
    counts = count_below(sort_by_fold(scores, folds, 10), values)
    assert counts.dtype == torch.int64
    for row in (0, 500, 99_999):
        assert int(counts[row]) == int((scores < values[folds, row]).sum())


def test_predictors_come_back_from_files_and_copies(tmp_path, device):
    predicted, targets, folds, tests = forecasts(30)
    predictor = ClassCVPlus(APS()).calibrate(predicted, targets, folds, seed=0)
    credibly.save(predictor, tmp_path / "sets")
    expected = predictor.predict(tests, 0.8, seed=1).members
    loaded = credibly.load(tmp_path / "sets", device=device)
    for twin in (loaded, copy.deepcopy(predictor), pickle.loads(pickle.dumps(predictor))):
        assert torch.equal(twin.predict(tests, 0.8, seed=1).members, expected)


def test_order_of_rows_and_split_of_test_rows_change_nothing():
    predicted, targets, folds, tests = forecasts(60)
    order = torch.randperm(60)
    recipe = ClassCVPlus(LAC())
    expected = recipe.calibrate(predicted, targets, folds).predict(tests, 0.7).members
    shuffled = recipe.calibrate(Categorical(logits=predicted.logits[order]), targets[order], folds[order])
    assert torch.equal(shuffled.predict(tests, 0.7).members, expected)
    parts = [
        shuffled.predict([Categorical(logits=each.logits[rows]) for each in tests], 0.7).members
        for rows in (slice(0, 5), slice(5, 12))
    ]
    assert torch.equal(torch.cat(parts), expected)


def test_refusals():
    predicted, targets, folds, tests = forecasts(20)
    recipe = ClassCVPlus(LAC())
    for bad in (torch.zeros(20), folds + 1, folds * 2):
        with pytest.raises(ValueError, match="folds"):
            recipe.calibrate(predicted, targets, bad)
    with pytest.raises(ShapeError, match="folds"):
        recipe.calibrate(predicted, targets, folds[:5])
    predictor = recipe.calibrate(predicted, targets, folds)
    with pytest.raises(ShapeError, match="one prediction a fold, 3; got 2"):
        predictor.predict(tests[:2], 0.5)
    with pytest.raises(ShapeError, match="rows"):
        predictor.predict([*tests[:2], Categorical(logits=torch.zeros(5, 4))], 0.5)
    with pytest.raises(ShapeError, match="4 classes of calibration; got 3"):
        predictor.predict([*tests[:2], Categorical(logits=torch.zeros(12, 3))], 0.5)
    with pytest.raises(NotSupportedError, match="Normal"):
        recipe.calibrate(Normal(torch.zeros(4), 1.0), torch.zeros(4), [0, 1, 0, 1])
