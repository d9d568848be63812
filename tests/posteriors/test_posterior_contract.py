"""What every posterior promises, for every method."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import cases
from credibly import Model, Standardize, inference, likelihoods, priors
from credibly.core.errors import NotSupportedError
from credibly.posteriors import WeightPosterior, dropout, evaluation


def net():
    return nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, 1)).to(
        cases.DEVICE
    )


def data(rows=20):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, 3, generator=generator)
    y = 10 + 4 * x[:, 0] + torch.randn(rows, generator=generator)
    return x.to(cases.DEVICE), y.to(cases.DEVICE)


@pytest.fixture(params=list(cases.METHODS))
def posterior(request):
    model = Model(net(), likelihoods.Gaussian(), inputs=Standardize(), targets=Standardize())
    return cases.METHODS[request.param]().fit(model, data(), start="current", seed=0)


def test_parameters_and_outputs_have_the_draw_axis_first(posterior):
    x, _ = data()
    parameters = posterior.parameters(x, seed=0)
    outputs = posterior.outputs(x, seed=0)
    assert outputs.shape[1:] == (20, 1)
    assert {tuple(value.shape) for value in parameters.values()} == {tuple(outputs.shape[:2])}


def test_a_loader_gives_one_prediction_with_rows_in_order(posterior):
    x, y = data()
    whole = posterior.predict(x, seed=5)
    for loader in (
        DataLoader(TensorDataset(x, y), batch_size=7),
        DataLoader(TensorDataset(x), batch_size=7),
        DataLoader([{"inputs": row} for row in x], batch_size=7),
    ):
        by_batches = posterior.predict(loader, seed=5)
        assert by_batches.batch_shape == (20,)
        torch.testing.assert_close(by_batches.mean, whole.mean, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(by_batches.variance, whole.variance, rtol=1e-4, atol=1e-5)


def test_batches_come_with_their_targets_and_one_set_of_draws(posterior):
    x, y = data()
    whole = posterior.predict(x, seed=5)
    pairs = list(posterior.predict_batches(DataLoader(TensorDataset(x, y), batch_size=7), seed=5))
    torch.testing.assert_close(torch.cat([d.mean for d, _ in pairs]), whole.mean, rtol=1e-5, atol=1e-5)
    assert torch.equal(torch.cat([targets for _, targets in pairs]), y)


def test_equal_seeds_give_equal_draws_and_the_global_state_stays(posterior):
    x, _ = data()
    before = torch.get_rng_state()
    assert torch.equal(posterior.outputs(x, seed=1), posterior.outputs(x, seed=1))
    assert torch.equal(torch.get_rng_state(), before)


def test_a_graph_is_kept_only_where_an_input_needs_it(posterior):
    x, _ = data()
    assert not posterior.outputs(x, seed=0).requires_grad
    assert not posterior.predict(x, seed=0).mean.requires_grad
    wanted = x.clone().requires_grad_()
    predicted = posterior.predict(wanted, seed=0)
    (predicted.mean + predicted.variance).sum().backward()
    assert wanted.grad is not None
    assert wanted.grad.abs().sum() > 0
    assert all(p.grad is None for p in posterior.model.parameters())


def test_a_numpy_array_predicts_like_a_tensor(posterior):
    x, _ = data()
    assert torch.equal(posterior.predict(x.double().numpy(), seed=0).mean, posterior.predict(x, seed=0).mean)


def test_one_row_and_non_contiguous_rows(posterior):
    x, _ = data()
    whole = posterior.predict(x, seed=2).mean
    torch.testing.assert_close(posterior.predict(x[4:5], seed=2).mean, whole[4:5], rtol=1e-5, atol=1e-5)
    strided = torch.stack([x, x], 1)[:, 0]
    assert not strided.is_contiguous()
    torch.testing.assert_close(posterior.predict(strided, seed=2).mean, whole, rtol=1e-5, atol=1e-5)


def test_more_draws_than_stored_are_refused_and_fewer_are_evenly_spaced(posterior):
    x, _ = data()
    stored = getattr(posterior, "num_stored", 1 if isinstance(posterior, WeightPosterior) else None)
    with pytest.raises(ValueError, match="num_draws"):
        posterior.outputs(x, num_draws=0)
    if stored is not None:
        with pytest.raises(ValueError, match="stored"):
            posterior.outputs(x, num_draws=stored + 1)
    if stored is not None and stored > 2:
        picked = posterior.outputs(x, num_draws=2)
        assert torch.equal(picked, posterior.outputs(x)[[0, -1]])


def test_to_model_gives_a_fitted_copy(posterior):
    x, y = data()
    if not isinstance(posterior, WeightPosterior):
        with pytest.raises((NotSupportedError, ValueError), match="draw"):
            posterior.to_model(draw=99)
        return
    stored = posterior.num_stored
    model = posterior.to_model(draw=0) if (stored or 1) > 1 else posterior.to_model()
    before = {key: value.clone() for key, value in posterior.model.state_dict().items()}
    again = inference.MAP(num_epochs=1).fit(model, (x + 3, y * 7), seed=0)
    assert again.model.inputs.same_as(posterior.model.inputs), "a fitted transform is never fitted again"
    assert again.model.targets.same_as(posterior.model.targets)
    for key, value in posterior.model.state_dict().items():
        assert torch.equal(value, before[key])


def test_samples_of_weights_have_the_draw_axis_first(posterior):
    if not isinstance(posterior, WeightPosterior):
        assert not hasattr(posterior, "sample"), "its draws are not weights"
        return
    draws = posterior.sample(1, seed=0)
    own = dict(posterior.model.core.named_parameters())
    assert {name: tuple(value.shape[1:]) for name, value in draws.items()} == {
        name: tuple(own[name].shape) for name in draws
    }


@pytest.mark.parametrize("loop_rows", [1, 10**9])
def test_a_loop_over_draws_equals_a_mapped_batch(monkeypatch, loop_rows):
    model = Model(net(), likelihoods.Gaussian())
    posterior = inference.Ensemble(of=inference.MAP(num_epochs=1), num_members=5).fit(model, data(), seed=0)
    x, _ = data()
    reference = torch.stack([posterior.to_model(draw=k).eval().call({}, {}, x) for k in range(5)]).detach()
    monkeypatch.setattr(evaluation, "_LOOP_ROWS", loop_rows)
    for chunk in (1, 2**22):
        monkeypatch.setattr(evaluation, "_CHUNK_NUMBERS", chunk)
        torch.testing.assert_close(posterior.outputs(x), reference, rtol=1e-5, atol=1e-5)


def test_start_from_a_posterior_brings_weights_buffers_and_standardisation():
    x, y = data()
    model = Model(net(), likelihoods.Gaussian(), inputs=Standardize(), targets=Standardize())
    first = inference.MAP(num_epochs=2).fit(model, (x, y), seed=0)
    same = inference.MCDropout().fit(model, (x * 2 + 1, y), start=first)
    assert same.model.inputs.same_as(first.model.inputs)
    for key, value in first.model.state_dict().items():
        assert torch.equal(same.model.state_dict()[key], value), key
    with pytest.raises(ValueError, match="another standardisation"):
        inference.MAP(num_epochs=1).fit(Model(net(), likelihoods.Gaussian()), (x, y), start=first)


def test_start_from_weights_by_name_checks_names_and_shapes():
    x, y = data()
    model = Model(net(), likelihoods.Gaussian())
    weights = {name: p.detach() * 0 for name, p in model.core.named_parameters()}
    posterior = inference.MAP(num_epochs=1, learning_rate=1e-9).fit(model, (x, y), start=weights, seed=0)
    assert posterior.model.net[0].weight.abs().max() < 1e-6
    with pytest.raises(ValueError, match="missing"):
        inference.MAP(num_epochs=1).fit(model, (x, y), start={"net.0.weight": weights["net.0.weight"]})
    with pytest.raises(ValueError, match="shape"):
        inference.MAP(num_epochs=1).fit(model, (x, y), start={**weights, "net.0.bias": torch.zeros(3)})


def test_a_posterior_survives_pickling_and_copying(posterior):
    x, _ = data()
    whole = posterior.predict(x, seed=4).mean
    for twin in (copy.deepcopy(posterior), pickle.loads(pickle.dumps(posterior))):
        assert torch.equal(twin.predict(x, seed=4).mean, whole)


def test_another_prior_goes_with_the_fitted_copy(posterior):
    prior = priors.Laplace(0.1)
    several = hasattr(posterior, "members") or (posterior.num_stored or 1) > 1
    model = posterior.to_model(draw=0, prior=prior) if several else posterior.to_model(prior=prior)
    assert model.prior is prior
    assert posterior.model.prior is not prior


@pytest.mark.parametrize("numbers", [1, 2**9, 2**30])
def test_masks_do_not_depend_on_the_size_of_chunks(monkeypatch, numbers):
    model = Model(net(), likelihoods.Gaussian())
    posterior = inference.MCDropout().fit(model, data(), start="current", seed=0)
    x, _ = data()
    whole = posterior.outputs(x, num_draws=30, seed=2)
    monkeypatch.setattr(dropout, "_CHUNK_NUMBERS", numbers)
    torch.testing.assert_close(posterior.outputs(x, num_draws=30, seed=2), whole, rtol=1e-6, atol=1e-7)


def test_an_ensemble_may_begin_where_a_posterior_ended():
    model = Model(net(), likelihoods.Gaussian(), inputs=Standardize(), targets=Standardize())
    point = inference.MAP(num_epochs=2).fit(model, data(), seed=0)
    method = inference.Ensemble(of=inference.MAP(num_epochs=1, learning_rate=1e-12), num_members=2)
    members = method.fit(model, data(), start=point, seed=1)
    for name, value in point.sample(1).items():
        torch.testing.assert_close(members.draws[name], value.expand_as(members.draws[name]))
    assert members.model.inputs.same_as(point.model.inputs)
