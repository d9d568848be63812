"""The probability integral transform: uniform for the true model of every likelihood, also where F jumps."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import special, stats
from torch.distributions import Independent, Normal, Poisson

from cases import LIKELIHOODS, outputs_shape
from credibly.core.errors import NotFiniteError, NotSupportedError, ShapeError
from credibly.distributions.cumulative import cdf
from credibly.distributions.empirical import Empirical
from credibly.distributions.kinds import kind
from credibly.distributions.mixture import MixturePredictive
from credibly.metrics.pareto import pareto_smooth
from credibly.metrics.pit import pit, pit_limits

ROWS = 2000


def drawn(name, dtype, rows=ROWS):
    """A prediction and targets drawn from it."""
    likelihood = LIKELIHOODS[name]().to(dtype)
    generator = torch.Generator().manual_seed(7)
    outputs = 0.7 * torch.randn(rows, *outputs_shape(likelihood), generator=generator).to(dtype)
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(11)
        predicted = likelihood(outputs)
        return predicted, predicted.sample()


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_the_pit_of_the_true_model_is_uniform(name, dtype):
    # Kolmogorov and Smirnov at 1e-5 for each of some 150 columns: a failure in 600 seeds
    predicted, targets = drawn(name, dtype)
    values = pit(predicted, targets, seed=3)
    assert values.dtype == torch.float64
    assert values.shape == predicted.batch_shape + predicted.event_shape
    for column in values.reshape(ROWS, -1).T.numpy():
        assert stats.kstest(column, "uniform").pvalue > 1e-5


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_without_its_u_the_pit_of_counts_and_classes_is_not_uniform(name):
    predicted, targets = drawn(name, torch.float64)
    if kind(predicted) == "real":
        assert torch.equal(pit(predicted, targets, seed=1), pit(predicted, targets, seed=2))
        return
    values = pit(predicted, targets, u=np.ones(ROWS)).reshape(ROWS, -1)[:, 0]
    assert stats.kstest(values.numpy(), "uniform").pvalue < 1e-10


def test_golden_mean_of_a_poisson_without_u():
    counts = torch.arange(60, dtype=torch.float64)
    predicted = Poisson(torch.full((60,), 1.5, dtype=torch.float64))
    mass = predicted.log_prob(counts).exp()
    whole = float((pit(predicted, counts, u=torch.ones(60)) * mass).sum())
    assert whole == pytest.approx((1 + special.ive(0, 3.0)) / 2, abs=1e-12)  # (1 + sum of squared masses) / 2
    assert whole == pytest.approx(0.6215, abs=5e-5)
    half = pit(predicted, counts, u=torch.full((60,), 0.5))
    assert float((half * mass).sum()) == pytest.approx(0.5, abs=1e-12)


def test_u_is_one_number_a_row_and_may_be_given_for_every_element():
    predicted = Independent(Poisson(torch.full((3, 2), 2.0, dtype=torch.float64)), 1)
    y = torch.tensor([[0.0, 1.0], [2.0, 2.0], [4.0, 0.0]])
    below, at = pit_limits(predicted, y)
    torch.testing.assert_close(below, cdf(predicted, y.double() - 1))
    u = (pit(predicted, y, seed=5) - below) / (at - below)
    torch.testing.assert_close(u[:, 0], u[:, 1])
    assert len(u[:, 0].unique()) == 3
    torch.testing.assert_close(pit(predicted, y, u=u[:, 0]), pit(predicted, y, u=u))
    assert torch.equal(pit(predicted, y, seed=5), pit(predicted, y, seed=5))


def test_a_mixture_jumps_where_its_components_do():
    rates = torch.tensor([[1.0, 2.0], [3.0, 5.0]], dtype=torch.float64)
    log_weights, y = torch.tensor([[0.0, 1.0], [0.0, 4.0]], dtype=torch.float64)
    mixture, weights = MixturePredictive(Poisson(rates), log_weights), log_weights.softmax(0)
    below, at = pit_limits(mixture, y)
    law = stats.poisson(rates.numpy())
    np.testing.assert_allclose(at, weights.numpy() @ law.cdf(y.numpy()), rtol=1e-12)
    np.testing.assert_allclose(below, weights.numpy() @ law.cdf(y.numpy() - 1), rtol=1e-12)


# -- leave-one-out -------------------------------------------------------------------------------------------------


def test_row_weights_give_the_weighted_mean_of_the_draws_cdfs(dtype):
    generator = torch.Generator().manual_seed(0)
    loc = torch.randn(5, 4, 2, generator=generator).to(dtype)
    log_weights = torch.randn(5, 4, generator=generator, dtype=torch.float64)
    y = torch.randn(4, 2, generator=generator).to(dtype)
    mixture = MixturePredictive(Independent(Normal(loc, torch.ones_like(loc), validate_args=False), 1))
    weights = log_weights.softmax(0).unsqueeze(-1)
    expected = (weights * torch.from_numpy(stats.norm.cdf((y - loc).double().numpy()))).sum(0)
    tolerance = 1e-6 if dtype == torch.float32 else 1e-12
    torch.testing.assert_close(pit(mixture, y, log_weights=log_weights), expected, atol=tolerance, rtol=tolerance)
    equal = pit(mixture, y, log_weights=torch.zeros(5, 4))
    torch.testing.assert_close(equal, pit(mixture, y), atol=tolerance, rtol=tolerance)


def test_row_weights_of_draws_are_the_weighted_ecdf():
    draws = torch.tensor([[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]])
    log_weights = torch.tensor([[0.2, 0.5], [0.3, 0.25], [0.5, 0.25]]).log()
    values = pit(Empirical(draws), [2.0, 2.0], u=[0.0, 1.0], log_weights=log_weights)
    torch.testing.assert_close(values, torch.tensor([0.2, 0.75], dtype=torch.float64))


def test_exact_leave_one_out_of_a_conjugate_model_is_uniform():
    # y ~ N(theta, 1), theta ~ N(0, 10): weights 1 / p(y_i | theta) turn draws of the posterior into those without y_i
    generator = torch.Generator().manual_seed(4)
    y = 1 + torch.randn(40, generator=generator, dtype=torch.float64)
    precision = 0.01 + 40
    theta = y.sum() / precision + torch.randn(20_000, 1, generator=generator, dtype=torch.float64) / precision**0.5
    each = Normal(theta.expand(-1, 40), torch.ones(20_000, 40, dtype=torch.float64), validate_args=False)
    values = pit(MixturePredictive(each), y, log_weights=-each.log_prob(y))
    rest = (y.sum() - y) / (precision - 1)
    exact = stats.norm.cdf((y - rest) / (1 + 1 / (precision - 1)) ** 0.5)
    # the ratios vary by exp(0.16 (y_i - mean)); 20,000 draws leave some 1e-3 of error, of which 6 are allowed
    np.testing.assert_allclose(values, exact, atol=6e-3)
    smoothed = pareto_smooth(-each.log_prob(y)).log_weights
    np.testing.assert_allclose(pit(MixturePredictive(each), y, log_weights=smoothed), exact, atol=6e-3)


# -- edges -----------------------------------------------------------------------------------------------------------


@given(
    rows=st.integers(0, 4),
    data=st.data(),
    scale=st.sampled_from([0.0, 1e-30, 1.0, 1e30]),
)
def test_only_documented_errors(rows, data, scale):
    number = st.floats(allow_nan=True, allow_infinity=True, width=32)
    loc, y = (torch.tensor(data.draw(st.lists(number, min_size=rows, max_size=rows))) for _ in range(2))
    predicted = Normal(loc, torch.full((rows,), scale), validate_args=False)
    try:
        values = pit(predicted, y, seed=0)
    except (NotFiniteError, ShapeError):
        assert rows == 0 or not bool((loc.isfinite() & y.isfinite()).all()) or scale == 0
        return
    assert values.shape == (rows,)
    assert bool(((values >= 0) & (values <= 1)).all())


def test_the_callers_tensors_stay_as_they_were_and_may_be_strided():
    wide = torch.randn(6, 2)
    predicted, y = Normal(wide[:, 0], torch.ones(6)), wide[:, 1]
    before = wide.clone()
    torch.testing.assert_close(pit(predicted, y), pit(predicted, y.clone()))
    assert torch.equal(wide, before)


def test_refusals():
    predicted = Poisson(torch.ones(3))
    with pytest.raises(ShapeError, match=r"`u` must have shape \(3,\)"):
        pit(predicted, [0, 1, 2], u=[0.5])
    with pytest.raises(ValueError, match=r"`u` must lie in \[0, 1\]"):
        pit(predicted, [0, 1, 2], u=[0.5, 0.5, float("nan")])
    with pytest.raises(NotSupportedError, match="draw_cdf_limits"):
        pit(predicted, [0, 1, 2], log_weights=torch.zeros(2, 3))
    mixture = MixturePredictive(Poisson(torch.ones(2, 3)))
    with pytest.raises(ShapeError, match=r"\(num_draws, rows\) = \(2, 3\); got \(3,\)"):
        pit(mixture, [0, 1, 2], log_weights=torch.zeros(3))
    with pytest.raises(ValueError, match="nor all -inf for a row"):
        pit(mixture, [0, 1, 2], log_weights=torch.full((2, 3), -torch.inf))
    with pytest.raises(NotFiniteError, match="`predicted` must be finite"):
        pit(Normal(torch.tensor([float("nan")]), torch.ones(1), validate_args=False), [0.0])
