"""Expected costs of every draw, and what they say together."""

import numpy as np
import pytest
import torch
from torch.distributions import Bernoulli, Categorical

from credibly.core.errors import NotSupportedError
from credibly.decision import bayes_act, cost_uncertainty, expected_cost_draws
from credibly.distributions.entry import from_probs
from credibly.distributions.mixture import MixturePredictive

COSTS = torch.tensor([[0.0, 10.0], [1.0, 0.0]], dtype=torch.float64)


def two_draws(dtype: torch.dtype = torch.float64) -> MixturePredictive:
    events = torch.tensor([[0.05, 0.5], [0.25, 0.5]], dtype=dtype)
    return MixturePredictive(Bernoulli(events, validate_args=False), torch.tensor([0.75, 0.25]).log())


def test_golden_values(dtype: torch.dtype) -> None:
    found = cost_uncertainty(two_draws(dtype), COSTS)
    np.testing.assert_allclose(found.expected_costs, [[1.0, 0.9], [5.0, 0.5]], rtol=1e-6)
    spread = 0.2 * np.sqrt(0.75 * 0.25)
    np.testing.assert_allclose(found.stddev, [[10 * spread, spread], [0, 0]], rtol=1e-6, atol=1e-12)
    np.testing.assert_allclose(found.best_probability, [[0.75, 0.25], [0, 1]], rtol=1e-6)
    np.testing.assert_allclose(found.information_value, [0.9 - 0.75 * 0.5 - 0.25 * 0.75, 0], rtol=1e-6, atol=1e-12)


def test_agrees_with_the_bayes_act_and_with_each_draw() -> None:
    probs = torch.distributions.Dirichlet(torch.ones(4)).sample((20, 3000)).double()
    weights = torch.randn(20, dtype=torch.float64)
    predicted = MixturePredictive(Categorical(probs, validate_args=False), weights)
    costs = torch.randn(3, 4, dtype=torch.float64)
    found, draws = cost_uncertainty(predicted, costs), expected_cost_draws(predicted, costs)
    share = torch.softmax(weights, 0)
    np.testing.assert_allclose(draws, torch.einsum("krj,aj->kra", probs, costs), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found.expected_costs, bayes_act(predicted, costs).expected_costs, rtol=1e-12, atol=1e-12)
    first, second = (torch.einsum("k,kra->ra", share, draws**power) for power in (1, 2))
    np.testing.assert_allclose(found.stddev**2, second - first**2, rtol=1e-9, atol=1e-12)
    best = torch.nn.functional.one_hot(draws.argmin(-1), 3).double()
    np.testing.assert_allclose(found.best_probability, torch.einsum("k,kra->ra", share, best), rtol=1e-12, atol=1e-15)
    least = (share[:, None] * draws.amin(-1)).sum(0)
    np.testing.assert_allclose(found.information_value, first.amin(-1) - least, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(found.best_probability.sum(-1), 1, rtol=1e-12)


def test_rows_with_costs_of_their_own() -> None:
    own = torch.stack([COSTS, COSTS.flip(0)])
    found = cost_uncertainty(two_draws(), own)
    for row in range(2):
        alone = cost_uncertainty(two_draws(), own[row])
        torch.testing.assert_close(found.expected_costs[row], alone.expected_costs[row])
        torch.testing.assert_close(found.best_probability[row], alone.best_probability[row])


def test_draws_without_weight_do_not_count() -> None:
    events = torch.tensor([[0.2], [1.0]], dtype=torch.float64)
    predicted = MixturePredictive(Bernoulli(events, validate_args=False), torch.tensor([0.0, -torch.inf]))
    found = cost_uncertainty(predicted, [[0.0, torch.inf], [1.0, 1.0], [torch.inf, 1.0]])
    assert found.expected_costs.tolist() == [[torch.inf, 1, torch.inf]]
    assert found.stddev.tolist() == [[torch.inf, 0, torch.inf]]
    assert found.best_probability.tolist() == [[0, 1, 0]]
    assert found.information_value.tolist() == [0]
    hopeless = cost_uncertainty(predicted, [[torch.inf, torch.inf]])
    assert hopeless.information_value.isnan().all()
    sure = cost_uncertainty(predicted, [[2.0, 2.0]])
    assert sure.stddev.tolist() == [[0]]


def test_no_rows_and_no_draws() -> None:
    empty = MixturePredictive(Bernoulli(torch.empty(3, 0), validate_args=False))
    found = cost_uncertainty(empty, COSTS)
    assert found.stddev.shape == found.best_probability.shape == (0, 2)
    assert expected_cost_draws(empty, COSTS).shape == (3, 0, 2)
    with pytest.raises(NotSupportedError, match="class_draw_log_probs is not available for Bernoulli"):
        cost_uncertainty(from_probs([0.5]), COSTS)
