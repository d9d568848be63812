"""No method changes the user's model or the global random state, and equal seeds give equal results."""

import copy

import pytest
import torch
from torch import nn

import cases
from credibly import Model, Standardize, inference, likelihoods
from credibly.core.errors import NotFiniteError


def net_with_everything():
    return nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 1)).to(
        cases.DEVICE
    )


def data(rows=24):
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(rows, 3, generator=generator), 5 + 3 * torch.randn(rows, generator=generator)
    return x.to(cases.DEVICE), y.to(cases.DEVICE)


def model():
    return Model(net_with_everything(), likelihoods.Gaussian(), inputs=Standardize(), targets=Standardize())


def state(module):
    return {name: value.clone() for name, value in module.state_dict().items()}


def flags(module):
    return [(part.training) for part in module.modules()]


def assert_same_state(module, before):
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name]), name


@pytest.mark.parametrize("name", cases.METHODS)
@pytest.mark.parametrize("training", [True, False])
def test_the_users_model_is_left_bit_identical(name, training):
    ours = model().train(training)
    ours.net[3].train(not training)
    before, before_flags = state(ours), flags(ours)
    posterior = cases.METHODS[name]().fit(ours, data(), start="current", seed=0)
    posterior.predict(data()[0], seed=0)
    assert_same_state(ours, before)
    assert flags(ours) == before_flags
    assert ours.inputs == Standardize()


@pytest.mark.parametrize("name", cases.METHODS)
def test_predicting_leaves_the_posterior_bit_identical(name):
    posterior = cases.METHODS[name]().fit(model(), data(), start="current", seed=0)
    before, before_flags = state(posterior.model), flags(posterior.model)
    first = posterior.predict(data()[0], seed=3)
    second = posterior.predict(data()[0], seed=3)
    assert torch.equal(first.mean, second.mean)
    assert_same_state(posterior.model, before)
    assert flags(posterior.model) == before_flags
    assert not any(before_flags)


@pytest.mark.parametrize("name", cases.METHODS)
def test_a_seed_fixes_the_result_and_leaves_the_global_state(name):
    ours = model()
    torch.manual_seed(11)
    before = torch.get_rng_state()
    first = cases.METHODS[name]().fit(ours, data(), start="current", seed=4).predict(data()[0], seed=1)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(12)
    second = cases.METHODS[name]().fit(ours, data(), start="current", seed=4).predict(data()[0], seed=1)
    assert torch.equal(first.mean, second.mean)
    assert torch.equal(first.variance, second.variance)


@pytest.mark.parametrize("name", cases.METHODS)
def test_without_a_seed_the_global_generator_decides(name):
    ours = model()
    results = []
    for seed in (7, 7, 8):
        torch.manual_seed(seed)
        results.append(cases.METHODS[name]().fit(ours, data(), start="current").predict(data()[0]).mean)
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2]) or name == "mc_dropout_of_current"


@pytest.mark.parametrize("name", cases.METHODS)
def test_the_users_model_survives_an_exception(name):
    ours = model()
    x, y = data()
    before = state(ours)
    before_flags = flags(ours)
    with pytest.raises((ValueError, RuntimeError)):
        cases.METHODS[name]().fit(ours, (x[:, :2], y), start="current", seed=0)
    assert_same_state(ours, before)
    assert flags(ours) == before_flags


@pytest.mark.parametrize("name", cases.METHODS)
def test_data_in_every_form_trains(name):
    x, y = data()
    ours = model()
    forms = {
        "numpy": (x.double().numpy(), y.double().numpy()),
        "dataset": torch.utils.data.TensorDataset(x, y),
        "loader": torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=8, shuffle=True),
    }
    for form, given in forms.items():
        predicted = cases.METHODS[name]().fit(ours, given, start="current", seed=0).predict(x, seed=0)
        assert predicted.mean.dtype == torch.float32, form
        assert predicted.mean.isfinite().all(), form


def test_progress_does_not_change_the_numbers(capfd):
    ours = model()
    quiet = inference.MAP(num_epochs=2).fit(ours, data(), seed=0)
    assert capfd.readouterr() == ("", "")
    loud = inference.MAP(num_epochs=2).fit(ours, data(), seed=0, progress=True)
    out, err = capfd.readouterr()
    assert out == ""
    assert "training" in err
    for a, b in zip(quiet.model.parameters(), loud.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_loss_that_is_not_finite_stops_with_epoch_and_batch_and_keeps_the_best_weights():
    ours = Model(nn.Linear(3, 1), likelihoods.Gaussian(scale=1.0))
    x, y = data()
    best = copy.deepcopy(ours)
    method = inference.MLE(num_epochs=50, batch_size=8, learning_rate=1e30, optimizer=torch.optim.SGD)
    with pytest.raises(NotFiniteError, match=r"epoch \d+, batch \d+") as caught:
        method.fit(ours, (x, y), seed=0)
    kept = caught.value.posterior
    assert kept.predict(x).mean.isfinite().all()
    for a, b in zip(kept.model.parameters(), best.parameters(), strict=True):
        assert torch.equal(a, b)


def test_an_ensemble_that_fails_keeps_its_members_best_weights():
    ours = Model(nn.Linear(3, 1), likelihoods.Gaussian(scale=1.0))
    method = inference.MLE(num_epochs=50, batch_size=8, learning_rate=1e30, optimizer=torch.optim.SGD)
    with pytest.raises(NotFiniteError, match="member 0") as caught:
        inference.Ensemble(of=method, num_members=3).fit(ours, data(), seed=0)
    assert caught.value.posterior.predict(data()[0]).mean.isfinite().all()
