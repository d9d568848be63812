"""Chow's rule and deferral: golden values, optimality by enumeration, and edges."""

import numpy as np
import pytest
import torch

from credibly.core.errors import NotFiniteError, ShapeError
from credibly.decision import abstain, bayes_act, defer, expert_confusion
from credibly.distributions.entry import from_probs

COSTS = [[0.0, 10.0], [1.0, 0.0]]


def test_chow_abstains_where_the_largest_probability_is_too_small(dtype: torch.dtype, device: torch.device) -> None:
    """With costs of 0 and 1 and a price t of abstaining, exactly where max p < 1 - t."""
    probs = torch.distributions.Dirichlet(torch.ones(5)).sample((500,)).to(device, dtype)
    decided = abstain(from_probs(probs), 1 - torch.eye(5), cost=0.45)
    sure = probs.double().amax(-1) / probs.double().sum(-1) >= 0.55
    assert torch.equal(decided.abstained, ~sure)
    assert torch.equal(decided.acts[sure], probs.argmax(-1)[sure])
    assert bool((decided.acts[~sure] == -1).all())
    assert 0.1 < float(sure.double().mean()) < 0.9


def test_golden_values_and_a_tie_goes_to_the_act() -> None:
    decided = abstain(from_probs([0.03125, 0.0625, 0.5, 1.0]), COSTS, cost=0.3125)
    assert decided.acts.tolist() == [0, -1, -1, 1]
    assert decided.expected_cost.tolist() == [0.3125, 0.3125, 0.3125, 0]
    assert decided.expected_costs[:, 0].tolist() == [0.3125, 0.625, 5, 10]
    assert decided.option_costs.tolist() == [0.3125] * 4


def test_rows_may_have_prices_of_their_own_and_infinity_forbids() -> None:
    predicted = from_probs([0.5, 0.5, 0.5])
    assert abstain(predicted, COSTS, cost=[0.4, 0.6, torch.inf]).acts.tolist() == [-1, 1, 1]
    assert abstain(predicted, torch.full((2, 2), torch.inf), cost=100.0).acts.tolist() == [-1] * 3
    assert abstain(predicted, COSTS, cost=-1.0).abstained.all()


def test_no_rule_is_cheaper_in_expectation() -> None:
    probs = torch.rand(50, dtype=torch.float64)
    best = abstain(from_probs(probs), COSTS, cost=0.3).expected_cost
    every = torch.stack([10 * probs, 1 - probs, torch.full_like(probs, 0.3)])
    torch.testing.assert_close(best, every.amin(0), rtol=1e-14, atol=0)


def test_deferral_costs_what_the_expert_is_expected_to_cost() -> None:
    """An expert who overlooks 5 % of what comes and raises 20 % false alarms, at a fee."""
    probs = torch.tensor([0.01, 0.08, 0.5, 1.0], dtype=torch.float64)
    decided = defer(from_probs(probs), COSTS, expert=expert_confusion([0.2, 0.05]), fee=0.05)
    asked = 0.05 + (1 - probs) * 0.2 * 1 + probs * 0.05 * 10
    np.testing.assert_allclose(decided.option_costs, asked, rtol=1e-12)
    acting = torch.minimum(10 * probs, 1 - probs)
    assert decided.abstained.tolist() == (acting > asked).tolist() == [False, True, True, False]
    np.testing.assert_allclose(decided.expected_cost, torch.minimum(acting, asked), rtol=1e-12)


def test_experts_with_acts_that_are_no_classes_and_of_each_row() -> None:
    probs = torch.distributions.Dirichlet(torch.ones(3)).sample((6,)).double()
    probs = probs / probs.sum(-1, keepdim=True)
    costs = torch.rand(2, 3, dtype=torch.float64)
    expert = torch.distributions.Dirichlet(torch.ones(2)).sample((6, 3)).double()
    expert = expert / expert.sum(-1, keepdim=True)
    own = defer(from_probs(probs), costs, expert=expert, fee=0.01)
    exact = 0.01 + torch.einsum("rj,rja,aj->r", probs, expert, costs)
    np.testing.assert_allclose(own.option_costs, exact, rtol=1e-12)
    shared = defer(from_probs(probs), costs.expand(6, 2, 3), expert=expert[0], fee=0.01)
    np.testing.assert_allclose(shared.option_costs[0], exact[0], rtol=1e-12)


def test_the_perfect_and_the_forbidden_expert() -> None:
    predicted = from_probs([0.3, 0.6])
    assert defer(predicted, COSTS, expert=torch.eye(2)).abstained.all()
    dear = [[0.0, torch.inf], [1.0, 0.0]]
    assert defer(predicted, dear, expert=[[1.0, 0.0], [0.01, 0.99]]).option_costs.tolist() == [torch.inf] * 2
    np.testing.assert_allclose(defer(predicted, dear, expert=[[0.5, 0.5], [0.0, 1.0]]).option_costs, [0.35, 0.2])


def test_confusion_spreads_errors_evenly() -> None:
    found = expert_confusion([0.2, 0.0, 1.0])
    np.testing.assert_allclose(found, [[0.8, 0.1, 0.1], [0, 1, 0], [0.5, 0.5, 0]], rtol=1e-15)


def test_no_rows_and_refusals() -> None:
    empty = abstain(from_probs(torch.empty(0)), COSTS, cost=1.0)
    assert empty.acts.shape == empty.expected_cost.shape == empty.abstained.shape == (0,)
    predicted = from_probs([0.5, 0.4])
    with pytest.raises(ShapeError, match=r"`cost` must be one number or have shape \(2,\); got \(3,\)"):
        abstain(predicted, COSTS, cost=torch.zeros(3))
    with pytest.raises(NotFiniteError, match="`cost` must not be NaN"):
        abstain(predicted, COSTS, cost=torch.nan)
    with pytest.raises(ShapeError, match=r"`expert` must have shape \(2, 2\) or \(2, 2, 2\)"):
        defer(predicted, COSTS, expert=torch.eye(3))
    with pytest.raises(ValueError, match="`expert` must hold probabilities that sum to 1 over acts"):
        defer(predicted, COSTS, expert=[[0.5, 0.6], [0.0, 1.0]])
    with pytest.raises(ValueError, match="`expert` must hold probabilities"):
        defer(predicted, COSTS, expert=[[torch.nan, 0.6], [0.0, 1.0]])
    with pytest.raises(ValueError, match=r"`error_rates` must lie in \[0, 1\]"):
        expert_confusion([0.1, 1.2])
    with pytest.raises(ShapeError, match="`error_rates` must have shape"):
        expert_confusion([0.1])


def test_is_the_bayes_act_where_nothing_is_left() -> None:
    probs = torch.rand(40, dtype=torch.float64)
    decided, best = abstain(from_probs(probs), COSTS, cost=torch.inf), bayes_act(from_probs(probs), COSTS)
    assert torch.equal(decided.acts, best.acts)
    assert torch.equal(decided.expected_cost, best.expected_cost)
