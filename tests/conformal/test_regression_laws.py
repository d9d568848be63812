"""The exact laws of coverage over 2,000 synthetic repeats, and the published numbers of other libraries."""

import pytest
import torch
from scipy import stats
from torch.distributions import Independent, Normal, Poisson

from cases import SCORES
from credibly.conformal.base import ConformalPredictor
from credibly.conformal.cqr import CQR
from credibly.conformal.jackknife import CVPlus, JackknifePlus
from credibly.conformal.ranks import rank, threshold
from credibly.conformal.residual import AbsoluteResidual
from credibly.distributions.quantiles import QuantileForecast

REPEATS, NUM_CALIBRATION, NUM_TEST = 2000, 30, 20
OF_NUMBERS = ["absolute_residual", "standardized_residual", "cqr", "cqr_scaled", "cqr_lower", "cqr_upper", "pit_score"]
OF_VECTORS = ["box", "box_of_cqr", "one_of_several_targets", "ellipsoid", "ellipsoid_given"]


def counts_follow_their_law(covered, num_calibration, num_test, coverage):
    """The p-value of a chi-square test of counts against the Beta-binomial law, in cells of 5 expected or more."""
    k = rank(num_calibration, coverage)
    law = stats.betabinom(num_test, k, num_calibration + 1 - k)
    expected, seen, cells = 0.0, 0, []
    for count in range(num_test + 1):
        expected, seen = expected + REPEATS * law.pmf(count), seen + int((covered == count).sum())
        if expected >= 5:
            cells.append((seen, expected))
            expected, seen = 0.0, 0
    cells[-1] = (cells[-1][0] + seen, cells[-1][1] + expected)
    observed, wanted = zip(*cells, strict=True)
    total = sum(wanted)
    return stats.chisquare(observed, [w * sum(observed) / total for w in wanted]).pvalue


def forecasts(name, rows):
    """Forecasts that are wrong about everything, and their targets."""
    generator = torch.Generator().manual_seed(7)
    if name == "pit_score_randomized":
        rate = 1 + 3 * torch.rand(rows, generator=generator, dtype=torch.float64)
        return Poisson(rate), torch.poisson(1.3 * rate, generator=generator)
    shape = (rows, 2) if name in OF_VECTORS else (rows,)
    loc, noise = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))
    scale = 0.3 + torch.rand(shape, generator=generator, dtype=torch.float64)
    predicted = Normal(loc, scale)
    return (Independent(predicted, 1) if name in OF_VECTORS else predicted), loc + 0.3 + noise


@pytest.mark.parametrize("name", [*OF_NUMBERS, "pit_score_randomized", "highest_density", *OF_VECTORS])
def test_coverage_follows_its_law(name):
    # chi-square at 1e-4 each: failure rate 3e-3 over all cases, at one fixed seed
    score = SCORES[name]()
    predicted, targets = forecasts(name, REPEATS * (NUM_CALIBRATION + NUM_TEST))
    u = torch.rand(len(targets), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    scores = score.score(predicted, targets, u if score.uses_uniforms else None).reshape(REPEATS, -1)
    for coverage in (0.5, 0.9):
        limits = threshold(scores[:, :NUM_CALIBRATION].sort(-1).values, coverage)
        covered = (scores[:, NUM_CALIBRATION:] <= limits.unsqueeze(-1)).sum(-1)
        assert counts_follow_their_law(covered, NUM_CALIBRATION, NUM_TEST, coverage) > 1e-4


@pytest.mark.parametrize("name", ["absolute_residual", "cqr"])
def test_coverage_within_groups_follows_its_law(name):
    # every repeat is a pair of groups with thresholds of their own; the predictor's own path, region included
    score = SCORES[name]()
    n, m = NUM_CALIBRATION, NUM_TEST
    predicted, targets = forecasts(name, REPEATS * (n + m))
    repeat = torch.arange(REPEATS * (n + m)) // (n + m)
    held_out = torch.arange(REPEATS * (n + m)) % (n + m) < n
    part = Normal(predicted.loc[held_out], predicted.scale[held_out])
    rest = Normal(predicted.loc[~held_out], predicted.scale[~held_out])
    fitted = score.calibrate(part, targets[held_out], groups=repeat[held_out])
    assert isinstance(fitted, ConformalPredictor)
    inside = fitted.predict(rest, 0.8, groups=repeat[~held_out]).contains(targets[~held_out])
    covered = inside.reshape(REPEATS, m).sum(-1)
    assert counts_follow_their_law(covered, n, m, 0.8) > 1e-4


@pytest.mark.parametrize("coverage", [0.8, 0.9])
def test_the_jackknife_and_cv_plus_hold_their_bounds(coverage):
    # the mean as a model, n = 20: coverage over 2,000 repeats, plus 4 standard errors (failure rate 3e-5), against the
    # bounds. The tables of all repeats at once; the first repeats go through the predictors, too.
    n, folds = 20, 5
    data = torch.randn(REPEATS, n + 1, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    train, new = data[:, :n], data[:, n]
    own = torch.arange(n) % folds
    sums = torch.zeros(REPEATS, folds, dtype=torch.float64).index_add(1, own, train)
    means = (train.sum(1, keepdim=True) - sums) / (n - n // folds)
    without = (train.sum(1, keepdim=True) - train) / (n - 1)
    k = rank(n, coverage)
    for centres in (without, means[:, own]):
        residuals = (train - centres).abs()
        lower, upper = (centres - residuals).kthvalue(n + 1 - k).values, (centres + residuals).kthvalue(k).values
        covered = (lower <= new) & (new <= upper)
        for i in range(20):
            if centres is without:
                fitted = JackknifePlus().calibrate(without[i], train[i])
                region = fitted.predict(without[i].unsqueeze(-1), coverage)
            else:
                fitted = CVPlus().calibrate(centres[i], train[i], own)
                region = fitted.predict(means[i].unsqueeze(-1), coverage)
            assert region.upper.item() == pytest.approx(upper[i].item(), abs=1e-12)
            assert region.contains(new[i : i + 1]).item() == covered[i].item()
        error = (coverage * (1 - coverage) / REPEATS) ** 0.5
        assert float(covered.double().mean()) + 4 * error >= fitted.guaranteed_coverage(coverage)
        assert abs(float(covered.double().mean()) - coverage) < 0.05


def test_numbers_of_other_libraries():
    # Residuals 0.1, ..., 1.9. MAPIE 1.6.0, SplitConformalRegressor(prefit=True): 1.0, 1.5, 1.8 at 0.5, 0.75, 0.9,
    # and a refusal at 0.95. crepes 0.9.1, ConformalRegressor.predict_int: 1.0, 1.5, 1.9, 1.9; its 1.9 at 0.9 is
    # the float (1 - 0.9) * 20 = 1.9999999999999996, cut to 1: the rank is 18 of 19.
    residuals = torch.arange(1, 20, dtype=torch.float64) / 10
    zeros = Normal(torch.zeros(19, dtype=torch.float64), 1.0)
    bounds = QuantileForecast([0.05, 0.95], torch.tensor([[-0.5, 0.5]], dtype=torch.float64).expand(19, 2))
    for coverage, expected in ((0.5, 1.0), (0.75, 1.5), (0.9, 1.8), (0.95, 1.9)):
        region = AbsoluteResidual().calibrate(zeros, residuals).predict(zeros, coverage)
        assert region.upper[0].item() == pytest.approx(expected)
        region = CQR().calibrate(bounds, residuals).predict(bounds, coverage)
        assert (region.lower[0].item(), region.upper[0].item()) == pytest.approx((-expected, expected))
