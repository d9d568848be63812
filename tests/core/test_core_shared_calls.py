"""Calls shared between draws: the same result where it is certain, a fresh call everywhere else."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from credibly import Model, inference, likelihoods
from credibly.core.shared_calls import SharedCalls


@pytest.fixture
def x() -> Tensor:
    return torch.arange(-6.0, 6.0).reshape(4, 3)


def _draws(body: Callable[[SharedCalls], Tensor], count: int = 3) -> list[Tensor]:
    """The body's result in each of some draws."""
    shared, results = SharedCalls(), []
    for _ in range(count):
        shared.begin_draw()
        results.append(body(shared))
    return results


def test_the_same_calls_in_a_row_are_made_once(x):
    weight = torch.ones(2, 3)
    first, *rest = _draws(lambda shared: shared(F.relu, (shared(F.linear, (x, weight), {}),), {"inplace": False}))
    assert all(result is first for result in rest)
    assert torch.equal(first, F.relu(x @ weight.T))


def test_randomness_is_not_frozen(x):
    first, second, _ = _draws(lambda shared: shared(torch.rand_like, (x,), {}))
    assert not torch.equal(first, second)


def test_a_written_argument_is_seen(x):
    def body(shared: SharedCalls) -> Tensor:
        result = shared(F.relu, (x,), {})
        x.add_(1)
        return result

    first, second, third = _draws(body)
    assert torch.equal(third, F.relu(x - 1))
    assert not torch.equal(first, second)


def test_a_written_result_is_made_anew(x):
    weight = torch.eye(3)
    results = _draws(lambda shared: shared(F.linear, (x, weight), {}).mul_(2))
    assert all(torch.equal(result, 2 * x) for result in results)


def test_a_function_that_writes_its_argument_is_never_shared(x):
    first, second, _ = _draws(lambda shared: shared(F.relu, (x.clone(), True), {}))
    assert first is not second
    start = x.clone()
    _draws(lambda shared: shared(torch.add, (x, 1), {"out": x}))
    assert torch.equal(x, start + 3)


def test_a_list_that_its_owner_extends_is_another_argument(x):
    parts = [x]

    def body(shared: SharedCalls) -> Tensor:
        result = shared(torch.cat, (parts,), {})
        parts.append(x)
        return result

    assert [len(result) for result in _draws(body)] == [4, 8, 12]


@pytest.mark.parametrize(("old", "new"), [(1, 1.0), (2, 3), (slice(0, 1), slice(0, 2)), ((0,), (0, 1))])
def test_other_plain_arguments_are_another_call(x, old, new):
    arguments = iter([old, new])
    function = torch.mul if isinstance(old, int) else Tensor.__getitem__
    first, second = _draws(lambda shared: shared(function, (x.int(), next(arguments)), {}), 2)
    assert first.dtype != second.dtype or first.shape != second.shape or not torch.equal(first, second)


def test_a_changed_order_of_calls_is_seen(x):
    order = iter([(F.relu, torch.exp), (torch.exp, F.relu), (F.relu, torch.exp)])

    def body(shared: SharedCalls) -> Tensor:
        one, two = next(order)
        return shared(one, (x,), {}) - shared(two, (x,), {})

    first, second, third = _draws(body)
    assert torch.equal(first, -second)
    assert torch.equal(first, third)


class _Branches(nn.Module):
    """A prefix with a buffer that counts, an activation in place, noise, a list of features, and two dropouts."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 8), nn.Linear(16, 1)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        h = self.first(x) * self.calls
        features = [h, F.relu(h + 1, inplace=True)]
        h = torch.cat(features, -1)
        h = F.dropout(h.add_(1), 0.3)
        return self.second(F.dropout(h, 0.3)) + self.first(x).sum()


def test_draws_over_many_rows_equal_draws_over_few():
    """Many rows are looped over, and share; few are mapped together, and do not."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, 1))
    x = torch.randn(70_000, 3)
    data = (x[:20], torch.randn(20, 1))
    posterior = inference.MCDropout().fit(Model(net, likelihoods.Gaussian(scale=1.0)), data, start="current", seed=0)
    many = posterior.outputs(x, num_draws=4, seed=1)
    few = posterior.outputs(x[:50], num_draws=4, seed=1)
    torch.testing.assert_close(many[:, :50], few)


def test_a_network_that_changes_between_draws_is_not_frozen():
    net = _Branches()
    x = torch.randn(70_000, 3)
    data = (x[:20], torch.randn(20, 1))
    posterior = inference.MCDropout().fit(Model(net, likelihoods.Gaussian(scale=1.0)), data, start="current", seed=0)
    posterior.outputs(x, num_draws=1, seed=1)
    posterior.model.net.calls.zero_()
    first, second = posterior.outputs(x, num_draws=2, seed=1)
    posterior.model.net.calls.zero_()
    (alone,) = posterior.outputs(x, num_draws=1, seed=1)
    torch.testing.assert_close(first, alone)
    assert (first - second).abs().mean() > 0.01
