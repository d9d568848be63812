"""Maps of single events: golden values, scikit-learn and brute force."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize
from sklearn.calibration import _SigmoidCalibration
from sklearn.isotonic import IsotonicRegression
from torch.distributions import Bernoulli, Categorical

from credibly.calibration import (
    BetaCalibration,
    CenteredIsotonic,
    HistogramBinning,
    Isotonic,
    PlattScaling,
    VennAbers,
    pooling,
)
from credibly.calibration.events import event_forecasts
from credibly.distributions import class_log_probs, from_probs


def events(rows=400, seed=0, slope=2.0):
    generator = torch.Generator().manual_seed(seed)
    odds = 1.5 * torch.randn(rows, generator=generator, dtype=torch.float64)
    targets = (torch.rand(rows, generator=generator, dtype=torch.float64) < (odds - 0.3).sigmoid()).double()
    return slope * odds, targets


@pytest.mark.parametrize("factor", [1e-3, 1.0, 1e3])
def test_platt_golden_and_invariant_to_the_scale_of_scores(factor, dtype):
    """B47: 670 positives with score 1e5 and 330 negatives with score 0."""
    scores = torch.cat([torch.full((670,), 1e5), torch.zeros(330)]).to(dtype) * factor
    targets = torch.cat([torch.ones(670), torch.zeros(330)])
    predicted = Bernoulli(logits=scores)
    probs = PlattScaling().fit(predicted, targets)(predicted).probs
    # a gradient norm of 1e-10 over the curvature p (1 - p), about 0.0015
    assert probs[0].item() == pytest.approx(671 / 672, abs=1e-9)
    assert probs[-1].item() == pytest.approx(1 / 332, abs=1e-9)


def test_platt_agrees_with_scikit_learn():
    scores, targets = events()
    fitted = PlattScaling().fit(Bernoulli(logits=scores), targets)
    theirs = _SigmoidCalibration().fit(scores.numpy(), targets.numpy())
    assert fitted.slope.item() == pytest.approx(-theirs.a_, rel=1e-3)  # their gradient stops at 1e-5
    assert fitted.intercept.item() == pytest.approx(-theirs.b_, rel=1e-3)
    probs = fitted(Bernoulli(logits=scores)).probs
    np.testing.assert_allclose(probs, theirs.predict(scores.numpy()), atol=2e-4)


def test_platt_of_one_class_only_is_the_smoothed_frequency():
    scores, _ = events(98)
    fitted = PlattScaling().fit(Bernoulli(logits=scores), torch.ones(98))
    assert fitted.slope.item() == pytest.approx(0.0, abs=1e-6)
    assert fitted.intercept.item() == pytest.approx(math.log(99), abs=1e-6)


@pytest.mark.parametrize("flip", [False, True])
def test_beta_is_the_constrained_maximum(flip):
    scores, targets = events()
    targets = 1 - targets if flip else targets  # then both slopes would be negative
    log_p, log_q = torch.nn.functional.logsigmoid(scores), torch.nn.functional.logsigmoid(-scores)

    def loss(parameters):
        a, b, c = parameters
        z = (a * log_p - b * log_q + c).numpy()
        return np.mean(np.logaddexp(0, z) - targets.numpy() * z)

    best = minimize(loss, [1.0, 1.0, 0.0], bounds=[(0, None), (0, None), (None, None)], options={"ftol": 1e-14})
    fitted = BetaCalibration().fit(Bernoulli(logits=scores), targets)
    assert fitted.report.nll_after <= best.fun + 1e-9
    found = [fitted.a.item(), fitted.b.item(), fitted.c.item()]
    assert found == pytest.approx(best.x.tolist(), abs=2e-3)
    assert min(found[:2]) >= 0


def test_beta_reaches_faces_where_one_slope_is_zero():
    probs = torch.linspace(0.01, 0.99, 4000, dtype=torch.float64)
    falling = 2 * torch.log(probs) + torch.log1p(-probs) + 2  # b would be -1
    targets = (torch.rand(4000, dtype=torch.float64) < falling.sigmoid()).double()
    fitted = BetaCalibration().fit(Bernoulli(probs=probs), targets)
    assert fitted.b.item() == 0.0
    assert fitted.a.item() > 0.0
    mirrored = BetaCalibration().fit(Bernoulli(probs=1 - probs), 1 - targets)
    assert mirrored.a.item() == 0.0
    assert mirrored.b.item() == pytest.approx(fitted.a.item(), abs=1e-6)


points_and_values = st.lists(st.tuples(st.integers(0, 8), st.booleans()), min_size=1, max_size=30)


@given(points_and_values)
def test_isotonic_agrees_with_scikit_learn_everywhere(data):
    probs = torch.tensor([(x + 1) / 10 for x, _ in data], dtype=torch.float64)
    hits = torch.tensor([float(y) for _, y in data])
    predicted, grid = Bernoulli(probs=probs), torch.linspace(0.01, 0.99, 50, dtype=torch.float64)
    ours = Isotonic().fit(predicted, hits)(Bernoulli(probs=grid)).probs
    seen = event_forecasts(predicted).probs[0]
    theirs = IsotonicRegression(out_of_bounds="clip").fit(seen.numpy(), hits.numpy()).predict(grid.numpy())
    np.testing.assert_allclose(ours, theirs, atol=1e-7)


@pytest.mark.parametrize("rounds", [0, 64])
def test_pooling_of_many_curves_and_of_curves_that_take_many_rounds(rounds, monkeypatch):
    monkeypatch.setattr(pooling, "_ROUNDS", rounds)
    rising = torch.arange(300, dtype=torch.float64)
    rising[-1] = -50_000.0  # pools one more point to its left in every round
    noisy = torch.randn(300, dtype=torch.float64)
    points = torch.stack([torch.arange(300.0).double(), torch.rand(300, dtype=torch.float64)])
    blocks = pooling.pooled(points, torch.stack([rising, noisy]))
    for curve, values in enumerate((rising, noisy)):
        order = points[curve].argsort()
        own = blocks.of(curve)
        ours = own.value.repeat_interleave(own.size.long())
        theirs = IsotonicRegression().fit_transform(points[curve][order].numpy(), values[order].numpy())
        np.testing.assert_allclose(ours, theirs, atol=1e-9)


def test_centred_isotonic_by_hand():
    # blocks 0 | 1/2 of forecasts .2 .3 .4 .6 | 1: the middle one at its mean .375, the outer ones stay
    probs = torch.tensor([0.1, 0.2, 0.3, 0.4, 0.6, 0.8], dtype=torch.float64)
    hits = torch.tensor([0.0, 1.0, 0.0, 1.0, 0.0, 1.0])
    fitted = CenteredIsotonic().fit(Bernoulli(probs=probs), hits)
    torch.testing.assert_close(fitted.forecasts[0], torch.tensor([0.1, 0.375, 0.8], dtype=torch.float64))
    torch.testing.assert_close(fitted.probs[0], torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64))
    ends = fitted(Bernoulli(probs=torch.tensor([0.01, 0.2375, 0.99], dtype=torch.float64))).probs
    torch.testing.assert_close(ends, torch.tensor([0.0, 0.25, 1.0], dtype=torch.float64))


def test_centred_isotonic_increases_strictly_between_its_outer_knots():
    scores, targets = events(500)
    fitted = CenteredIsotonic().fit(Bernoulli(logits=scores), targets)
    inside = (fitted.probs > 0) & (fitted.probs < 1)
    assert bool((fitted.probs[inside].diff() > 0).all())
    assert bool((fitted.forecasts.diff() >= 0).all())


def test_histogram_by_hand():
    probs = torch.tensor([0.05, 0.1, 0.2, 0.9, 0.95, 1.0], dtype=torch.float64)
    hits = torch.tensor([0.0, 1.0, 1.0, 1.0, 0.0, 1.0])
    wide = HistogramBinning(num_bins=10, equal_mass=False).fit(Bernoulli(probs=probs), hits)
    assert wide.edges[0].tolist() == pytest.approx([0.1, 0.2, 0.9])  # closed on the right; empty bins joined
    assert wide.probs[0].tolist() == pytest.approx([0.5, 1.0, 1.0, 0.5])
    equal = HistogramBinning(num_bins=3).fit(Bernoulli(probs=probs), hits)
    assert equal.edges[0].tolist() == pytest.approx([0.1, 0.9])
    assert equal.probs[0].tolist() == pytest.approx([0.5, 1.0, 0.5])
    tied = HistogramBinning(num_bins=3).fit(Bernoulli(probs=torch.full((6,), 0.4)), hits)
    assert tied.probs.tolist() == [[pytest.approx(4 / 6)]]


def brute_venn_abers(scores, hits, at):
    """The isotonic regression with the new object in it, by definition."""
    return [
        float(IsotonicRegression().fit(np.append(scores, at), np.append(hits, hit)).predict([at])[0]) for hit in (0, 1)
    ]


@given(st.lists(st.tuples(st.integers(-4, 4), st.booleans()), min_size=1, max_size=25))
def test_venn_abers_is_its_definition(data):
    scores = np.array([float(s) for s, _ in data])
    hits = np.array([float(y) for _, y in data])
    fitted = VennAbers().fit(Bernoulli(logits=torch.tensor(scores)), torch.tensor(hits))
    grid = torch.arange(-5, 5.5, 0.5, dtype=torch.float64)
    p0, p1 = fitted.pair(Bernoulli(logits=grid))
    expected = np.array([brute_venn_abers(scores, hits, at) for at in grid.numpy()])
    np.testing.assert_allclose(p0, expected[:, 0], atol=1e-9)
    np.testing.assert_allclose(p1, expected[:, 1], atol=1e-9)
    merged = fitted(Bernoulli(logits=grid)).probs
    torch.testing.assert_close(merged, p1 / (1 - p0 + p1))
    assert bool(((p0 < p1) & (merged > 0) & (merged < 1)).all())


def test_venn_abers_of_classes_keeps_its_pairs():
    logits = torch.randn(90, 3, dtype=torch.float64)
    predicted = Categorical(logits=logits)
    targets = predicted.sample()
    fitted = VennAbers().fit(predicted, targets)
    p0, p1 = fitted.pair(predicted)
    assert p0.shape == p1.shape == (90, 3)
    one = VennAbers().fit(Bernoulli(logits=event_forecasts(predicted).log_odds[1]), (targets == 1).double())
    torch.testing.assert_close(one.p1[0], fitted.p1[1][: one.p1.shape[1]])
    merged = p1 / (1 - p0 + p1)
    torch.testing.assert_close(fitted(predicted).probs, merged / merged.sum(-1, keepdim=True))


def test_confident_forecasts_are_told_apart():
    """Probabilities within 1e-20 of 1 differ in their log odds, on which Platt, beta and Venn-Abers stand."""
    logits = torch.tensor([[50.0, 0.0, -1.0], [60.0, 0.0, -1.0], [0.0, 40.0, 0.0]], dtype=torch.float64)
    forecasts = event_forecasts(Categorical(logits=logits))
    rest = torch.logsumexp(logits[:, 1:], -1)
    torch.testing.assert_close(forecasts.log_odds[0, :2], (logits[:, 0] - rest)[:2])
    torch.testing.assert_close(forecasts.fails[1, 2].item(), math.log(2) - 40.0)
    certain = event_forecasts(from_probs(torch.tensor([[1.0, 0.0], [0.5, 0.5]])))
    assert bool(certain.log_odds.isfinite().all())


def test_rows_without_any_probability_become_uniform():
    predicted = from_probs(torch.tensor([[0.2, 0.8], [0.8, 0.2], [0.2, 0.8], [0.8, 0.2]], dtype=torch.float64))
    fitted = Isotonic().fit(predicted, torch.tensor([1, 0, 1, 0]))
    fresh = from_probs(torch.tensor([[0.5, 0.5]], dtype=torch.float64))
    torch.testing.assert_close(class_log_probs(fitted(fresh)).exp(), torch.tensor([[0.5, 0.5]], dtype=torch.float64))
