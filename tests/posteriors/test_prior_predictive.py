"""What a model predicts before data, against the closed form of a linear network."""

import pytest
import torch
from torch import nn

from credibly.core.errors import NotSupportedError
from credibly.likelihoods import Gaussian, Poisson
from credibly.model import Model
from credibly.posteriors import prior_predictive
from credibly.priors import ByName, Flat, GaussianPrior, Normal, WeightsOnly
from credibly.standardization import Standardization, Standardize

X = torch.tensor([[0.0, 0.0], [1.0, -1.0], [2.0, 3.0]])


def linear(dtype=torch.float32):
    return nn.Linear(2, 1).to(dtype)


def test_a_linear_network_has_its_closed_form(dtype):
    x = X.to(dtype)
    model = Model(linear(dtype), Gaussian(scale=0.5), ByName({"*.bias": Normal(2.0), "*": Normal(0.7)}))
    predicted = prior_predictive(model, x, num_draws=4000, seed=0)
    function = 0.49 * x.square().sum(-1) + 4.0  # variance of w'x + b
    torch.testing.assert_close(predicted.aleatoric_variance, torch.full((3,), 0.25, dtype=dtype))
    # 5 standard errors of 3 means and 3 variances: a failure in 300,000 seeds
    assert bool((predicted.mean.abs() < 5 * (function / 4000).sqrt()).all())
    assert bool(((predicted.epistemic_variance / function - 1).abs() < 5 * (2 / 4000) ** 0.5).all())


def test_draws_are_the_same_whatever_their_number_and_nothing_changes():
    net = nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Tanh(), nn.Linear(8, 1))
    model = Model(
        net,
        Gaussian(scale=1.0),
        GaussianPrior(
            {name: torch.zeros_like(p) for name, p in Model(net, Gaussian(scale=1.0)).named_parameters()},
            torch.ones(sum(p.numel() for p in net.parameters())),
        ),
    )
    before = {name: value.clone() for name, value in model.state_dict().items()}
    many, few = (prior_predictive(model, X, num_draws=count, seed=3).components.mean for count in (20, 6))
    torch.testing.assert_close(many[:6], few)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert not many.requires_grad
    assert many.std(0).min() > 0.01


def test_predictions_come_in_the_targets_units():
    transforms = {
        "inputs": Standardize().fit(torch.randn(50, 2)),
        "targets": Standardization(torch.tensor(100.0), torch.tensor(10.0)),
    }
    model = Model(linear(), Gaussian(scale=5.0), Normal(1.0), **transforms)
    predicted = prior_predictive(model, X, num_draws=2000, seed=0)
    torch.testing.assert_close(predicted.aleatoric_variance, torch.full((3,), 25.0))
    error = (predicted.epistemic_variance / 2000).sqrt()
    assert bool(((predicted.mean - 100).abs() < 5 * error).all())
    assert predicted.epistemic_variance.min() > 50


def test_learned_noise_is_drawn_from_its_own_prior():
    model = Model(linear(), Gaussian(), Normal(), noise_prior=Normal(0.5))
    variances = prior_predictive(model, X, num_draws=50, seed=0).components.variance
    assert len(variances[:, 0].unique()) == 50
    with pytest.raises(NotSupportedError, match="the model's `noise_prior` cannot be drawn from: Flat is flat over"):
        prior_predictive(Model(linear(), Gaussian(), Normal()), X)


def test_frozen_weights_stay():
    net = linear()
    net.weight.requires_grad_(False)
    draws = prior_predictive(Model(net, Poisson(), Normal(0.1)), X, num_draws=5, seed=0)
    logs = draws.components.mean.log() - (X @ net.weight.T).squeeze(-1)
    torch.testing.assert_close(logs[:, 0], logs[:, 2])
    net.bias.requires_grad_(False)
    assert prior_predictive(Model(net, Poisson(), Flat()), X, num_draws=5, seed=0).num_draws == 1


def test_flat_priors_are_refused_by_name():
    for prior in (Flat(), WeightsOnly(Normal()), ByName({"*.bias": Flat(), "*": Normal()})):
        with pytest.raises(
            NotSupportedError, match=rf"`prior` cannot be drawn from: {type(prior).__name__} is flat over"
        ):
            prior_predictive(Model(linear(), Poisson(), prior), X)
    with pytest.raises(ValueError, match="`num_draws`"):
        prior_predictive(Model(linear(), Poisson()), X, num_draws=0)
