"""Draws with BatchNorm statistics of their own."""

import importlib

import pytest
import torch
from torch import nn

import cases
from credibly import Model, Standardize, inference, likelihoods
from credibly.core.errors import NotSupportedError
from credibly.inference import refreshed_draws


def data(rows=24):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, 3, generator=generator, dtype=torch.float64)
    return x.to(cases.DEVICE), (x[:, 0] + 0.1 * torch.randn(rows, generator=generator)).to(cases.DEVICE)


def fitted(*layers):
    net = nn.Sequential(nn.Linear(3, 4), *layers, nn.Tanh(), nn.Linear(4, 1)).double().to(cases.DEVICE)
    ours = Model(net, likelihoods.Gaussian(), inputs=Standardize())
    method = inference.SWAG(num_epochs=6, batch_size=8, learning_rate=0.1, rank=3)
    return method.fit(ours, data(), start="current", seed=0)


def test_each_draw_has_the_statistics_of_the_training_rows_at_its_weights():
    posterior = fitted(nn.BatchNorm1d(4))
    before = {name: value.clone() for name, value in posterior.model.state_dict().items()}
    own = refreshed_draws(posterior, data(), num_draws=5, batch_size=None, seed=1)
    assert own.num_stored == 5
    for draw in range(5):
        net = own.to_model(draw=draw).net
        features = net[0](own.model.standardize_inputs(data()[0])).detach()
        torch.testing.assert_close(net[1].running_mean, features.mean(0))
        torch.testing.assert_close(net[1].running_var, features.var(0))
    assert not torch.equal(own.buffers["net.1.running_mean"][0], own.buffers["net.1.running_mean"][1])
    assert all(torch.equal(value, before[name]) for name, value in posterior.model.state_dict().items())
    assert own.predict(data()[0]).mean.isfinite().all()


@pytest.mark.parametrize("together", [1, 2, 8])
def test_draws_do_not_depend_on_how_many_are_made_at_once(together, monkeypatch):
    posterior = fitted(nn.BatchNorm1d(4), nn.Dropout(0.2))
    whole = refreshed_draws(posterior, data(), num_draws=6, batch_size=7, seed=1)
    module = importlib.import_module("credibly.inference.refreshed_draws")
    monkeypatch.setattr(module, "_TOGETHER", together)
    some = refreshed_draws(posterior, data(), num_draws=5, batch_size=7, seed=1)
    for name, value in {**whole.draws, **whole.buffers}.items():
        torch.testing.assert_close({**some.draws, **some.buffers}[name], value[:5], rtol=1e-9, atol=1e-12)


def test_an_ensemble_may_have_its_statistics_refreshed():
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 1)).double().to(cases.DEVICE)
    members = inference.Ensemble(of=inference.MAP(num_epochs=2), num_members=3).fit(
        Model(net, likelihoods.Gaussian()), data(), seed=0
    )
    own = refreshed_draws(members, data(), num_draws=3, batch_size=None, seed=0)
    features = own.to_model(draw=1).net[0](data()[0]).detach()
    torch.testing.assert_close(own.buffers["net.1.running_mean"][1], features.mean(0))


def test_what_has_no_statistics_is_refused():
    with pytest.raises(NotSupportedError, match="BatchNorm"):
        refreshed_draws(fitted(), data())
    dropped = inference.MCDropout().fit(
        Model(nn.Sequential(nn.Linear(3, 1), nn.Dropout(0.5)).double(), likelihoods.Gaussian()),
        data(),
        start="current",
    )
    with pytest.raises(NotSupportedError, match="no weights"):
        refreshed_draws(dropped, data())
