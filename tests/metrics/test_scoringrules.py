"""Scores against scoringrules, an independent library, wherever it is right; and where it is not, against sums.

Version 0.10.0 is not right for a Poisson mean from some 200, 2,000 trials, or shapes of a beta of 1,000: terms of its
closed forms overflow, and it gives NaN. Its weighted interval score adds half the median where the definition that it
cites has half the distance of the target from it; handed that distance as the median, it is ours. Its estimators "akr"
compare each draw with its neighbour in the order in which draws happen to come, and are not compared here.
"""

import numpy as np
import pytest
import scoringrules
import torch
from scipy import integrate, stats
from torch.distributions import (
    Beta,
    Binomial,
    Categorical,
    Gamma,
    Laplace,
    LogNormal,
    MixtureSameFamily,
    NegativeBinomial,
    Normal,
    Poisson,
    StudentT,
)

from credibly.distributions import Empirical, MixturePredictive, from_quantiles
from credibly.distributions.functions import crps, icdf
from credibly.metrics.energy import crps_ensemble_rows, energy_score_rows
from credibly.metrics.quantile_scores import interval_score_rows, pinball_rows, weighted_interval_score_rows

ROWS = 300


def uniform(low, high, seed, *shape):
    return np.random.RandomState(seed).uniform(low, high, size=shape or ROWS)


LOC, SCALE, SHAPE = uniform(-2, 2, 0), uniform(0.2, 3, 1), uniform(0.3, 6, 2)
NUMBERS, POSITIVE, SHARES = 3 * uniform(-2, 2, 3), uniform(0.01, 9, 4), uniform(0.001, 0.999, 5)
COUNTS = np.floor(uniform(0, 12, 6))


def tensors(*arrays):
    return (torch.as_tensor(np.asarray(array)) for array in arrays)


def plain(family, *parameters, **named):
    named = {name: torch.as_tensor(value, dtype=torch.float64) for name, value in named.items()}
    return family(*tensors(*parameters), **named, validate_args=False)


CLOSED = {
    "normal": (plain(Normal, LOC, SCALE), NUMBERS, lambda y: scoringrules.crps_normal(y, LOC, SCALE)),
    "laplace": (plain(Laplace, LOC, SCALE), NUMBERS, lambda y: scoringrules.crps_laplace(y, LOC, SCALE)),
    "student_t": (
        plain(StudentT, 1 + SHAPE, LOC, SCALE),
        NUMBERS,
        lambda y: scoringrules.crps_t(y, 1 + SHAPE, LOC, SCALE),
    ),
    "log_normal": (
        plain(LogNormal, LOC, SCALE / 2),
        POSITIVE,
        lambda y: scoringrules.crps_lognormal(y, LOC, SCALE / 2),
    ),
    "gamma": (plain(Gamma, SHAPE, SCALE), POSITIVE, lambda y: scoringrules.crps_gamma(y, SHAPE, SCALE)),
    "beta": (plain(Beta, SHAPE, SCALE), SHARES, lambda y: scoringrules.crps_beta(y, SHAPE, SCALE)),
    "poisson": (plain(Poisson, SHAPE), COUNTS, lambda y: scoringrules.crps_poisson(y, SHAPE)),
    "negative_binomial": (
        plain(NegativeBinomial, SHAPE, probs=1 - SHARES),  # torch counts failures with the other probability
        COUNTS,
        lambda y: scoringrules.crps_negbinom(y, SHAPE, SHARES),
    ),
    "binomial": (
        plain(Binomial, np.full(ROWS, 11.0), probs=SHARES),
        COUNTS,
        lambda y: scoringrules.crps_binomial(y, np.full(ROWS, 11), SHARES),
    ),
}


@pytest.mark.parametrize("name", CLOSED)
def test_closed_scores_of_distributions(name):
    predicted, y, theirs = CLOSED[name]
    np.testing.assert_allclose(crps(predicted, torch.as_tensor(y)), theirs(y), rtol=1e-8, atol=1e-9)


PARTS = (uniform(-3, 3, 7, ROWS, 4), uniform(0.2, 2, 8, ROWS, 4), np.random.RandomState(9).dirichlet(np.ones(4), ROWS))


@pytest.mark.parametrize("weighted", [True, False])
def test_mixtures_of_normals(weighted):
    loc, scale, weights = PARTS
    weights = weights if weighted else np.full_like(weights, 0.25)
    theirs, y = scoringrules.crps_mixnorm(NUMBERS, loc, scale, weights), torch.as_tensor(NUMBERS)
    one = MixtureSameFamily(plain(Categorical, weights), plain(Normal, loc, scale), validate_args=False)
    np.testing.assert_allclose(crps(one, y), theirs, rtol=1e-9, atol=1e-10)
    if not weighted:
        np.testing.assert_allclose(
            crps(MixturePredictive(plain(Normal, loc.T, scale.T)), y), theirs, rtol=1e-9, atol=1e-10
        )
        return
    shared = MixturePredictive(plain(Normal, loc.T, scale.T), torch.as_tensor(weights[0]).log())
    theirs = scoringrules.crps_mixnorm(NUMBERS, loc, scale, np.broadcast_to(weights[0], loc.shape))
    np.testing.assert_allclose(crps(shared, y), theirs, rtol=1e-9, atol=1e-10)


# -- draws -----------------------------------------------------------------------------------------------------------

DRAWS = np.random.RandomState(10).normal(size=(ROWS, 25)).round(1)  # with ties
VECTORS, POINTS = np.random.RandomState(11).normal(size=(ROWS, 12, 3)), np.random.RandomState(12).normal(size=(ROWS, 3))


@pytest.mark.parametrize("estimator", ["nrg", "pwm", "qd", "int", "fair"])
def test_draws(estimator):
    """ "fair" and "pwm" are the unbiased form; their others are one number, but for "akr", which is another score."""
    fair = estimator in ("fair", "pwm")
    own = crps_ensemble_rows(torch.as_tensor(DRAWS.T.copy()), torch.as_tensor(NUMBERS), fair=fair)
    np.testing.assert_allclose(own, scoringrules.crps_ensemble(NUMBERS, DRAWS, estimator=estimator), rtol=1e-10)


def test_weighted_draws():
    weights = np.random.RandomState(13).dirichlet(np.ones(25))
    predicted = MixturePredictive(plain(Normal, DRAWS.T, np.full(DRAWS.T.shape, 1e-9)), torch.as_tensor(weights).log())
    theirs = scoringrules.crps_ensemble(NUMBERS, DRAWS, ens_w=np.broadcast_to(weights, DRAWS.shape))
    own = crps(Empirical(torch.as_tensor(DRAWS.T.copy()), torch.as_tensor(weights).log()), torch.as_tensor(NUMBERS))
    np.testing.assert_allclose(own, theirs, rtol=1e-10)
    np.testing.assert_allclose(crps(predicted, torch.as_tensor(NUMBERS)), theirs, atol=1e-8)  # draws as narrow normals


@pytest.mark.parametrize("fair", [False, True])
def test_the_energy_score(fair):
    theirs = scoringrules.es_ensemble(POINTS, VECTORS, estimator="fair" if fair else "nrg")
    draws = torch.as_tensor(VECTORS).transpose(0, 1)
    own = energy_score_rows(draws, torch.as_tensor(POINTS), fair=fair)
    np.testing.assert_allclose(own, theirs, rtol=1e-10)


# -- quantiles and intervals -----------------------------------------------------------------------------------------

LEVELS = np.array([0.025, 0.1, 0.25, 0.5, 0.75, 0.9, 0.975])
QUANTILES = np.sort(3 * np.random.RandomState(14).normal(size=(ROWS, 7)), axis=1)
COVERAGES = np.array([0.5, 0.8, 0.95])


def forecast():
    return from_quantiles(LEVELS, torch.as_tensor(QUANTILES))


def test_quantile_scores_and_the_crps_of_quantiles():
    predicted, y = forecast(), torch.as_tensor(NUMBERS)
    for level, quantile in zip(LEVELS, QUANTILES.T, strict=True):
        own = pinball_rows(predicted, y, [level])
        np.testing.assert_allclose(own, scoringrules.quantile_score(NUMBERS, quantile, level), rtol=1e-10, atol=1e-12)
    theirs = scoringrules.crps_quantile(NUMBERS, QUANTILES, LEVELS)
    np.testing.assert_allclose(crps(predicted, y), theirs, rtol=1e-10)
    np.testing.assert_allclose(2 * pinball_rows(predicted, y, LEVELS), theirs, rtol=1e-10)


def bounds(predicted):
    """Lower and upper ends of the central intervals, (rows, coverages)."""
    ends = [icdf(predicted, torch.tensor((1 + sign * c) / 2).double()) for sign in (-1, 1) for c in COVERAGES]
    table = torch.stack(ends, -1).numpy()
    return table[:, :3], table[:, 3:]


@pytest.mark.parametrize("predicted", [forecast(), plain(Normal, LOC, SCALE), plain(Gamma, SHAPE, SCALE)], ids=str)
def test_interval_scores(predicted):
    lower, upper = bounds(predicted)
    y = torch.as_tensor(POSITIVE)
    for index, coverage in enumerate(COVERAGES):
        theirs = scoringrules.interval_score(POSITIVE, lower[:, index], upper[:, index], 1 - coverage)
        np.testing.assert_allclose(interval_score_rows(predicted, y, coverage), theirs, rtol=1e-9)
    median = icdf(predicted, 0.5).numpy()
    distance = np.abs(POSITIVE - median)  # see above
    theirs = scoringrules.weighted_interval_score(POSITIVE, distance, lower, upper, 1 - COVERAGES)
    np.testing.assert_allclose(weighted_interval_score_rows(predicted, y, COVERAGES), theirs, rtol=1e-9)


# -- where it is not right -------------------------------------------------------------------------------------------


def summed(law, y, top):
    """The CRPS of a count as the sum of its definition."""
    counts = np.arange(top)
    return float(((law.cdf(counts) - (counts >= y)) ** 2).sum())


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_large_parameters_where_theirs_is_nan_and_ours_is_not():
    for predicted, y, expected, theirs in (
        (plain(Poisson, [400.0]), 403.0, summed(stats.poisson(400), 403, 1200), scoringrules.crps_poisson(403, 400.0)),
        (
            plain(Binomial, [2000.0], probs=[0.3]),
            590.0,
            summed(stats.binom(2000, 0.3), 590, 2000),
            scoringrules.crps_binomial(590, 2000, 0.3),
        ),
        (
            plain(Beta, [1000.0], [2000.0]),
            0.3,
            integrate.quad(lambda t: stats.beta(1000, 2000).cdf(t) ** 2, 0, 0.3, epsabs=1e-13)[0]
            + integrate.quad(lambda t: stats.beta(1000, 2000).sf(t) ** 2, 0.3, 0.4, points=[1 / 3], epsabs=1e-13)[0],
            scoringrules.crps_beta(0.3, 1000.0, 2000.0),
        ),
    ):
        assert np.isnan(theirs)
        assert float(crps(predicted, torch.tensor([y], dtype=torch.float64))) == pytest.approx(expected, rel=1e-8)
