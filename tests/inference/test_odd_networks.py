"""Networks that torch allows and that copies or replaced weights may stumble over: right, or refused by name."""

import pytest
import torch
from torch import nn

from cases import METHODS
from credibly import Model, inference, likelihoods, priors
from credibly.core.errors import NotSupportedError

ROWS = 24


class Plain(nn.Module):
    """Two layers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.drop, self.last = nn.Linear(3, 4), nn.Dropout(0.1), nn.Linear(4, 1)

    def hidden(self, x):
        return torch.tanh(self.first(x))

    def forward(self, x):
        return self.last(self.drop(self.hidden(x)))


class Keeping(Plain):
    """Keeps what it computed, with its graph."""

    def hidden(self, x):
        self.kept = {"hidden": [torch.tanh(self.first(x))]}
        return self.kept["hidden"][0]


class KeepingDetached(Plain):
    """Keeps what it computed, without a graph."""

    def hidden(self, x):
        h = torch.tanh(self.first(x))
        self.kept = h.detach()
        return h


class WeightAsBuffer(Plain):
    """Has a weight among its buffers as well."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("again", self.first.weight)


class LateBuffer(Plain):
    """Makes a buffer when it first runs."""

    def hidden(self, x):
        if not hasattr(self, "shift"):
            self.register_buffer("shift", torch.zeros(4))
        return super().hidden(x) + self.shift


def old_weight_norm():
    net = Plain()
    with pytest.warns(FutureWarning, match="weight_norm"):
        net.first = nn.utils.weight_norm(net.first)
    return net


SAME = {
    "keeping": Keeping,
    "keeping_detached": KeepingDetached,
    "weight_as_buffer": WeightAsBuffer,
    "late_buffer": LateBuffer,
}


def data():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(ROWS, 3, generator=generator)
    return x, x.sum(1, keepdim=True) + 0.1 * torch.randn(ROWS, 1, generator=generator)


def fitted(net, method):
    start = "current" if method == "mc_dropout_of_current" else None
    return METHODS[method]().fit(Model(net, likelihoods.Gaussian(), priors.Normal(1.0)), data(), start=start, seed=0)


def mean_of(posterior):
    num_draws = 5 if posterior.num_stored is None else None
    return posterior.predict(data()[0], num_draws=num_draws, seed=1).mean


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", SAME)
def test_what_is_kept_or_named_twice_changes_nothing(name, method):
    net = SAME[name]()
    net(data()[0])  # as a user does before anything else
    posterior = fitted(net, method)
    found = mean_of(posterior)
    torch.testing.assert_close(found, mean_of(fitted(Plain(), method)), rtol=1e-4, atol=1e-5)
    assert torch.equal(mean_of(posterior), found)
    many = method.startswith("ensemble") or (posterior.num_stored or 1) > 1
    again = posterior.to_model(draw=0 if many else None)
    assert again.net(data()[0]).shape == (ROWS, 1)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("method", [method for method in METHODS if not method.startswith("ensemble")])
def test_the_old_weight_norm_works(method):
    posterior = fitted(old_weight_norm(), method)
    assert torch.equal(mean_of(posterior), mean_of(posterior))


class Listed(Plain):
    """Reads a weight from a list."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = [self.first.weight]

    def hidden(self, x):
        return torch.tanh(x @ self.weights[0].T + self.first.bias)


def with_lambda():
    net = Plain()
    net.hidden = lambda x: torch.tanh(net.first(x))
    return net


def with_patched_forward():
    net = Plain()
    net.forward = lambda x: net.last(net.hidden(x))
    return net


def with_hook():
    net = Plain()
    net.last.register_forward_hook(lambda module, args, output: output + net.first.bias.sum())
    return net


class Unregistered(Plain):
    """Holds a weight that the optimiser would never see."""

    def __init__(self) -> None:
        super().__init__()
        self.more = [nn.Parameter(torch.ones(4))]

    def hidden(self, x):
        return super().hidden(x) + self.more[0]


PAST = {
    "unregistered": (Unregistered, r"one of shape \(4,\)"),
    "listed": (Listed, r"\['net.first.weight'\]"),
    "lambda": (with_lambda, r"\['net.first.bias', 'net.first.weight'\]"),
    "patched_forward": (with_patched_forward, r"'net.first.bias'.*'net.last.weight'"),
    "hook": (with_hook, r"\['net.first.bias'\]"),
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", PAST)
def test_weights_that_cannot_be_replaced_are_refused_by_name(name, method):
    make, names = PAST[name]
    net = make()
    if method.startswith("ensemble"):  # whose members are copies already
        names = "past where they are registered"
    with pytest.raises(NotSupportedError, match=names):
        fitted(net, method)
    assert all(p.grad is None for p in net.parameters())


@pytest.mark.filterwarnings("ignore:.torch.jit.trace")
def test_scripts_are_refused():
    traced = torch.jit.trace(Plain().eval(), data()[0])
    with pytest.raises(NotSupportedError, match="scripted or traced"):
        Model(nn.Sequential(traced, nn.Tanh()), likelihoods.Gaussian())


class Scaled(Plain):
    """Multiplies by a number that is trained, with or without an axis."""

    def __init__(self, *shape) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full(shape, 0.7))

    def forward(self, x):
        return super().forward(x) * self.scale


@pytest.mark.parametrize("structure", [inference.Dense(), inference.Diagonal(), inference.LowRank(3)])
def test_a_weight_without_axes_has_the_curvature_of_one_with_an_axis(structure):
    found = [
        inference.Laplace(structure=structure)
        .fit(Model(net, likelihoods.Gaussian(scale=0.1)), data(), start="current", seed=0)
        .predict(data()[0])
        .variance
        for net in (Scaled(), Scaled(1))
    ]
    torch.testing.assert_close(*found)


class Clamped(Plain):
    """Writes to its weights when it runs."""

    def hidden(self, x):
        self.first.weight.data.clamp_(-0.1, 0.1)
        return super().hidden(x)


def test_predicting_leaves_the_mean_of_weights_that_a_network_writes_to():
    recipe = inference.MeanField(num_epochs=2)
    posterior = recipe.fit(Model(Clamped(), likelihoods.Gaussian(), priors.Normal(1.0)), data(), seed=0)
    before = posterior.mean
    found = mean_of(posterior)
    assert torch.equal(mean_of(posterior), found)
    assert all(torch.equal(value, before[name]) for name, value in posterior.mean.items())
