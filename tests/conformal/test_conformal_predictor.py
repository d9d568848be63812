"""Split conformal prediction: its coverage law, and what it does with groups, weights, difficulty and seeds."""

import copy
import dataclasses
import math
import pickle

import pytest
import torch
from scipy import stats
from torch.distributions import Bernoulli, Categorical, Normal

from credibly.conformal.aps import APS
from credibly.conformal.base import ConformalPredictor
from credibly.conformal.lac import LAC
from credibly.conformal.ranks import rank
from credibly.conformal.residual import AbsoluteResidual
from credibly.core.errors import NotFiniteError, ShapeError, SupportError

SCORES = {
    "lac": LAC(),
    "aps": APS(),
    "aps_deterministic": APS(randomized=False),
    "residual": AbsoluteResidual(),
}


@pytest.fixture(params=SCORES)
def score(request):
    return SCORES[request.param]


def forecasts(score, rows, seed=0, dtype=torch.float64):
    """Forecasts that are wrong about everything, and targets: coverage must hold all the same."""
    generator = torch.Generator().manual_seed(seed)
    if isinstance(score, AbsoluteResidual):
        centre = torch.randn(rows, generator=generator, dtype=dtype)
        targets = centre + 0.3 + torch.randn(rows, generator=generator, dtype=dtype)
        return Normal(centre, torch.full((rows,), 0.1, dtype=dtype)), targets
    logits = torch.randn(rows, 4, generator=generator, dtype=dtype) * 2
    truth = Categorical(logits=logits / 3)
    targets = torch.multinomial(truth.probs, 1, generator=generator).squeeze(-1)
    return Categorical(logits=logits), targets


def take(predicted, rows):
    if isinstance(predicted, Normal):
        return Normal(predicted.loc[rows], predicted.scale[rows])
    return Categorical(logits=predicted.logits[rows])


@pytest.mark.parametrize("coverage", [0.5, 0.9])
def test_coverage_follows_its_beta_binomial_law(score, coverage):
    # 300 independent repeats of n = 30, 50 test rows. Sum of covered counts against its exact mean, 5 standard
    # errors: failure rate 6e-7 a case.
    repeats, n, m = 300, 30, 50
    predicted, targets = forecasts(score, repeats * (n + m), seed=1)
    covered = []
    for i in range(repeats):
        rows = torch.arange(i * (n + m), (i + 1) * (n + m))
        held_out, test = rows[:n], rows[n:]
        predictor = score.calibrate(take(predicted, held_out), targets[held_out], seed=i)
        region = predictor.predict(take(predicted, test), coverage, seed=i)
        covered.append(round(region.empirical_coverage(targets[test]).item() * m))
    k = rank(n, coverage)
    law = stats.betabinom(m, k, n + 1 - k)
    error = 5 * law.std() / math.sqrt(repeats)
    mean = sum(covered) / repeats
    assert mean > law.mean() - error
    if score == APS(randomized=False):  # every row that goes to its end ties at 1, which only raises coverage
        return
    assert mean < law.mean() + error
    # and the whole distribution, in three parts of about equal mass: chi-square at 1e-6
    cuts = [law.ppf(1 / 3), law.ppf(2 / 3)]
    parts = [law.cdf(cuts[0]), law.cdf(cuts[1]) - law.cdf(cuts[0]), law.sf(cuts[1])]
    seen = [sum(c <= cuts[0] for c in covered), sum(cuts[0] < c <= cuts[1] for c in covered)]
    seen.append(repeats - sum(seen))
    assert stats.chisquare(seen, [repeats * p for p in parts]).pvalue > 1e-6


def test_calibration_rows_are_covered_exactly_at_their_rank(score):
    predicted, targets = forecasts(score, 100)
    predictor = score.calibrate(predicted, targets, seed=4)
    assert predictor.scores.dtype == torch.float64
    assert torch.equal(predictor.scores, predictor.scores.sort().values)
    if score.uses_uniforms:
        return
    assert torch.equal(predictor.scores, score.score(predicted, targets).sort().values)
    for coverage in (0.1, 0.5, 0.95):
        covered = int(predictor.predict(predicted, coverage).contains(targets).sum())
        ties = int((predictor.scores == predictor.scores[rank(100, coverage) - 1]).sum())
        assert rank(100, coverage) <= covered < rank(100, coverage) + ties


def test_too_few_scores_give_everything(score):
    predicted, targets = forecasts(score, 8)
    predictor = score.calibrate(predicted, targets, seed=0)
    region = predictor.predict(predicted, 0.9, seed=0)
    assert region.empirical_coverage(targets).item() == 1.0
    if isinstance(score, AbsoluteResidual):
        assert region.lower.tolist() == [-math.inf] * 8
        assert region.width.tolist() == [math.inf] * 8
    else:
        assert bool(region.members.all())


def test_coverage_zero_is_nothing_one_is_everything_and_the_rest_raises(score):
    predicted, targets = forecasts(score, 20)
    predictor = score.calibrate(predicted, targets, seed=0)
    assert predictor.predict(predicted, 0, seed=0).empirical_coverage(targets).item() == 0.0
    assert predictor.predict(predicted, 1, seed=0).empirical_coverage(targets).item() == 1.0
    for outside in (-0.1, 1.5, math.nan):
        with pytest.raises(ValueError, match="coverage"):
            predictor.predict(predicted, outside)


def test_seeds(score):
    predicted, targets = forecasts(score, 50)
    before = torch.get_rng_state()
    first = score.calibrate(predicted, targets, seed=1)
    same = score.calibrate(predicted, targets, seed=1)
    other = score.calibrate(predicted, targets, seed=2)
    regions = [first.predict(predicted, 0.7, seed=5) for _ in range(2)]
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first.scores, same.scores)
    assert torch.equal(first.scores, other.scores) != score.uses_uniforms
    assert torch.equal(regions[0].contains(targets), regions[1].contains(targets))


def test_calibration_and_prediction_draw_different_numbers():
    predicted, targets = forecasts(APS(), 200)
    predictor = APS().calibrate(predicted, targets, seed=1)
    # with the calibration's own numbers each row would sit at its own score
    region = predictor.predict(predicted, 0.5, seed=1)
    own = APS().region(predicted, predictor.scores[rank(200, 0.5) - 1], torch.ones(200))
    assert not torch.equal(region.members, own.members)


def test_groups_get_their_own_thresholds(score):
    predicted, targets = forecasts(score, 300)
    groups = torch.arange(300) % 3
    predictor = score.calibrate(predicted, targets, groups=groups * 10, seed=0)
    region = predictor.predict(predicted, 0.8, groups=groups * 10, seed=0)
    inside = region.contains(targets)
    if not score.uses_uniforms:
        for group in range(3):
            rows = groups == group
            alone = score.calibrate(take(predicted, rows), targets[rows])
            expected = alone.predict(take(predicted, rows), 0.8).contains(targets[rows])
            assert torch.equal(inside[rows], expected)
    unseen = predictor.predict(predicted, 0.8, groups=torch.full((300,), 7), seed=0)
    assert unseen.empirical_coverage(targets).item() == 1.0
    nothing = predictor.predict(predicted, 0, groups=torch.full((300,), 7), seed=0)
    assert nothing.empirical_coverage(targets).item() == 0.0


def test_equal_weights_change_nothing(score):
    predicted, targets = forecasts(score, 120)
    plain = score.calibrate(predicted, targets, seed=3).predict(predicted, 0.8, seed=3)
    weights = torch.full((120,), 0.1)
    weighted = score.calibrate(predicted, targets, weights=weights, seed=3)
    assert torch.equal(
        weighted.predict(predicted, 0.8, weights=weights, seed=3).contains(targets), plain.contains(targets)
    )


def test_weights_restore_coverage_under_covariate_shift():
    # noise grows with x; x moves from uniform to the upper half. Weighted coverage stays, the plain one falls.
    generator = torch.Generator().manual_seed(6)
    x, shifted = torch.rand(4000, generator=generator), (1 + torch.rand(4000, generator=generator)) / 2
    noise = [torch.randn(4000, generator=generator) * v**2 for v in (x, shifted)]
    zeros = Normal(torch.zeros(4000), torch.ones(4000))
    ratio, test_ratio = (x > 0.5).double() * 2, torch.full((4000,), 2.0)
    weighted = AbsoluteResidual().calibrate(zeros, noise[0], weights=ratio)
    reached = weighted.predict(zeros, 0.9, weights=test_ratio).empirical_coverage(noise[1]).item()
    plain = AbsoluteResidual().calibrate(zeros, noise[0]).predict(zeros, 0.9).empirical_coverage(noise[1]).item()
    # about 2000 effective calibration rows and 4000 test rows; 5 standard errors
    error = 5 * math.sqrt(0.09 / 2000 + 0.09 / 4000)
    assert abs(reached - 0.9) < error
    assert plain < 0.9 - error


def test_weights_and_groups_together():
    predicted, targets = forecasts(LAC(), 90)
    groups, weights = torch.arange(90) % 2, torch.arange(1, 91).double()
    both = LAC().calibrate(predicted, targets, groups=groups, weights=weights)
    inside = both.predict(predicted, 0.7, groups=groups, weights=weights).contains(targets)
    for group in range(2):
        rows = groups == group
        alone = LAC().calibrate(take(predicted, rows), targets[rows], weights=weights[rows])
        expected = alone.predict(take(predicted, rows), 0.7, weights=weights[rows]).contains(targets[rows])
        assert torch.equal(inside[rows], expected)


def test_difficulty_scales_the_intervals():
    predicted, targets = forecasts(AbsoluteResidual(), 400)
    generator = torch.Generator().manual_seed(1)
    difficulty = 0.1 + torch.rand(400, generator=generator, dtype=torch.float64)
    predictor = AbsoluteResidual().calibrate(predicted, targets, difficulty=difficulty)
    region = predictor.predict(predicted, 0.9, difficulty=difficulty)
    per_unit = region.width / difficulty
    assert torch.allclose(per_unit, per_unit[0].expand(400), rtol=1e-12)
    # a calibration row is inside exactly when its scaled score is at most the threshold, to the last bit
    assert int(region.contains(targets).sum()) == rank(400, 0.9)
    infinite = AbsoluteResidual().calibrate(predicted, targets, difficulty=difficulty)
    assert infinite.predict(predicted, 1, difficulty=difficulty).width.tolist() == [math.inf] * 400


@pytest.mark.parametrize("seen", [(0, 1), (1, 2)])
@pytest.mark.parametrize("name", ["lac", "aps", "aps_deterministic"])
def test_classes_without_calibration_rows_keep_their_columns(name, seen):
    score = SCORES[name]
    generator = torch.Generator().manual_seed(2)
    predicted = Categorical(logits=torch.randn(60, 3, generator=generator))
    targets = torch.tensor(seen)[torch.randint(0, 2, (60,), generator=generator)]
    predictor = score.calibrate(predicted, targets, seed=0)
    region = predictor.predict(predicted, 0.9, seed=0)
    assert region.members.shape == (60, 3)
    missing = ({0, 1, 2} - set(seen)).pop()
    assert bool(region.members[:, missing].any())
    with pytest.raises(SupportError, match="20"):
        score.calibrate(predicted, torch.full((60,), 20), seed=0)


def test_binary_outcomes_have_two_columns():
    logits = torch.linspace(-3, 3, 40)
    targets = (torch.arange(40) % 5 > 1).float()
    region = LAC().calibrate(Bernoulli(logits=logits), targets).predict(Bernoulli(logits=logits), 0.8)
    assert region.members.shape == (40, 2)
    assert region.empirical_coverage(targets).item() >= 0.8


def test_what_calibration_had_prediction_needs():
    predicted, targets = forecasts(LAC(), 10)
    ones = torch.ones(10)
    plain = LAC().calibrate(predicted, targets)
    for name in ("groups", "weights", "difficulty"):
        with pytest.raises(ValueError, match=f"`{name}` was given to predict"):
            plain.predict(predicted, 0.5, **{name: ones})
        with pytest.raises(ValueError, match=f"`{name}` was given to calibrate"):
            LAC().calibrate(predicted, targets, **{name: ones}).predict(predicted, 0.5)


@pytest.mark.parametrize(
    ("extra", "error", "words"),
    [
        ({"groups": torch.ones(9)}, ShapeError, "groups"),
        ({"groups": torch.full((10,), 0.5)}, ValueError, "whole numbers"),
        ({"weights": torch.full((10,), -1.0)}, ValueError, "weights"),
        ({"weights": torch.full((10,), math.nan)}, NotFiniteError, "weights"),
        ({"difficulty": torch.zeros(10)}, ValueError, "difficulty"),
        ({"difficulty": torch.full((10,), math.inf)}, NotFiniteError, "difficulty"),
    ],
)
def test_bad_extras_are_named(extra, error, words):
    predicted, targets = forecasts(LAC(), 10)
    with pytest.raises(error, match=words):
        LAC().calibrate(predicted, targets, **extra)


def test_nan_scores_and_empty_calibration_sets_raise():
    broken = Categorical(logits=torch.tensor([[0.0, 1.0], [math.nan, 0.0]]), validate_args=False)
    for score in (LAC(), APS()):
        with pytest.raises(NotFiniteError, match="row 1"):
            score.calibrate(broken, torch.tensor([0, 1]), seed=0)
    empty = Categorical(logits=torch.zeros(0, 2), validate_args=False)
    with pytest.raises(ShapeError, match="at least one row"):
        LAC().calibrate(empty, torch.zeros(0))
    predictor = LAC().calibrate(Categorical(logits=torch.zeros(3, 2)), torch.zeros(3))
    assert predictor.predict(empty, 0.5).members.shape == (0, 2)


def test_predictors_are_immutable_copy_and_rebuild_from_their_fields(score):
    predicted, targets = forecasts(score, 40)
    groups = torch.arange(40) % 2
    predictor = score.calibrate(predicted, targets, groups=groups, weights=torch.ones(40), seed=0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        predictor.scores = torch.zeros(1)
    fields = {field.name: getattr(predictor, field.name) for field in dataclasses.fields(predictor)}
    expected = predictor.predict(predicted, 0.8, groups=groups, weights=torch.ones(40), seed=1)
    for twin in (
        copy.deepcopy(predictor),
        pickle.loads(pickle.dumps(predictor)),
        ConformalPredictor(**fields),
    ):
        region = twin.predict(predicted, 0.8, groups=groups, weights=torch.ones(40), seed=1)
        assert torch.equal(region.contains(targets), expected.contains(targets))


def test_the_callers_tensors_are_left_alone(score, dtype):
    predicted, targets = forecasts(score, 30, dtype=dtype)
    extras = {"weights": torch.rand(30), "difficulty": 1 + torch.rand(30), "groups": torch.arange(30) % 2}
    kept = {name: value.clone() for name, value in extras.items()} | {"targets": targets.clone()}
    predictor = score.calibrate(predicted, targets, **extras, seed=0)
    predictor.predict(predicted, 0.8, **extras, seed=0).contains(targets)
    for name, value in (extras | {"targets": targets}).items():
        assert torch.equal(value, kept[name])
