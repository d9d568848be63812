"""The zero-inflated distribution against enumeration, and through every function of the waist."""

import copy
import pickle

import numpy as np
import pytest
import torch
from torch.distributions import (
    Bernoulli,
    Binomial,
    Distribution,
    Independent,
    NegativeBinomial,
    Normal,
    Poisson,
    constraints,
)

from credibly.core.errors import NotSupportedError, ShapeError, SupportError
from credibly.distributions import MixturePredictive, ZeroInflated, from_draws, functions
from credibly.distributions.crps import crps
from credibly.distributions.rows import concatenate, select, to
from credibly.distributions.survival import survival
from credibly.distributions.targets import inside_support

LOGITS = torch.tensor([-40.0, -2.0, -0.3, 0.0, 1.5, 30.0], dtype=torch.float64)
RATES = torch.tensor([0.2, 1.0, 3.0, 0.05, 8.0, 2.0], dtype=torch.float64)
BASES = {
    "poisson": lambda t: Poisson(RATES.to(t), validate_args=False),
    "negative_binomial": lambda t: NegativeBinomial(RATES.to(t), logits=0.3 * LOGITS.sign().to(t), validate_args=False),
    "binomial": lambda t: Binomial(torch.full((6,), 9.0, dtype=t), logits=LOGITS.to(t).tanh(), validate_args=False),
}
TOP = 400


def make(name, dtype=torch.float64):
    return ZeroInflated(BASES[name](dtype), LOGITS.to(dtype))


def table(name):
    """The probabilities of 0, ..., TOP by their definition, (TOP + 1, rows)."""
    base = BASES[name](torch.float64)
    counts = torch.arange(TOP + 1, dtype=torch.float64).unsqueeze(-1).expand(-1, 6)
    probs = functions.safe_log_prob(base, counts).exp() * torch.sigmoid(-LOGITS)
    probs[0] += torch.sigmoid(LOGITS)
    return counts, probs


@pytest.mark.parametrize("name", BASES)
def test_probabilities_moments_and_scores_are_those_of_the_enumerated_distribution(name):
    d, (counts, probs) = make(name), table(name)
    inside = probs > 1e-300
    own = functions.safe_log_prob(d, counts)
    np.testing.assert_allclose(own.exp()[inside], probs[inside], rtol=1e-12)
    assert torch.all(own[~inside] < -690)
    torch.testing.assert_close(probs.sum(0), torch.ones(6).double(), rtol=1e-12, atol=0)
    np.testing.assert_allclose(functions.cdf(d, counts), probs.cumsum(0), rtol=1e-10, atol=1e-14)
    above = probs.flip(0).cumsum(0).flip(0) - probs
    np.testing.assert_allclose(survival(d, counts), above, rtol=1e-10, atol=1e-14)
    assert torch.equal(survival(d, -1.0), torch.ones(6).double())
    mean = (counts * probs).sum(0)
    variance = ((counts - mean) ** 2 * probs).sum(0)
    np.testing.assert_allclose(functions.mean(d), mean, rtol=1e-11)
    np.testing.assert_allclose(functions.variance(d), variance, rtol=1e-10)
    at_most = probs.cumsum(0)
    for y in (0.0, 1.0, 4.0):
        expected = ((at_most - (counts >= y).double()) ** 2).sum(0)
        np.testing.assert_allclose(crps(d, torch.full((6,), y)), expected, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("name", BASES)
def test_the_quantile_is_the_smallest_count_at_which_the_distribution_function_reaches_the_level(name, dtype):
    d = make(name, dtype)
    counts = torch.arange(30, dtype=dtype).unsqueeze(-1).expand(-1, 6)
    level = functions.cdf(d, counts)
    before = functions.cdf(d, counts - 1)
    rises = (level > before) & (level < 1)
    assert torch.equal(functions.icdf(d, level)[rises], counts[rises])
    assert torch.all(functions.icdf(d, 0.0) == 0)
    end = functions.icdf(d, 1.0)
    assert torch.all(end == (9 if name == "binomial" else torch.inf))
    tiny = torch.nextafter(level[:, 3], torch.ones_like(level[:, 3]))
    inner = tiny < 1
    assert torch.all(functions.icdf(d, tiny.unsqueeze(-1).expand(-1, 6))[inner, 3] > counts[inner, 3])


def test_the_entropy_is_exact_where_that_of_the_base_is_and_refused_by_name_where_not():
    zero = torch.tensor([-1.0, 0.4, 3.0], dtype=torch.float64)
    p = torch.tensor([0.3, 0.9, 0.5], dtype=torch.float64)

    class OneTrial(Binomial):
        def entropy(self):
            return Bernoulli(self.probs).entropy()

    d = ZeroInflated(OneTrial(torch.ones(3).double(), p), zero)
    happens = (1 - zero.sigmoid()) * p
    torch.testing.assert_close(functions.entropy(d), Bernoulli(happens).entropy(), rtol=1e-12, atol=1e-14)

    with pytest.raises(NotSupportedError, match="entropy is not available for Unknown"):
        functions.entropy(ZeroInflated(Unknown(torch.Size([2])), torch.zeros(2)))


class Unknown(Distribution):
    """Counts with a density and nothing else."""

    arg_constraints = {}  # noqa: RUF012
    support = constraints.nonnegative_integer

    def log_prob(self, value):
        return -0.7 * (value + 1)


@pytest.mark.parametrize("name", BASES)
def test_draws_have_the_stated_moments(name):
    d, num_draws = make(name), 20_000
    drawn = d.sample(torch.Size([num_draws]))
    assert drawn.shape == (num_draws, 6)
    # 5 standard errors, with the variance of the law: a failure in 10^6 for each of 18 numbers
    error = (functions.variance(d) / num_draws).sqrt()
    assert torch.all((drawn.mean(0) - functions.mean(d)).abs() <= 5 * error + 1e-12)
    share = functions.log_prob(d, torch.zeros(6)).exp()
    assert torch.all(
        ((drawn == 0).double().mean(0) - share).abs() <= 5 * (share * (1 - share) / num_draws).sqrt() + 1e-12
    )


@pytest.mark.parametrize("value", [-1.0, 1.5, torch.inf])
def test_impossible_counts_have_log_probability_minus_infinity_and_are_refused(value, dtype):
    logits = torch.zeros(3, dtype=dtype, requires_grad=True)
    rate = torch.ones(3, dtype=dtype, requires_grad=True)
    d = ZeroInflated(Poisson(rate, validate_args=False), logits)
    y = torch.tensor([0.0, value, 2.0], dtype=dtype)
    density = functions.safe_log_prob(d, y)
    assert density[1] == -torch.inf
    assert density[[0, 2]].isfinite().all()
    for gradient in torch.autograd.grad(density[[0, 2]].sum(), (logits, rate)):
        assert gradient.isfinite().all()
    assert inside_support(d, y).tolist() == [True, False, True]
    if value < torch.inf:
        with pytest.raises(SupportError, match="outside the support of ZeroInflated"):
            functions.match_targets(d, y.detach())


@pytest.mark.parametrize("logit", [-1e4, -100.0, 100.0, 1e4])
@pytest.mark.parametrize("rate", [1e-30, 1e-3, 80.0])
def test_extreme_log_odds_leave_densities_and_gradients_finite(logit, rate, dtype):
    zero = torch.tensor([logit] * 2, dtype=dtype, requires_grad=True)
    base = torch.full((2,), rate, dtype=dtype, requires_grad=True)
    density = functions.safe_log_prob(ZeroInflated(Poisson(base, validate_args=False), zero), torch.tensor([0.0, 3.0]))
    assert density.isfinite().all()
    for gradient in torch.autograd.grad(density.sum(), (zero, base)):
        assert gradient.isfinite().all()


def test_rows_are_selected_joined_moved_and_pickled():
    d = make("negative_binomial")
    y = torch.tensor([0.0, 1, 2, 0, 4, 0]).double()
    expected = functions.log_prob(d, y)
    part = select(d, [4, 1])
    assert isinstance(part, ZeroInflated)
    torch.testing.assert_close(functions.log_prob(part, y[[4, 1]]), expected[[4, 1]])
    both = concatenate([select(d, slice(0, 2)), select(d, slice(2, None))])
    assert torch.equal(functions.log_prob(both, y), expected)
    single = to(d, dtype=torch.float32)
    assert single.zero_logits.dtype == single.base.total_count.dtype == torch.float32
    for twin in (copy.deepcopy(d), pickle.loads(pickle.dumps(d)), d.expand((3, 6))):
        torch.testing.assert_close(functions.safe_log_prob(twin, y), expected.expand(twin.batch_shape))


def test_it_is_a_count_of_one_number_and_serves_in_mixtures_and_vectors(dtype):
    rate = torch.tensor([[1.0, 4.0, 0.5], [2.0, 0.1, 9.0]], dtype=dtype)
    logits = torch.tensor([[0.0, -1.0, 2.0], [1.0, 0.3, -3.0]], dtype=dtype)
    components = ZeroInflated(Poisson(rate, validate_args=False), logits)
    mixture = MixturePredictive(components)
    assert functions.kind(components) == functions.kind(mixture) == "count"
    y = torch.tensor([0, 3, 0])
    expected = functions.safe_log_prob(components, y.to(dtype)).logsumexp(0) - np.log(2)
    torch.testing.assert_close(functions.log_prob(mixture, y), expected)
    torch.testing.assert_close(functions.cdf(mixture, y), functions.cdf(components, y.to(dtype)).mean(0))
    torch.testing.assert_close(mixture.aleatoric_variance + mixture.epistemic_variance, mixture.variance)
    lower, upper = mixture.interval(0.9)
    assert torch.all(functions.cdf(mixture, upper) >= 0.95)
    assert torch.all(functions.cdf(mixture, lower) >= 0.05)
    vector = Independent(components, 1, validate_args=False)
    several = functions.log_prob(vector, torch.tensor([[0, 3, 0], [1, 0, 2]]))
    assert several.shape == (2,)
    assert functions.mean(vector).shape == functions.crps(vector, torch.zeros(2, 3)).shape == (2, 3)


def test_the_score_of_draws_tends_to_that_of_the_distribution():
    d, y = make("poisson"), torch.tensor([0.0, 1, 2, 0, 4, 0]).double()
    ensemble = crps(from_draws(d.sample(torch.Size([4000]))), y)
    # the ensemble's score is off by about sd / sqrt(draws) at most; 5 of them
    assert torch.all((crps(d, y) - ensemble).abs() <= 5 * (functions.variance(d) / 4000).sqrt() + 1e-9)


def test_what_makes_no_sense_is_refused():
    with pytest.raises(NotSupportedError, match="is for counts; `base` is a Normal"):
        ZeroInflated(Normal(torch.zeros(2), torch.ones(2)), torch.zeros(2))
    with pytest.raises(NotSupportedError, match="Bernoulli"):
        ZeroInflated(Bernoulli(torch.ones(2)), torch.zeros(2))
    with pytest.raises(ShapeError, match=r"batch_shape \(2,\) and \(3,\)"):
        ZeroInflated(Poisson(torch.ones(2)), torch.zeros(3))
    with pytest.raises(ShapeError, match=r"event_shape \(3,\)"):
        ZeroInflated(Independent(Poisson(torch.ones(2, 3)), 1), torch.zeros(2))
