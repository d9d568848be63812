"""A score and its region are one object: y lies in the region of q exactly when its score is at most q."""

import copy
import math
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributions import Bernoulli, Categorical, Independent, Normal, Poisson

from credibly.conformal.aps import APS
from credibly.conformal.lac import LAC
from credibly.conformal.residual import AbsoluteResidual
from credibly.core.errors import NotFiniteError, NotSupportedError, ShapeError, SupportError
from credibly.distributions.mixture import MixturePredictive

CLASS_SCORES = {"lac": LAC(), "aps": APS(), "aps_deterministic": APS(randomized=False)}


@pytest.fixture(params=CLASS_SCORES)
def class_score(request):
    return CLASS_SCORES[request.param]


def score_table(score, predicted, classes, u):
    rows = predicted.batch_shape[-1]
    every = [score.score(predicted, torch.full((rows,), k), u) for k in range(classes)]
    return torch.stack(every, -1)


def assert_inverse(score, predicted, classes, u):
    """Thresholds at, just below, and between all scores that occur."""
    table = score_table(score, predicted, classes, u)
    below = torch.nextafter(table, torch.full_like(table, -math.inf))
    for k in range(classes):
        for limits in (table[:, k], below[:, k], table[:, k].flip(0), table[:, k : k + 1]):
            members = score.region(predicted, limits, u).members
            assert torch.equal(members, table <= limits.reshape(-1, 1))
    for limit in (*table.flatten()[:8].tolist(), -math.inf, math.inf, 0.0, 1.0, 2.0):
        assert torch.equal(score.region(predicted, limit, u).members, table <= limit)
    per_class = table[:1]
    assert torch.equal(score.region(predicted, per_class, u).members, table <= per_class)
    assert torch.equal(score.region(predicted, below, u).members, table <= below)


LEVELS = st.sampled_from([0.0, 1e-300, 1e-20, 1e-9, 0.1, 0.2, 1 / 3, 0.5, 1.0])
ROWS = st.integers(2, 5).flatmap(
    lambda c: st.lists(
        st.tuples(st.lists(LEVELS, min_size=c, max_size=c).filter(lambda p: sum(p) > 0), st.floats(0, 1)),
        min_size=1,
        max_size=6,
    )
)


@given(ROWS, st.sampled_from(sorted(CLASS_SCORES)))
def test_inversion_on_tied_one_hot_and_tiny_probabilities(rows, name):
    probs = torch.tensor([p for p, _ in rows], dtype=torch.float64)
    u = torch.tensor([v for _, v in rows], dtype=torch.float64)
    assert_inverse(CLASS_SCORES[name], Categorical(probs=probs), probs.shape[-1], u)


@given(
    st.lists(
        st.lists(st.floats(-800, 800) | st.just(-math.inf), min_size=3, max_size=3).filter(
            lambda z: max(z) > -math.inf
        ),
        min_size=1,
        max_size=6,
    ),
    st.floats(0, 1),
    st.sampled_from(sorted(CLASS_SCORES)),
)
def test_inversion_on_extreme_logits(rows, u, name):
    predicted = Categorical(logits=torch.tensor(rows, dtype=torch.float64), validate_args=False)
    uniforms = torch.full((len(rows),), u, dtype=torch.float64)
    assert_inverse(CLASS_SCORES[name], predicted, 3, uniforms)


def test_inversion_on_random_rows(class_score, dtype):
    generator = torch.Generator().manual_seed(7)
    logits = torch.randn(200, 9, generator=generator, dtype=dtype) * 4
    u = torch.rand(200, generator=generator, dtype=torch.float64)
    assert_inverse(class_score, Categorical(logits=logits), 9, u)
    assert_inverse(class_score, Bernoulli(logits=logits[:, 0]), 2, None)
    mixture = MixturePredictive(Categorical(logits=logits.reshape(4, 50, 9), validate_args=False))
    assert_inverse(class_score, mixture, 9, u[:50])


def test_a_thousand_classes_in_float32(class_score):
    generator = torch.Generator().manual_seed(8)
    predicted = Categorical(logits=torch.randn(600, 1000, generator=generator) * 6)
    targets = torch.randint(0, 1000, (600,), generator=generator)
    u = torch.rand(600, generator=generator, dtype=torch.float64)
    scores = class_score.score(predicted, targets, u)
    below = torch.nextafter(scores, torch.full_like(scores, -math.inf))
    assert bool(class_score.region(predicted, scores, u).contains(targets).all())
    assert not bool(class_score.region(predicted, below, u).contains(targets).any())


def brute_force_aps(probs, u):
    table = torch.empty_like(probs)
    for row, (p, v) in enumerate(zip(probs.tolist(), u.tolist(), strict=True)):
        for k, own in enumerate(p):
            mass = sum(q for q in p if q > own) + v * sum(q for q in p if q == own)
            table[row, k] = mass if own > 0 else 2.0
    return table


def test_aps_equals_its_definition():
    # multiples of 1/16, so that probabilities and their sums are exact
    probs = torch.tensor([[8, 4, 2, 2, 0], [16, 0, 0, 0, 0], [4, 4, 4, 4, 0], [1, 2, 3, 4, 6]]).double() / 16
    u = torch.tensor([0.25, 0.5, 0.75, 0.125], dtype=torch.float64)
    predicted = Categorical(probs=probs)
    assert torch.allclose(score_table(APS(), predicted, 5, u), brute_force_aps(probs, u), atol=1e-15)
    deterministic = score_table(APS(randomized=False), predicted, 5, None)
    assert torch.allclose(deterministic, brute_force_aps(probs, torch.ones(4)), atol=1e-15)
    assert deterministic[0].tolist() == pytest.approx([0.5, 0.75, 1.0, 1.0, 2.0])


def test_one_hot_rows_do_not_give_full_sets():
    predicted = Categorical(probs=torch.eye(4)[[0, 0, 1, 2]])
    for score in CLASS_SCORES.values():
        predictor = score.calibrate(predicted, torch.tensor([0, 0, 1, 2]), seed=0)
        assert predictor.predict(predicted, 0.6, seed=1).members.sum() <= 4
        assert int(score.region(predicted, 1.0, torch.ones(4)).size.max()) <= (4 if score == LAC() else 1)


def test_lac_is_one_minus_the_probability_and_confident_rows_do_not_tie():
    predicted = Categorical(logits=torch.tensor([[50.0, 0.0], [60.0, 0.0]]))
    scores = LAC().score(predicted, torch.tensor([0, 0]))
    assert scores.tolist() == pytest.approx([math.exp(-50), math.exp(-60)], rel=1e-6)
    assert LAC().score(Categorical(probs=torch.tensor([[0.25, 0.75]])), [1]).item() == pytest.approx(0.25)


@given(
    st.lists(
        st.tuples(
            st.floats(-1e9, 1e9) | st.sampled_from([0.0, 1.0, -1.0, math.inf, -math.inf]),
            st.floats(-1e9, 1e9) | st.sampled_from([0.0, 1e-300, 1.0, 1e300]),
            st.floats(0, 1e9) | st.sampled_from([0.0, 1e-17, 1e-300, math.inf, -math.inf, -1.0]),
        ),
        min_size=1,
        max_size=8,
    )
)
def test_interval_inversion(rows):
    centre, targets, limits = (torch.tensor(column, dtype=torch.float64) for column in zip(*rows, strict=True))
    predicted = Normal(centre, torch.ones_like(centre), validate_args=False)
    score = AbsoluteResidual()
    scores = score.score(predicted, targets)
    below = torch.nextafter(scores, torch.full_like(scores, -math.inf))
    for q in (limits, scores, below, scores.flip(0)):
        region = score.region(predicted, q)
        assert torch.equal(region.contains(targets), scores <= q)
        assert not bool((region.lower > region.upper).any())
        assert not bool(region.width.isnan().any())
        assert torch.equal(region.lower.isnan(), region.empty)


def test_interval_inversion_in_both_precisions(dtype):
    generator = torch.Generator().manual_seed(9)
    centre = torch.randn(500, generator=generator, dtype=dtype)
    targets = centre + torch.randn(500, generator=generator, dtype=dtype) * 1e-3
    predicted = Normal(centre, torch.ones_like(centre))
    scores = AbsoluteResidual().score(predicted, targets)
    assert scores.dtype == torch.float64
    assert bool(AbsoluteResidual().region(predicted, scores).contains(targets).all())
    column = Independent(Normal(centre.unsqueeze(-1), torch.ones(500, 1, dtype=dtype)), 1)
    assert torch.equal(AbsoluteResidual().score(column, targets), scores)
    assert torch.equal(AbsoluteResidual().score(column, targets.unsqueeze(-1)), scores)


def test_counts_have_residuals_too():
    scores = AbsoluteResidual().score(Poisson(torch.tensor([2.0, 2.5])), torch.tensor([4, 1]))
    assert scores.tolist() == [2.0, 1.5]


def test_scores_do_not_depend_on_order_batch_or_strides(class_score, device):
    generator = torch.Generator().manual_seed(10)
    logits = (torch.randn(301, 5, generator=generator, dtype=torch.float64) * 3).to(device)
    targets = torch.randint(0, 5, (301,), generator=generator).to(device)
    u = torch.rand(301, generator=generator, dtype=torch.float64).to(device)
    kept = logits.clone(), targets.clone(), u.clone()
    whole = class_score.score(Categorical(logits=logits), targets, u)
    sets = class_score.region(Categorical(logits=logits), 0.8, u).members
    order = torch.randperm(301, device=device)
    for predicted in (
        Categorical(logits=logits.t().contiguous().t()),
        Categorical(logits=logits.clone().requires_grad_()),
    ):
        assert torch.allclose(class_score.score(predicted, targets, u), whole, rtol=1e-9, atol=1e-15)
    single = Categorical(logits=logits.float())
    assert torch.allclose(class_score.score(single, targets, u), whole, atol=1e-6)
    shuffled = class_score.score(Categorical(logits=logits[order]), targets[order], u[order])
    assert torch.allclose(shuffled, whole[order], rtol=1e-9, atol=1e-15)
    parts = [
        (class_score.score(Categorical(logits=z), y, v), class_score.region(Categorical(logits=z), 0.8, v))
        for z, y, v in zip(logits.split(17), targets.split(17), u.split(17), strict=True)
    ]
    assert torch.allclose(torch.cat([s for s, _ in parts]), whole, rtol=1e-9, atol=1e-15)
    assert torch.equal(torch.cat([r.members for _, r in parts]), sets)
    for now, before in zip((logits, targets, u), kept, strict=True):
        assert torch.equal(now, before)


def test_blocks_of_rows_change_nothing(class_score):
    generator = torch.Generator().manual_seed(12)
    logits = torch.randn(700, 1000, generator=generator)  # three blocks
    targets = torch.randint(0, 1000, (700,), generator=generator)
    u = torch.rand(700, generator=generator, dtype=torch.float64)
    whole = class_score.score(Categorical(logits=logits), targets, u)
    rows = [
        class_score.score(Categorical(logits=logits[i : i + 1]), targets[i : i + 1], u[i : i + 1])
        for i in range(0, 700, 100)
    ]
    assert torch.allclose(torch.cat(rows), whole[::100], rtol=1e-9, atol=1e-15)


def test_refusals_by_name(class_score):
    normal = Normal(torch.zeros(2), torch.ones(2))
    with pytest.raises(NotSupportedError, match=f"{type(class_score).__name__}.*Normal.*real"):
        class_score.score(normal, torch.zeros(2))
    with pytest.raises(NotSupportedError, match=r"Poisson.*count"):
        class_score.region(Poisson(torch.ones(2)), 0.5)
    with pytest.raises(NotSupportedError, match="event_shape"):
        class_score.score(Independent(Bernoulli(logits=torch.zeros(2, 3)), 1), torch.zeros(2, 3))
    with pytest.raises(ShapeError, match=r"`u`.*\(2,\).*\(3,\)"):
        class_score.region(Categorical(logits=torch.zeros(2, 3)), 0.5, torch.ones(3))
    with pytest.raises(ShapeError, match="thresholds"):
        class_score.region(Categorical(logits=torch.zeros(2, 3)), torch.zeros(3))
    with pytest.raises(ValueError, match="NaN"):
        class_score.region(Categorical(logits=torch.zeros(2, 3)), math.nan)
    with pytest.raises(SupportError):
        class_score.score(Categorical(logits=torch.zeros(3, 3)), torch.tensor([10, 20, 30]))


def test_residual_refusals_by_name():
    with pytest.raises(NotSupportedError, match=r"AbsoluteResidual.*Categorical.*LAC"):
        AbsoluteResidual().score(Categorical(logits=torch.zeros(2, 3)), torch.zeros(2))
    several = Independent(Normal(torch.zeros(2, 3), torch.ones(2, 3)), 1)
    with pytest.raises(NotSupportedError, match="one output"):
        AbsoluteResidual().score(several, torch.zeros(2, 3))
    broken = Normal(torch.tensor([math.nan]), torch.ones(1), validate_args=False)
    with pytest.raises(NotFiniteError, match="NaN"):
        AbsoluteResidual().region(broken, 1.0)


@pytest.mark.parametrize("score", [*CLASS_SCORES.values(), AbsoluteResidual()], ids=repr)
def test_scores_are_values(score):
    assert copy.deepcopy(score) == score == pickle.loads(pickle.dumps(score))
