"""What is a function of a set of rows does not depend on their order, split, layout or precision; inputs stay.

Every recipe with a `calibrate`, through its own predictor, with ties, groups, weights and difficulties: the regions of
shuffled calibration rows are the regions, those of parts of the test rows are the parts, bit for bit.
"""

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributions import Categorical, Independent, Normal

from cases import SCORES
from credibly.conformal.bounds import ExactBinomial, HoeffdingBentkus
from credibly.conformal.class_conditional import ClassConditional
from credibly.conformal.class_score import ClassScore
from credibly.conformal.cqr import AsymmetricCQR
from credibly.conformal.jackknife import JackknifePlusAfterBootstrap
from credibly.conformal.learn_then_test import RCPS, LearnThenTest
from credibly.conformal.multi_target import BonferroniBox
from credibly.conformal.multiple_testing import BenjaminiHochberg, Bonferroni, Holm
from credibly.conformal.p_values import OutlierTest, conformal_p_values
from credibly.conformal.risk_control import ConformalRiskControl
from credibly.conformal.shift import density_ratio, effective_sample_size
from credibly.core.errors import SupportError

F64 = {"dtype": torch.float64}
OF_VECTORS = {"box", "box_of_cqr", "one_of_several_targets", "ellipsoid", "ellipsoid_given"}
RECIPES = SCORES | {
    "class_conditional_lac": lambda: ClassConditional(SCORES["lac"]()),
    "class_conditional_margin": lambda: ClassConditional(SCORES["margin"]()),
    "asymmetric_cqr": lambda: AsymmetricCQR(),
    "bonferroni_box": lambda: BonferroniBox(),
}
ROWS, TESTS = 61, 24


def draws_numbers(name):
    return getattr(RECIPES[name](), "uses_uniforms", False)


DETERMINISTIC = [name for name in RECIPES if not draws_numbers(name)]


def forecasts(name, rows, seed, dtype=torch.float64):
    """Builder of the forecast of some rows, and targets; all numbers are multiples of 1/8, with ties."""
    generator = torch.Generator().manual_seed(seed)
    recipe = RECIPES[name]()
    if isinstance(recipe, (ClassScore, ClassConditional)):
        logits = (2 * torch.randn(rows, 3, generator=generator)).round().to(dtype)
        return lambda keep: Categorical(logits=logits[keep]), torch.randint(3, (rows,), generator=generator), logits
    width = 2 if name in OF_VECTORS or name == "bonferroni_box" else 1
    table = torch.randn(rows, 3 * width, generator=generator).mul(8).round().div(8).to(dtype)
    loc, scale = table[:, :width], 0.5 + table[:, width : 2 * width].abs()
    targets = loc + table[:, 2 * width :]
    if width == 2:
        return lambda keep: Independent(Normal(loc[keep], scale[keep]), 1), targets, table
    return lambda keep: Normal(loc[keep, 0], scale[keep, 0]), targets[:, 0], table


def extras_of(rows, seed):
    generator = torch.Generator().manual_seed(seed)
    return {
        "groups": torch.randint(3, (rows,), generator=generator),
        "weights": torch.randint(1, 5, (rows,), generator=generator).double() / 4,
        "difficulty": torch.randint(1, 4, (rows,), generator=generator).double(),
    }


def answers(region, targets):
    """What a region says, as tensors that can be compared bit for bit."""
    listed = [region.members] if hasattr(region, "members") else []
    listed += [
        part.nan_to_num(9.0)
        for part in (getattr(region, "lower", None), getattr(region, "upper", None))
        if part is not None
    ]
    listed += [region.radius] if hasattr(region, "radius") else []
    return [*listed, region.contains(targets)]


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


CHOSEN = [(), ("groups",), ("weights",), ("difficulty",), ("groups", "weights", "difficulty")]


@pytest.mark.parametrize("chosen", CHOSEN, ids="+".join)
@pytest.mark.parametrize("name", DETERMINISTIC)
def test_calibration_rows_have_no_order_and_test_rows_no_neighbours(name, chosen):
    build, targets, table = forecasts(name, ROWS, 0)
    fresh, came, _ = forecasts(name, TESTS, 1)
    kept, every = (table.clone(), targets.clone()), (extras_of(ROWS, 2), extras_of(TESTS, 3))
    own, new = ({key: part[key] for key in chosen} for part in every)
    before = copy.deepcopy((own, new))
    fitted = RECIPES[name]().calibrate(build(slice(None)), targets, **own)
    whole = fitted.predict(fresh(slice(None)), 0.7, **new)
    order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(4))
    shuffled = RECIPES[name]().calibrate(build(order), targets[order], **{k: v[order] for k, v in own.items()})
    assert same(answers(shuffled.predict(fresh(slice(None)), 0.7, **new), came), answers(whole, came))
    turned = torch.randperm(TESTS, generator=torch.Generator().manual_seed(5))
    moved = fitted.predict(fresh(turned), 0.7, **{k: v[turned] for k, v in new.items()})
    assert torch.equal(moved.contains(came[turned]), whole.contains(came)[turned])
    parts = [
        fitted.predict(fresh(rows), 0.7, **{k: v[rows] for k, v in new.items()}).contains(came[rows])
        for rows in torch.arange(TESTS).split(7)
    ]
    assert torch.equal(torch.cat(parts), whole.contains(came))
    assert torch.equal(table, kept[0])
    assert torch.equal(targets, kept[1])
    for now, then in zip((own, new), before, strict=True):
        assert all(torch.equal(now[key], then[key]) for key in then)


EXACT_IN_SINGLE = [
    name
    for name in DETERMINISTIC
    if name in ("absolute_residual", "standardized_residual", "box", "one_of_several_targets", "ellipsoid_given")
]


@pytest.mark.parametrize("name", DETERMINISTIC)
def test_precision_and_layout(name):
    """Of numbers that exist in both precisions; scores differ by their rounding at most."""
    build, targets, _ = forecasts(name, ROWS, 0)
    single, same_targets, _ = forecasts(name, ROWS, 0, torch.float32)
    fitted = RECIPES[name]().calibrate(build(slice(None)), targets)
    other = RECIPES[name]().calibrate(single(slice(None)), same_targets)
    strided = RECIPES[name]().calibrate(
        build(torch.arange(ROWS)), torch.stack([targets, targets], -1)[..., 0], groups=None
    )
    inside = [p.predict(build(slice(None)), 0.7).contains(targets) for p in (fitted, strided)]
    assert torch.equal(*inside)
    if name in EXACT_IN_SINGLE:
        assert torch.equal(other.scores, fitted.scores)
    elif hasattr(fitted, "scores"):
        assert torch.allclose(other.scores, fitted.scores, atol=2e-6, rtol=2e-6)


def test_the_members_of_a_bootstrap_and_its_rows_have_no_order():
    generator = torch.Generator().manual_seed(0)
    members, rows = torch.randn(9, 30, generator=generator, **F64), torch.randn(9, 12, generator=generator, **F64)
    targets, in_bag = torch.randn(30, generator=generator, **F64), torch.rand(9, 30, generator=generator) < 0.6
    recipe = JackknifePlusAfterBootstrap(aggregate="median")
    whole = recipe.calibrate(members, targets, in_bag).predict(rows, 0.8)
    order, turn = torch.randperm(30, generator=generator), torch.randperm(9, generator=generator)
    again = recipe.calibrate(members[turn][:, order], targets[order], in_bag[turn][:, order]).predict(rows[turn], 0.8)
    assert torch.equal(again.lower, whole.lower)
    assert torch.equal(again.upper, whole.upper)
    parts = [recipe.calibrate(members, targets, in_bag).predict(some, 0.8).upper for some in rows.split(5, 1)]
    assert torch.equal(torch.cat(parts), whole.upper)


LOSSES = st.sampled_from([0.0, 0.07, 0.1, 0.3, 1 / 3, 0.7, 1.0])


@settings(max_examples=40)
@given(st.lists(st.tuples(LOSSES, LOSSES, LOSSES), min_size=2, max_size=40), st.randoms(), st.integers(0, 100))
def test_risk_is_controlled_whatever_the_order_of_rows(rows, random, percent):
    """Sums of tenths and thirds that meet the level exactly are the hard case."""
    table = torch.tensor([sorted(row, reverse=True) for row in rows], **F64)
    shuffled = list(range(len(rows)))
    random.shuffle(shuffled)
    other, grid = table[shuffled].T.contiguous().T, [0.0, 1.0, 2.0]
    for recipe in (
        ConformalRiskControl(level=percent / 100),
        RCPS(level=percent / 100, bound=HoeffdingBentkus()),
    ):
        one, two = recipe.calibrate(table, grid), recipe.calibrate(other, grid)
        assert (one.index, one.controlled) == (two.index, two.controlled)
    one, two = (LearnThenTest(level=percent / 100).calibrate(part, grid) for part in (table, other))
    assert torch.allclose(one.p_values, two.p_values, rtol=1e-12)
    whole = (table > 0.5).double()
    for bound in (ExactBinomial(), HoeffdingBentkus()):
        assert torch.equal(bound.p_values(whole, 0.3), bound.p_values(whole[shuffled], 0.3))


def test_p_values_and_tests_move_with_their_rows():
    generator = torch.Generator().manual_seed(1)
    known, new = (
        torch.randint(9, (50,), generator=generator).float(),
        torch.randint(12, (30,), generator=generator).float(),
    )
    order, turn = torch.randperm(50, generator=generator), torch.randperm(30, generator=generator)
    found = conformal_p_values(new, known)
    assert torch.equal(conformal_p_values(new[turn], known[order]), found[turn])
    assert torch.equal(torch.cat([conformal_p_values(part, known) for part in new.split(7)]), found)
    assert torch.equal(conformal_p_values(new.double(), known), found)
    for procedure in (Bonferroni(), Holm(), BenjaminiHochberg()):
        assert torch.equal(procedure.reject(found[turn], 0.3), procedure.reject(found, 0.3)[turn])
    flagged = OutlierTest(level=0.3).detect(new, known).flagged
    assert torch.equal(OutlierTest(level=0.3).detect(new[turn], known[order]).flagged, flagged[turn])


def test_weights_have_no_order():
    generator = torch.Generator().manual_seed(2)
    weights, order = torch.rand(99, generator=generator, **F64), torch.randperm(99, generator=generator)
    assert effective_sample_size(weights[order]).item() == pytest.approx(
        effective_sample_size(weights).item(), rel=1e-14
    )
    logits = torch.randn(99, 2, generator=generator, **F64)
    whole = density_ratio(Categorical(logits=logits))
    assert torch.equal(density_ratio(Categorical(logits=logits[order])), whole[order])
    parts = [density_ratio(Categorical(logits=part)) for part in logits.split(10)]
    assert torch.allclose(torch.cat(parts), whole, rtol=1e-14)


# -- field cases, for every score ----------------------------------------------------------------------------------


@pytest.mark.parametrize("seen", [(0, 1), (1, 2)])
@pytest.mark.parametrize("name", [name for name in SCORES if isinstance(SCORES[name](), ClassScore)])
def test_a_class_without_calibration_rows_keeps_its_column_for_every_score(name, seen):
    """B50: columns stay tied to the model's classes, and the class that never came can be in a set."""
    logits = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    targets, predicted = torch.tensor(seen)[torch.arange(60) % 2], Categorical(logits=logits)
    fitted = SCORES[name]().calibrate(predicted, targets, seed=0)
    sets = fitted.predict(predicted, 0.9, seed=0)
    assert sets.members.shape == (60, 3)
    assert bool(sets.members[:, ({0, 1, 2} - set(seen)).pop()].any())
    with pytest.raises(SupportError, match="10"):
        SCORES[name]().calibrate(predicted, torch.tensor([10, 20, 30]).repeat(20), seed=0)


@pytest.mark.parametrize("name", [name for name in SCORES if not isinstance(SCORES[name](), ClassScore)])
@pytest.mark.parametrize("extra", [None, "difficulty", "weights"])
def test_too_few_rows_give_an_infinite_region_for_every_score(name, extra):
    """B48: rank 9 of 8 is infinite, and stays so through the difficulty; ranks 18 of 18 and 19 of 19 are not."""
    for rows, coverage, everything in ((8, 0.9, True), (18, 0.9, False), (18, 0.95, True), (19, 0.95, False)):
        build, targets, _ = forecasts(name, rows, 0)
        extras = {} if extra is None else {extra: torch.full((rows,), 2.0)}
        fitted = SCORES[name]().calibrate(build(slice(None)), targets, seed=0, **extras)
        region = fitted.predict(build(slice(None)), coverage, seed=1, **extras)
        size = region.volume if hasattr(region, "volume") else region.width
        assert not bool(size.isnan().any())
        if everything:
            assert bool((size == math.inf).all())
            assert bool(region.contains(targets).all())
        else:
            one_sided = name in ("cqr_lower", "cqr_upper", "one_of_several_targets")
            assert bool((size.isfinite() | torch.tensor(one_sided)).all())
        assert bool(fitted.predict(build(slice(None)), 0, seed=1, **extras).empty.all())
