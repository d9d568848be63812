"""Class-conditional prediction: a threshold a class, its exact law, unseen classes, groups, weights, files."""

import copy
import math
import pickle

import pytest
import torch
from scipy import stats
from torch.distributions import Bernoulli, Categorical, Normal

import credibly
from credibly.conformal.aps import APS
from credibly.conformal.class_conditional import ClassConditional
from credibly.conformal.lac import LAC
from credibly.conformal.margin import Margin
from credibly.conformal.ranks import rank, threshold
from credibly.conformal.raps import RAPS
from credibly.core.errors import NotSupportedError, ShapeError, SupportError
from credibly.distributions.entry import from_probs

SCORES = {"lac": LAC(), "aps": APS(), "raps": RAPS(penalty=0.05, k_reg=1), "margin": Margin()}


def forecasts(rows, classes=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(rows, classes, generator=generator, dtype=torch.float64)
    return logits, torch.multinomial((logits / 3).softmax(-1), 1, generator=generator).squeeze(-1)


@pytest.mark.parametrize("name", SCORES)
def test_every_class_follows_its_own_law(name):
    # 2,000 repeats as groups: in each, classes 0, 1, 2 have 9, 19, 14 calibration rows and 10 test rows
    repeats, counts, m, coverage = 2000, (9, 19, 14), 10, 0.8
    each = torch.cat([torch.full((c + m,), y) for y, c in enumerate(counts)])
    held_out = torch.cat([torch.arange(c + m) < c for c in counts]).repeat(repeats)
    targets, groups = each.repeat(repeats), torch.arange(repeats).repeat_interleave(len(each))
    logits = forecasts(len(targets), seed=3)[0]
    logits[torch.arange(len(targets)), targets] += 0.5 * (targets + 1)  # some classes are easier than others
    test = ~held_out
    predictor = ClassConditional(SCORES[name]).calibrate(
        Categorical(logits=logits[held_out]), targets[held_out], groups=groups[held_out], seed=1
    )
    sets = predictor.predict(Categorical(logits=logits[test]), coverage, groups=groups[test], seed=2)
    inside = sets.contains(targets[test]).reshape(repeats, 3, m).sum(-1)
    for y, n in enumerate(counts):
        k = rank(n, coverage)
        law = stats.betabinom(m, k, n + 1 - k)
        low = int(law.ppf(0.05))
        seen = [int((inside[:, y] <= low).sum()), *(int((inside[:, y] == j).sum()) for j in range(low + 1, m + 1))]
        expected = [law.cdf(low) * repeats, *(law.pmf(j) * repeats for j in range(low + 1, m + 1))]
        assert min(expected) > 20
        assert stats.chisquare(seen, expected).pvalue > 1e-4  # failure rate 1e-4 a class


@pytest.mark.parametrize("name", ["lac", "margin"])
def test_each_class_is_compared_with_its_own_scores(name):
    score = SCORES[name]
    logits, targets = forecasts(120)
    predicted = Categorical(logits=logits)
    sets = ClassConditional(score).calibrate(predicted, targets).predict(predicted, 0.7)
    own, table = score.score(predicted, targets), score.scores_of_classes(predicted)
    limits = torch.stack([threshold(own[targets == y].sort().values, 0.7) for y in range(3)])
    assert torch.equal(sets.members, table <= limits)
    for y in range(3):
        inside = sets.contains(targets)[targets == y]
        assert int(inside.sum()) == rank(len(inside), 0.7)


@pytest.mark.parametrize("seen", [(0, 1), (1, 2)])
@pytest.mark.parametrize("name", SCORES)
def test_an_unseen_class_belongs_to_every_set(name, seen):
    # field case B50: calibration labels 0 and 1, then 1 and 2, of a model with three classes
    logits, coin = forecasts(60)
    targets = torch.tensor(seen)[coin % 2]
    predicted = Categorical(logits=logits)
    predictor = ClassConditional(SCORES[name]).calibrate(predicted, targets, seed=0)
    sets = predictor.predict(predicted, 0.6, seed=0)
    missing = ({0, 1, 2} - set(seen)).pop()
    assert sets.members.shape == (60, 3)
    assert bool(sets.members[:, missing].all())
    assert not bool(sets.members.all())
    assert not bool(predictor.predict(predicted, 0, seed=0).members.any())
    with pytest.raises(SupportError, match="10"):
        ClassConditional(SCORES[name]).calibrate(predicted, torch.tensor([10, 20, 30]).repeat(20))


def test_impossible_classes_belong_too_while_their_threshold_is_infinite():
    probs = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.5, 0.5, 0.0]])
    for score in SCORES.values():
        predictor = ClassConditional(score).calibrate(from_probs(probs), [0, 1, 0], seed=0)
        assert bool(predictor.predict(from_probs(probs), 0.5, seed=0).members[:, 2].all())


def test_groups_weights_and_difficulty_work_as_they_do_for_a_class_alone():
    logits, targets = forecasts(200)
    groups, weights = torch.arange(200) % 2 - 5, torch.arange(1, 201).double()
    difficulty = 0.5 + torch.rand(200, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    extras = {"groups": groups, "weights": weights, "difficulty": difficulty}
    predicted = Categorical(logits=logits)
    for names in (("groups",), ("weights",), ("difficulty",), tuple(extras)):
        chosen = {name: extras[name] for name in names}
        sets = ClassConditional(LAC()).calibrate(predicted, targets, **chosen).predict(predicted, 0.7, **chosen)
        for y in range(3):
            rows = targets == y
            of_class = {name: value[rows] for name, value in chosen.items()}
            alone = LAC().calibrate(Categorical(logits=logits[rows]), targets[rows], **of_class)
            assert torch.equal(sets.members[:, y], alone.predict(predicted, 0.7, **chosen).members[:, y])


def test_sets_of_crepes():
    # p-values of crepes 0.9.1, fitted with the classes as its bins: sizes of the sets, and how many hold each class
    i = torch.arange(60)
    columns = [(7 * i + 3) % 11 + 1, (5 * i + 1) % 13 + 1, (3 * i + 2) % 17 + 1, (i * i) % 19 + 1]
    probs = torch.stack(columns, 1).double()
    probs, targets = probs / probs.sum(1, keepdim=True), (3 * i * i + i // 4) % 4
    expected = {
        ("lac", 0.5): ("22212212222121212223", [6, 8, 13, 9]),
        ("lac", 0.8): ("32242332432333423334", [11, 13, 14, 20]),
        ("lac", 0.9): ("43242442432433424344", [12, 13, 20, 20]),
        ("margin", 0.5): ("32131232432121412124", [9, 10, 9, 16]),
        ("margin", 0.8): ("44242342442332412244", [14, 12, 17, 17]),
        ("margin", 0.9): ("44242444443443433244", [15, 17, 20, 18]),
    }
    for (name, coverage), (sizes, held) in expected.items():
        predictor = ClassConditional(SCORES[name]).calibrate(from_probs(probs[:40]), targets[:40])
        sets = predictor.predict(from_probs(probs[40:]), coverage)
        assert "".join(map(str, sets.size.tolist())) == sizes
        assert sets.members.sum(0).tolist() == held


@pytest.mark.parametrize("extras", [(), ("groups",), ("weights",), ("difficulty",)])
def test_predictors_come_back_from_files_and_copies(extras, tmp_path, device):
    logits, targets = forecasts(50)
    every = {"groups": torch.arange(50) % 3, "weights": torch.rand(50), "difficulty": 1 + torch.rand(50)}
    chosen = {name: every[name] for name in extras}
    predicted = Categorical(logits=logits)
    predictor = ClassConditional(APS()).calibrate(predicted, targets, **chosen, seed=0)
    credibly.save(predictor, tmp_path / "sets")
    expected = predictor.predict(predicted, 0.7, **chosen, seed=1).members
    loaded = credibly.load(tmp_path / "sets", device=device)
    for twin in (loaded, copy.deepcopy(predictor), pickle.loads(pickle.dumps(predictor))):
        assert torch.equal(twin.predict(predicted, 0.7, **chosen, seed=1).members, expected)


def test_refusals():
    logits, targets = forecasts(30)
    predicted, recipe = Categorical(logits=logits), ClassConditional(LAC())
    predictor = recipe.calibrate(predicted, targets)
    with pytest.raises(ShapeError, match=r"3 classes.*got 2"):
        predictor.predict(Bernoulli(logits=logits[:, 0]), 0.5)
    for name in ("groups", "weights", "difficulty"):
        with pytest.raises(ValueError, match=f"`{name}` was given to predict"):
            predictor.predict(predicted, 0.5, **{name: torch.ones(30)})
        with pytest.raises(ValueError, match=f"`{name}` was given to calibrate"):
            recipe.calibrate(predicted, targets, **{name: torch.ones(30)}).predict(predicted, 0.5)
    with pytest.raises(NotSupportedError, match="Normal"):
        recipe.calibrate(Normal(torch.zeros(2), 1.0), torch.zeros(2))
    with pytest.raises(ShapeError, match="at least one row"):
        recipe.calibrate(Categorical(logits=torch.zeros(0, 3), validate_args=False), torch.zeros(0))
    with pytest.raises(ValueError, match="groups"):
        recipe.calibrate(predicted, targets, groups=torch.full((30,), 2**62))
    with pytest.raises(ValueError, match="coverage"):
        predictor.predict(predicted, math.nan)
    assert predictor.predict(Categorical(logits=torch.zeros(0, 3), validate_args=False), 0.5).members.shape == (0, 3)


def test_the_callers_tensors_are_left_alone(dtype):
    logits, targets = forecasts(30)
    logits = logits.to(dtype)
    kept = logits.clone(), targets.clone()
    predictor = ClassConditional(RAPS()).calibrate(Categorical(logits=logits), targets, seed=0)
    predictor.predict(Categorical(logits=logits), 0.8, seed=0)
    assert torch.equal(logits, kept[0])
    assert torch.equal(targets, kept[1])
