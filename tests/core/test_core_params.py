"""Weights as dicts: taken out, stacked, put back, tied and drawn afresh."""

import copy

import pytest
import torch
from torch import nn

from cases import NETWORKS
from credibly.core import params
from credibly.core.errors import NotSupportedError, ShapeError
from credibly.likelihoods import Gaussian
from credibly.model import Core, Model

CPU = torch.device("cpu")


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(4, 4)
        self.decoder = nn.Linear(4, 4)
        self.decoder.weight = self.encoder.weight

    def forward(self, x):
        return self.decoder(self.encoder(x))


def state(module):
    return {name: value.detach().clone() for name, value in module.state_dict().items()}


def assert_same_state(module, before):
    after = module.state_dict()
    assert after.keys() == before.keys()
    for name, value in before.items():
        assert torch.equal(after[name], value), name


# -- names and stacks ----------------------------------------------------------------------------------------------


def test_trainable_weights_are_shared_with_the_module_and_frozen_ones_left_out():
    net = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    net[0].weight.requires_grad_(requires_grad=False)
    found = params.trainable_params(net)
    assert list(found) == ["0.bias", "1.weight", "1.bias"]
    assert all(not value.requires_grad for value in found.values())
    assert found["1.bias"].data_ptr() == net[1].bias.data_ptr()


def test_a_tied_weight_is_one_entry_and_stays_tied():
    net = Tied()
    found = params.trainable_params(net)
    assert list(found) == ["encoder.weight", "encoder.bias", "decoder.bias"]
    params.load_params(net, {"decoder.weight": torch.ones(4, 4)})
    assert torch.equal(net.encoder.weight, torch.ones(4, 4))
    assert net.decoder.weight is net.encoder.weight
    x = torch.randn(2, 4)
    core = Core(net, Gaussian(4), None, None)
    out = torch.func.functional_call(core, {"net.encoder.weight": torch.zeros(4, 4)}, (x, "outputs"))
    torch.testing.assert_close(out, net.decoder.bias.expand(2, 4))
    params.initialize(net, 0, CPU)
    assert net.decoder.weight is net.encoder.weight


def test_stacking_puts_members_on_the_first_axis(dtype):
    members = [{"a": torch.randn(2, 3, dtype=dtype), "b": torch.randn((), dtype=dtype)} for _ in range(4)]
    stacked = params.stack(members)
    assert stacked["a"].shape == (4, 2, 3)
    assert stacked["b"].shape == (4,)
    for index, member in enumerate(members):
        assert all(torch.equal(member[name], stacked[name][index]) for name in member)


def test_weights_are_checked_by_name_and_shape():
    like = {"a": torch.zeros(2), "b": torch.zeros(3)}
    params.check_params({"b": torch.ones(3), "a": torch.ones(2)}, like)
    with pytest.raises(ValueError, match=r"missing \['b'\], unknown \['c'\]"):
        params.check_params({"a": torch.zeros(2), "c": torch.zeros(1)}, like)
    with pytest.raises(ShapeError, match=r"`start\['b'\]` must have shape \(3,\); got \(4,\)"):
        params.check_params({"a": torch.zeros(2), "b": torch.zeros(4)}, like)


def test_weights_and_buffers_are_put_back_by_name():
    net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    values = {"0.bias": torch.tensor([1.0, 2.0]), "1.running_mean": torch.tensor([3.0, 4.0])}
    params.load_params(net, values)
    assert net[0].bias.tolist() == [1, 2]
    assert net[1].running_mean.tolist() == [3, 4]
    assert params.buffers_of(net).keys() == {"1.running_mean", "1.running_var", "1.num_batches_tracked"}


def test_a_model_takes_every_name_of_its_core():
    model = Model(nn.Sequential(nn.Linear(2, 1)), Gaussian())
    names = params.trainable_params(model.core)
    assert "likelihood.log_scale" in names
    params.load_params(model, {name: torch.full_like(value, 0.5) for name, value in names.items()})
    assert all(bool((value == 0.5).all()) for value in params.trainable_params(model.core).values())


def test_device_and_dtype_are_read_from_the_tensors(dtype):
    net = nn.Linear(2, 2).to(dtype)
    assert params.floating_dtype(net) == dtype
    assert params.module_device(net.to("meta")).type == "meta"
    assert params.floating_dtype(nn.ReLU()) == torch.get_default_dtype()
    assert params.module_device(nn.ReLU()) == CPU


def test_evaluation_mode_is_restored_flag_by_flag_also_after_an_exception():
    net = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Dropout(), nn.BatchNorm1d(2)))
    net[1][1].eval()
    before = [part.training for part in net.modules()]
    with params.evaluating(net):
        assert not any(part.training for part in net.modules())
    assert [part.training for part in net.modules()] == before
    with pytest.raises(RuntimeError, match="inside"), params.evaluating(net):
        raise RuntimeError("inside")
    assert [part.training for part in net.modules()] == before


# -- initialisation ------------------------------------------------------------------------------------------------


class Scaled(nn.Module):
    """A module that draws the weights of its parts, and owns one itself."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 3)
        self.parts = nn.ParameterList([nn.Parameter(torch.empty(2))])
        self.gate = nn.Parameter(torch.empty(3))
        self.reset_parameters()

    def reset_parameters(self):
        nn.init.constant_(self.inner.weight, 7.0)
        nn.init.normal_(self.gate)
        nn.init.normal_(self.parts[0])


INITIALISABLE = {
    **NETWORKS,
    "conv": lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2, affine=False), nn.PReLU()),
    "normalised": lambda: nn.Sequential(nn.LayerNorm(3), nn.GroupNorm(1, 3), nn.Embedding(5, 3, padding_idx=0)),
    "attention": lambda: nn.MultiheadAttention(4, 2),
    "attention_with_bias": lambda: nn.MultiheadAttention(4, 2, kdim=3, vdim=3, add_bias_kv=True),
    "transformer": lambda: nn.Transformer(4, 2, 1, 1, 8, batch_first=True),
    "recurrent": lambda: nn.Sequential(nn.LSTM(3, 4), nn.GRUCell(3, 4)),
    "tied": Tied,
    "container": Scaled,
    "likelihood": lambda: Core(nn.Linear(3, 1), Gaussian(), None, None),
    "double": lambda: nn.Linear(3, 3).double(),
}


@pytest.mark.parametrize("name", INITIALISABLE)
def test_equal_seeds_give_equal_weights_and_others_differ(name):
    one, two, three = (INITIALISABLE[name]() for _ in range(3))
    before = torch.get_rng_state()
    params.initialize(one, 11, CPU)
    params.initialize(two, 11, CPU)
    params.initialize(three, 12, CPU)
    assert torch.equal(torch.get_rng_state(), before)
    assert_same_state(two, state(one))
    assert not all(torch.equal(a, b) for a, b in zip(one.parameters(), three.parameters(), strict=True))
    assert all(value.isfinite().all() for value in one.state_dict().values())
    assert all(p.requires_grad for p in one.parameters())


@pytest.mark.parametrize("name", INITIALISABLE)
def test_weights_are_drawn_afresh_whatever_was_there(name):
    fresh, trained = INITIALISABLE[name](), INITIALISABLE[name]()
    with torch.no_grad():
        for value in (*trained.parameters(), *trained.buffers()):
            value.fill_(37)
    params.initialize(fresh, 1, CPU)
    params.initialize(trained, 1, CPU)
    assert_same_state(trained, state(fresh))


def test_a_container_refines_what_its_parts_drew():
    net = nn.Sequential(Scaled())
    params.initialize(net, 0, CPU)
    assert torch.equal(net[0].inner.weight, torch.full((3, 3), 7.0))
    assert net[0].inner.bias.std() > 0
    transformer = nn.Transformer(8, 2, 1, 1, 16, batch_first=True)
    params.initialize(transformer, 0, CPU)
    bound = (6 / 24) ** 0.5  # of Xavier's rule for 16 x 8; Kaiming's would be 8^-0.5
    assert 8**-0.5 < transformer.encoder.layers[0].linear1.weight.abs().max() <= bound


def test_batch_norm_is_reset_and_a_frozen_backbone_keeps_weights_and_statistics():
    backbone = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3, affine=False), nn.BatchNorm1d(3))
    head = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 1))
    net = nn.Sequential(backbone, head)
    net(torch.randn(50, 2) + 5)
    backbone.requires_grad_(requires_grad=False)
    before = state(net)
    params.initialize(net, 0, CPU)
    assert_same_state(backbone, {name[2:]: value for name, value in before.items() if name.startswith("0.")})
    assert head[0].running_mean.tolist() == [0, 0, 0]
    assert head[0].num_batches_tracked == 0
    assert not torch.equal(head[1].weight, before["1.1.weight"])


def test_a_layer_that_is_frozen_in_part_keeps_that_part():
    layer = nn.Linear(2, 3)
    layer.bias.requires_grad_(requires_grad=False)
    before = state(layer)
    params.initialize(layer, 0, CPU)
    assert torch.equal(layer.bias, before["bias"])
    assert not torch.equal(layer.weight, before["weight"])


class NoReset(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2))


class ForgetsOne(nn.Linear):
    def __init__(self):
        super().__init__(2, 2)
        self.gate = nn.Parameter(torch.randn(2))


class Fails(nn.Linear):
    def reset_parameters(self):
        super().reset_parameters()
        if hasattr(self, "ready"):
            raise RuntimeError("cannot reset")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (NoReset, r"`0` \(NoReset\) owns the weight `0.weight`"),
        (ForgetsOne, r"`0` \(ForgetsOne\) owns the weight `0.gate`"),
        (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)), r"`0.parametrizations.weight`"),
        (lambda: nn.ParameterList([torch.zeros(2)]), r"`0` \(ParameterList\) owns the weight `0.0`"),
    ],
)
def test_weights_that_no_reset_sets_are_refused_by_name_and_left_alone(make, message):
    net = nn.Sequential(make(), nn.Linear(2, 2), nn.BatchNorm1d(2))
    net[2](torch.randn(9, 2))
    before = copy.deepcopy(state(net))
    with pytest.raises(NotSupportedError, match=message) as caught:
        params.initialize(net, 0, CPU)
    assert "initialize=f" in str(caught.value)
    assert_same_state(net, before)


def test_a_reset_that_fails_leaves_the_weights_and_the_random_state_alone():
    net = nn.Sequential(nn.Linear(2, 2), Fails(2, 2))
    net[1].ready = True
    before, random = state(net), torch.get_rng_state()
    with pytest.raises(RuntimeError, match="cannot reset"):
        params.initialize(net, 0, CPU)
    assert_same_state(net, before)
    assert torch.equal(torch.get_rng_state(), random)
