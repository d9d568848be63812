"""The groups of an exported posterior, for every posterior."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import cases
from credibly import Data, Model, Standardize, inference, likelihoods, priors
from credibly.core.errors import NotFiniteError, NotSupportedError
from credibly.diagnostics import pointwise, to_arviz
from credibly.posteriors import Info, MixturePosterior
from credibly.posteriors.base import Posterior


def net(outputs=1):
    return nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, outputs)).to(
        cases.DEVICE
    )


def data(rows=20, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, 3, generator=generator).to(dtype)
    y = 10 + 4 * x[:, 0] + torch.randn(rows, generator=generator).to(dtype)
    return x.to(cases.DEVICE), y.to(cases.DEVICE)


def fitted(name):
    model = Model(net(), likelihoods.Gaussian(), inputs=Standardize(), targets=Standardize())
    return cases.METHODS[name]().fit(model, data(), start="current", seed=0)


@pytest.mark.parametrize("name", cases.METHODS)
def test_groups_of_every_posterior(name):
    posterior = fitted(name)
    x, y = data()
    before = torch.get_rng_state()
    exported = to_arviz(posterior, (x, y), seed=4)
    assert torch.equal(torch.get_rng_state(), before)
    draws = posterior.num_stored or 100
    predicted = posterior.predict(x, num_draws=draws, seed=4)  # told, for where there is a closed form as well
    table = exported.log_likelihood["targets"]
    assert table.dims == ("chain", "draw", "row")
    assert table.shape == (1, draws, 20)
    assert table.dtype == np.float64
    ours = torch.as_tensor(table.values[0])
    reference = predicted.components.log_prob(y).double().cpu()
    torch.testing.assert_close(ours, reference, rtol=1e-4, atol=1e-4)
    mixture = predicted.log_prob(y).double().cpu()
    torch.testing.assert_close(torch.logsumexp(ours, 0) - np.log(draws), mixture, rtol=1e-4, atol=1e-4)
    assert exported.posterior_predictive["targets"].shape == (1, draws, 20)
    assert np.array_equal(exported.observed_data["targets"].values, y.cpu().numpy())
    assert exported.observed_data["targets"].dims == ("row",)
    assert np.array_equal(exported.constant_data["inputs"].values, x.cpu().numpy())
    assert exported.posterior["index"].values.tolist() == [list(range(draws))]


def test_log_likelihoods_are_the_models_own(dtype):
    x, y = data(dtype=dtype)
    weights = torch.rand(20, dtype=dtype, device=cases.DEVICE)
    model = Model(net().to(dtype), likelihoods.Gaussian(), inputs=Standardize(), targets=Standardize())
    posterior = inference.Ensemble(of=inference.MAP(num_epochs=1), num_members=3).fit(model, (x, y), seed=0)
    table = to_arviz(posterior, Data(x, y, weights=weights)).log_likelihood["targets"].values[0]
    tolerance = 1e-4 if dtype == torch.float32 else 1e-10
    for member in range(3):
        own = posterior.to_model(draw=member)
        rows = own.log_likelihood({}, {}, Data(x, y, weights=weights)).detach().double().cpu()
        np.testing.assert_allclose(table[member], rows, rtol=tolerance, atol=tolerance)


def test_equal_seeds_and_chunks(monkeypatch):
    posterior = fitted("mc_dropout")
    first, again = (to_arviz(posterior, data(), num_draws=6, seed=2) for _ in range(2))
    other = to_arviz(posterior, data(), num_draws=6, seed=3)
    for group in ("log_likelihood", "posterior_predictive"):
        assert np.array_equal(first[group]["targets"], again[group]["targets"])
        assert not np.array_equal(first[group]["targets"], other[group]["targets"])
    monkeypatch.setattr(pointwise, "_CHUNK", 6 * 7)
    chunked = to_arviz(posterior, data(), num_draws=6, seed=2).log_likelihood["targets"]
    np.testing.assert_allclose(chunked, first.log_likelihood["targets"], rtol=1e-4, atol=1e-4)


def test_predicted_targets_follow_their_draws_distribution():
    # one draw of weights, 4000 equal rows: mean and spread of the targets, in their units, within five standard errors
    model = Model(nn.Linear(3, 1), likelihoods.Gaussian(scale=2.0), targets=Standardize())
    x, y = data()
    posterior = inference.MAP(num_epochs=1).fit(model, (x, y), seed=0)
    many = x[:1].expand(4000, 3), y[:1].expand(4000)
    drawn = to_arviz(posterior, many, seed=0).posterior_predictive["targets"].values.ravel()
    mean = float(posterior.predict(x[:1]).mean)
    assert abs(drawn.mean() - mean) < 5 * 2 / 4000**0.5
    assert abs(drawn.std() / 2 - 1) < 5 / (2 * 4000) ** 0.5


def test_weights_by_name_by_pattern_and_by_function():
    posterior = fitted("ensemble")
    whole = to_arviz(posterior, data(), params="net.*", posterior_predictive=False).posterior
    assert set(whole.data_vars) == set(posterior.draws) - {"likelihood.log_scale"}
    assert np.array_equal(whole["net.0.weight"].values[0], posterior.draws["net.0.weight"].cpu())
    assert whole["net.0.weight"].dims == ("chain", "draw", "net.0.weight_dim_0", "net.0.weight_dim_1")
    some = to_arviz(posterior, data(), params=["net.4.bias", "*.log_scale"], num_draws=2).posterior
    assert set(some.data_vars) == {"net.4.bias", "likelihood.log_scale"}
    assert np.array_equal(some["net.4.bias"].values[0], posterior.draws["net.4.bias"][[0, 3]].cpu())
    functions = {"norm": lambda params: params["net.0.weight"].norm(), "first": lambda params: params["net.0.bias"][:2]}
    derived = to_arviz(posterior, data(), params=functions).posterior
    assert derived["norm"].shape == (1, 4)
    assert derived["first"].shape == (1, 4, 2)
    norms = posterior.draws["net.0.weight"].flatten(1).norm(dim=1).cpu()
    np.testing.assert_allclose(derived["norm"].values[0], norms, rtol=1e-5)
    with pytest.raises(ValueError, match=r"no weight matches 'net.9.\*'"):
        to_arviz(posterior, data(), params="net.9.*")


def test_functions_also_see_frozen_weights():
    frozen = net()
    frozen[0].requires_grad_(False)
    posterior = inference.MAP(num_epochs=1).fit(Model(frozen, likelihoods.Gaussian()), data(), seed=0)
    both = {"both": lambda params: params["net.0.weight"].sum() + params["net.4.weight"].sum()}
    value = to_arviz(posterior, data(), params=both).posterior["both"].values
    own = {name: p.detach() for name, p in posterior.model.core.named_parameters()}
    expected = float(own["net.0.weight"].sum() + own["net.4.weight"].sum())
    assert value.tolist() == [[pytest.approx(expected, rel=1e-5)]]


def test_weights_of_a_mixture_of_stored_draws():
    model = Model(net(), likelihoods.Gaussian())
    members = [
        inference.Ensemble(of=inference.MAP(num_epochs=1), num_members=2).fit(model, data(), seed=seed)
        for seed in (0, 1)
    ]
    mixture = MixturePosterior(members, Info("mixture", 0))
    bias = to_arviz(mixture, data(), params="net.4.bias").posterior["net.4.bias"].values[0]
    assert np.array_equal(bias, torch.cat([member.draws["net.4.bias"] for member in members]).cpu())
    with pytest.raises(NotSupportedError, match="all of its stored draws"):
        to_arviz(mixture, data(), params="net.4.bias", num_draws=2)


def test_masks_are_no_weights():
    with pytest.raises(NotSupportedError, match="are not weights; leave `params` out"):
        to_arviz(fitted("mc_dropout"), data(), params="*")


def test_members_that_weigh_differently_are_refused():
    model = Model(net(), likelihoods.Gaussian())
    dropout = [inference.MCDropout().fit(model, data(), start="current", seed=seed) for seed in range(3)]
    mixture = MixturePosterior(dropout, Info("mixture", 0))
    assert to_arviz(mixture, data()).log_likelihood["targets"].shape[1] == 99
    assert to_arviz(mixture, data(), num_draws=6).log_likelihood["targets"].shape[1] == 6
    with pytest.raises(ValueError, match=r"do not weigh the same.*100"):
        to_arviz(mixture, data(), num_draws=100)


def test_a_prediction_without_draws_is_refused():
    posterior = fitted("map")

    class ClosedForm(Posterior):
        def parameters(self, inputs, *, num_draws=None, seed=None):
            return posterior.parameters(inputs)

        def predict(self, inputs, *, num_draws=None, seed=None):
            return posterior.model(inputs)

    with pytest.raises(NotSupportedError, match="no draws to export"):
        to_arviz(ClosedForm(posterior.model, posterior.info), data())


class Pairs(Dataset):
    def __len__(self):
        return 20

    def __getitem__(self, row):
        x, y = data()
        return x[row], y[row]


@pytest.mark.parametrize(
    "source",
    [
        lambda x, y: TensorDataset(x, y),
        lambda x, y: Pairs(),
        lambda x, y: DataLoader(TensorDataset(x, y), batch_size=7),
        lambda x, y: Data(x, y),
        lambda x, y: (x.cpu().double().numpy(), y.cpu().double().numpy()),
    ],
)
def test_data_of_any_form_keeps_the_order_of_rows(source):
    posterior = fitted("ensemble")
    whole, exported = to_arviz(posterior, data(), seed=0), to_arviz(posterior, source(*data()), seed=0)
    for group, name in (("observed_data", "targets"), ("constant_data", "inputs"), ("log_likelihood", "targets")):
        np.testing.assert_allclose(exported[group][name], whole[group][name], rtol=1e-5, atol=1e-5)


def test_rows_without_a_target_are_left_out():
    posterior = fitted("ensemble")
    x, y = data()
    missing = y.clone()
    missing[[2, 5]] = torch.nan
    mask = ~missing.isnan()
    exported = to_arviz(posterior, Data(x, missing, mask=mask), seed=0)
    places = exported.log_likelihood["row"].values
    assert places.tolist() == [row for row in range(20) if row not in (2, 5)]
    whole = to_arviz(posterior, (x, y), seed=0)
    np.testing.assert_allclose(
        exported.log_likelihood["targets"], whole.log_likelihood["targets"].sel(row=places), rtol=1e-4, atol=1e-4
    )
    assert exported.observed_data["targets"].shape == exported.constant_data["inputs"].shape[:1] == (18,)
    with pytest.raises(ValueError, match="at least one row"):
        to_arviz(posterior, Data(x, missing, mask=torch.zeros(20, dtype=torch.bool)))


def test_unmasked_missing_targets_point_to_the_mask():
    posterior = fitted("map")
    x, y = data()
    y[3] = torch.nan
    with pytest.raises(NotFiniteError, match=r"1 of 20 values are NaN.*mask: Data\(inputs, targets, mask=...\)"):
        to_arviz(posterior, (x, y))


def test_only_posteriors_are_exported():
    posterior = fitted("ensemble")
    for other in (posterior.predict(data()[0]), posterior.model):
        with pytest.raises(TypeError, match=f"must be a Posterior, as `fit` gives it.*got {type(other).__name__}"):
            to_arviz(other, data())


def test_vector_targets_classes_and_several_inputs():
    x, _ = data()
    vector = torch.stack([x[:, 0], x[:, 1] * 3], 1)
    posterior = inference.MAP(num_epochs=1).fit(Model(net(2), likelihoods.Gaussian(2)), (x, vector), seed=0)
    exported = to_arviz(posterior, (x, vector), name="y", constant_data=False)
    assert exported.log_likelihood["y"].shape == (1, 1, 20)
    assert exported.posterior_predictive["y"].dims == ("chain", "draw", "row", "y_dim_0")
    assert exported.observed_data["y"].shape == (20, 2)
    assert "constant_data" not in exported

    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.last = nn.Linear(3, 4)

        def forward(self, a, b):
            return self.last(a * b)

    labels = torch.arange(20, device=x.device) % 4
    model = Model(Two().to(x.device), likelihoods.Categorical(4))
    named = {"a": x, "b": x + 1}
    posterior = inference.MAP(num_epochs=1).fit(model, (named, labels), seed=0)
    exported = to_arviz(posterior, (named, labels))
    assert set(exported.constant_data.data_vars) == {"inputs_a", "inputs_b"}
    assert exported.observed_data["targets"].values.tolist() == labels.tolist()
    drawn = exported.posterior_predictive["targets"].values
    assert set(np.unique(drawn)) <= {0, 1, 2, 3}


def test_the_export_does_not_share_the_callers_memory():
    x, y = data()
    kept = x.clone(), y.clone()
    exported = to_arviz(fitted("map"), (x, y))
    exported.observed_data["targets"].values[:] = 0
    exported.constant_data["inputs"].values[:] = 0
    assert torch.equal(x, kept[0])
    assert torch.equal(y, kept[1])


# -- the prior -----------------------------------------------------------------------------------------------------


def test_prior_predictive_of_a_linear_network():
    # y = w x + noise with w ~ Normal(0, 3): the variance at x is 9 |x|^2 + 0.25, within five standard errors
    x, y = data(dtype=torch.float64)
    linear = nn.Linear(3, 1, bias=False).double().to(cases.DEVICE)
    model = Model(linear, likelihoods.Gaussian(scale=0.5), priors.Normal(3.0))
    posterior = inference.MAP(num_epochs=1).fit(model, (x, y), seed=0)
    exported = to_arviz(posterior, (x, y), params="net.*", prior_predictive=4000, seed=1)
    weights = exported.prior["net.weight"]
    assert weights.shape == (1, 4000, 1, 3)
    drawn = exported.prior_predictive["targets"].values[0]
    assert drawn.shape == (4000, 20)
    expected = 9 * x.square().sum(1).cpu().numpy() + 0.25
    assert (np.abs(drawn.var(0) / expected - 1) < 5 * (2 / 4000) ** 0.5).all()
    assert exported.posterior_predictive["targets"].shape == (1, 1, 20)
    means = weights.values[0, :, 0] @ x.cpu().numpy().T
    assert abs((drawn - means).std() / 0.5 - 1) < 5 / (2 * 80_000) ** 0.5, "each row of targets is of its own draw"


def test_what_the_likelihood_learns_is_drawn_where_it_has_a_prior():
    model = Model(net(), likelihoods.Gaussian(), noise_prior=priors.Normal(0.1))
    posterior = inference.MAP(num_epochs=1).fit(model, data(), seed=0)
    drawn = to_arviz(posterior, data(), params="likelihood.*", prior_predictive=30, seed=0).prior
    assert len(np.unique(drawn["likelihood.log_scale"])) == 30
    flat = fitted("map")
    with pytest.raises(NotSupportedError, match=r"noise_prior=priors.Normal\(...\)"):
        to_arviz(flat, data(), prior_predictive=30, seed=0)
    assert "prior" not in to_arviz(flat, data())


def test_a_prior_without_distributions_is_refused():
    partly = priors.ByName({"*.bias": priors.Flat(), "*": priors.Normal()})
    for prior, names in ((priors.Flat(), "net.0.weight"), (partly, r"\['net.0.bias'")):
        posterior = inference.MAP(num_epochs=1).fit(Model(net(), likelihoods.Gaussian(), prior), data(), seed=0)
        with pytest.raises(NotSupportedError, match=names):
            to_arviz(posterior, data(), prior_predictive=5)
    with pytest.raises(ValueError, match="prior_predictive"):
        to_arviz(fitted("map"), data(), prior_predictive=-1)


def test_censored_targets_are_observed_as_two_bounds():
    x = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))
    lower = x[:, 0].exp()
    upper = torch.where(x[:, 1] > 0, lower, torch.inf)
    model = Model(torch.nn.Linear(3, 2), likelihoods.Censored(likelihoods.Weibull()), priors.Normal())
    bounds = torch.stack([lower, upper], -1)
    posterior = inference.MAP(num_epochs=1).fit(model, (x, bounds), seed=0)
    observed = to_arviz(posterior, (x, bounds), seed=0).observed_data
    assert set(observed.data_vars) == {"targets_lower", "targets_upper"}
    np.testing.assert_array_equal(observed["targets_lower"], lower)
    np.testing.assert_array_equal(observed["targets_upper"], upper)
