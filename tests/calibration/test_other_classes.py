"""Fitted maps meet forecasts of another kind: events and two classes are one; other numbers of classes are refused."""

import warnings

import pytest
import torch
from torch.distributions import Bernoulli, Categorical, Independent, Normal

from cases import RECALIBRATORS
from credibly.calibration import (
    BayesianRecalibration,
    BetaCalibration,
    Bootstrap,
    PlattScaling,
    QuantileRecalibration,
    VarianceScaling,
    VennAbers,
)
from credibly.core.errors import ConvergenceWarning, ShapeError
from credibly.distributions import class_log_probs
from credibly.distributions.mixture import MixturePredictive

ANY_NUMBER = ("temperature", "laplace_temperature")
"""One temperature serves any number of classes."""

MAPS = dict(RECALIBRATORS) | {
    "bootstrap_of_beta": lambda: BayesianRecalibration(draws_of_map=Bootstrap(of=BetaCalibration()), num_draws=3)
}

recalibrators = pytest.mark.parametrize("name", MAPS)


def odds(rows=80, seed=0):
    return 2 * torch.randn(rows, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def event(rows=80, seed=0):
    return Bernoulli(logits=odds(rows, seed))


def classes(number, rows=80, seed=0):
    generator = torch.Generator().manual_seed(seed + 1)
    if number == 2:
        both = odds(rows, seed)
        return Categorical(logits=torch.stack([torch.zeros_like(both), both], -1))
    return Categorical(logits=2 * torch.randn(rows, number, generator=generator, dtype=torch.float64))


def fitted(name, predicted):
    generator = torch.Generator().manual_seed(7)
    probs = (0.5 * class_log_probs(predicted)).softmax(-1).reshape(-1, class_log_probs(predicted).shape[-1])
    targets = torch.multinomial(probs, 1, generator=generator).reshape(predicted.batch_shape + predicted.event_shape)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return MAPS[name]().fit(predicted, targets)


def probs_of(predicted):
    return class_log_probs(predicted).exp()


@recalibrators
def test_a_map_of_an_event_serves_two_classes(name):
    fit = fitted(name, event())
    fresh = fit(classes(2, seed=3))
    assert fresh.batch_shape == (80,)
    assert probs_of(fresh).shape == (80, 2)
    torch.testing.assert_close(probs_of(fresh), probs_of(fit(event(seed=3))), rtol=1e-9, atol=1e-12)
    certain = Categorical(probs=torch.eye(2, dtype=torch.float64))
    assert bool(probs_of(fit(certain)).isfinite().all())


@recalibrators
def test_a_map_of_two_classes_serves_an_event(name):
    fit = fitted(name, classes(2))
    torch.testing.assert_close(probs_of(fit(event(seed=3))), probs_of(fit(classes(2, seed=3))), rtol=1e-9, atol=1e-12)
    labels = Independent(Bernoulli(logits=odds(60, 4).reshape(20, 3)), 1)
    flat = Bernoulli(logits=odds(60, 4))
    after = fit(labels)
    assert after.event_shape == (3,)
    torch.testing.assert_close(probs_of(after).reshape(60, 2), probs_of(fit(flat)), rtol=1e-9, atol=1e-12)


@recalibrators
@pytest.mark.parametrize("mixture", [False, True])
@pytest.mark.parametrize(("before", "after"), [(0, 3), (0, 5), (2, 3), (3, 0), (3, 2), (3, 4), (5, 3)])
def test_another_number_of_classes_is_refused_with_both_numbers(name, before, after, mixture):
    fit = fitted(name, classes(before) if before else event())
    fresh = classes(after, rows=4) if after else event(4)
    if mixture:
        fresh = MixturePredictive(type(fresh)(logits=torch.stack([fresh.logits, 2 * fresh.logits])))
    if name in ANY_NUMBER:
        assert probs_of(fit(fresh)).shape == (4, after or 2)
        return
    with pytest.raises(ShapeError, match=rf"over {before or 2} classes, .*; got {after or 2} classes"):
        fit(fresh)
    if isinstance(MAPS[name](), VennAbers):
        with pytest.raises(ShapeError, match=rf"over {before or 2} classes, .*; got {after or 2} classes"):
            fit.pair(fresh)


def test_pairs_of_an_event_and_of_two_classes():
    one, two = fitted("venn_abers", event()), fitted("venn_abers", classes(2))
    for a, b in zip(one.pair(event(seed=3)), one.pair(classes(2, seed=3)), strict=True):
        assert a.shape == b.shape == (80,)
        torch.testing.assert_close(a, b)
    for a, b in zip(two.pair(event(seed=3)), two.pair(classes(2, seed=3)), strict=True):
        assert a.shape == b.shape == (80, 2)
        torch.testing.assert_close(a, b)
    labels = Independent(Bernoulli(logits=odds(60).reshape(20, 3)), 1)
    assert [pair.shape for pair in (*one.pair(labels), *two.pair(labels))] == [(20, 3)] * 2 + [(20, 3, 2)] * 2


def test_class_one_is_the_event():
    """The formula by hand, for Platt's and for beta calibration."""
    platt, beta = fitted("platt", event()), fitted("beta", event())
    fresh = classes(2, seed=3)
    log_probs = class_log_probs(fresh)
    z = platt.slope * (log_probs[:, 1] - log_probs[:, 0]) + platt.intercept
    torch.testing.assert_close(probs_of(platt(fresh))[:, 1], z.sigmoid())
    z = beta.a * log_probs[:, 1] - beta.b * log_probs[:, 0] + beta.c
    torch.testing.assert_close(probs_of(beta(fresh))[:, 1], z.sigmoid())
    assert isinstance(PlattScaling(), type(MAPS["platt"]()))


@pytest.mark.parametrize("recipe", [VarianceScaling(), QuantileRecalibration()], ids=repr)
@pytest.mark.parametrize(("before", "after"), [((), (2,)), ((2,), ()), ((2,), (3,)), ((1,), (2,))])
def test_another_number_of_outputs_is_refused(recipe, before, after):
    def forecast(outputs):
        normal = Normal(torch.zeros(20, *outputs), 1.0)
        return Independent(normal, 1) if outputs else normal

    fit = recipe.fit(forecast(before), torch.randn(20, *before))
    with pytest.raises(ShapeError, match=r"outputs|event_shape"):
        fit(forecast(after))
