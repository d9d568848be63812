"""Members trained as one stack equal members trained alone; refusals and reasons are named."""

import functools

import pytest
import torch
from torch import nn

from credibly import Data, Model, Standardize, inference, likelihoods, priors
from credibly.core.errors import NotSupportedError
from credibly.core.params import initialize
from credibly.core.randomness import derived_seed
from credibly.posteriors import DrawPosterior, MixturePosterior
from credibly.training import EarlyStopping, FocalLoss, LabelSmoothing, cosine


def data(rows=45, *, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 4, generator=generator, dtype=torch.float64)
    return x, torch.sin(x[:, 0]) + 0.3 * torch.randn(rows, generator=generator, dtype=torch.float64)


def mlp(*extra):
    return nn.Sequential(nn.Linear(4, 12), *extra, nn.Tanh(), nn.Linear(12, 1)).double()


class FunctionalDropout(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 12)
        self.last = nn.Linear(12, 1)

    def forward(self, x):
        return self.last(nn.functional.dropout(self.first(x).tanh(), 0.3, training=self.training))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.last = nn.Linear(4, 1)

    def forward(self, x):
        return self.last(self.second(self.first(x).tanh()).tanh())


NETWORKS = {
    "mlp": mlp,
    "dropout": lambda: mlp(nn.Dropout(0.3)),
    "functional_dropout": lambda: FunctionalDropout().double(),
    "alpha_dropout": lambda: mlp(nn.AlphaDropout(0.2)),
    "batch_norm": lambda: mlp(nn.BatchNorm1d(12)),
    "batch_norm_and_dropout": lambda: mlp(nn.BatchNorm1d(12), nn.Dropout(0.3)),
    "layer_norm": lambda: mlp(nn.LayerNorm(12)),
    "tied": lambda: Tied().double(),
}

OPTIONS = {
    "adam": {},
    "clipped": {"clip_norm": 0.05},
    "early_stopping": {"early_stopping": EarlyStopping(patience=2), "learning_rate": 0.05, "num_epochs": 25},
    "schedule": {"schedule": functools.partial(cosine, warmup=0.2)},
    "momentum": {"optimizer": functools.partial(torch.optim.SGD, momentum=0.9), "learning_rate": 0.02},
}


def members_of(posterior):
    stored = posterior.draws | posterior.buffers
    return [{name: value[k] for name, value in stored.items()} for k in range(posterior.num_stored)]


def assert_equal_members(one, other):
    for a, b in zip(members_of(one), members_of(other), strict=True):
        for name, value in a.items():
            torch.testing.assert_close(
                value, b[name], rtol=1e-9, atol=1e-11, msg=lambda text, name=name: f"{name}: {text}"
            )


def fit_both(net, *, bootstrap=False, likelihood=None, validation=None, **options):
    model = Model(net, likelihood or likelihoods.Gaussian(), inputs=Standardize(), targets=Standardize())
    validation = data(20, seed=9) if "early_stopping" in options or validation else None
    pair = []
    for stacked in (True, False):
        method = inference.MAP(**{"num_epochs": 3, "batch_size": 16, "stacked": stacked, **options})
        ensemble = inference.Ensemble(of=method, num_members=3, bootstrap=bootstrap)
        pair.append(ensemble.fit(model, data(), validation=validation, seed=2))
    assert pair[0].info.stacked, pair[0].info.reason
    assert not pair[1].info.stacked
    return pair


@pytest.mark.parametrize("network", NETWORKS)
def test_stacked_members_equal_members_trained_alone(network):
    assert_equal_members(*fit_both(NETWORKS[network]()))


@pytest.mark.parametrize("options", OPTIONS)
def test_every_option_acts_on_each_member_alone(options):
    one, other = fit_both(mlp(nn.Dropout(0.1)), **OPTIONS[options])
    assert_equal_members(one, other)
    for a, b in zip(one.info.histories, other.info.histories, strict=True):
        assert a.loss == pytest.approx(b.loss)
        assert a.validation_log_prob == pytest.approx(b.validation_log_prob)
        assert a.best_epoch == b.best_epoch
    if options == "early_stopping":
        assert len({len(history.loss) for history in one.info.histories}) > 1, "members must stop at different epochs"


@pytest.mark.parametrize(
    "optimizer", ["SGD", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Adagrad", "Adadelta", "Rprop"]
)
def test_every_listed_optimiser_updates_members_alone(optimizer):
    assert_equal_members(*fit_both(mlp(), optimizer=getattr(torch.optim, optimizer), num_epochs=2))


class Classes(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.dropout = nn.Dropout(0.2)
        self.last = nn.Linear(8, 3)

    def forward(self, x):
        return self.last(self.dropout(self.first(x).tanh()))


@pytest.mark.parametrize(
    "options",
    [{}, {"loss": FocalLoss()}, {"loss": LabelSmoothing()}, {"class_weights": [1.0, 2.0, 0.5]}],
)
def test_class_losses_weights_and_masks_act_on_each_member_alone(options):
    x, y = data()
    labels = (x[:, :3].argmax(1)).long()
    rows = Data(x, labels, weights=y.abs(), mask=torch.arange(45) % 4 > 0)
    model = Model(Classes().double(), likelihoods.Categorical(3))
    pair = []
    for stacked in (True, False):
        method = inference.MAP(num_epochs=2, batch_size=16, stacked=stacked, **options)
        pair.append(inference.Ensemble(of=method, num_members=2).fit(model, rows, validation=rows, seed=2))
    assert pair[0].info.stacked, pair[0].info.reason
    assert_equal_members(*pair)
    for a, b in zip(pair[0].info.histories, pair[1].info.histories, strict=True):
        assert a.validation_log_prob == pytest.approx(b.validation_log_prob)


def test_a_bootstrap_gives_each_member_its_own_rows():
    one, other = fit_both(mlp(), bootstrap=True)
    assert_equal_members(one, other)


def test_a_member_is_what_its_method_gives_from_the_same_beginning():
    model = Model(mlp(nn.Dropout(0.2)), likelihoods.Gaussian())
    method = inference.MAP(num_epochs=3, batch_size=16)
    ensemble = inference.Ensemble(of=method, num_members=3).fit(model, data(), seed=5)
    for index in range(3):
        seed = derived_seed(5, "member", index)
        alone = Model(mlp(nn.Dropout(0.2)), likelihoods.Gaussian())
        initialize(alone.core, seed, torch.device("cpu"))
        posterior = method.fit(alone, data(), seed=seed)
        for name, value in posterior.sample(1).items():
            torch.testing.assert_close(value[0], ensemble.draws[name][index], rtol=1e-9, atol=1e-11)


def test_an_ensemble_of_one_equals_its_member():
    model = Model(mlp(), likelihoods.Gaussian().double(), inputs=Standardize(), targets=Standardize())
    method = inference.MAP(num_epochs=3)
    ensemble = inference.Ensemble(of=method, num_members=1).fit(model, data(), seed=5)
    seed = derived_seed(5, "member", 0)
    initialize(model.core, seed, torch.device("cpu"))
    x, y = data(7, seed=3)
    one, member = ensemble.predict(x), method.fit(model, data(), seed=seed).predict(x)
    assert torch.equal(one.log_prob(y), member.log_prob(y))
    assert torch.equal(one.epistemic_variance, torch.zeros(7, dtype=torch.float64))


def test_members_begin_apart_and_learn_their_own_noise():
    model = Model(mlp(), likelihoods.Gaussian(), priors.Normal(), targets=Standardize())
    posterior = inference.Ensemble(of=inference.MAP(num_epochs=3), num_members=4).fit(model, data(), seed=0)
    assert posterior.draws["likelihood.log_scale"].shape == (4,)
    assert len(set(posterior.draws["likelihood.log_scale"].tolist())) == 4
    assert (posterior.draws["net.0.weight"].std(0) > 0).all()


def test_frozen_weights_stay_and_are_shared():
    net = mlp()
    net[0].requires_grad_(requires_grad=False)
    posterior = inference.Ensemble(of=inference.MAP(num_epochs=2), num_members=3).fit(
        Model(net, likelihoods.Gaussian()), data(), seed=0
    )
    assert "net.0.weight" not in posterior.draws
    assert torch.equal(posterior.fixed["net.0.weight"], net[0].weight)
    assert torch.equal(posterior.model.net[0].weight, net[0].weight)


def test_a_prediction_is_the_mixture_of_the_members_distributions():
    model = Model(mlp(), likelihoods.Gaussian(), targets=Standardize())
    posterior = inference.Ensemble(of=inference.MAP(num_epochs=2), num_members=3).fit(model, data(), seed=0)
    x, y = data(6, seed=4)
    singles = [posterior.to_model(draw=k)(x).log_prob(y).detach() for k in range(3)]
    expected = torch.stack(singles).logsumexp(0) - torch.tensor(3.0).log()
    torch.testing.assert_close(posterior.predict(x).log_prob(y), expected)


class NoReset(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, 1))

    def forward(self, x):
        return x @ self.weight


def test_weights_without_reset_parameters_are_refused_by_name_or_initialised_by_the_user():
    model = Model(nn.Sequential(NoReset()).double(), likelihoods.Gaussian(scale=1.0))
    ensemble = inference.Ensemble(of=inference.MAP(num_epochs=1), num_members=2)
    with pytest.raises(NotSupportedError, match=r"net\.0.*NoReset"):
        ensemble.fit(model, data(), seed=0)

    def fresh(net):
        nn.init.normal_(net[0].weight)

    posterior = inference.Ensemble(of=inference.MAP(num_epochs=1), num_members=2, initialize=fresh).fit(
        model, data(), seed=0
    )
    assert not torch.equal(posterior.draws["net.0.weight"][0], posterior.draws["net.0.weight"][1])


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRU(2, 5, batch_first=True)
        self.last = nn.Linear(5, 1)

    def forward(self, x):
        return self.last(self.cell(x.reshape(-1, 2, 2))[1][0])


class Noisy(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = nn.Linear(4, 1)

    def forward(self, x):
        return self.last(x + torch.randn_like(x) if self.training else x)


@pytest.mark.parametrize(
    ("net", "options", "reason"),
    [
        (lambda: Recurrent().double(), {}, "recurrent layers"),
        (lambda: Noisy().double(), {}, "random numbers other than dropout"),
        (mlp, {"callbacks": [lambda _: None]}, "callbacks"),
        (mlp, {"optimizer": torch.optim.LBFGS, "num_epochs": 1}, "LBFGS"),
        (mlp, {"stacked": False}, "asked for"),
    ],
)
def test_what_cannot_be_stacked_is_looped_and_the_reason_given(net, options, reason):
    if options.get("optimizer") is torch.optim.LBFGS:
        options = {**options, "optimizer": ClosureFree}
        reason = "ClosureFree"
    method = inference.MAP(**{"num_epochs": 2, **options})
    posterior = inference.Ensemble(of=method, num_members=2).fit(Model(net(), likelihoods.Gaussian()), data(), seed=0)
    assert posterior.info.stacked is False
    assert reason in posterior.info.reason
    assert posterior.predict(data()[0]).mean.isfinite().all()


class ClosureFree(torch.optim.SGD):
    """An optimiser the library does not know."""


def test_a_loaders_batches_are_shared_and_the_info_says_so():
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*data()), batch_size=16, shuffle=True)
    posterior = inference.Ensemble(of=inference.MAP(num_epochs=2), num_members=2).fit(
        Model(mlp(), likelihoods.Gaussian()), loader, seed=0
    )
    assert posterior.info.stacked
    assert "shared" in posterior.info.reason
    with pytest.raises(NotSupportedError, match="in memory"):
        inference.Ensemble(of=inference.MAP(num_epochs=2), num_members=2, bootstrap=True).fit(
            Model(mlp(), likelihoods.Gaussian()), loader, seed=0
        )


def test_an_ensemble_of_dropout_networks_is_a_mixture():
    model = Model(mlp(nn.Dropout(0.3)), likelihoods.Gaussian())
    method = inference.MCDropout(train=inference.MAP(num_epochs=2))
    posterior = inference.Ensemble(of=method, num_members=3).fit(model, data(), seed=0)
    assert isinstance(posterior, MixturePosterior)
    assert posterior.info.stacked
    predicted = posterior.predict(data()[0], num_draws=31, seed=0)
    assert predicted.num_draws == 31
    with pytest.raises(ValueError, match="number of members"):
        posterior.predict(data()[0], num_draws=2)


def test_an_ensemble_of_ensembles_is_a_mixture_of_draws():
    inner = inference.Ensemble(of=inference.MAP(num_epochs=1), num_members=2)
    posterior = inference.Ensemble(of=inner, num_members=2).fit(Model(mlp(), likelihoods.Gaussian()), data(), seed=0)
    assert all(isinstance(member, DrawPosterior) for member in posterior.members)
    assert posterior.predict(data()[0], num_draws=4).num_draws == 4


def test_members_that_nobody_trains_are_refused():
    model = Model(mlp(nn.Dropout(0.3)), likelihoods.Gaussian())
    with pytest.raises(ValueError, match="untrained"):
        inference.Ensemble(of=inference.MCDropout(), num_members=2).fit(model, data(), seed=0)


def test_a_last_batch_of_one_row_under_batch_norm_is_explained():
    model = Model(mlp(nn.BatchNorm1d(12)), likelihoods.Gaussian())
    for method in (inference.MAP(batch_size=11), inference.Ensemble(of=inference.MAP(batch_size=11), num_members=2)):
        with pytest.raises(ValueError, match="one row"):
            method.fit(model, data(45), seed=0)
