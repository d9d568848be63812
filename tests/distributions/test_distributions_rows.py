"""Selecting, concatenating and moving rows."""

import copy
import pickle
from typing import ClassVar

import numpy as np
import pytest
import torch
from distribution_cases import ALL, ROWS, WITH_DENSITY, build, targets
from torch import Tensor
from torch.distributions import (
    Binomial,
    Categorical,
    Distribution,
    Independent,
    MultivariateNormal,
    Normal,
    constraints,
)

from credibly.core.errors import NotSupportedError, ShapeError
from credibly.distributions.cumulative import icdf
from credibly.distributions.density import log_prob
from credibly.distributions.empirical import Empirical
from credibly.distributions.kinds import reference
from credibly.distributions.mixture import MixturePredictive
from credibly.distributions.operations import Operation
from credibly.distributions.rows import concatenate, num_rows, rebuild, select, to


def same(a: Distribution, b: Distribution) -> None:
    """Equal types and shapes, and equal numbers in every tensor, bit by bit."""
    assert type(a) is type(b)
    assert (a.batch_shape, a.event_shape) == (b.batch_shape, b.event_shape)
    for name, value in vars(a).items():
        if isinstance(value, Tensor):
            assert torch.equal(value, vars(b)[name]), name
        elif isinstance(value, Distribution):
            same(value, vars(b)[name])


@pytest.mark.parametrize("name", ALL)
def test_select_and_concatenate_are_inverse(name: str, dtype: torch.dtype, device: torch.device) -> None:
    d = build(name, dtype, device)
    halves = select(d, slice(0, 1)), select(d, [1, 2, 3])
    assert [num_rows(h) for h in halves] == [1, 3]
    same(concatenate(halves), d)
    same(concatenate([d, select(d, slice(0, 0))]), d)


@pytest.mark.parametrize("name", ALL)
def test_indices_masks_and_slices_agree(name: str, dtype: torch.dtype, device: torch.device) -> None:
    d = build(name, dtype, device)
    expected = select(d, torch.tensor([1, 3]))
    for rows in ([1, 3], np.array([1, 3]), slice(1, None, 2), [False, True, False, True], [-3, -1]):
        same(select(d, rows), expected)
    same(select(d, 2), select(d, [2]))


@pytest.mark.parametrize("name", ALL)
def test_selected_rows_answer_as_before(name: str, dtype: torch.dtype, device: torch.device) -> None:
    d, order = build(name, dtype, device), [3, 0, 0]
    torch.testing.assert_close(icdf(select(d, order), 0.3), icdf(d, 0.3)[order])
    if name in WITH_DENSITY:
        y = targets(d)
        torch.testing.assert_close(log_prob(select(d, order), y[order]), log_prob(d, y)[order])


@pytest.mark.parametrize("name", ALL)
def test_precision_there_and_back(name: str, device: torch.device) -> None:
    single = build(name, torch.float32, device)
    double = to(single, dtype=torch.float64)
    assert reference(double).dtype == torch.float64
    same(to(double, dtype=torch.float32), single)


@pytest.mark.parametrize("name", ALL)
def test_pickles_and_deep_copies(name: str, dtype: torch.dtype, device: torch.device) -> None:
    d = build(name, dtype, device)
    same(copy.deepcopy(d), d)
    same(pickle.loads(pickle.dumps(d)), d)


def test_tables_pickle_by_name() -> None:
    assert pickle.loads(pickle.dumps(icdf)) is icdf
    assert copy.deepcopy(icdf) is icdf


@pytest.mark.parametrize("name", ALL)
def test_the_distribution_is_left_as_it_was(name: str, dtype: torch.dtype, device: torch.device) -> None:
    d = build(name, dtype, device)
    before = copy.deepcopy(d)
    select(d, [0]), concatenate([d, d]), to(d, dtype=torch.float64), icdf(d, 0.4)
    same(d, before)


class Skewed(Distribution):
    """A user's own distribution: a parameter that broadcasts, one that is not a tensor, and nothing registered."""

    arg_constraints = {"loc": constraints.real, "shape": constraints.real_vector}  # noqa: RUF012
    support = constraints.real

    def __init__(self, loc: Tensor, shape: Tensor, kappa: float, validate_args: bool | None = None) -> None:
        self.loc, self.shape, self.kappa = loc, shape, kappa
        super().__init__(torch.broadcast_shapes(loc.shape, shape.shape[:-1]), validate_args=validate_args)

    def log_prob(self, value: Tensor) -> Tensor:
        return -self.kappa * (value - self.loc).abs() * self.shape.sum(-1)


def test_a_users_own_distribution_needs_no_entry() -> None:
    d = Skewed(torch.arange(4.0), torch.ones(1, 3), 2.5)
    chosen = select(d, [2, 0])
    assert isinstance(chosen, Skewed)
    assert (chosen.loc.tolist(), tuple(chosen.shape.shape), chosen.kappa) == ([2, 0], (2, 3), 2.5)
    assert num_rows(concatenate([d, chosen])) == 6
    assert to(d, dtype=torch.float64).loc.dtype == torch.float64
    mixture = MixturePredictive(Skewed(torch.zeros(3, 4), torch.ones(1, 3), 1.0))
    assert select(mixture, [0]).log_prob([0.0]).shape == (1,)


def test_a_constructor_argument_that_is_not_kept_is_named() -> None:
    class Forgetful(Normal):
        def __init__(self, loc: Tensor, scale: Tensor, secret: float, validate_args: bool | None = None) -> None:
            super().__init__(loc, scale, validate_args=validate_args)

    with pytest.raises(NotSupportedError, match="Forgetful does not keep its constructor argument `secret`"):
        select(Forgetful(torch.zeros(2), torch.ones(2), 1.0), [0])


def test_parameters_that_torch_cached_do_not_confuse() -> None:
    binomial = Binomial(torch.tensor([5.0, 6.0]), probs=torch.tensor([0.3, 0.4]))
    assert binomial.logits.shape == (2,)
    assert select(binomial, [1]).probs.tolist() == pytest.approx([0.4])
    gaussian = MultivariateNormal(torch.zeros(3, 2), precision_matrix=2 * torch.eye(2).expand(3, 2, 2))
    torch.testing.assert_close(gaussian.covariance_matrix, 0.5 * torch.eye(2).expand(3, 2, 2))
    y = torch.ones(2, 2)
    torch.testing.assert_close(log_prob(select(gaussian, [0, 1]), y), gaussian.log_prob(torch.ones(3, 2))[:2])


def test_categoricals_by_logits_and_by_probabilities_concatenate() -> None:
    probs = torch.tensor([[0.2, 0.8]])
    both = concatenate([Categorical(probs=probs), Categorical(logits=probs.log())])
    torch.testing.assert_close(both.probs, probs.expand(2, 2))


def test_what_cannot_be_done_is_refused() -> None:
    d = Normal(torch.zeros(ROWS), torch.ones(ROWS))
    with pytest.raises(ValueError, match="at least one"):
        concatenate([])
    with pytest.raises(TypeError, match="Normal with a Categorical"):
        concatenate([d, Categorical(logits=torch.zeros(2, 2))])
    with pytest.raises(ShapeError, match="but for their rows"):
        concatenate([d, Normal(torch.zeros(2, 2), torch.ones(2, 2))])
    with pytest.raises(ShapeError, match="has no rows"):
        select(Normal(0.0, 1.0), [0])
    with pytest.raises(IndexError, match="must lie in"):
        select(d, [ROWS])
    with pytest.raises(ShapeError, match=r"mask of shape \(4,\)"):
        select(d, [True, False])
    with pytest.raises(TypeError, match="integers or booleans"):
        select(d, [0.5])
    with pytest.raises(ValueError, match="mixture weights"):
        concatenate([MixturePredictive(Normal(torch.zeros(2, 3), torch.ones(2, 3)), w) for w in ([0, 0], [0, 1])])
    with pytest.raises(TypeError):
        concatenate([Independent(Normal(torch.zeros(2, 1), torch.ones(2, 1)), 1), Empirical(torch.zeros(3, 2, 1))])


def test_an_entry_replaces_the_general_one() -> None:
    @Operation
    def describe(d: Distribution) -> str:
        return "something"

    @describe.register(Normal)
    def _(d: Normal) -> str:
        return "bell"

    assert describe(Normal(0.0, 1.0)) == "bell"
    assert describe(Categorical(torch.ones(2))) == "something"
    with pytest.raises(NotSupportedError, match="describe is not available for Categorical; entries exist for Normal"):
        describe.refuse(Categorical(torch.ones(2)))
    assert rebuild.__doc__ is not None


class Unnamed(Distribution):
    """Its tensor is not in `arg_constraints`."""

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {}

    def __init__(self, width: Tensor) -> None:
        self.width = width
        super().__init__(width.shape, validate_args=False)


def test_a_tensor_that_the_constraints_do_not_name_is_refused() -> None:
    with pytest.raises(NotSupportedError, match=r"width.*arg_constraints"):
        select(Unnamed(torch.ones(6)), torch.tensor([5, 3]))
