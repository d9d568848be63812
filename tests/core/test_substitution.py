"""Calling a module with other weights: the same as torch's functional call, and nothing is left behind."""

import copy

import pytest
import torch
from torch import nn
from torch.func import functional_call as of_torch
from torch.func import vmap

from credibly.core.substitution import Substitution, functional_call


class Tied(nn.Module):
    """One weight in two layers, and one layer in two places."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3, bias=False)
        self.second.weight = self.first.weight
        self.again = self.first

    def forward(self, x):
        return self.again(self.second(self.first(x)).tanh())


MODULES = {
    "mlp": lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)),
    "tied": Tied,
    "batch_norm": lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)),
    "parametrized": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(3, 2)),
}


def others(module):
    generator = torch.Generator().manual_seed(0)
    return {
        name: torch.randn(value.shape, generator=generator).requires_grad_()
        for name, value in module.named_parameters()
    }


@pytest.mark.parametrize("name", MODULES)
def test_it_equals_that_of_torch_with_its_gradients(name):
    torch.manual_seed(0)
    module = MODULES[name]().eval()
    params, x = others(module), torch.randn(5, 3)
    expected = of_torch(copy.deepcopy(module), params, (x,))
    found = functional_call(module, params, (x,))
    assert torch.equal(found, expected)
    pairs = zip(*(torch.autograd.grad(y.sum(), list(params.values())) for y in (found, expected)), strict=True)
    for a, b in pairs:
        torch.testing.assert_close(a, b)


def test_a_recurrent_network_takes_the_weights():
    torch.manual_seed(0)
    module, x = nn.LSTM(3, 4, batch_first=True), torch.randn(2, 5, 3)
    params = others(module)
    assert torch.equal(functional_call(module, params, (x,))[0], of_torch(module, params, (x,))[0])


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("name", MODULES)
def test_the_module_has_its_own_weights_again_also_after_an_exception(name):
    """Torch leaves a layer that has two names with those that were passed."""
    module, x = MODULES[name](), torch.randn(5, 3)
    own = {n: (p, p.detach().clone()) for n, p in module.named_parameters(remove_duplicate=False)}
    substitution, params = Substitution(module), others(module)
    functional_call(module, params, (x,))
    stacked = {n: torch.stack([p, 2 * p]) for n, p in params.items()}
    vmap(lambda each: functional_call(module.eval(), each, (x,)))(stacked)
    with pytest.raises(RuntimeError, match="inside"), substitution.of(params):
        raise RuntimeError("inside")
    for n, p in module.named_parameters(remove_duplicate=False):
        assert p is own[n][0]
        assert torch.equal(p, own[n][1])


def test_a_tied_weight_may_go_by_any_of_its_names():
    module, x = Tied(), torch.randn(5, 3)
    params = others(module)
    renamed = {"second.weight": params["first.weight"], "again.bias": params["first.bias"]}
    assert torch.equal(functional_call(module, renamed, (x,)), functional_call(module, params, (x,)))


def test_only_what_is_given_is_replaced():
    module, x = MODULES["mlp"](), torch.randn(5, 3)
    some = {"0.weight": others(module)["0.weight"]}
    assert torch.equal(functional_call(module, some, (x,)), of_torch(module, some, (x,)))


def test_buffers_that_are_passed_take_the_updates():
    module, x = MODULES["batch_norm"](), torch.randn(5, 3)
    before = {n: b.clone() for n, b in module.named_buffers()}
    ours, theirs = ({n: b.clone() for n, b in before.items()} for _ in range(2))
    functional_call(module, ours, (x,))
    of_torch(module, theirs, (x,))
    for n, b in module.named_buffers():
        assert torch.equal(b, before[n])
        assert torch.equal(ours[n], theirs[n])
        assert not torch.equal(ours[n], before[n])


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match=r"no parameters or buffers named \['2.weigth'\]"):
        functional_call(MODULES["mlp"](), {"2.weigth": torch.zeros(2, 4)}, (torch.zeros(1, 3),))
