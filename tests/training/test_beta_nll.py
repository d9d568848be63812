"""The beta-NLL: the likelihood at 0, the squared error's gradient at 1, and locations learned where noise is large."""

import pytest
import torch
from torch import nn
from torch.func import vmap

from credibly import inference
from credibly.core.errors import NotSupportedError
from credibly.likelihoods import Categorical, Gaussian, HeteroscedasticGaussian, StudentT
from credibly.model import Model
from credibly.nets import mlp
from credibly.priors import Flat
from credibly.training import BetaNLL


def batch(dtype, targets=1):
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(7, 2 * targets, generator=generator, dtype=torch.float64).to(dtype)
    y = torch.randn((7, targets) if targets > 1 else (7,), generator=generator, dtype=torch.float64).to(dtype)
    return HeteroscedasticGaussian(targets), outputs.requires_grad_(), y


@pytest.mark.parametrize("targets", [1, 2])
def test_beta_zero_is_minus_the_log_density(targets, dtype):
    likelihood, outputs, y = batch(dtype, targets)
    parameters = likelihood.parameters_of(outputs)
    torch.testing.assert_close(BetaNLL(0.0)(likelihood, parameters, y), -likelihood.log_prob(parameters, y))


@pytest.mark.parametrize("targets", [1, 2])
def test_beta_one_gives_locations_the_gradient_of_half_the_squared_error(targets, dtype):
    likelihood, outputs, y = batch(dtype, targets)
    loss = BetaNLL(1.0)(likelihood, likelihood.parameters_of(outputs), y)
    assert loss.shape == (7,)
    gradient = torch.autograd.grad(loss.sum(), outputs)[0][:, :targets]
    torch.testing.assert_close(gradient, outputs[:, :targets].detach() - y.reshape(7, -1))


@pytest.mark.parametrize("beta", [0.0, 0.3, 0.5, 1.0])
def test_every_gradient_is_the_likelihoods_times_a_power_of_the_variance(beta, dtype):
    likelihood, outputs, y = batch(dtype)
    parameters = likelihood.parameters_of(outputs)
    weighted = torch.autograd.grad(BetaNLL(beta)(likelihood, parameters, y).sum(), outputs, retain_graph=True)[0]
    plain = torch.autograd.grad(-likelihood.log_prob(parameters, y).sum(), outputs)[0]
    variance = parameters["scale"].detach().square().unsqueeze(-1)
    torch.testing.assert_close(weighted, variance**beta * plain)


def test_it_passes_through_vmap(dtype):
    likelihood, outputs, y = batch(dtype)
    stacked = torch.stack([outputs.detach(), 2 * outputs.detach()])
    looped = torch.stack([BetaNLL()(likelihood, likelihood.parameters_of(out), y) for out in stacked])
    mapped = vmap(lambda out: BetaNLL()(likelihood, likelihood.parameters_of(out), y))(stacked)
    torch.testing.assert_close(mapped, looped)


@pytest.mark.parametrize("likelihood", [Gaussian(), StudentT(), Categorical(3)])
def test_other_likelihoods_are_refused_by_name(likelihood):
    model = Model(nn.Linear(2, likelihood.num_outputs), likelihood)
    with pytest.raises(NotSupportedError, match=rf"BetaNLL.*HeteroscedasticGaussian.*{type(likelihood).__name__}"):
        inference.MLE(num_epochs=1, loss=BetaNLL()).fit(model, (torch.zeros(4, 2), torch.zeros(4)), seed=0)


@pytest.mark.parametrize("beta", [-0.1, 1.5, float("nan")])
def test_beta_lies_between_0_and_1(beta):
    with pytest.raises(ValueError, match=r"`beta` must lie in \[0, 1\]"):
        BetaNLL(beta)


def test_locations_are_learned_where_the_likelihood_alone_gives_up():
    """The paper's example: an oscillation that the likelihood explains as noise, because a network fits it late."""
    x = torch.linspace(-1, 1, 200).unsqueeze(-1)
    y = torch.sin(6 * x).squeeze(-1) + 0.01 * torch.randn(200, generator=torch.Generator().manual_seed(1))

    def error(loss):
        torch.manual_seed(0)
        model = Model(mlp(1, 2, hidden=(32, 32)), HeteroscedasticGaussian(), Flat())
        posterior = inference.MLE(num_epochs=400, batch_size=None, learning_rate=1e-2, loss=loss).fit(
            model, (x, y), seed=0
        )
        return float((posterior.predict(x).mean - y).square().mean())

    assert error(BetaNLL(1.0)) < 0.5 * error(None)
