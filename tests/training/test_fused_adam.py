"""The default optimiser gives torch's numbers, whatever is done to it on the way."""

import copy

import pytest
import torch
from torch import nn

from credibly.training.optimizers import FusedAdam, fused_adam


def nets():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1))
    return net, copy.deepcopy(net)


def steps(net, optimizer, number, *, skip=None):
    x = torch.linspace(-1, 1, 12).reshape(4, 3)
    for k in range(number):
        optimizer.zero_grad()
        net(x + k).square().sum().backward()
        if skip is not None:
            list(net.parameters())[skip].grad = None
        optimizer.step()


def assert_equal(one, other):
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("options", [{}, {"weight_decay": 0.1}, {"betas": (0.5, 0.7), "eps": 1e-3}])
def test_it_is_torchs_fused_adam(options):
    one, other = nets()
    steps(one, FusedAdam(one.parameters(), lr=0.05, **options), 9)
    steps(other, torch.optim.Adam(other.parameters(), lr=0.05, fused=True, **options), 9)
    assert_equal(one, other)


def test_missing_gradients_new_groups_schedules_and_loaded_states():
    one, other = nets()
    ours = FusedAdam(one[0].parameters(), lr=0.05)
    theirs = torch.optim.Adam(other[0].parameters(), lr=0.05, fused=True)
    for net, optimizer in ((one, ours), (other, theirs)):
        steps(net, optimizer, 3)
        steps(net, optimizer, 2, skip=1)
        optimizer.add_param_group({"params": list(net[2].parameters()), "lr": 0.2})
        steps(net, optimizer, 3)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        for _ in range(3):
            steps(net, optimizer, 1)
            schedule.step()
    assert_equal(one, other)
    fresh = FusedAdam([{"params": list(one[0].parameters())}, {"params": list(one[2].parameters())}])
    steps(copy.deepcopy(one), fresh, 0)
    fresh.load_state_dict(ours.state_dict())
    steps(one, fresh, 3)
    steps(other, theirs, 3)
    assert_equal(one, other)


def test_mixed_precisions_get_torchs_adam():
    weights = [nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2, dtype=torch.float64))]
    assert type(fused_adam(weights)) is torch.optim.Adam
    assert type(fused_adam(weights[:1])) is FusedAdam
