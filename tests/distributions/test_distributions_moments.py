"""Moments, entropies and draws."""

import math

import pytest
import torch
from distribution_cases import PLAIN, PREDICTIVE, build
from torch.distributions import Bernoulli, Categorical, Distribution, Independent, Normal

from credibly.core.errors import NotSupportedError
from credibly.distributions.kinds import kind
from credibly.distributions.moments import entropy, mean, variance
from credibly.distributions.predictive import Predictive

NUM_DRAWS = 20_000
SIGMAS = 5  # a false alarm with probability 6e-7 per number, 1e-4 over this file
CATEGORICAL = ("categorical", "classes")


def has_moments(name: str) -> bool:
    return not any(word in name for word in CATEGORICAL)


@pytest.mark.parametrize("name", [n for n in PLAIN | PREDICTIVE if has_moments(n)])
def test_moments_are_those_of_the_draws(name: str, dtype: torch.dtype, device: torch.device) -> None:
    d = build(name, dtype, device)
    draws = d.sample((NUM_DRAWS,)).double()
    assert draws.shape == (NUM_DRAWS, *d.batch_shape, *d.event_shape)
    centred = draws - mean(d).double()
    error = draws.std(0) / math.sqrt(NUM_DRAWS)
    assert bool((centred.mean(0).abs() <= SIGMAS * error).all())
    squared_error = (centred**2).std(0) / math.sqrt(NUM_DRAWS)
    # one floor for squares that do not vary, such as those of a fair coin
    floor = 1e-3 * variance(d).double()
    gap = ((centred**2).mean(0) - variance(d).double()).abs()
    assert bool((gap <= SIGMAS * squared_error + floor).all())


@pytest.mark.parametrize("name", [n for n in PLAIN | PREDICTIVE if not has_moments(n)])
def test_class_indices_have_no_moments(name: str, dtype: torch.dtype, device: torch.device) -> None:
    d = build(name, dtype, device)
    for moment in (mean, variance):
        with pytest.raises(NotSupportedError, match="`probs`"):
            moment(d)


@pytest.mark.parametrize("name", [n for n in PLAIN if "independent" not in n])
def test_entropy_is_the_mean_of_minus_log_prob(name: str, dtype: torch.dtype, device: torch.device) -> None:
    d = build(name, dtype, device)
    losses = -d.log_prob(d.sample((NUM_DRAWS,))).double()
    error = losses.std(0) / math.sqrt(NUM_DRAWS) + 1e-6
    assert bool(((losses.mean(0) - entropy(d).double()).abs() <= SIGMAS * error).all())


def test_entropy_is_per_element_for_several_outputs() -> None:
    base = Normal(torch.zeros(2, 3), torch.tensor([1.0, 2.0, 3.0]).expand(2, 3))
    assert torch.equal(entropy(Independent(base, 1)), base.entropy())


ZERO = -math.inf


@pytest.mark.parametrize(
    ("logits", "expected"),
    [([0.0, 0.0, ZERO], math.log(2)), ([0.0, ZERO], 0.0), ([ZERO, 5.0, ZERO], 0.0)],
)
def test_classes_of_probability_zero_add_nothing(logits: list[float], expected: float, dtype: torch.dtype) -> None:
    row = torch.tensor([logits], dtype=dtype)
    for d in (Categorical(logits=row, validate_args=False), Categorical(probs=row.exp(), validate_args=False)):
        assert float(entropy(d)) == pytest.approx(expected, abs=1e-7)
    for probs in (0.0, 1.0):
        assert float(entropy(Bernoulli(probs=torch.tensor([probs], dtype=dtype)))) == 0


def test_entropy_without_a_formula_is_refused(dtype: torch.dtype, device: torch.device) -> None:
    for name in ("mixture_normal", "mixture_poisson", "empirical"):
        with pytest.raises(NotSupportedError, match="entropy is not available for"):
            entropy(build(name, dtype, device))


@pytest.mark.parametrize("name", PREDICTIVE)
def test_draws_follow_their_seed(name: str, dtype: torch.dtype, device: torch.device) -> None:
    d: Distribution = build(name, dtype, device)
    assert isinstance(d, Predictive)
    state = torch.get_rng_state()
    first, again, other = d.draw((2, 3), seed=1), d.draw((2, 3), seed=1), d.draw((2, 3), seed=2)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert first.shape == (2, 3, *d.batch_shape, *d.event_shape)
    assert d.draw(5).shape[0] == 5
    assert d.draw().shape == d.batch_shape + d.event_shape
    assert d.draw((0,)).shape == (0, *d.batch_shape, *d.event_shape)
    torch.manual_seed(3)
    drawn = d.sample((4,))
    torch.manual_seed(3)
    assert torch.equal(d.sample((4,)), drawn)


@pytest.mark.parametrize("name", [n for n in PREDICTIVE if "categ" in n or "class" in n or "oisson" in n])
def test_draws_without_gradients_say_so(name: str, dtype: torch.dtype, device: torch.device) -> None:
    d = build(name, dtype, device)
    assert not d.has_rsample
    assert kind(d) != "real"
    with pytest.raises(NotSupportedError, match="rsample"):
        d.rsample((2,))
