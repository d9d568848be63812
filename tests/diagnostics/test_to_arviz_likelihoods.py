"""Every likelihood can be exported: pointwise log densities are the model's own, and targets are drawn."""

import numpy as np
import pytest
import torch
from torch import nn

import cases
from credibly import Data, Model, likelihoods
from credibly.diagnostics import to_arviz
from credibly.distributions import kind
from credibly.posteriors import DrawPosterior, Info


def draws_of(model, num_draws=3):
    """Some draws of all weights around those of the model."""
    generator = torch.Generator().manual_seed(0)
    draws = {}
    for name, value in model.core.named_parameters():
        noise = torch.randn(num_draws, *value.shape, generator=generator).to(value)
        draws[name] = value.detach() + 0.1 * noise
    return DrawPosterior(model, Info("drawn", 0), draws)


@pytest.mark.parametrize("name", cases.LIKELIHOODS)
def test_log_likelihoods_of_every_likelihood_are_the_models_own(name):
    likelihood = cases.LIKELIHOODS[name]()
    net = cases.linear(3, likelihood).double()
    posterior = draws_of(Model(net, likelihood.double()).to(cases.DEVICE))
    x = torch.randn(10, 3, dtype=torch.float64, device=cases.DEVICE)
    with torch.no_grad():
        targets = posterior.model(x).sample()
    exported = to_arviz(posterior, (x, targets), seed=0)
    table = exported.log_likelihood["targets"].values[0]
    assert table.shape == (3, 10)
    for draw in range(3):
        own = posterior.to_model(draw=draw).log_likelihood({}, {}, (x, targets)).detach().cpu()
        np.testing.assert_allclose(table[draw], own, rtol=1e-9, atol=1e-9)
    drawn = exported.posterior_predictive["targets"].values
    assert drawn.shape == (1, 3, *targets.shape)
    assert np.isfinite(drawn).all()
    whole = kind(posterior.predict(x)) != "real"  # ArviZ tells counts from numbers by their dtype
    for values in (drawn, exported.observed_data["targets"].values):
        assert np.issubdtype(values.dtype, np.integer if whole else np.floating)
    np.testing.assert_array_equal(exported.observed_data["targets"].values, targets.cpu().numpy())


def test_missing_elements_add_nothing_and_are_nan():
    likelihood = likelihoods.PerElement(likelihoods.Poisson(), axis=None)
    posterior = draws_of(Model(nn.Linear(3, 4), likelihood).to(cases.DEVICE))
    x = torch.randn(5, 3, device=cases.DEVICE)
    targets = torch.arange(20, device=cases.DEVICE).reshape(5, 4) % 3
    mask = torch.ones(5, 4, dtype=torch.bool, device=cases.DEVICE)
    mask[1, 2] = mask[3] = False
    exported = to_arviz(posterior, Data(x, targets, mask=mask), seed=0)
    assert exported.log_likelihood["row"].values.tolist() == [0, 1, 2, 4]
    observed = exported.observed_data["targets"].values
    assert np.argwhere(np.isnan(observed)).tolist() == [[1, 2]]
    assert observed[0].tolist() == targets[0].tolist()
    own = posterior.to_model(draw=1).log_likelihood({}, {}, Data(x, targets, mask=mask)).detach().cpu()
    np.testing.assert_allclose(exported.log_likelihood["targets"].values[0, 1], own[[0, 1, 2, 4]], rtol=1e-5)
    assert exported.posterior_predictive["targets"].shape == (1, 3, 4, 4)
    assert exported.posterior_predictive["targets"].dtype == np.int64
