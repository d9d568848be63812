"""What a new user meets first: data that cannot be learned from, options of the wrong type, and what is said of it."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions import Normal

from credibly import Model, Standardize, inference, likelihoods, metrics, posteriors, priors
from credibly.core.data import Data
from credibly.core.errors import NotSupportedError, ShapeError, SupportError

ROWS = 12
X = torch.linspace(-1, 1, 3 * ROWS).reshape(ROWS, 3)
Y = torch.linspace(-2, 2, ROWS)
TRIALS, SUCCESSES = torch.full((ROWS,), 10.0), torch.full((ROWS,), 3.0)


def fit(likelihood: Any, targets: Any, outputs: int = 1, **options: Any) -> posteriors.Posterior:
    inputs = (X, TRIALS) if options else X
    model = Model(nn.Linear(3, outputs), likelihood, **options)
    return inference.MLE(num_epochs=1).fit(model, (inputs, targets), seed=0)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (15.0, "target 15 in row 7 .* whole numbers from 0 to 10"),
        (-1.0, "target -1 in row 7 .* whole numbers from 0"),
        (2.5, "target 2.5 in row 7 .* whole numbers from 0"),
        (0.5, "pass successes, not proportions"),
    ],
)
def test_impossible_numbers_of_successes_are_named(value: float, message: str) -> None:
    wrong = SUCCESSES.clone()
    wrong[7] = value
    with pytest.raises(SupportError, match=message):
        fit(likelihoods.Binomial(), wrong, offset=1)
    with pytest.raises(SupportError, match=message):
        fit(likelihoods.Binomial(num_trials=10), wrong)
    predicted = fit(likelihoods.Binomial(), SUCCESSES, offset=1).predict((X, TRIALS))
    with pytest.raises(SupportError, match=message):
        predicted.log_prob(wrong)


def test_numbers_of_trials_are_not_outputs_of_the_network() -> None:
    with pytest.raises(ValueError, match=re.escape("Model(..., offset=key or position)")):
        fit(likelihoods.Binomial(), SUCCESSES, outputs=2)
    with pytest.raises(ShapeError, match=re.escape("Model(..., offset=key or position)")):
        fit(likelihoods.Binomial(), SUCCESSES, outputs=2, offset=1)


@pytest.mark.parametrize("likelihood", [likelihoods.LogNormal(), likelihoods.Weibull(), likelihoods.Gamma()])
def test_a_zero_is_not_said_to_be_allowed(likelihood: likelihoods.Likelihood) -> None:
    name = type(likelihood).__name__
    with pytest.raises(SupportError, match=f"target 0 .* {name}: numbers above 0; .*a Bernoulli for"):
        fit(likelihood, torch.zeros(ROWS), outputs=2)


def test_what_is_wrong_with_shares_is_named() -> None:
    shares = torch.full((ROWS, 3), 1 / 3)
    for row, found in (([0.5, 0.0, 0.5], "row 4 holds the share 0,"), ([0.3, 0.3, 0.399], "row 4 sums to 0.999,")):
        wrong = shares.clone()
        wrong[4] = torch.tensor(row)
        with pytest.raises(SupportError, match=f"^{found} outside the support of Dirichlet: shares above 0 that sum"):
            fit(likelihoods.Dirichlet(3), wrong, outputs=3)


def test_data_without_a_target_that_counts_are_refused() -> None:
    model = Model(nn.Linear(3, 1), likelihoods.Gaussian())
    for extra, what in (({"mask": torch.zeros(ROWS).bool()}, "mask"), ({"weights": torch.zeros(ROWS)}, "weights")):
        with pytest.raises(ValueError, match=f"at least one target that counts; .*`{what}`"):
            inference.MLE(num_epochs=1).fit(model, Data(X, Y, **extra), seed=0)
    with pytest.raises(ValueError, match=r"`mask` must hold booleans, or 0 and 1; got 0.5"):
        inference.MLE(num_epochs=1).fit(model, Data(X, Y, mask=torch.full((ROWS,), 0.5)), seed=0)
    inference.MLE(num_epochs=1).fit(model, Data(X, Y, mask=torch.ones(ROWS)), seed=0)


def test_a_transform_fitted_to_numpy_serves_a_float32_network() -> None:
    inputs, targets = X.double().numpy() * 3 + 1, Y.double().numpy() * 5
    fitted = {"inputs": Standardize().fit(inputs), "targets": Standardize().fit(targets)}
    assert fitted["inputs"].loc.dtype == torch.float64
    np.testing.assert_allclose(fitted["inputs"].loc, inputs.mean(0))
    torch.manual_seed(0)
    net, recipe = nn.Linear(3, 1), inference.MLE(num_epochs=2)
    given = recipe.fit(Model(net, likelihoods.Gaussian(), **fitted), (inputs, targets), seed=0)
    by_recipe = {"inputs": Standardize(), "targets": Standardize()}
    ours = recipe.fit(Model(net, likelihoods.Gaussian(), **by_recipe), (inputs, targets), seed=0)
    torch.testing.assert_close(given.predict(inputs).mean.float(), ours.predict(inputs).mean, rtol=1e-4, atol=1e-4)


def test_what_a_posterior_cannot_be_is_refused_by_name() -> None:
    net = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.2), nn.Linear(8, 1))
    model = Model(net, likelihoods.Gaussian(scale=1.0))
    point = inference.MLE(num_epochs=1).fit(model, (X, Y), seed=0)
    dropout = inference.MCDropout().fit(model, (X, Y), start=point)
    with pytest.raises(NotSupportedError, match="as_prior is not available for DropoutPosterior"):
        dropout.as_prior()
    with pytest.raises(NotSupportedError) as refusal:
        point.as_prior()
    named = re.findall(r"inference\.(\w+)", str(refusal.value))
    assert named
    assert all(hasattr(inference, name) for name in named)
    assert "Ensemble" not in str(refusal.value)  # whose mean is that of unlike networks
    with pytest.raises(TypeError, match=r"`model` must be a Model.* got PointPosterior"):
        posteriors.prior_predictive(point, X)  # type: ignore[arg-type]
    with pytest.raises(NotSupportedError, match=re.escape("noise_prior=priors.Normal(...)")):
        posteriors.prior_predictive(Model(net, likelihoods.Gaussian()), X)


MISTAKES: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "rate as text": (lambda: inference.MLE(learning_rate="1e-3"), TypeError, "`learning_rate` .* number; got '1e-3'"),
    "scale as tensor": (lambda: priors.Normal(torch.tensor(1.0)), TypeError, "`scale` must be a number; got tensor"),
    "one scale": (lambda: priors.ScaleMixture(1.0), TypeError, "`scales` must be a list of numbers"),
    "negative shape": (lambda: fit(likelihoods.Gaussian(), Y).predict(X).draw(-1), ValueError, "`shape` .* got -1"),
    "share of rows": (
        lambda: inference.MLE().fit(Model(nn.Linear(3, 1), likelihoods.Gaussian()), (X, Y), validation=0.2),
        TypeError,
        "must be .inputs, targets.* got the number 0.2",
    ),
    "not classes": (lambda: metrics.accuracy(Normal(Y, 1.0), Y), NotSupportedError, "`predicted` .* classes; Normal"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_named(name: str) -> None:
    call, error, message = MISTAKES[name]
    with pytest.raises(error, match=message):
        call()
