"""Ordered classes against exact arithmetic, and through every function of the waist."""

import copy
import itertools
import pickle

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from credibly.core.errors import NotSupportedError, ShapeError, SupportError
from credibly.distributions import MixturePredictive, Ordinal, functions
from credibly.distributions.classes import class_log_probs, class_probs
from credibly.distributions.rows import concatenate, select, to
from credibly.distributions.survival import survival
from credibly.distributions.top_label import top_label

CUTS = torch.tensor([-1.5, -0.25, 0.75, 2.0])
LOCS = torch.tensor([-3.0, -0.5, 0.0, 0.25, 1.0, 4.0])


def make(dtype=torch.float64, locs=LOCS, cuts=CUTS):
    return Ordinal(locs.to(dtype), cuts.to(dtype).expand(*locs.shape, -1))


def exact_log_probs(loc, cuts):
    """By definition, in 400 digits."""
    with mpmath.workdps(400):
        at_most = [mpmath.mpf(0), *(1 / (1 + mpmath.exp(mpmath.mpf(loc) - mpmath.mpf(c))) for c in cuts), mpmath.mpf(1)]
        return [float(mpmath.log(b - a)) for a, b in itertools.pairwise(at_most)]


@pytest.mark.parametrize("loc", [-300.0, -50.0, -5.0, 0.125, 5.0, 50.0, 300.0])
def test_class_probabilities_are_exact_far_into_both_tails(loc, dtype):
    d = make(dtype, torch.tensor([loc]))
    expected = np.array(exact_log_probs(loc, CUTS.tolist()))
    np.testing.assert_allclose(class_log_probs(d)[0], expected, rtol=1e-13, atol=1e-300)
    own = torch.stack([functions.log_prob(d, [k]) for k in range(5)], -1)[0]
    np.testing.assert_allclose(own.double(), expected, rtol=8 * torch.finfo(dtype).eps, atol=torch.finfo(dtype).tiny)


def test_a_class_between_cutpoints_that_nearly_coincide_keeps_its_digits(dtype):
    cuts = torch.tensor([0.0, 2.0**-12, 1.0])
    d = make(dtype, torch.tensor([0.5, 40.0]), cuts)
    for row, loc in enumerate((0.5, 40.0)):
        expected = exact_log_probs(loc, cuts.tolist())
        np.testing.assert_allclose(class_log_probs(d)[row], expected, rtol=1e-12)
        np.testing.assert_allclose(d.probs[row].double(), np.exp(expected), rtol=64 * torch.finfo(dtype).eps)


@given(loc=st.floats(-1e30, 1e30), first=st.floats(-100, 100), gaps=st.lists(st.floats(1e-4, 30), max_size=5))
def test_log_probabilities_are_never_nan_and_their_gradients_finite(loc, first, gaps):
    cuts = torch.tensor([first, *gaps]).cumsum(0)
    cuts = cuts if len(cuts) < 2 or bool((cuts.diff() > 0).all()) else torch.arange(float(len(cuts)))
    at = torch.tensor([loc], dtype=torch.float32, requires_grad=True)
    points = cuts.unsqueeze(0).requires_grad_()
    density = functions.safe_log_prob(Ordinal(at, points), torch.arange(len(cuts) + 1).unsqueeze(-1))
    assert density.isfinite().all()
    assert torch.all(density <= 0)
    for gradient in torch.autograd.grad(density.sum(), (at, points)):
        assert gradient.isfinite().all()


def test_distribution_function_quantiles_and_entropy_are_those_of_the_probabilities(dtype):
    d = make(dtype)
    probs = class_log_probs(d).exp()
    tolerance = 4 * torch.finfo(dtype).eps
    grid = torch.arange(-1, 7, dtype=dtype).unsqueeze(-1).expand(-1, 6)
    at_most = torch.cat([torch.zeros(6, 1).double(), probs.cumsum(-1), torch.ones(6, 2).double()], -1).T
    np.testing.assert_allclose(functions.cdf(d, grid).double(), at_most, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(survival(d, grid).double(), 1 - at_most, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(
        survival(make(dtype, torch.tensor([-60.0])), 3.0).double(), np.exp(-62.0), rtol=2 * tolerance
    )
    for k in range(5):
        level = functions.cdf(d, float(k))
        assert torch.all(functions.icdf(d, level) == k)
    expected = -(probs * probs.log()).sum(-1)
    np.testing.assert_allclose(functions.entropy(d).double(), expected, rtol=2 * tolerance)
    torch.testing.assert_close(d.entropy(), functions.entropy(d))
    np.testing.assert_allclose(class_probs(d).double(), probs, rtol=tolerance)
    confidence, hits = top_label(d, probs.argmax(-1))
    torch.testing.assert_close(confidence, probs.amax(-1))
    assert hits.all()


def test_draws_have_the_stated_probabilities():
    d, num_draws = make(), 20_000
    drawn = d.sample(torch.Size([num_draws]))
    assert drawn.shape == (num_draws, 6)
    assert drawn.dtype == torch.int64
    share = torch.stack([(drawn == k).double().mean(0) for k in range(5)], -1)
    # 5 standard errors, plus one draw: a failure in 10^6 for each of 30 numbers
    error = (d.probs * (1 - d.probs) / num_draws).sqrt()
    assert torch.all((share - d.probs).abs() <= 5 * error + 1 / num_draws)


def test_the_location_moves_all_cumulative_odds_by_the_same_factor():
    low, high = make(locs=torch.zeros(1)), make(locs=torch.ones(1))
    for k in range(4):
        odds = torch.logit(functions.cdf(low, float(k))) - torch.logit(functions.cdf(high, float(k)))
        assert odds.item() == pytest.approx(1.0, rel=1e-12)


def test_two_classes_are_a_bernoulli():
    d = Ordinal(LOCS.double(), torch.zeros(6, 1).double())
    torch.testing.assert_close(d.probs[:, 1], LOCS.double().sigmoid())
    assert functions.kind(d) == "class"


def test_targets_are_class_indices():
    d = make()
    assert functions.match_targets(d, [0.0, 1.0, 2.0, 3.0, 4.0, 0.0]).dtype == torch.int64
    for value in (-1.0, 5.0, 1.5):
        y = torch.tensor([0.0, value, 1.0, 2.0, 3.0, 4.0])
        density = functions.safe_log_prob(d, y)
        assert density[1] == -torch.inf
        assert density[[0, 2, 3, 4, 5]].isfinite().all()
        with pytest.raises(SupportError, match=r"outside the support of Ordinal: whole numbers from 0 to 4"):
            functions.match_targets(d, y)
    with pytest.raises(ShapeError, match="one-hot"):
        functions.match_targets(d, torch.zeros(6, 5))
    with pytest.raises(ShapeError):
        functions.match_targets(d, torch.zeros(5))


def test_rows_are_selected_joined_moved_and_pickled(dtype):
    d, y = make(dtype), torch.tensor([0, 1, 2, 3, 4, 0])
    expected = functions.log_prob(d, y)
    part = select(d, [4, 1])
    assert isinstance(part, Ordinal)
    assert torch.equal(functions.log_prob(part, y[[4, 1]]), expected[[4, 1]])
    assert torch.equal(functions.log_prob(concatenate([select(d, [0]), select(d, slice(1, None))]), y), expected)
    assert to(d, dtype=torch.float64).cutpoints.dtype == torch.float64
    for twin in (copy.deepcopy(d), pickle.loads(pickle.dumps(d)), d.expand((3, 6))):
        assert torch.equal(functions.safe_log_prob(twin, y), expected.expand(twin.batch_shape))
    assert d.enumerate_support().shape == (5, 6)
    assert d.enumerate_support(expand=False).shape == (5, 1)


def test_a_mixture_has_the_mean_probabilities_and_information_between_zero_and_its_entropy(dtype):
    locs = torch.stack([LOCS, LOCS.flip(0), torch.zeros(6)]).to(dtype)
    mixture = MixturePredictive(Ordinal(locs, CUTS.to(dtype).expand(3, 6, -1)))
    probs = class_log_probs(mixture.components).exp().mean(0)
    torch.testing.assert_close(class_log_probs(mixture).exp(), probs)
    y = torch.tensor([0, 1, 2, 3, 4, 0])
    torch.testing.assert_close(functions.log_prob(mixture, y).double(), probs[range(6), y].log(), rtol=1e-5, atol=1e-6)
    information = mixture.mutual_information()
    assert torch.all((information >= 0) & (information <= mixture.entropy()))
    lower, upper = mixture.interval(0.8)
    assert torch.all(lower <= upper)
    assert torch.all(functions.cdf(mixture, upper) - functions.cdf(mixture, lower - 1) >= 0.8 - 1e-6)
    assert mixture.draw(5, seed=0).shape == (5, 6)


@pytest.mark.parametrize("ask", [functions.mean, functions.variance])
def test_moments_are_refused_by_name(ask):
    with pytest.raises(NotSupportedError, match=r"Ordinal; ordered classes have no distances; use icdf"):
        ask(make())
    with pytest.raises(NotSupportedError, match=r"Ordinal"):
        ask(MixturePredictive(make(locs=torch.zeros(2, 3))))


def test_the_crps_points_to_the_ranked_probability_score():
    y = torch.zeros(6, dtype=torch.int64)
    with pytest.raises(NotSupportedError, match="ranked_probability_score"):
        functions.crps(make(), y)
    with pytest.raises(NotSupportedError, match="ranked_probability_score"):
        functions.crps(MixturePredictive(make(locs=torch.zeros(2, 6))), y)


def test_shapes_that_do_not_fit_are_refused():
    for cuts in (torch.zeros(3, 2), torch.zeros(4, 0), torch.zeros(())):
        with pytest.raises(ShapeError, match=r"`cutpoints` must have shape \(4, 'classes - 1'\)"):
            Ordinal(torch.zeros(4), cuts)
