"""Maps with uncertainty of their own, and temperatures inside the members of a mixture."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from torch.distributions import Bernoulli, Categorical, Independent, LogNormal, Normal, Poisson

import credibly
from cases import NUMBER_RECALIBRATORS
from credibly.calibration import (
    BayesianRecalibration,
    Bootstrap,
    EnsembleTemperatureScaling,
    FitReport,
    LaplaceTemperature,
    MixedPredictive,
    MixedRecalibration,
    QuantileRecalibration,
    RecalibratedQuantiles,
    ScaledSpread,
    TemperatureScaling,
    TemperedClasses,
    VarianceScaling,
)
from credibly.calibration.mixed import mixture_of
from credibly.core.errors import ConvergenceWarning, NotFiniteError, NotSupportedError, ShapeError
from credibly.distributions import (
    cdf,
    class_draw_log_probs,
    class_log_probs,
    concatenate,
    crps,
    from_draws,
    from_quantiles,
    icdf,
    log_prob,
    mean,
    select,
    variance,
)
from credibly.distributions.gaussian import GaussianPredictive
from credibly.distributions.mixture import MixturePredictive
from credibly.distributions.pit import cdf_below


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


def test_maps_of_a_family_give_its_mixture():
    loc = torch.randn(80)
    predicted, targets = Normal(loc, 1.0), loc + 2 * torch.randn(80)
    fitted = BayesianRecalibration(draws_of_map=Bootstrap(of=VarianceScaling()), num_draws=8).fit(predicted, targets)
    after = fitted(predicted)
    assert isinstance(after, MixturePredictive)
    each = torch.stack([log_prob(one(predicted), targets) for one in fitted.maps])
    torch.testing.assert_close(log_prob(after, targets), torch.logsumexp(each, 0) - math.log(8))


def test_draws_times_maps_are_the_draws_of_a_mixture():
    predicted, targets = members()
    recipe = BayesianRecalibration(draws_of_map=Bootstrap(of=EnsembleTemperatureScaling()), num_draws=3)
    fitted = recipe.fit(predicted, targets)
    after = fitted(predicted)
    assert after.num_draws == 15
    each = torch.stack([one(predicted).probs for one in fitted.maps])
    torch.testing.assert_close(after.probs, each.mean(0))
    assert bool((after.mutual_information() > 0).all())


ROWS = 12
LOC = torch.randn(ROWS, generator=torch.Generator().manual_seed(1))
NOISE = torch.randn(4, ROWS, generator=torch.Generator().manual_seed(2))
FORECASTS = {
    "normal": lambda: Normal(LOC, 1.0),
    "log_normal": lambda: LogNormal(LOC.double(), 1.0),
    "gaussian": lambda: GaussianPredictive(LOC, torch.tensor(0.5), torch.tensor(0.5)),
    "mixture": lambda: MixturePredictive(Normal(LOC + 0.3 * NOISE, 1.0), torch.linspace(-1, 0, 4)),
    "mixture_of_one": lambda: MixturePredictive(Normal(LOC.unsqueeze(0), 1.0)),
    "mixture_of_log_normal": lambda: MixturePredictive(LogNormal(LOC + 0.3 * NOISE, 1.0)),
    "draws": lambda: from_draws(LOC + torch.cat([NOISE, -NOISE, NOISE / 2, 2 * NOISE])),
    "poisson": lambda: Poisson(LOC.exp()),
    "mixture_of_poisson": lambda: MixturePredictive(Poisson((LOC + 0.3 * NOISE).exp())),
    "two_outputs": lambda: MixturePredictive(
        Independent(Normal((LOC + 0.3 * NOISE).unsqueeze(-1).expand(4, ROWS, 2), 1.0), 1)
    ),
}
COUNTS, VECTORS = ("poisson", "mixture_of_poisson"), ("two_outputs",)


def outcomes(name):
    generator = torch.Generator().manual_seed(3)
    shape = (ROWS, 2) if name in VECTORS else (ROWS,)
    noise = torch.randn(shape, generator=generator)
    centre = LOC.unsqueeze(-1) if name in VECTORS else LOC
    if name in COUNTS:
        return torch.poisson(2 * LOC.exp(), generator=generator)
    return (LOC + noise).exp() if "log_normal" in name else centre + 2 * noise


def fits(forecast, name):
    if name == "variance_scaling":
        return forecast not in COUNTS
    return not (name.startswith("conformal") and forecast in VECTORS)


PAIRS = [(forecast, name) for forecast in FORECASTS for name in NUMBER_RECALIBRATORS if fits(forecast, name)]


@pytest.mark.filterwarnings("ignore::credibly.core.errors.ConvergenceWarning")  # of outcomes beyond all draws
@pytest.mark.parametrize(("forecast", "name"), PAIRS)
def test_every_map_of_numbers_has_a_bayesian_version_for_every_forecast(forecast, name, tmp_path):
    predicted, targets = FORECASTS[forecast](), outcomes(forecast)
    recipe = BayesianRecalibration(draws_of_map=Bootstrap(of=NUMBER_RECALIBRATORS[name]()), num_draws=2)
    fitted = recipe.fit(predicted, targets)
    after, each = fitted(predicted), [one(predicted) for one in fitted.maps]
    assert (after.batch_shape, after.event_shape) == (predicted.batch_shape, predicted.event_shape)
    points = torch.linspace(-1, 3, 5).reshape(5, *(1,) * targets.dim())
    average = torch.stack([cdf(one, points).double() for one in each]).mean(0)
    torch.testing.assert_close(cdf(after, points).double(), average, rtol=0, atol=2e-6)
    lower, upper = after.interval(0.8)
    assert bool((lower <= upper).all())
    high = icdf(after, 0.9)
    assert bool((cdf(after, high + 1e-3) >= 0.9 - 1e-5).all())  # a jump lies where float32 puts it
    assert bool((cdf_below(after, high - 1e-3) <= 0.9 + 1e-5).all())
    means = torch.stack([mean(one).double() for one in each])
    torch.testing.assert_close(mean(after).double(), means.mean(0), rtol=2e-4, atol=1e-4)
    within = torch.stack([variance(one).double() for one in each]).mean(0)
    # float32 sums: about 1e-6 of the squared mean is lost
    expected = within + means.var(0, correction=0)
    torch.testing.assert_close(variance(after).double(), expected, rtol=1e-3, atol=1e-3)
    if not (forecast == "draws" and name == "variance_scaling"):
        assert bool((after.epistemic_variance >= 0).all())
    assert after.draw((2, 3), seed=0).shape == (2, 3, *targets.shape)
    assert torch.equal(after.draw(5, seed=1), after.draw(5, seed=1))
    some = select(after, slice(3, 9))
    torch.testing.assert_close(icdf(some, 0.3), icdf(after, 0.3)[3:9])
    parts = [select(after, slice(0, 5)), select(after, slice(5, ROWS))]
    torch.testing.assert_close(icdf(concatenate(parts), 0.3), icdf(after, 0.3))
    credibly.save(fitted, tmp_path / "map")
    assert torch.equal(icdf(credibly.load(tmp_path / "map")(predicted), 0.3), icdf(after, 0.3))


@pytest.mark.parametrize("name", ["quantile", "conformal_predictive"])
def test_scores_of_mixed_forecasts_are_those_of_the_mixture(name):
    predicted, targets = Normal(LOC.double(), 1.0), outcomes("normal").double()
    recipe = BayesianRecalibration(draws_of_map=Bootstrap(of=NUMBER_RECALIBRATORS[name]()), num_draws=5)
    fitted = recipe.fit(predicted, targets)
    after = fitted(predicted)
    if name == "quantile":
        each = torch.stack([log_prob(one(predicted), targets) for one in fitted.maps])
        torch.testing.assert_close(log_prob(after, targets), torch.logsumexp(each, 0) - math.log(5))
        levels = ((torch.arange(2000) + 0.5) / 2000).double().unsqueeze(-1)
        draws = from_draws(torch.cat([icdf(one(predicted), levels) for one in fitted.maps]))
        torch.testing.assert_close(crps(after, targets), crps(draws, targets), rtol=1e-3, atol=1e-4)
        plain = MixedPredictive([one(predicted) for one in fitted.maps])
        torch.testing.assert_close(icdf(plain, 0.9), icdf(after, 0.9))
        torch.testing.assert_close(crps(plain, targets), crps(after, targets), rtol=1e-5, atol=1e-7)
    else:
        pooled = from_draws(torch.cat([one(predicted).points() for one in fitted.maps]))
        torch.testing.assert_close(crps(after, targets), crps(pooled, targets))
        lower, upper = after.interval(0.9)
        assert bool((cdf(after, upper) - cdf_below(after, lower) >= 0.9 - 1e-12).all())


def test_disagreement_about_the_map_shrinks_with_rows():
    doubts = []
    for rows in (30, 3000):
        loc = torch.randn(rows).double()
        predicted, targets = Normal(loc, 1.0), loc + 0.5 + torch.randn(rows).double()
        recipe = BayesianRecalibration(draws_of_map=Bootstrap(of=QuantileRecalibration()), num_draws=10)
        doubts.append(recipe.fit(predicted, targets)(Normal(torch.zeros(1).double(), 1.0)).epistemic_variance.item())
    # variances over maps of a mean, of order 1/rows: the ratio is 100, each known from 10 maps to a factor of 3 or so
    assert doubts[0] > 10 * doubts[1]


def test_what_cannot_be_mixed_is_refused_by_name():
    predicted = Normal(torch.zeros(4), 1.0)
    maps = [RecalibratedQuantiles(*curve(), FitReport(None, None)), ScaledSpread(torch.tensor(1.0), FitReport(1, 1))]
    with pytest.raises(TypeError, match="RecalibratedPredictive and Normal"):
        MixedRecalibration(tuple(maps), FitReport(None, None))(predicted)
    quantiles = from_quantiles([0.1, 0.9], torch.zeros(4, 2))
    with pytest.raises(NotSupportedError, match="quantile forecasts have no mixture"):
        mixture_of(quantiles, [quantiles])
    with pytest.raises(ShapeError, match="one shape"):
        MixedPredictive([predicted, Normal(torch.zeros(5), 1.0)])


def curve():
    knots = torch.tensor([[[0.0, 1.0], [0.4, 0.6], [1.0, 0.0]]]).double()
    return knots, knots


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
