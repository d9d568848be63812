"""What recipes owe each other: bootstrap samples of a part of the data, priors in place of a model's own, members that
were finished before one failed, and networks with random numbers of their own."""

import pytest
import torch
from torch import nn

from credibly import Data, Model, Standardize, inference, likelihoods, priors
from credibly.core.errors import NotFiniteError, NotSupportedError
from credibly.inference import (
    IVON,
    MAP,
    SWAG,
    Ensemble,
    Evidence,
    FullGaussian,
    Laplace,
    LargestVariance,
    LastLayer,
    LowRank,
    MCDropout,
    MeanField,
    PyroGuide,
    ValidationLogScore,
)

X = torch.randn(30, 3, generator=torch.Generator().manual_seed(0))
Y = X.sum(1, keepdim=True) + 0.1 * torch.randn(30, 1, generator=torch.Generator().manual_seed(1))

RICH = {
    "MeanField": MeanField(num_epochs=2),
    "FullGaussian": FullGaussian(num_epochs=2),
    "IVON": IVON(num_epochs=2),
    "SWAG": SWAG(num_epochs=3),
    "PyroGuide": PyroGuide(num_epochs=2),
    "Laplace": Laplace(),
}


def linear():
    torch.manual_seed(0)
    return Model(nn.Linear(3, 1), likelihoods.Gaussian(scale=1.0))


def test_a_bootstrap_sample_stands_for_as_many_rows_as_the_data_do():
    method = Laplace(train=MAP(num_epochs=2))
    variances = {}
    for num_data in (30, 3000):
        ensemble = Ensemble(of=method, num_members=2, bootstrap=True)
        fitted = ensemble.fit(linear(), Data(X, Y, num_data=num_data), seed=0)
        variances[num_data] = fitted.members[0].variances["net.weight"].mean()
    assert variances[30] / variances[3000] == pytest.approx(100, rel=0.2)


@pytest.mark.parametrize("targets", [None, Standardize()])
def test_a_prior_in_place_of_the_models_keeps_the_noise_that_was_learned(targets):
    torch.manual_seed(0)
    model = Model(nn.Linear(3, 1), likelihoods.Gaussian(), targets=targets)
    trained = MAP(num_epochs=200, learning_rate=0.05).fit(model, (X, 10 * Y), seed=0).to_model()
    own = Laplace().fit(trained, (X, 10 * Y), start="current", seed=0)
    same = Laplace(prior_precision=1.0).fit(trained, (X, 10 * Y), start="current", seed=0)
    scale = own.model.likelihood.noise_scale()
    assert scale.item() != pytest.approx(1.0, rel=0.2)
    torch.testing.assert_close(same.model.likelihood.noise_scale(), scale)
    torch.testing.assert_close(same.evidence(), own.evidence())


def test_a_model_with_other_parts_shares_network_and_likelihood():
    model = Model(nn.Linear(3, 1), likelihoods.Gaussian(), inputs=Standardize(), output=0, noise_prior=priors.Normal())
    other = model.replace(prior=priors.Normal(0.1))
    assert other.net is model.net
    assert other.likelihood is model.likelihood
    assert (other.inputs, other.output, other.noise_prior) == (model.inputs, model.output, model.noise_prior)
    assert float(other.prior.scale) == pytest.approx(0.1)
    assert float(model.prior.scale) == pytest.approx(1.0)


class Noisy(nn.Module):
    """Draws numbers of its own, in evaluation mode too."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 1)

    def forward(self, x):
        hidden = self.first(x).tanh()
        return self.last(hidden * torch.randn_like(hidden))


@pytest.mark.parametrize(
    "method",
    [
        Laplace(),
        Laplace(structure=inference.Dense()),
        Laplace(subset=LastLayer()),
        Laplace(structure=inference.Dense(), subset=LargestVariance(3)),
        Laplace(structure=LowRank(2), tune=Evidence()),
    ],
    ids=["kronecker", "dense", "last", "largest", "tuned"],
)
def test_a_network_with_random_numbers_of_its_own_is_fitted_by_the_seed(method):
    torch.manual_seed(0)
    model = Model(Noisy(), likelihoods.Gaussian(scale=1.0))
    before = torch.get_rng_state()
    one, same = (method.fit(model, (X, Y), start="current", seed=3).of for _ in range(2))
    other = method.fit(model, (X, Y), start="current", seed=4).of
    assert torch.equal(torch.get_rng_state(), before)
    for name, value in one.variances.items():
        assert torch.equal(value, same.variances[name])
    assert any(not torch.equal(value, other.variances[name]) for name, value in one.variances.items())


@pytest.mark.parametrize("name", list(RICH))
@pytest.mark.parametrize("elements", [False, True])
def test_no_posterior_is_built_on_a_training_loss(name, elements):
    head = likelihoods.QuantileHead([0.1, 0.5, 0.9])
    likelihood, targets = (likelihoods.PerElement(head), Y.expand(30, 2)) if elements else (head, Y[:, 0])
    net = nn.Sequential(nn.Linear(3, 6 if elements else 3), nn.Unflatten(1, (2, 3)) if elements else nn.Identity())
    model = Model(net, likelihood)
    start = "current" if name in {"Laplace", "SWAG"} else None
    with pytest.raises(NotSupportedError, match="QuantileHead is a training head without a density"):
        RICH[name].fit(model, (X, targets), start=start, seed=0)
    fitted = MAP(num_epochs=1).fit(model, (X, targets), seed=0)
    assert fitted.info.score == "minus the training loss"


@pytest.mark.parametrize("kind", ["variational", "laplace", "loop"])
def test_members_that_were_finished_are_kept_where_one_fails(kind, monkeypatch):
    recipes = {
        "variational": (MeanField(num_epochs=1), "_fit"),
        "laplace": (Laplace(train=MAP(num_epochs=1)), "_after"),
        "loop": (IVON(num_epochs=1), "fit"),
    }
    method, name = recipes[kind]
    whole, calls = getattr(type(method), name), []

    def fails_at_the_third(self, *args, **kwargs):
        calls.append(1)
        if len(calls) == 3:
            raise NotFiniteError("of the third")
        return whole(self, *args, **kwargs)

    monkeypatch.setattr(type(method), name, fails_at_the_third)
    with pytest.raises(NotFiniteError, match="of the third") as caught:
        Ensemble(of=method, num_members=4).fit(linear(), (X, Y), seed=0)
    kept = caught.value.posterior
    assert len(kept.members) == 2
    assert kept.predict(X, seed=0).mean.isfinite().all()


TOO_LATE = {
    "structure": (Laplace(subset=LargestVariance(2), train=MAP()), NotSupportedError, r"use structure=Dense\(\)"),
    "memory": (
        Laplace(subset=LargestVariance(3), structure=inference.Dense(), max_bytes=20, train=MAP()),
        NotSupportedError,
        "`max_bytes` allows",
    ),
    "validation": (Laplace(tune=ValidationLogScore(), train=MAP()), ValueError, "ValidationLogScore needs validation"),
}


@pytest.mark.parametrize("name", list(TOO_LATE))
def test_what_cannot_end_well_is_refused_before_training(name, monkeypatch):
    method, error, message = TOO_LATE[name]

    def train(*args, **kwargs):
        raise AssertionError("trained before it was refused")

    monkeypatch.setattr(MAP, "fit", train)
    with pytest.raises(error, match=message):
        method.fit(linear(), (X, Y), seed=0)


@pytest.mark.parametrize("recipe", [MCDropout, SWAG, Laplace])
@pytest.mark.parametrize("train", [MAP, "MAP", 3])
def test_a_recipe_to_train_by_must_be_one(recipe, train):
    with pytest.raises(TypeError, match="`train` must be an inference method"):
        recipe(train=train)


@pytest.mark.parametrize("recipe", [MCDropout, SWAG, Laplace])
def test_several_networks_are_no_recipe_to_train_by(recipe):
    with pytest.raises(NotSupportedError, match=rf"Ensemble\(of={recipe.__name__}\(train=...\)"):
        recipe(train=Ensemble())


def test_what_is_sampled_of_one_network_is_not_its_weights():
    fitted = MAP(num_epochs=1).fit(linear(), (X, Y), seed=0)
    before = fitted.predict(X).mean.clone()
    for value in fitted.sample(1).values():
        value.zero_()
    assert torch.equal(fitted.predict(X).mean, before)


def test_half_precision_without_range_is_refused():
    with pytest.raises(TypeError, match=r"torch\.bfloat16 or None; got torch\.float16"):
        MAP(autocast=torch.float16)


def test_a_closed_form_reads_a_shuffled_loader_as_other_posteriors_do():
    """Its order is the seed's, and another one each time without."""
    fitted = Laplace().fit(linear(), (X, Y), start="current", seed=0)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X), batch_size=30, shuffle=True)
    one, same, other = (fitted.predict(loader, seed=seed).mean for seed in (0, 0, 1))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert not torch.equal(fitted.predict(loader).mean, fitted.predict(loader).mean)
