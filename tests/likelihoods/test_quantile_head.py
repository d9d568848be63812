"""The pinball loss as a training head: what it learns, what it serves, and what it refuses by name."""

import numpy as np
import pytest
import torch
from sklearn.metrics import mean_pinball_loss
from torch import nn

from credibly import Data, Model, inference, load, priors, save
from credibly.core.errors import NotSupportedError
from credibly.distributions import QuantileForecast
from credibly.distributions import functions as waist
from credibly.distributions.mixture import MixturePredictive, combined
from credibly.likelihoods import QuantileHead
from credibly.standardization import Standardize
from credibly.training import EarlyStopping, linear

LEVELS = (0.05, 0.25, 0.5, 0.9)


def numbers(rows=400, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 1, generator=generator, dtype=torch.float64)
    noise = torch.randn(rows, generator=generator, dtype=torch.float64).exp()  # skewed
    return x.to(dtype), (100 + 5 * x[:, 0] + noise).to(dtype)


def test_the_loss_is_scikit_learns_mean_over_levels(dtype):
    head = QuantileHead(LEVELS).to(dtype)
    outputs = torch.randn(50, 4, dtype=dtype)  # crossing ones too
    y = torch.randn(50, dtype=dtype)
    score = head.training_score(head.parameters_of(outputs), y)
    assert score.dtype == dtype
    each = [mean_pinball_loss(y, outputs[:, k], alpha=level) for k, level in enumerate(LEVELS)]
    assert float(-score.double().mean()) == pytest.approx(np.mean(each), rel=1e-6)


def test_a_bias_learns_the_empirical_quantiles():
    """The optimum has at most a share q of the targets below, and at most 1 - q above."""
    y = numbers(999, torch.float64)[1]
    head = QuantileHead(LEVELS)
    net = nn.Linear(1, 4).double()
    method = inference.MLE(num_epochs=1500, batch_size=None, learning_rate=0.1, schedule=linear)
    model = Model(net, head, priors.Flat(), targets=Standardize())
    forecast = method.fit(model, (torch.zeros(999, 1).double(), y), seed=0).predict(torch.zeros(1, 1).double())
    ranks = np.searchsorted(np.sort(y.numpy()), forecast.values[0].numpy())
    np.testing.assert_allclose(ranks, 999 * np.array(LEVELS), atol=5)


def test_coverage_on_new_data_in_the_units_of_the_targets(dtype):
    x, y = numbers(3000, dtype)
    model = Model(nn.Linear(1, 4).to(dtype), QuantileHead(LEVELS), targets=Standardize(), inputs=Standardize())
    method = inference.MAP(num_epochs=60, batch_size=256, learning_rate=0.02, schedule=linear)
    forecast = method.fit(model, (x, y), seed=0).predict(numbers(3000, dtype, seed=1)[0])
    new = numbers(3000, dtype, seed=1)[1]
    assert isinstance(forecast, QuantileForecast)
    assert forecast.values.dtype == dtype
    below = (new.unsqueeze(-1) <= forecast.values).double().mean(0).numpy()
    levels = np.array(LEVELS)
    # the errors of 3,000 rows to learn from and 3,000 to test on, five of them; the shape of the noise is linear here
    assert np.all(np.abs(below - levels) < 5 * np.sqrt(2 * levels * (1 - levels) / 3000))


def test_members_average_their_quantiles_and_score_at_least_as_well_as_on_average(dtype):
    x, y = numbers(300, dtype)
    model = Model(nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 4)).to(dtype), QuantileHead(LEVELS))
    posterior = inference.Ensemble(of=inference.MLE(num_epochs=3), num_members=4).fit(
        Model(model.net, model.likelihood, targets=Standardize()), (x, y), validation=(x, y), seed=0
    )
    assert posterior.info.stacked
    forecast = posterior.predict(x)
    members = posterior.model.distribution(posterior.parameters(x))
    torch.testing.assert_close(forecast.values, members.values.mean(0))
    assert float(waist.crps(forecast, y).mean()) <= float(waist.crps.formula(members, y).mean()) + 1e-6


def test_draws_are_sorted_before_they_are_averaged_and_weights_count(dtype):
    values = torch.tensor([[[3.0, 1.0]], [[0.0, 5.0]]], dtype=dtype)
    draws = QuantileForecast([0.2, 0.8], values)
    assert draws.batch_shape == (2, 1)
    torch.testing.assert_close(combined(draws, None).values, torch.tensor([[0.5, 4.0]], dtype=dtype))
    log_weights = torch.tensor([0.75, 0.25]).log()
    torch.testing.assert_close(combined(draws, log_weights).values, torch.tensor([[0.75, 3.5]], dtype=dtype))
    torch.testing.assert_close(waist.icdf(draws, 0.5), torch.tensor([[2.0], [2.5]], dtype=dtype))
    torch.testing.assert_close(
        waist.cdf(draws, torch.tensor([2.0], dtype=dtype)), torch.tensor([[0.5], [0.44]], dtype=dtype)
    )
    with pytest.raises(NotSupportedError):
        MixturePredictive(draws).log_prob(torch.zeros(1, dtype=dtype))


@pytest.mark.parametrize("make", [inference.MLE, inference.MAP])
def test_early_stopping_weights_and_masks(make):
    x, y = numbers(120)
    y = y.clone()
    y[::9] = torch.nan
    data = Data(x, y, weights=torch.rand(120), mask=~y.isnan())
    model = Model(nn.Linear(1, 4), QuantileHead(LEVELS), targets=Standardize())
    fit = make(num_epochs=30, early_stopping=EarlyStopping(patience=3))
    posterior = fit.fit(model, data, validation=numbers(50), seed=0)
    history = posterior.info.history
    assert posterior.info.score == "minus the training loss"
    assert history.validation_log_prob[-1] > history.validation_log_prob[0]
    assert max(history.validation_log_prob) < 0
    # the score is minus the loss in standard deviations of the targets
    held_x, held_y = numbers(50)
    forecast, scale = posterior.predict(held_x), posterior.model.targets.scale
    outputs = posterior.model.targets.inverse(posterior.outputs(held_x)[0])
    crossing = bool((outputs.diff(dim=-1) < 0).any())
    if not crossing:
        best = float(waist.crps(forecast, held_y).mean()) / 2 / float(scale)
        assert -max(history.validation_log_prob) == pytest.approx(best, rel=1e-4)


def test_dropout_masks_combine_too():
    x, y = numbers(100)
    net = nn.Sequential(nn.Linear(1, 16), nn.Dropout(0.3), nn.Linear(16, 4))
    posterior = inference.MCDropout(train=inference.MLE(num_epochs=2)).fit(
        Model(net, QuantileHead(LEVELS)), (x, y), seed=0
    )
    forecast = posterior.predict(x, num_draws=7, seed=0)
    torch.testing.assert_close(
        forecast.values, posterior.parameters(x, num_draws=7, seed=0)["quantiles"].sort(-1)[0].mean(0)
    )


def test_what_needs_a_density_is_refused_by_name():
    head = QuantileHead(LEVELS)
    x, y = numbers(20)
    model = Model(nn.Linear(1, 4), head)
    forecast = model(x)
    for action in (
        lambda: head.log_prob(head.parameters_of(torch.zeros(20, 4)), y),
        lambda: head.fisher(torch.zeros(20, 4)),
        lambda: head.sample_scores(torch.zeros(20, 4), 3),
        lambda: model.log_likelihood({}, {}, (x, y)),
        lambda: model.log_joint({}, {}, (x, y), 20),
    ):
        with pytest.raises(NotSupportedError, match=r"QuantileHead.*no likelihood.*crps"):
            action()
    for action in (lambda: forecast.log_prob(y), lambda: forecast.mean, lambda: forecast.sample()):
        with pytest.raises(NotSupportedError, match="QuantileForecast"):
            action()


@pytest.mark.parametrize("levels", [[0.5, 0.1], [0.0, 0.5], [0.5, 1.0], [0.5, 0.5], [float("nan")], []])
def test_levels_must_increase_inside_the_unit_interval(levels):
    with pytest.raises(ValueError, match="levels"):
        QuantileHead(levels)


def test_a_forecaster_is_saved_and_loaded(tmp_path):
    x, y = numbers(30)
    posterior = inference.MLE(num_epochs=1).fit(Model(nn.Linear(1, 4), QuantileHead(LEVELS)), (x, y), seed=0)
    save(posterior, tmp_path / "quantiles.credibly")
    again = load(tmp_path / "quantiles.credibly", net=nn.Linear(1, 4))
    assert torch.equal(again.predict(x).values, posterior.predict(x).values)
    assert again.info.score == "minus the training loss"
