"""What makes no sense is refused by name before anything is trained; what was silently wrong stays wrong no more."""

import math

import pytest
import torch
from torch import nn

import cases
from credibly import Data, Model, Standardize, inference, likelihoods, priors
from credibly.core.errors import NotFiniteError, NotSupportedError, ShapeError
from credibly.training import EarlyStopping


def net(outputs=1):
    return nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, outputs)).to(
        cases.DEVICE
    )


def data(rows=20):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, 3, generator=generator)
    y = 10 + 4 * x[:, 0] + torch.randn(rows, generator=generator)
    return x.to(cases.DEVICE), y.to(cases.DEVICE)


def gaussian(module):
    return Model(module, likelihoods.Gaussian())


def ensemble():
    method = inference.Ensemble(of=inference.MAP(num_epochs=1), num_members=3)
    return method.fit(Model(net(), likelihoods.Gaussian()), data(), seed=0)


def test_separate_networks_have_no_mean():
    posterior = ensemble()
    x, y = data()
    with pytest.raises(ValueError, match="no meaningful mean"):
        posterior.to_model()
    for method in (inference.MAP(num_epochs=1), inference.MCDropout()):
        with pytest.raises(ValueError, match="several networks"):
            method.fit(gaussian(net()), (x, y), start=posterior)
    with pytest.raises(NotSupportedError, match="turn it round"):
        inference.MCDropout(train=inference.Ensemble(of=inference.MAP(num_epochs=1)))
    member = posterior.to_model(draw=1)
    assert torch.equal(member.net[0].weight, posterior.draws["net.0.weight"][1])


def test_an_ensemble_of_ensembles_predicts_from_all_members():
    inner = inference.Ensemble(of=inference.MAP(num_epochs=1), num_members=2)
    posterior = inference.Ensemble(of=inner, num_members=3).fit(Model(net(), likelihoods.Gaussian()), data(), seed=0)
    assert posterior.num_stored == 6
    assert posterior.predict(data()[0]).num_draws == 6
    outputs = posterior.outputs(data()[0]).squeeze(-1)
    assert (torch.cdist(outputs, outputs) + torch.eye(6) > 1e-3).all(), "every network begins at weights of its own"
    x = data()[0]
    for draw in range(6):
        alone = posterior.to_model(draw=draw).call({}, {}, x)
        torch.testing.assert_close(alone.squeeze(-1).detach(), outputs[draw], rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="0 to 5; got 6"):
        posterior.to_model(draw=6)
    with pytest.raises(ValueError, match="6 stored draws; got 8"):
        posterior.predict(x, num_draws=8)
    torch.testing.assert_close(posterior.outputs(x, num_draws=2).squeeze(-1), outputs[[0, 4]], rtol=1e-5, atol=1e-6)


def test_members_weigh_the_same_whatever_their_number_of_draws():
    method = inference.Ensemble(of=inference.MCDropout(train=inference.MAP(num_epochs=1)), num_members=3)
    posterior = method.fit(Model(net(), likelihoods.Gaussian()), data(), seed=0)
    predicted = posterior.predict(data()[0], num_draws=7, seed=0)
    shares = predicted.log_weights.exp().split([3, 2, 2])
    for share in shares:
        assert float(share.sum()) == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("likelihood", "outputs", "targets"),
    [
        (likelihoods.Gaussian(), 1, torch.rand(20)),
        (likelihoods.HeteroscedasticGaussian(), 2, torch.rand(20)),
        (likelihoods.Poisson(), 1, torch.ones(20)),
        (likelihoods.Bernoulli(2), 2, torch.ones(20, 2)),
    ],
)
def test_class_weights_are_for_classes(likelihood, outputs, targets):
    with pytest.raises(NotSupportedError, match="class_weights"):
        inference.MLE(class_weights=[1.0, 2.0]).fit(Model(net(outputs), likelihood), (data()[0], targets))


@pytest.mark.parametrize("weights", [[-1.0, 1.0], [0.0, 0.0]])
def test_class_weights_are_weights(weights):
    y = (data()[1] > 10).float()
    with pytest.raises(ValueError, match="class_weights"):
        inference.MLE(class_weights=weights).fit(Model(net(), likelihoods.Bernoulli()), (data()[0], y))


@pytest.mark.parametrize("batch_size", [None, 19, 7])
def test_the_recorded_loss_is_the_mean_over_rows(batch_size):
    x, y = data()
    y = 10 * y
    weights = torch.linspace(0.5, 2, 20)
    mask = torch.arange(20) % 3 > 0
    plain = nn.Linear(3, 1)
    model = Model(plain, likelihoods.Gaussian(), priors.Flat(), inputs=Standardize(), targets=Standardize())
    for extras in ({}, {"weights": weights}, {"mask": mask}, {"weights": weights, "mask": mask}):
        given = Data(x, y, **extras)
        method = inference.MLE(num_epochs=1, batch_size=batch_size, learning_rate=1e-12)
        posterior = method.fit(model, given, validation=given, seed=0)
        rows = posterior.model.log_likelihood({}, {}, given).detach()
        assert posterior.info.history.loss[0] == pytest.approx(-float(rows.mean()), rel=1e-5)
        count = torch.ones(20) * extras.get("weights", 1.0) * extras.get("mask", 1.0)
        expected = float(rows.sum() / count.sum())
        assert posterior.info.history.validation_log_prob[0] == pytest.approx(expected, rel=1e-5)


def test_validation_without_any_target_is_refused():
    x, y = data()
    nothing = Data(x, y, mask=torch.zeros(20, dtype=torch.bool))
    with pytest.raises(ValueError, match="no present target"):
        inference.MLE(num_epochs=1).fit(Model(nn.Linear(3, 1), likelihoods.Gaussian()), (x, y), validation=nothing)


@pytest.mark.parametrize("name", cases.METHODS)
def test_bad_inputs_of_predict_are_refused_as_in_fit(name):
    posterior = cases.METHODS[name]().fit(Model(net(), likelihoods.Gaussian()), data(), start="current", seed=0)
    with pytest.raises(NotFiniteError, match="inputs"):
        posterior.predict(torch.tensor([[1.0, math.nan, 0.0]]))
    with pytest.raises(ShapeError, match="no rows"):
        posterior.predict(torch.zeros(0, 3))
    with pytest.raises(ShapeError, match=r"\(\d, 5\)"):
        posterior.predict(torch.zeros(4, 5))
    with pytest.raises(TypeError, match=r"float64.*inputs\.to\(torch\.float32\)|inputs\.to\(torch\.float32\)"):
        posterior.predict(torch.zeros(4, 3, dtype=torch.float64))
    dataset = torch.utils.data.TensorDataset(*data())
    whole = posterior.predict(data()[0], seed=0).mean
    torch.testing.assert_close(posterior.predict(dataset, seed=0).mean, whole, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        (lambda: Model(net(), likelihoods.Gaussian(), "normal"), TypeError, "prior"),
        (lambda: Model(net(), likelihoods.Gaussian(), inputs=True), TypeError, "inputs"),
        (lambda: Model(net(), likelihoods.Gaussian(), inputs=Standardize), TypeError, "the class Standardize"),
        (lambda: Model(net(), likelihoods.Gaussian(), targets="yes"), TypeError, "targets"),
        (lambda: inference.MLE(early_stopping=5), TypeError, "EarlyStopping"),
        (lambda: inference.MLE(optimizer="adam"), TypeError, "optimizer"),
        (lambda: inference.MLE(schedule="cosine"), TypeError, "schedule"),
        (lambda: inference.MLE(callbacks=print), TypeError, "callbacks"),
        (lambda: inference.MLE(num_epochs=2.5), ValueError, "num_epochs"),
        (lambda: inference.Ensemble(of=inference.MLE), TypeError, "of"),
        (lambda: inference.Ensemble(num_members=2.5), ValueError, "num_members"),
        (lambda: EarlyStopping(patience=0), ValueError, "patience"),
        (lambda: inference.MAP().fit(net(), data()), TypeError, "Model"),
        (lambda: inference.MAP().fit(Model(net(), likelihoods.Gaussian()), data(), start=5), TypeError, "start"),
        (
            lambda: inference.MAP(optimizer=torch.optim.LBFGS).fit(Model(net(), likelihoods.Gaussian()), data()),
            NotSupportedError,
            "LBFGS",
        ),
        (
            lambda: inference.MAP().fit(Model(nn.LazyLinear(1), likelihoods.Gaussian()), data()),
            ValueError,
            "not initialised",
        ),
        (lambda: ensemble().predict(data()[0], num_draws=1.5), ValueError, "num_draws"),
        (lambda: likelihoods.Likelihood(), TypeError, "abstract"),
        (lambda: priors.Prior(), TypeError, "abstract"),
    ],
)
def test_senseless_options_are_refused_where_they_are_given(make, error, match):
    with pytest.raises(error, match=match):
        make()


def test_fitting_under_no_grad_trains():
    with torch.no_grad():
        posterior = inference.MLE(num_epochs=2).fit(Model(nn.Linear(3, 1), likelihoods.Gaussian()), data(), seed=0)
    assert posterior.info.history.loss[1] < posterior.info.history.loss[0]


class AlwaysNoisy(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = nn.Linear(3, 1)
        self.dropout = nn.Dropout(0.2)

    def forward(self, x):
        return self.last(self.dropout(x)) + 0.1 * torch.randn(len(x), 1)


@pytest.mark.parametrize("name", cases.METHODS)
def test_what_a_network_draws_by_itself_is_keyed_by_the_seed(name):
    posterior = cases.METHODS[name]().fit(Model(AlwaysNoisy(), likelihoods.Gaussian()), data(), start="current", seed=0)
    x = data()[0]
    before = torch.get_rng_state()
    assert torch.equal(posterior.predict(x, seed=1).mean, posterior.predict(x, seed=1).mean)
    assert not torch.equal(posterior.predict(x, seed=1).mean, posterior.predict(x, seed=2).mean)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_frozen_batch_norm_keeps_its_statistics():
    model = Model(net(), likelihoods.Gaussian())
    model.net[1].requires_grad_(requires_grad=False)
    posterior = inference.MAP(num_epochs=2).fit(model, data(), seed=0)
    assert torch.equal(posterior.model.net[1].running_mean, torch.zeros(8))
    other = inference.MAP(num_epochs=2).fit(Model(net(), likelihoods.Gaussian()), data(), seed=0)
    assert not torch.equal(other.model.net[1].running_mean, torch.zeros(8))


def test_learned_noise_has_its_own_prior():
    x, y = data()
    model = Model(nn.Linear(3, 1), likelihoods.Gaussian(), priors.Flat(), noise_prior=priors.Normal(0.5))
    params = {name: p.detach() + 0.3 for name, p in model.core.named_parameters()}
    expected = priors.Normal(0.5).log_prob({"a": params["likelihood.log_scale"]})
    torch.testing.assert_close(model.log_prior(params), expected)
    held = Model(nn.Linear(3, 1), likelihoods.Gaussian(), priors.Flat(), noise_prior=priors.Normal(1e-4))
    posterior = inference.MAP(num_epochs=60, learning_rate=0.1).fit(held, (x, y), seed=0)
    assert abs(float(posterior.sample(1)["likelihood.log_scale"][0])) < 0.2
    free = inference.MAP(num_epochs=60, learning_rate=0.1).fit(
        Model(nn.Linear(3, 1), likelihoods.Gaussian(), priors.Flat()), (x, y), seed=0
    )
    assert float(free.sample(1)["likelihood.log_scale"][0]) > 0.5


def test_columns_far_from_zero_are_pointed_out():
    x, y = data()
    with pytest.warns(UserWarning, match="tells their values apart"):
        inference.MLE(num_epochs=1).fit(
            Model(nn.Linear(3, 1), likelihoods.Gaussian(), targets=Standardize()), (x, y + 1e6), seed=0
        )


def test_results_are_immutable():
    posterior = ensemble()
    for name in ("info", "model", "num_stored"):
        with pytest.raises(AttributeError):
            setattr(posterior, name, None)
    assert repr(posterior) == "DrawPosterior(Ensemble(MAP), 3 stored draws)"


def test_ensemble_targets_of_shape_n_and_n_by_1_train_alike():
    """B14 for ensembles."""
    x, y = data()
    method = inference.Ensemble(of=inference.MAP(num_epochs=2), num_members=3)
    model = Model(net(), likelihoods.Gaussian(), targets=Standardize())
    flat, column = method.fit(model, (x, y), seed=0), method.fit(model, (x, y.unsqueeze(1)), seed=0)
    assert all(torch.equal(flat.draws[name], column.draws[name]) for name in flat.draws)
    with pytest.raises(ShapeError, match=r"\(20, 3\)"):
        method.fit(model, (x, y.unsqueeze(1).expand(-1, 3)), seed=0)


def test_an_offset_is_never_standardised():
    for key, inputs in (("t", {"x": Standardize(), "t": Standardize()}), (1, {0: Standardize(), 1: Standardize()})):
        with pytest.raises(ValueError, match="offset"):
            Model(net(), likelihoods.Poisson(), inputs=inputs, offset=key)
    Model(net(), likelihoods.Poisson(), inputs={"x": Standardize()}, offset="t")


def test_the_precision_of_convolutions_is_explained_too():
    model = gaussian(nn.Sequential(nn.Conv1d(1, 2, 3), nn.Flatten(), nn.Linear(2, 1)))
    with pytest.raises(TypeError, match=r"inputs\.to\(torch\.float32\)"):
        inference.MAP(num_epochs=1).fit(model, (torch.randn(6, 1, 3).double(), torch.randn(6)))
