"""What a new user gets wrong, or writes in another way than the examples do: refused by name, or understood."""

import math
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
import torch
from torch.distributions import Bernoulli, Independent, Normal, Poisson

import credibly
from cases import SCORES
from credibly import conformal, metrics
from credibly.calibration import ConformalPredictiveSystem
from credibly.conformal.class_score import ClassScore
from credibly.conformal.ranks import rank, threshold, weighted_threshold
from credibly.core.errors import NotFiniteError, NotSupportedError, ShapeError
from credibly.distributions.empirical import Empirical
from credibly.distributions.entry import from_logits, from_quantiles
from credibly.distributions.mixture import MixturePredictive

OF_CLASSES = [name for name, make in SCORES.items() if isinstance(make(), ClassScore)]
OF_VECTORS = ["box", "box_of_cqr", "one_of_several_targets", "ellipsoid", "ellipsoid_given"]
OF_NUMBERS = [name for name in SCORES if name not in (*OF_CLASSES, *OF_VECTORS)]
READ_U = [name for name, make in SCORES.items() if isinstance(make(), (ClassScore, conformal.PITScore))]
F64 = {"dtype": torch.float64}


def classes(rows=60, count=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, count, generator=generator, **F64)
    return from_logits(logits), torch.randint(count, (rows,), generator=generator)


def numbers(rows=60, seed=0):
    generator = torch.Generator().manual_seed(seed)
    loc = torch.randn(rows, generator=generator, **F64)
    return Normal(loc, torch.ones(rows, **F64)), loc + torch.randn(rows, generator=generator, **F64)


def vectors(rows=60, count=2, seed=0):
    generator = torch.Generator().manual_seed(seed)
    loc = torch.randn(rows, count, generator=generator, **F64)
    return Independent(Normal(loc, torch.ones_like(loc)), 1), loc + torch.randn(rows, count, generator=generator, **F64)


def data_for(name, **options):
    make = classes if name in OF_CLASSES else vectors if name in OF_VECTORS else numbers
    return make(**options)


# -- the number of classes and of targets --------------------------------------------------------------------------

CLASS_RECIPES = {
    **{name: SCORES[name] for name in OF_CLASSES},
    **{f"{name}_by_class": lambda name=name: conformal.ClassConditional(SCORES[name]()) for name in OF_CLASSES},
}


@pytest.mark.parametrize("name", CLASS_RECIPES)
def test_another_number_of_classes_is_refused_also_after_loading(name, tmp_path):
    predictor = CLASS_RECIPES[name]().calibrate(*classes(), seed=0)
    credibly.save(predictor, tmp_path / "sets")
    for own in (predictor, credibly.load(tmp_path / "sets")):
        assert own.num_classes == 4
        for count in (2, 3, 7):
            with pytest.raises(ShapeError, match=f"the 4 classes of calibration; got {count}"):
                own.predict(classes(count=count)[0], 0.8)
        with pytest.raises(ShapeError, match="the 4 classes of calibration; got 2"):
            own.predict(Bernoulli(logits=torch.zeros(5)), 0.8)
        assert own.predict(classes(rows=0)[0], 0.8).members.shape == (0, 4)


@pytest.mark.parametrize("name", OF_CLASSES)
def test_binary_outcomes_and_two_classes_are_alike_and_three_are_not(name):
    binary = Bernoulli(logits=torch.linspace(-1, 1, 40, **F64))
    predictor = SCORES[name]().calibrate(binary, torch.arange(40) % 2, seed=0)
    two = from_logits(torch.stack([torch.zeros(40, **F64), binary.logits], -1))
    sets = [predictor.predict(each, 0.7, seed=1).members for each in (binary, two)]
    assert torch.equal(*sets)
    with pytest.raises(ShapeError, match="the 2 classes of calibration; got 3"):
        predictor.predict(classes(count=3)[0], 0.7)


@pytest.mark.parametrize("name", OF_CLASSES)
def test_cross_validated_sets_refuse_other_classes_also_after_loading(name, tmp_path):
    predictor = conformal.ClassCVPlus(SCORES[name]()).calibrate(*classes(), torch.arange(60) % 3, seed=0)
    credibly.save(predictor, tmp_path / "sets")
    for own in (predictor, credibly.load(tmp_path / "sets")):
        assert own.num_classes == 4
        with pytest.raises(ShapeError, match="the 4 classes of calibration; got 3"):
            own.predict([classes(count=3)[0]] * 3, 0.8)


@pytest.mark.parametrize("recipe", [*(SCORES[name] for name in OF_VECTORS), conformal.BonferroniBox])
def test_another_number_of_targets_is_refused(recipe):
    predictor = recipe().calibrate(*vectors())
    with pytest.raises(ShapeError, match="the 2 targets a row of calibration; got 3"):
        predictor.predict(vectors(count=3)[0], 0.8)


def test_a_predictor_that_does_not_know_its_classes_takes_any():
    """As files of the first version do not."""
    known = conformal.LAC().calibrate(*classes())
    old = conformal.ConformalPredictor(score=known.score, scores=known.scores)
    assert old.predict(classes(count=7)[0], 0.8).members.shape == (60, 7)


# -- uniform numbers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", READ_U)
@pytest.mark.parametrize("bad", [-1e-9, 1 + 1e-9, 2.0, math.nan, math.inf])
def test_u_outside_its_range_is_refused(name, bad):
    score, (predicted, targets) = SCORES[name](), data_for(name)
    u = torch.full((60,), 0.5, **F64)
    u[7] = bad
    for call in (
        lambda: score.score(predicted, targets, u),
        lambda: score.region(predicted, 0.5, u),
        lambda: score.scores_of_classes(predicted, u) if name in OF_CLASSES else score.score(predicted, targets, u),
        lambda: conformal.smoothed_p_values(torch.zeros(60), torch.zeros(3), u=u),
    ):
        with pytest.raises(ValueError, match=r"`u` must lie in \[0, 1\]"):
            call()


@pytest.mark.parametrize("name", READ_U)
def test_u_comes_as_a_tensor_an_array_or_a_list(name):
    score, (predicted, targets) = SCORES[name](), data_for(name)
    u = torch.rand(60, generator=torch.Generator().manual_seed(3), **F64)
    expected = score.score(predicted, targets, u)
    region = score.region(predicted, expected, u)
    for given in (u.numpy(), u.tolist(), pd.Series(u.numpy()), u.unsqueeze(-1)):
        assert torch.equal(score.score(predicted, targets, given), expected)
        again = score.region(predicted, expected, given)
        assert torch.equal(again.contains(targets), region.contains(targets))
        if name in OF_CLASSES:
            assert torch.equal(score.scores_of_classes(predicted, given), score.scores_of_classes(predicted, u))
    for wrong in (u[:5], 0.5, [u.tolist()]):
        with pytest.raises(ShapeError, match="`u`"):
            score.score(predicted, targets, wrong)


# -- thresholds at the boundary ------------------------------------------------------------------------------------


def test_thresholds_want_sorted_numbers():
    for scores in ([3.0, 1.0, 2.0], [[0.0, 1.0], [1.0, 0.0]]):
        with pytest.raises(ValueError, match="must increase"):
            threshold(torch.tensor(scores), 0.5)
    with pytest.raises(NotFiniteError, match="1 of 3"):
        threshold([0.0, 1.0, math.nan], 0.5)
    with pytest.raises(ShapeError, match="single number"):
        threshold(1.0, 0.5)
    for scores in ([1, 2, 2, 3], np.array([1.0, 2.0, 2.0, 3.0]), (1.0, 2.0, 2.0, 3.0)):
        assert threshold(scores, 0.5).item() == 2
        assert threshold(scores, 1).item() == math.inf
    assert threshold([-math.inf, 0.0, math.inf], 0.75).item() == math.inf
    assert threshold([], 0.5).item() == math.inf
    assert threshold([], 0).item() == -math.inf


def test_weighted_thresholds_want_sorted_numbers_and_weights():
    scores, ones = [1.0, 2.0, 3.0], [1.0, 1.0, 1.0]
    assert weighted_threshold(scores, ones, [1, 1], 0.5).tolist() == [2.0, 2.0]
    assert weighted_threshold(np.array(scores, dtype=np.float32), ones, [1.0], 0.5).dtype == torch.float32
    assert weighted_threshold([], [], [1.0], 0.5).tolist() == [math.inf]
    for weights, tests in (([1.0, -1.0, 1.0], [1.0]), (ones, [-1.0])):
        with pytest.raises(ValueError, match="0 or above; got -1"):
            weighted_threshold(scores, weights, tests, 0.5)
    for weights, tests in (([1.0, math.nan, 1.0], [1.0]), (ones, [math.inf])):
        with pytest.raises(NotFiniteError, match="weights"):
            weighted_threshold(scores, weights, tests, 0.5)
    with pytest.raises(ValueError, match="must increase"):
        weighted_threshold([1.0, 0.0, 3.0], ones, [1.0], 0.5)
    with pytest.raises(ShapeError, match="`weights`"):
        weighted_threshold(scores, ones[:2], [1.0], 0.5)


@pytest.mark.parametrize("bad", [-1, 2.5, True, None])
def test_ranks_are_of_a_number_of_scores(bad):
    with pytest.raises(ValueError, match="`num_scores` must be a whole number, 0 or more"):
        rank(bad, 0.5)


# -- levels of any kind of number ----------------------------------------------------------------------------------


def every_kind(level):
    """The level as the kinds of number that loops over levels produce."""
    tensors = (torch.tensor(level, dtype=dtype) for dtype in (torch.float32, torch.float64))
    arrays = (np.float32(level), np.float64(level), np.array(level), np.float16(level))
    return [level, Fraction(str(level)), *tensors, *arrays]


CALLS = {
    "rank": lambda c: rank(199, c),
    "threshold": lambda c: threshold(torch.arange(199.0), c),
    "weighted_threshold": lambda c: weighted_threshold(torch.arange(199.0), torch.ones(199), torch.ones(1), c),
    "retained": lambda c: conformal.retained(torch.arange(201) / 200, c),
    "coverage_interval": lambda c: metrics.coverage_interval(199, 50, c),
    "group_coverage": lambda c: metrics.group_coverage(torch.ones(9).bool(), torch.arange(9) % 2, c).coverage,
    "cps": lambda c: ConformalPredictiveSystem().fit(*numbers())(numbers()[0]).interval(c)[0],
    "jackknife": lambda c: conformal.JackknifePlus().calibrate(*numbers()).predict(torch.zeros(60, 3), c).lower,
    "guarantee": lambda c: conformal.JackknifePlus().calibrate(*numbers()).guaranteed_coverage(c),
    "bootstrap": lambda c: (
        conformal.JackknifePlusAfterBootstrap()
        .calibrate(torch.zeros(2, 60), numbers()[1], torch.arange(120).reshape(2, 60) % 2)
        .predict(torch.zeros(2, 3), c)
        .upper
    ),
    "cv_plus": lambda c: (
        conformal.ClassCVPlus(conformal.LAC())
        .calibrate(*classes(), torch.arange(60) % 2)
        .predict([classes()[0]] * 2, c)
        .members
    ),
    "by_class": lambda c: (
        conformal.ClassConditional(conformal.LAC()).calibrate(*classes()).predict(classes()[0], c).members
    ),
    "asymmetric": lambda c: conformal.AsymmetricCQR().calibrate(*numbers()).predict(numbers()[0], c).lower,
    "bonferroni": lambda c: conformal.BonferroniBox().calibrate(*vectors()).predict(vectors()[0], c).upper,
    "online": lambda c: conformal.QuantileTracker(step_size=0.1, coverage=c).run(torch.arange(30.0)).thresholds,
    "outliers": lambda c: conformal.OutlierTest(level=c).detect(torch.arange(9.0), torch.arange(30.0)).flagged,
}


def same(one, other):
    return torch.equal(one.nan_to_num(), other.nan_to_num()) if isinstance(one, torch.Tensor) else one == other


@pytest.mark.parametrize("level", [0.9, 0.995, 0.58, 0.1])
@pytest.mark.parametrize("name", CALLS)
def test_levels_are_any_kind_of_number_and_mean_their_decimal(name, level):
    """0.995 in float32 is 0.99500000477 and means 0.995: with 199 scores the ranks of the two differ."""
    expected = CALLS[name](level)
    for given in every_kind(level):
        assert same(CALLS[name](given), expected), repr(given)


@pytest.mark.parametrize("name", SCORES)
def test_a_loop_over_levels_of_a_tensor(name):
    predicted, targets = data_for(name)
    predictor = SCORES[name]().calibrate(predicted, targets, seed=0)
    for level in torch.linspace(0.5, 0.9, 5):
        one = predictor.predict(predicted, level, seed=1).contains(targets)
        assert torch.equal(one, predictor.predict(predicted, round(float(level), 6), seed=1).contains(targets))


def test_several_levels_at_once_and_words_are_refused():
    predictor = conformal.LAC().calibrate(*classes())
    for several in ([0.8, 0.9], (0.8,), torch.tensor([0.9]), np.array([0.8, 0.9])):
        with pytest.raises(TypeError, match=r"`coverage` must be one number.*one by one"):
            predictor.predict(classes()[0], several)
    for wrong in ("0.9", None, True):
        with pytest.raises(TypeError, match="`coverage` must be one number"):
            predictor.predict(classes()[0], wrong)


# -- recipes of the wrong parts ------------------------------------------------------------------------------------


def test_aims_that_there_are_not():
    for make in (conformal.RAPS, conformal.SAPS):
        with pytest.raises(ValueError, match=r"`aim` must be one of \('size', 'adaptiveness'\); got 'foo'"):
            make.tuned(*classes(), aim="foo")


@pytest.mark.parametrize("recipe", [conformal.ClassConditional, conformal.ClassCVPlus])
@pytest.mark.parametrize("score", [*OF_NUMBERS, *OF_VECTORS])
def test_recipes_for_classes_want_scores_of_classes(recipe, score):
    with pytest.raises(TypeError, match=f"{recipe.__name__} needs a score of classes"):
        recipe(SCORES[score]())


@pytest.mark.parametrize("score", [*OF_CLASSES, "pit_score", "highest_density", "ellipsoid"])
def test_recipes_for_vectors_want_scores_with_intervals(score):
    for make in (conformal.Box, conformal.BonferroniBox, lambda of: conformal.TargetScore(of, 0)):
        with pytest.raises(TypeError, match="needs a score of numbers"):
            make(SCORES[score]())


def test_the_index_of_a_target():
    predicted, targets = vectors()
    last, same_one = (conformal.TargetScore(conformal.CQR(), index) for index in (1, -1))
    assert torch.equal(last.score(predicted, targets), same_one.score(predicted, targets))
    for index in (2, 5, -3):
        for call in (
            lambda index=index: conformal.TargetScore(conformal.CQR(), index).score(predicted, targets),
            lambda index=index: conformal.TargetScore(conformal.CQR(), index).region(predicted, 0.1),
        ):
            with pytest.raises(ShapeError, match=f"`index` must lie between -2 and 1 for 2 targets; got {index}"):
                call()
    for index in (0.5, True, "0"):
        with pytest.raises(TypeError, match="whole number"):
            conformal.TargetScore(conformal.CQR(), index)


def test_a_scale_may_be_one_number(tmp_path):
    predicted, targets = numbers()
    one, many = conformal.StandardizedResidual(0.5), conformal.StandardizedResidual((0.5,))
    assert torch.equal(one.score(predicted, targets), many.score(predicted, targets))
    assert torch.equal(one.region(predicted, 1.0).lower, many.region(predicted, 1.0).lower)
    credibly.save(one.calibrate(predicted, targets), tmp_path / "one")
    assert credibly.load(tmp_path / "one").score == one
    for bad in (0.0, -1.0, math.nan, math.inf, (1.0, 0.0)):
        with pytest.raises(ValueError, match="`scale`"):
            conformal.StandardizedResidual(bad)
    with pytest.raises(TypeError, match="`scale`"):
        conformal.StandardizedResidual("wide")


@pytest.mark.parametrize("score", ["absolute_residual", "standardized_residual", "highest_density"])
def test_forecasts_of_quantiles_are_sent_to_cqr(score):
    values = torch.randn(20, 3, generator=torch.Generator().manual_seed(0)).sort(-1).values
    predicted = from_quantiles([0.05, 0.5, 0.95], values)
    for call in (
        lambda: SCORES[score]().score(predicted, torch.zeros(20)),
        lambda: SCORES[score]().region(predicted, 1.0),
    ):
        with pytest.raises(NotSupportedError, match="use CQR"):
            call()


def test_the_jackknife_of_quantiles_asks_for_points():
    predicted = from_quantiles([0.05, 0.95], torch.tensor([[0.0, 1.0]]).expand(20, 2))
    with pytest.raises(NotSupportedError, match="point predictions"):
        conformal.JackknifePlus().calibrate(predicted, torch.zeros(20))


# -- predictions of several models ---------------------------------------------------------------------------------


def test_members_come_stacked_as_a_mixture_or_one_by_one():
    predicted, targets = classes()
    logits = torch.randn(3, 25, 4, generator=torch.Generator().manual_seed(5), **F64)
    table, each = from_logits(logits), [from_logits(one) for one in logits]
    for name in OF_CLASSES:
        predictor = conformal.ClassCVPlus(SCORES[name]()).calibrate(predicted, targets, torch.arange(60) % 3, seed=0)
        expected = predictor.predict(each, 0.8, seed=1).members
        stack = table.components if isinstance(table, MixturePredictive) else table
        for given in (MixturePredictive(stack), stack, tuple(each)):
            assert torch.equal(predictor.predict(given, 0.8, seed=1).members, expected)
    for wrong, came in ((each[0], r"\(25,\)"), (from_logits(logits[:2]), r"\(2, 25\)")):
        with pytest.raises(ShapeError, match=f"one prediction a fold.*{came}"):
            predictor.predict(wrong, 0.8)
    for wrong in (logits, [1, 2, 3], None):
        with pytest.raises(TypeError, match="distributions, one a fold"):
            predictor.predict(wrong, 0.8)


def test_members_of_numbers_may_be_a_mixture():
    generator = torch.Generator().manual_seed(0)
    points, new = (torch.randn(4, rows, generator=generator, **F64) for rows in (30, 7))
    targets, bags = torch.randn(30, generator=generator, **F64), torch.randint(3, (4, 30), generator=generator)
    mixture, other = (MixturePredictive(Normal(each, torch.ones_like(each))) for each in (points, new))
    recipe = conformal.JackknifePlusAfterBootstrap()
    one = recipe.calibrate(mixture, targets, bags).predict(other, 0.8)
    two = recipe.calibrate(points, targets, bags).predict(new, 0.8)
    assert torch.equal(one.lower, two.lower)
    folds = torch.arange(30) % 4
    plus = conformal.CVPlus().calibrate(points[0], targets, folds)
    assert torch.equal(plus.predict(other, 0.8).upper, plus.predict(new, 0.8).upper)


@pytest.mark.parametrize(
    ("bad", "error"), [(math.nan, NotFiniteError), (math.inf, NotFiniteError), (-1.0, ValueError), (-0.5, ValueError)]
)
def test_bags_are_counts(bad, error):
    bags = torch.ones(2, 20)
    bags[1, 3] = bad
    with pytest.raises(error, match="`in_bag`"):
        conformal.JackknifePlusAfterBootstrap().calibrate(torch.zeros(2, 20), torch.zeros(20), bags)


# -- groups that are text ------------------------------------------------------------------------------------------

WORDS = np.array(["north", "south", "east"])[np.arange(60) % 3]
FORMS = {
    "array": WORDS,
    "list": WORDS.tolist(),
    "objects": WORDS.astype(object),
    "series": pd.Series(WORDS, index=range(100, 160)),
    "category": pd.Series(WORDS).astype("category"),
    "categorical": pd.Categorical(WORDS),
    "string": pd.Series(WORDS, dtype="string"),
}


def numbered(labels):
    return [["east", "north", "south"].index(each) for each in labels]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["lac", "aps", "absolute_residual", "pit_score", "highest_density", "box"])
def test_groups_may_be_text(name, form, tmp_path):
    predicted, targets = data_for(name)
    by_word = SCORES[name]().calibrate(predicted, targets, groups=FORMS[form], seed=0)
    by_number = SCORES[name]().calibrate(predicted, targets, groups=numbered(WORDS), seed=0)
    assert by_word.group_labels == ("east", "north", "south")
    credibly.save(by_word, tmp_path / "words")
    expected = by_number.predict(predicted, 0.7, groups=numbered(WORDS), seed=1).contains(targets)
    for own in (by_word, credibly.load(tmp_path / "words")):
        assert torch.equal(own.predict(predicted, 0.7, groups=FORMS[form], seed=1).contains(targets), expected)
        unseen = own.predict(predicted, 0.7, groups=["west", "a", "zenith", "East", "", "northern"] * 10, seed=1)
        assert bool(unseen.contains(targets).all())
        with pytest.raises(TypeError, match="text in calibration, such as 'east'"):
            own.predict(predicted, 0.7, groups=numbered(WORDS))
        with pytest.raises(ShapeError, match="`groups`"):
            own.predict(predicted, 0.7, groups=WORDS[:9])
    with pytest.raises(TypeError, match="not text such as 'north'"):
        by_number.predict(predicted, 0.7, groups=FORMS[form])


def test_text_groups_of_classes_of_sides_and_of_targets(tmp_path):
    (forecast, labels), (real, values), (vector, points) = classes(), numbers(), vectors()
    for recipe, predicted, targets in (
        (conformal.ClassConditional(conformal.APS()), forecast, labels),
        (conformal.AsymmetricCQR(), real, values),
        (conformal.BonferroniBox(), vector, points),
    ):
        options = {"seed": 0} if predicted is forecast else {}
        words = recipe.calibrate(predicted, targets, groups=WORDS, **options)
        plain = recipe.calibrate(predicted, targets, groups=numbered(WORDS), **options)
        credibly.save(words, tmp_path / "words")
        expected = plain.predict(predicted, 0.7, groups=numbered(WORDS), **options).contains(targets)
        for own in (words, credibly.load(tmp_path / "words")):
            assert torch.equal(own.predict(predicted, 0.7, groups=WORDS, **options).contains(targets), expected)
            unseen = own.predict(predicted, 0.7, groups=["west"] * 60, **options)
            assert bool(unseen.contains(targets).all())


@pytest.mark.parametrize(
    "groups",
    [
        pd.Series([None, *WORDS[1:]]).astype("category"),
        pd.date_range("2020", periods=60),
        np.array([("a", 1)] * 60, dtype=object),
        np.array([b"a"] * 60),
    ],
)
def test_groups_of_other_things_are_to_be_numbered(groups):
    with pytest.raises((TypeError, ShapeError), match="`groups` must"):
        conformal.LAC().calibrate(*classes(), groups=groups)


# -- regions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SCORES)
def test_regions_are_saved_or_say_what_to_save(name, tmp_path):
    predicted, targets = data_for(name)
    region = SCORES[name]().calibrate(predicted, targets, seed=0).predict(predicted, 0.8, seed=1)
    if hasattr(region, "predicted"):
        with pytest.raises(TypeError, match="save the predictor"):
            credibly.save(region, tmp_path / "region")
        return
    credibly.save(region, tmp_path / "region")
    assert torch.equal(credibly.load(tmp_path / "region").contains(targets), region.contains(targets))


@pytest.mark.parametrize("limit", [-0.3, 0.4, 2.5])
@pytest.mark.parametrize("name", OF_NUMBERS)
def test_widths_of_counts_are_how_many_are_held(name, limit):
    rates = torch.tensor([0.01, 0.6, 3.0, 11.5], **F64)
    region = SCORES[name]().region(Poisson(rates), limit)
    held = torch.zeros(4, dtype=torch.float64)
    for count in range(100):
        held += region.contains(torch.full((4,), float(count), **F64))
    bounded = ~region.contains(torch.full((4,), 99.0, **F64))
    assert torch.equal(region.width[bounded], held[bounded])
    assert bool((region.width[~bounded] == math.inf).all())


def test_a_run_of_one_count_has_the_width_one():
    region = conformal.HighestDensity().region(Poisson(torch.tensor([0.01])), 0.1)
    assert region.pieces == [[(0.0, 0.0)]]
    assert region.width.tolist() == [1.0]
    of_numbers = conformal.HighestDensity().region(Normal(torch.zeros(1, **F64), 1.0), 0.9189385332046727)
    assert of_numbers.width.item() < 1e-6


@pytest.mark.parametrize("make", [conformal.Box, lambda: conformal.Box(conformal.CQR())])
def test_boxes_of_counts_hold_so_many(make):
    predicted = Independent(Poisson(torch.tensor([[0.2, 4.0], [7.0, 1.5]], **F64)), 1)
    region = make().region(predicted, 0.8)
    grid = torch.cartesian_prod(torch.arange(30.0), torch.arange(30.0)).double()
    held = sum(region.contains(point.expand(2, 2)).double() for point in grid)
    assert torch.equal(region.volume, held)
    apart = conformal.BonferroniBox(make().of).calibrate(predicted, torch.tensor([[0.0, 4.0], [7.0, 1.0]]))
    assert apart.predict(predicted, 0.2).of_counts


# -- online --------------------------------------------------------------------------------------------------------

ONLINE = {
    "aci": lambda: conformal.ACI(),
    "aci_window": lambda: conformal.ACI(window=5),
    "dtaci": lambda: conformal.DtACI(),
    "tracker": lambda: conformal.QuantileTracker(step_size=0.1),
    "pid": lambda: conformal.ConformalPID(step_size=0.1, gain=1.0),
}


@pytest.mark.parametrize("known", [(), [0.3, 0.1, 0.5]])
@pytest.mark.parametrize("name", ONLINE)
def test_the_number_of_series_is_told_at_the_beginning(name, known):
    method = ONLINE[name]()
    scores = torch.rand(40, 2, generator=torch.Generator().manual_seed(0), **F64)
    start = torch.tensor(known, **F64).expand(2, len(known))
    expected = method.run(scores, method.init(start)).thresholds
    state = method.init(known, num_series=2)
    seen = []
    for row in scores:
        seen.append(method.threshold(state))
        state = method.update(state, row)
    assert torch.equal(torch.stack(seen), expected)
    with pytest.raises(ShapeError, match=r"begin with init\(num_series=...\)"):
        method.update(method.init(), scores[0])
    with pytest.raises(ShapeError, match="for 3 series"):
        method.init(start, num_series=3)
    for bad in (0, -1, 1.5):
        with pytest.raises(ValueError, match="num_series"):
            method.init(num_series=bad)


@pytest.mark.parametrize("name", READ_U)
@pytest.mark.parametrize("method", ONLINE)
def test_randomised_scores_keep_their_u_online(name, method):
    """The region at u holds a target exactly when its score at the same u is at most the threshold."""
    score, online, (predicted, targets) = SCORES[name](), ONLINE[method](), data_for(name)
    generator = torch.Generator().manual_seed(1)
    state = online.init(score.score(predicted, targets, torch.rand(60, generator=generator)), num_series=60)
    for _ in range(3):
        u = torch.rand(60, generator=generator, **F64)
        region = online.region(state, score, predicted, u=u)
        scores = score.score(predicted, targets, u)
        assert torch.equal(region.contains(targets), scores <= online.threshold(state))
        state = online.update(state, scores)


@pytest.mark.parametrize("name", SCORES)
def test_axes_beside_the_rows_are_blamed_on_the_prediction(name):
    """batch_shape (40, 1) is 40 predictions of one row each, and the targets of 40 rows are in order."""
    score, (predicted, targets) = SCORES[name](), data_for(name)
    stack = Normal(torch.zeros(40, 1), torch.ones(40, 1))
    if name in OF_CLASSES:
        stack = from_logits(torch.zeros(40, 1, 4)).components
    for call in (
        lambda: score.calibrate(stack, torch.zeros(40)),
        lambda: score.score(stack, torch.zeros(40)),
        lambda: score.score(stack, torch.zeros(40, 1)),
        lambda: score.region(stack, 0.1),
        lambda: score.calibrate(predicted, targets, seed=0).predict(stack),
    ):
        with pytest.raises(ShapeError, match=r"`predicted` must have batch_shape \(rows,\); got .*\(40, 1\)"):
            call()


def test_draws_have_no_density_and_are_sent_on():
    with pytest.raises(NotSupportedError, match="PITScore for draws"):
        conformal.HighestDensity().region(Empirical(torch.zeros(5, 3)), 0.1)
