"""The Bayes act is the argmin of expected costs, worked out by hand, by enumeration and at the edges."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from credibly.core.errors import NotFiniteError, NotSupportedError, ShapeError, SupportError
from credibly.decision import SelectivePredictor, abstain, bayes_act, defer, expected_costs, incurred_costs
from credibly.distributions.entry import from_logits, from_probs
from credibly.distributions.rows import select, to

PROBS = torch.tensor([[0.2, 0.5, 0.3], [0.1, 0.1, 0.8], [0.6, 0.3, 0.1]], dtype=torch.float64)


def zero_one(classes: int) -> torch.Tensor:
    return 1 - torch.eye(classes)


def test_golden_values(dtype: torch.dtype, device: torch.device) -> None:
    costs = [[0.0, 4.0, 8.0], [2.0, 0.0, 1.0], [3.0, 2.0, 0.0], [1.5, 1.5, 1.5]]
    decided = bayes_act(from_probs(PROBS.to(device, dtype)), costs)
    expected = [[4.4, 0.7, 1.6, 1.5], [6.8, 1.0, 0.5, 1.5], [2.0, 1.3, 2.4, 1.5]]
    np.testing.assert_allclose(decided.expected_costs.cpu(), expected, rtol=1e-6)
    assert decided.expected_costs.dtype == torch.float64
    assert decided.acts.tolist() == [1, 2, 1]
    np.testing.assert_allclose(decided.expected_cost.cpu(), [0.7, 0.5, 1.3], rtol=1e-6)


@pytest.mark.parametrize("classes", [2, 3, 10, 1000])
def test_cost_one_off_the_diagonal_is_the_argmax(classes: int, dtype: torch.dtype, device: torch.device) -> None:
    predicted = from_logits(3 * torch.randn(400, classes, dtype=dtype, device=device))
    decided = bayes_act(predicted, zero_one(classes))
    assert torch.equal(decided.acts, predicted.probs.argmax(-1))


@given(st.lists(st.integers(0, 3), min_size=2, max_size=40).filter(any), st.floats(1e-6, 1e6))
def test_ties_go_to_the_first_of_the_most_probable(weights: list[int], unit: float) -> None:
    """Sums over the other classes differ by rounding where the classes tie."""
    numbers = torch.tensor(weights, dtype=torch.float64)
    probs = (numbers / numbers.sum()).repeat(3, 1)
    assert bayes_act(from_probs(probs), unit * zero_one(len(weights))).acts.tolist() == 3 * [int(numbers.argmax())]
    own = unit * zero_one(len(weights)).expand(3, -1, -1)
    assert bayes_act(from_probs(probs), own).acts.tolist() == 3 * [int(numbers.argmax())]


@given(st.integers(1, 6), st.integers(2, 5), st.integers(1, 7), st.integers(0, 2**31))
def test_no_act_is_better(acts: int, classes: int, rows: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    probs = torch.rand(rows, classes, generator=generator, dtype=torch.float64)
    probs = probs / probs.sum(-1, keepdim=True)
    costs = torch.randn(rows, acts, classes, generator=generator, dtype=torch.float64)
    for matrix in (costs, costs[0]):
        decided = bayes_act(from_probs(probs), matrix)
        by_hand = (matrix.expand(rows, acts, classes) * probs.unsqueeze(1)).sum(-1)
        torch.testing.assert_close(decided.expected_costs, by_hand, rtol=1e-12, atol=1e-12)
        assert bool((decided.expected_cost <= by_hand.amin(-1) + 1e-12).all())


def test_rows_share_or_own_their_costs_over_many_blocks() -> None:
    probs = torch.rand(300, 1000, dtype=torch.float64)
    predicted = from_probs(probs / probs.sum(-1, keepdim=True))
    costs = torch.randn(4, 1000, dtype=torch.float64)
    shared, own = bayes_act(predicted, costs), bayes_act(predicted, costs.expand(300, 4, 1000))
    assert torch.equal(shared.acts, own.acts)
    torch.testing.assert_close(shared.expected_costs, own.expected_costs, rtol=1e-12, atol=1e-12)
    assert torch.equal(bayes_act(select(predicted, [7, 299]), costs).acts, shared.acts[[7, 299]])


def test_binary_outcomes_and_mixtures_are_decided_by_their_probabilities() -> None:
    costs = [[0.0, 10.0], [1.0, 0.0]]
    events = torch.tensor([0.05, 1 / 11, 0.1], dtype=torch.float64)
    assert bayes_act(from_probs(events), costs).acts.tolist() == [0, 0, 1]
    draws = torch.stack([PROBS, PROBS.roll(1, 0)])
    mixed, plain = bayes_act(from_probs(draws), zero_one(3)), bayes_act(from_probs(draws.mean(0)), zero_one(3))
    assert torch.equal(mixed.acts, plain.acts)
    torch.testing.assert_close(mixed.expected_costs, plain.expected_costs, rtol=1e-14, atol=1e-15)


def test_cost_of_a_class_alone_moves_no_act() -> None:
    costs = torch.randn(3, 3)
    moved = bayes_act(from_probs(PROBS), costs + torch.tensor([-5.0, 100.0, 0.25]))
    assert torch.equal(moved.acts, bayes_act(from_probs(PROBS), costs).acts)


def test_a_dear_act_does_not_blur_the_others() -> None:
    predicted = from_probs(torch.tensor([[0.5 - 1e-9, 0.5 + 1e-9]], dtype=torch.float64))
    assert bayes_act(predicted, [[1e12, 1e12], [0.0, 1.0], [1.0, 0.0]]).acts.tolist() == [2]


def test_infinite_costs_forbid_what_is_possible() -> None:
    costs = [[0.0, torch.inf], [5.0, 5.0]]
    decided = bayes_act(from_probs([[1 - 1e-9, 1e-9], [1.0, 0.0]]), costs)
    torch.testing.assert_close(decided.expected_costs, torch.tensor([[torch.inf, 5.0], [0.0, 5.0]]).double())
    assert decided.acts.tolist() == [1, 0]
    assert bayes_act(from_probs([[0.5, 0.5]]), torch.full((2, 2), torch.inf)).acts.tolist() == [0]
    tied = bayes_act(from_probs([[0.5, 0.5]]), [[torch.inf, 0.0], [1.0, 0.0], [0.0, 1.0]])
    assert tied.acts.tolist() == [1]


def test_expected_costs_carry_gradients_and_decisions_none() -> None:
    logits = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    costs = torch.randn(2, 3, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda z: expected_costs(from_logits(z), costs), logits)
    assert not bayes_act(from_logits(logits), costs).expected_costs.requires_grad


def test_rows_in_any_layout_and_the_callers_tensors_stay() -> None:
    costs, probs = torch.randn(4, 3), PROBS.clone()
    before = costs.clone(), probs.clone()
    decided = bayes_act(from_probs(probs), costs)
    assert torch.equal(bayes_act(from_probs(probs.T.contiguous().T), costs.T.contiguous().T).acts, decided.acts)
    assert torch.equal(costs, before[0])
    assert torch.equal(probs, before[1])
    assert torch.equal(bayes_act(to(from_probs(probs), dtype=torch.float32), costs).acts, decided.acts)


def test_no_rows_give_no_acts() -> None:
    decided = bayes_act(from_probs(torch.empty(0, 3)), torch.zeros(5, 3))
    assert decided.acts.shape == (0,)
    assert decided.expected_costs.shape == (0, 5)
    assert decided.expected_cost.shape == (0,)
    assert bayes_act(from_probs(torch.empty(0, 3)), torch.zeros(0, 5, 3)).acts.shape == (0,)
    assert incurred_costs([], [], torch.zeros(2, 3)).shape == (0,)


def test_refusals_name_what_is_needed() -> None:
    predicted = from_probs(PROBS)
    with pytest.raises(ShapeError, match=r"`costs` must have shape \(acts, 3\) or \(3, acts, 3\).*got \(3, 2\)"):
        bayes_act(predicted, torch.zeros(3, 2))
    for wrong in (torch.zeros(2, 4, 3), torch.zeros(3), torch.zeros(0, 3)):
        with pytest.raises(ShapeError, match="`costs` must have shape"):
            bayes_act(predicted, wrong)
    with pytest.raises(NotFiniteError, match="`costs` must not be NaN; 1 of 6"):
        bayes_act(predicted, [[0.0, torch.nan, 0.0], [0.0, 0.0, 0.0]])
    with pytest.raises(ValueError, match="`costs` must not hold -infinity"):
        bayes_act(predicted, [[0.0, -torch.inf, 0.0]])
    with pytest.raises(NotSupportedError, match="a Normal is about a real target: use grid_act"):
        bayes_act(torch.distributions.Normal(torch.zeros(3), 1.0, validate_args=False), zero_one(3))
    labels = torch.distributions.Independent(torch.distributions.Bernoulli(torch.full((3, 2), 0.5)), 1)
    with pytest.raises(NotSupportedError, match=r"one class a row; `predicted` has event_shape \(2,\)"):
        bayes_act(labels, zero_one(2))
    broken = torch.distributions.Categorical(logits=torch.tensor([[0.0, 1.0], [torch.nan, 0.0]]), validate_args=False)
    with pytest.raises(NotFiniteError, match="the first is in row 1"):
        bayes_act(broken, zero_one(2))
    with pytest.raises(TypeError, match="a torch Distribution is needed"):
        bayes_act(PROBS, zero_one(3))


def test_incurred_costs_look_up_what_came() -> None:
    costs = torch.arange(6.0).reshape(2, 3)
    assert incurred_costs([0, 1, 1], [2, 0, 1], costs).tolist() == [2, 3, 4]
    assert incurred_costs([0, -1, 1], [2, 0, 1], costs, abstained=0.5).tolist() == [2, 0.5, 4]
    assert incurred_costs([-1, -1], [0, 1], costs, abstained=[7.0, 8.0]).tolist() == [7, 8]
    own = torch.stack([costs, 10 * costs])
    assert incurred_costs([1, 0], [[1], [2]], own).tolist() == [4, 20]
    with pytest.raises(ValueError, match="`abstained` is needed: 1 of 2 rows"):
        incurred_costs([0, -1], [0, 0], costs)
    with pytest.raises(SupportError, match="`acts` must be whole numbers from -1 to 1; got 2"):
        incurred_costs([2], [0], costs)
    with pytest.raises(SupportError, match="`targets` must be whole numbers from 0 to 2; got 3"):
        incurred_costs([0], [3], costs)
    with pytest.raises(ShapeError, match="`targets` has 1 rows, `acts` has 2"):
        incurred_costs([0, 1], [0], costs)
    with pytest.raises(ShapeError, match="`costs` has 2 rows, `acts` has 1"):
        incurred_costs([0], [0], own)


def test_incurred_costs_take_decisions_as_they_are() -> None:
    generator = torch.Generator().manual_seed(0)
    predicted = from_logits(torch.randn(50, 3, generator=generator))
    targets = torch.randint(3, (50,), generator=generator)
    costs = torch.rand(4, 3, generator=generator)
    best = bayes_act(predicted, costs)
    assert torch.equal(incurred_costs(best, targets, costs), incurred_costs(best.acts, targets, costs))
    left = abstain(predicted, costs, cost=0.3)
    assert bool(left.abstained.any())
    came = incurred_costs(left, targets, costs, abstained=0.3)
    assert torch.equal(came, incurred_costs(left.acts, targets, costs, abstained=0.3))
    asked = defer(predicted, costs, expert=torch.full((3, 4), 0.25), fee=-0.3)
    assert bool(asked.abstained.any())
    came = incurred_costs(asked, targets, costs, abstained=0.1)
    assert torch.equal(came, incurred_costs(asked.acts, targets, costs, abstained=0.1))
    chosen = SelectivePredictor(threshold=0.5, coverage=1.0, risk=0.0, p_value=0.0, controlled=True)
    sure = torch.rand(50, generator=generator)
    assert torch.equal(chosen.select(best, sure), chosen.select(best.acts, sure))
