"""Maps with uncertainty of their own, and temperatures inside the members of a mixture."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from torch.distributions import Bernoulli, Categorical, Independent, Normal

import credibly
from credibly.calibration import (
    BayesianRecalibration,
    Bootstrap,
    EnsembleTemperatureScaling,
    LaplaceTemperature,
    QuantileRecalibration,
    TemperatureScaling,
    TemperedClasses,
    VarianceScaling,
)
from credibly.core.errors import ConvergenceWarning, NotFiniteError, NotSupportedError, ShapeError
from credibly.distributions import class_draw_log_probs, class_log_probs, log_prob
from credibly.distributions.mixture import MixturePredictive


def classes(rows, seed=0):
    generator = torch.Generator().manual_seed(seed)
    logits = 1.5 * torch.randn(rows, 4, generator=generator, dtype=torch.float64)
    targets = torch.multinomial(logits.softmax(-1), 1, generator=generator).squeeze(1)
    return Categorical(logits=2.5 * logits), targets


def test_draws_of_temperature_have_the_spread_of_the_likelihood():
    predicted, targets = classes(500)
    best = TemperatureScaling().fit(predicted, targets)
    fitted = BayesianRecalibration(draws_of_map=LaplaceTemperature(), num_draws=2000).fit(predicted, targets)
    logs = torch.tensor([math.log(each.temperature) for each in fitted.maps])

    def total(u):
        tempered = Categorical(logits=predicted.logits * math.exp(-u))
        return -tempered.log_prob(targets).sum().item()

    u, step = math.log(best.temperature), 1e-3
    precision = (total(u + step) + total(u - step) - 2 * total(u)) / step**2
    # 2000 draws: mean within 5 standard errors, standard deviation within 5 of its own, 1/sqrt(2 n)
    assert abs(logs.mean().item() - u) < 5 / math.sqrt(2000 * precision)
    assert logs.std().item() * math.sqrt(precision) == pytest.approx(1.0, abs=5 / math.sqrt(4000))


def test_bootstrap_and_laplace_agree_on_many_rows():
    predicted, targets = classes(2000)
    spreads = []
    for source in (Bootstrap(of=TemperatureScaling()), LaplaceTemperature()):
        fitted = BayesianRecalibration(draws_of_map=source, num_draws=200, seed=1).fit(predicted, targets)
        spreads.append(torch.tensor([math.log(each.temperature) for each in fitted.maps]).std().item())
    # the model is right, so both estimate one number; each is off by 1/sqrt(2 * 200): 5 standard errors of the ratio
    assert math.log(spreads[0] / spreads[1]) == pytest.approx(0.0, abs=5 * math.sqrt(2 / 400))


def test_the_prediction_is_the_mean_over_maps_and_its_doubt_shrinks_with_rows():
    doubts = []
    fresh, _ = classes(200, seed=9)
    for rows in (50, 5000):
        predicted, targets = classes(rows)
        fitted = BayesianRecalibration(draws_of_map=LaplaceTemperature(), num_draws=30).fit(predicted, targets)
        after = fitted(fresh)
        assert isinstance(after, MixturePredictive)
        each = torch.stack([one(fresh).probs for one in fitted.maps])
        torch.testing.assert_close(after.probs, each.mean(0))
        doubts.append(after.mutual_information().mean().item())
    assert doubts[0] > 10 * doubts[1]


def test_any_callable_gives_draws():
    predicted, targets = classes(60)
    report = TemperatureScaling().fit(predicted, targets).report

    def grid(forecasts, outcomes, num_draws, seed):
        return [TemperedClasses(temperature, report) for temperature in np.geomspace(1, 4, num_draws)]

    fitted = BayesianRecalibration(draws_of_map=grid, num_draws=3).fit(predicted, targets)
    assert [each.temperature for each in fitted.maps] == pytest.approx([1, 2, 4])
    with pytest.raises(ShapeError, match="no"):
        BayesianRecalibration(draws_of_map=lambda *_: []).fit(predicted, targets)


def test_numbers_have_bayesian_recalibration_too_where_their_maps_can_be_mixed():
    loc = torch.randn(80)
    predicted, targets = Normal(loc, 1.0), loc + 2 * torch.randn(80)
    fitted = BayesianRecalibration(draws_of_map=Bootstrap(of=VarianceScaling()), num_draws=8).fit(predicted, targets)
    after = fitted(predicted)
    each = torch.stack([log_prob(one(predicted), targets) for one in fitted.maps])
    torch.testing.assert_close(log_prob(after, targets), torch.logsumexp(each, 0) - math.log(8))
    with pytest.raises(ValueError, match="one mixture"):
        BayesianRecalibration(draws_of_map=Bootstrap(of=QuantileRecalibration()), num_draws=3).fit(predicted, targets)


def test_equal_seeds_give_equal_maps_and_other_seeds_others():
    predicted, targets = classes(60)
    for source in (Bootstrap(of=TemperatureScaling()), LaplaceTemperature()):
        state = torch.random.get_rng_state()
        one, same, other = (
            BayesianRecalibration(draws_of_map=source, num_draws=3, seed=seed).fit(predicted, targets)
            for seed in (0, 0, 1)
        )
        assert torch.equal(torch.random.get_rng_state(), state)
        temperatures = [[each.temperature for each in fitted.maps] for fitted in (one, same, other)]
        assert temperatures[0] == temperatures[1] != temperatures[2]


def members(rows=300, draws=5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, 4, generator=generator, dtype=torch.float64)
    noise = torch.randn(draws, rows, 4, generator=generator, dtype=torch.float64)
    targets = torch.multinomial((1.5 * logits).softmax(-1), 1, generator=generator).squeeze(1)
    return MixturePredictive(Categorical(logits=6 * (logits + 0.7 * noise)), torch.linspace(-1, 0, draws)), targets


def test_ensemble_temperature_is_the_minimum_inside_the_members(tmp_path):
    predicted, targets = members()
    fitted = EnsembleTemperatureScaling().fit(predicted, targets)
    weights = predicted.log_weights.double()[:, None]

    def loss(u):
        logits = class_draw_log_probs(predicted) * math.exp(-u)
        each = logits.log_softmax(-1).gather(-1, targets.expand(5, 300).unsqueeze(-1)).squeeze(-1)
        return -torch.logsumexp(weights + each, 0).mean().item()

    best = minimize_scalar(loss, bounds=(-3, 3), method="bounded", options={"xatol": 1e-10})
    assert fitted.report.nll_after <= best.fun + 1e-9
    assert math.log(fitted.temperature) == pytest.approx(best.x, abs=1e-5)
    assert fitted.report.converged
    assert fitted.report.gradient_norm <= 1e-8
    after = fitted(predicted)
    assert fitted.report.nll_after == pytest.approx(-log_prob(after, targets).mean().item(), rel=1e-9)
    assert fitted.report.nll_before == pytest.approx(-log_prob(predicted, targets).mean().item(), rel=1e-6)
    assert after.num_draws == 5
    assert after.mutual_information().mean() > 0.01
    credibly.save(fitted, tmp_path / "map")
    assert torch.equal(credibly.load(tmp_path / "map")(predicted).probs, after.probs)
    outside = TemperatureScaling().fit(predicted, targets)
    assert abs(outside.temperature - fitted.temperature) > 0.1


def test_ensemble_temperature_of_equal_members_is_plain_temperature():
    logits = 2.5 * torch.randn(200, 3, dtype=torch.float64)
    targets = Categorical(logits=logits / 2).sample()
    same = MixturePredictive(Categorical(logits=logits.expand(4, 200, 3)))
    fitted = EnsembleTemperatureScaling().fit(same, targets)
    plain = TemperatureScaling().fit(Categorical(logits=logits), targets)
    assert fitted.temperature == pytest.approx(plain.temperature, rel=1e-6)
    odds = (logits[:, 1] - logits[:, 0]).reshape(100, 2)
    labels = Independent(Bernoulli(logits=odds.expand(4, 100, 2)), 1)
    outcomes = Bernoulli(logits=odds / 2).sample()
    several = EnsembleTemperatureScaling().fit(MixturePredictive(labels), outcomes)
    alone = TemperatureScaling().fit(Bernoulli(logits=odds.flatten()), outcomes.flatten())
    assert several.temperature == pytest.approx(alone.temperature, rel=1e-6)
    assert several(MixturePredictive(labels)).event_shape == (2,)


def test_ensemble_temperature_at_its_limits():
    separable = MixturePredictive(Categorical(logits=(5 * torch.eye(3)).expand(2, 3, 3)))
    with pytest.warns(ConvergenceWarning, match="bound"):
        fitted = EnsembleTemperatureScaling().fit(separable, torch.arange(3))
    assert fitted.report.at_bound
    assert not fitted.report.converged
    assert fitted.temperature == pytest.approx(0.01)
    with pytest.raises(NotSupportedError, match="Categorical"):
        EnsembleTemperatureScaling().fit(Categorical(logits=torch.zeros(2, 3)), torch.zeros(2))
    certain = MixturePredictive(Categorical(probs=torch.eye(3).expand(2, 3, 3)))
    with pytest.raises(NotFiniteError, match="every member"):
        EnsembleTemperatureScaling().fit(certain, torch.tensor([1, 1, 1]))
    with pytest.raises(ValueError, match="enclose 1"):
        EnsembleTemperatureScaling(min_temperature=2.0)
    assert bool(class_log_probs(fitted(separable)).isfinite().any())
