"""Quantile recalibration far outside the forecasts: neither tail is better known than the other, in any precision."""

import math

import numpy as np
import pytest
import torch
from torch.distributions import (
    Beta,
    Binomial,
    Dirichlet,
    Distribution,
    Exponential,
    Gamma,
    HalfNormal,
    Independent,
    Laplace,
    LogNormal,
    MultivariateNormal,
    NegativeBinomial,
    Normal,
    Poisson,
    StudentT,
    Uniform,
    Weibull,
)

import credibly
from credibly.calibration import ConformalPredictiveSystem, QuantileRecalibration, RecalibratedPredictive
from credibly.calibration.piecewise import interpolate_tails
from credibly.calibration.tails import Tails, distance, level, place, tails_at, tails_below
from credibly.calibration.upper_quantiles import quantile_at, upper_quantile
from credibly.conformal import AbsoluteResidual
from credibly.core.errors import ConvergenceWarning, NotSupportedError
from credibly.distributions import (
    cdf,
    crps,
    from_draws,
    from_quantiles,
    icdf,
    log_prob,
    mean,
    survival,
    to,
    variance,
)
from credibly.distributions.mixture import MixturePredictive
from credibly.metrics import pit

F64 = {"dtype": torch.float64}


def zeros(rows, dtype=torch.float64):
    return torch.zeros(rows, dtype=dtype)


SYMMETRIC = {
    "normal": lambda rows, dtype=torch.float64: Normal(zeros(rows, dtype), 1.0),
    "laplace": lambda rows, dtype=torch.float64: Laplace(zeros(rows, dtype), 1.0),
    "student_t": lambda rows, dtype=torch.float64: StudentT(zeros(rows, dtype) + 3, 0.0, 1.0),
    "two_outputs": lambda rows, dtype=torch.float64: Independent(Normal(torch.zeros(rows, 2, dtype=dtype), 1.0), 1),
    "mixture_of_one": lambda rows, dtype=torch.float64: MixturePredictive(Normal(zeros((1, rows), dtype), 1.0)),
}


# -- the mirror ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("base", SYMMETRIC)
@pytest.mark.parametrize("factor", [1.0, 10.0, 30.0])
@pytest.mark.parametrize("num_knots", [None, 7])
@pytest.mark.filterwarnings("ignore::credibly.core.errors.ConvergenceWarning")  # beyond 38 standard deviations
def test_mirrored_outcomes_give_the_mirrored_forecast_to_the_last_bit(base, factor, num_knots, dtype):
    predicted, fresh = SYMMETRIC[base](300, dtype), SYMMETRIC[base](2, dtype)
    shape = (300, *predicted.event_shape)
    targets = (factor * torch.randn(shape, generator=torch.Generator().manual_seed(0))).to(dtype)
    recipe = QuantileRecalibration(num_knots=num_knots)
    one, other = recipe.fit(predicted, targets)(fresh), recipe.fit(predicted, -targets)(fresh)
    if base != "two_outputs":  # whose curves are padded at one end
        assert torch.equal(one.levels, other.levels.flip(1, 2))
        assert torch.equal(one.recalibrated, other.recalibrated.flip(1, 2))
    tolerance = 1e-6 if base == "mixture_of_one" else 0.0  # whose quantiles are solved for, from either side
    for coverage in (0.5, 0.9, 0.99, 0.999999):
        lower, upper = one.interval(coverage)
        mirrored = other.interval(coverage)
        assert bool(upper.isfinite().all())
        torch.testing.assert_close(lower, -mirrored[1], rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(upper, -mirrored[0], rtol=tolerance, atol=tolerance)
    points = torch.linspace(-40, 40, 81, dtype=dtype).reshape(-1, *(1,) * len(shape))
    assert torch.equal(cdf(one, points), survival(other, -points))


@pytest.mark.parametrize("factor", [1.0, 6.0, 10.0])
def test_intervals_end_at_the_quantiles_of_the_outcomes(factor, dtype):
    targets = factor * torch.randn(999, generator=torch.Generator().manual_seed(0), **F64)
    after = QuantileRecalibration().fit(SYMMETRIC["normal"](999, dtype), targets.to(dtype))(
        SYMMETRIC["normal"](1, dtype)
    )
    lower, upper = after.interval(0.9)  # levels 0.05 and 0.95 of 1000: the 50th and the 950th outcome
    ordered = targets.sort().values
    tolerance = 1e-6 if dtype == torch.float32 else 1e-12
    torch.testing.assert_close(lower.double(), ordered[49:50], rtol=tolerance, atol=0)
    torch.testing.assert_close(upper.double(), ordered[949:950], rtol=tolerance, atol=0)
    draws = after.draw(20_000, seed=0)
    assert bool(draws.isfinite().all())
    # 20,000 draws of mean 0 and standard deviation near the factor; 5 standard errors
    assert abs(draws.double().mean().item() - targets.mean().item()) < 5 * factor / math.sqrt(20_000)
    # variance of the squares of a normal sample: 2 sigma^4
    assert abs(draws.double().var().item() / targets.var().item() - 1) < 5 * math.sqrt(2 / 20_000)


@pytest.mark.filterwarnings("ignore::credibly.core.errors.ConvergenceWarning")  # beyond 38 standard deviations
@pytest.mark.parametrize("factor", [0.5, 6.0, 10.0])
def test_coverage_on_either_side_over_repeats(factor, dtype):
    rows, fresh, repeats = 199, 400, 80
    generator = torch.Generator().manual_seed(1)
    misses = torch.zeros(2, **F64)
    for _ in range(repeats):
        targets = (factor * torch.randn(rows, generator=generator, **F64)).to(dtype)
        came = (factor * torch.randn(fresh, generator=generator, **F64)).to(dtype)
        lower, upper = (
            QuantileRecalibration()
            .fit(SYMMETRIC["normal"](rows, dtype), targets)(SYMMETRIC["normal"](1, dtype))
            .interval(0.9)
        )
        misses += torch.stack([(came < lower).double().mean(), (came > upper).double().mean()]) / repeats
    # the ends are the 10th and the 190th of 199: what lies beyond has the law Beta(10, 190), of mean 0.05
    spread = 0.05 * 0.95 / 201 + 0.05 * 0.95 / fresh
    assert bool(((misses - 0.05).abs() < 5 * math.sqrt(spread / repeats)).all()), misses


@pytest.mark.parametrize("base", ["poisson", "mixture"])
def test_counts_far_above_keep_their_places(base, dtype):
    rows, far = 500, 80.0

    def forecast(size):
        rate = torch.full((size,), 4.0, dtype=dtype)
        return Poisson(rate) if base == "poisson" else MixturePredictive(Poisson(torch.stack([rate - 1, rate + 1])))

    targets = torch.poisson(torch.full((rows,), 4.0, dtype=dtype), generator=torch.Generator().manual_seed(0))
    targets[: rows * 6 // 100] = far
    after = QuantileRecalibration().fit(forecast(rows), targets)(forecast(3))
    assert after.interval(0.9)[1].tolist() == [far] * 3
    assert bool(((cdf(after, far - 1) - 0.94).abs() < 2 / rows).all())
    torch.testing.assert_close(mean(after).double(), targets.double().mean().expand(3), rtol=0, atol=0.2)
    assert bool((log_prob(after, torch.full((3,), far, dtype=dtype)).exp() > 0.05).all())
    assert bool((after.draw(1000, seed=0) == far).double().mean(0).sub(0.06).abs().max() < 5 * 0.24 / math.sqrt(1000))


def test_outcomes_beyond_all_digits_are_told():
    predicted = SYMMETRIC["normal"](50)
    targets = torch.cat([torch.randn(45, **F64), torch.full((5,), 100.0, **F64)])
    with pytest.warns(ConvergenceWarning, match="5 of 50 outcomes lie where .* 0 or 1"):
        fitted = QuantileRecalibration().fit(predicted, targets)
    upper = fitted(SYMMETRIC["normal"](1)).interval(0.98)[1]
    assert 37 < upper.item() < 38
    assert bool(fitted(predicted).draw(100, seed=0).isfinite().all())
    draws = from_draws(torch.randn(20, 50, **F64))
    with pytest.warns(ConvergenceWarning, match="outcomes lie where"):
        QuantileRecalibration().fit(draws, targets)


def test_forecasts_that_know_no_outer_levels_are_still_recalibrated():
    forecast = from_quantiles([0.1, 0.5, 0.9], torch.tensor([[-1.0, 0.0, 1.0]]).expand(40, 3))
    after = QuantileRecalibration().fit(forecast, torch.linspace(-0.9, 0.9, 40))(forecast)
    assert bool(icdf(after, 0.5).abs().max() < 0.1)
    with pytest.raises(NotSupportedError, match="tails are not known"):
        mean(after)


def test_recalibrating_twice_keeps_both_tails():
    predicted, fresh = SYMMETRIC["normal"](200), SYMMETRIC["normal"](1)
    targets = 8 * torch.randn(200, generator=torch.Generator().manual_seed(0), **F64)
    once = QuantileRecalibration().fit(predicted, targets)
    twice = QuantileRecalibration(num_knots=4).fit(once(predicted), targets)
    for a, b in zip(twice(once(fresh)).interval(0.9), once(fresh).interval(0.9), strict=True):
        torch.testing.assert_close(a, b, rtol=0.1, atol=0)


def test_precision_and_files_leave_the_tables_alone(tmp_path):
    predicted, targets = SYMMETRIC["normal"](100), 10 * torch.randn(100, **F64)
    fitted = QuantileRecalibration().fit(predicted, targets)
    assert float(fitted.levels[0, 1, 0]) < 1e-50
    after = to(fitted(predicted), dtype=torch.float32)
    assert torch.equal(after.levels, fitted.levels)
    assert after.base.loc.dtype == torch.float32
    credibly.save(fitted, tmp_path / "map")
    assert torch.equal(credibly.load(tmp_path / "map").levels, fitted.levels)
    errors = ConformalPredictiveSystem().fit(predicted, targets)(predicted).errors
    assert torch.equal(
        to(ConformalPredictiveSystem().fit(predicted, targets)(predicted), dtype=torch.float32).errors, errors
    )


def test_tied_transforms_share_the_middle_of_their_ranks():
    predicted = SYMMETRIC["normal"](5)
    after = QuantileRecalibration().fit(predicted, torch.tensor([-1.0, 2.0, 2.0, 2.0, 3.0], **F64))(predicted)
    assert after.recalibrated[0, :, 0].tolist() == pytest.approx([0, 1 / 6, 3 / 6, 5 / 6, 1])
    assert cdf(after, 2.0).tolist() == pytest.approx([0.5] * 5)


# -- levels as pairs -----------------------------------------------------------------------------------------------


def test_places_and_distances_of_levels():
    lower = torch.tensor([0.0, 1e-300, 2e-300, 0.1, 0.5], **F64)
    tails = Tails(torch.cat([lower, 1 - lower[:4].flip(0)]), torch.cat([1 - lower, lower[:4].flip(0)]))
    assert bool((place(tails).diff() > 0).all())
    assert torch.equal(place(Tails(tails.upper, tails.lower)), -place(tails))
    steps = distance(Tails(tails.lower[:-1], tails.upper[:-1]), Tails(tails.lower[1:], tails.upper[1:]))
    assert torch.equal(steps, steps.flip(0))
    assert steps[:2].tolist() == [1e-300, 1e-300]
    assert float(steps.sum()) == pytest.approx(1.0)


def test_interpolation_between_levels_is_the_plain_one_in_the_middle():
    generator = torch.Generator().manual_seed(0)
    x, y = (
        torch.cat([torch.zeros(2, 1), torch.rand(2, 9, generator=generator).sort(-1).values, torch.ones(2, 1)], -1)
        for _ in range(2)
    )
    points = torch.rand(2, 50, generator=generator, **F64)
    found = interpolate_tails(level(x), level(y), level(points))
    for row in range(2):
        expected = np.interp(points[row], x[row].double(), y[row].double())
        np.testing.assert_allclose(found.lower[row], expected, rtol=1e-12)
    torch.testing.assert_close(found.lower + found.upper, torch.ones_like(points))


# -- quantiles of the upper tail -----------------------------------------------------------------------------------


class Own(Normal):
    """A type of one's own, with a cdf and no survival."""


FAMILIES = {
    "normal": lambda: Normal(torch.tensor([0.0, 3.0], **F64), 2.0),
    "laplace": lambda: Laplace(torch.tensor([0.0, 3.0], **F64), 2.0),
    "student_t": lambda: StudentT(torch.tensor([1.5, 30.0], **F64), 1.0, 2.0),
    "log_normal": lambda: LogNormal(torch.tensor([0.0, 3.0], **F64), 0.5),
    "half_normal": lambda: HalfNormal(torch.tensor([1.0, 3.0], **F64)),
    "exponential": lambda: Exponential(torch.tensor([1.0, 3.0], **F64)),
    "weibull": lambda: Weibull(torch.tensor([1.0, 3.0], **F64), torch.tensor([0.5, 2.0], **F64)),
    "gamma": lambda: Gamma(torch.tensor([0.7, 9.0], **F64), torch.tensor(2.0, **F64)),
    "multivariate": lambda: MultivariateNormal(torch.zeros(2, 2, **F64), torch.eye(2, **F64)),
    "mixture": lambda: MixturePredictive(Normal(torch.tensor([[0.0, 1.0], [4.0, 1.0]], **F64), 1.0)),
    "far_mixture": lambda: MixturePredictive(Normal(torch.tensor([[0.0, 1.0], [400.0, 50.0]], **F64), 1.0)),
    "mixture_of_gamma": lambda: MixturePredictive(Gamma(torch.tensor([[1.0, 2.0], [4.0, 1.0]], **F64), 1.0)),
    "recalibrated": lambda: QuantileRecalibration().fit(Normal(torch.zeros(9, **F64), 1.0), torch.arange(9.0) * 2)(
        Normal(torch.zeros(2, **F64), 1.0)
    ),
}


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("q", [0.5, 0.1, 1e-5, 1e-10, 1e-17, 1e-100, 1e-250])
def test_upper_quantiles_invert_the_upper_tail(name, q):
    predicted = FAMILIES[name]()
    tails = torch.full(predicted.batch_shape + predicted.event_shape, q, **F64)
    found = upper_quantile(predicted, tails)
    # the tail changes by y f(y) / S(y) of its size where y changes by one: at most some hundreds here
    torch.testing.assert_close(survival(predicted, found), tails, rtol=1e-6, atol=0)
    both = quantile_at(predicted, Tails(1 - tails, tails))
    torch.testing.assert_close(both, found, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["beta", "uniform", "dirichlet"])
@pytest.mark.parametrize("q", [0.5, 0.1, 1e-5, 1e-10])
def test_upper_quantiles_of_bounded_families_are_as_near_to_the_bound_as_numbers_come(name, q):
    predicted = {
        "beta": Beta(torch.tensor([2.0, 0.7], **F64), torch.tensor([3.0, 1.0], **F64)),
        "uniform": Uniform(torch.zeros(2, **F64), 2.0),
        "dirichlet": Dirichlet(torch.ones(2, 3, **F64)),
    }[name]
    tails = torch.full(predicted.batch_shape + predicted.event_shape, q, **F64)
    torch.testing.assert_close(survival(predicted, upper_quantile(predicted, tails)), tails, rtol=1e-5, atol=0)


COUNTS = {
    "poisson": lambda: Poisson(torch.tensor([0.5, 40.0], **F64)),
    "negative_binomial": lambda: NegativeBinomial(torch.tensor([0.5, 9.0], **F64), torch.tensor(0.6, **F64)),
    "binomial": lambda: Binomial(torch.tensor([300.0, 900.0], **F64), torch.tensor(0.1, **F64)),
    "mixture": lambda: MixturePredictive(Poisson(torch.tensor([[1.0, 5.0], [30.0, 9.0]], **F64))),
}


@pytest.mark.parametrize("name", COUNTS)
@pytest.mark.parametrize("q", [0.5, 0.1, 1e-5, 1e-12, 1e-100, 1e-200])
def test_upper_quantiles_of_counts_are_the_first_count_that_leaves_no_more(name, q):
    predicted = COUNTS[name]()
    tails = torch.full((2,), q, **F64)
    found = upper_quantile(predicted, tails)
    assert bool((survival(predicted, found) <= tails * (1 + 1e-9)).all())
    assert bool((survival(predicted, found - 1) > tails * (1 - 1e-9)).all())


def test_a_type_of_ones_own_reaches_as_far_as_its_survival():
    own = Own(torch.zeros(2, **F64), 1.0)
    torch.testing.assert_close(upper_quantile(own, torch.full((2,), 1e-50, **F64)), -icdf(own, 1e-50))

    class Plain(Distribution):
        """Nothing but a cdf and an icdf."""

        arg_constraints = Normal.arg_constraints
        support = Normal.support

        def __init__(self, loc, scale, validate_args=False):
            self.loc, self.scale = torch.broadcast_tensors(loc, torch.as_tensor(scale))
            super().__init__(self.loc.shape, validate_args=validate_args)

        def cdf(self, value):
            return torch.special.ndtr((value - self.loc) / self.scale)

        def icdf(self, value):
            return self.loc + self.scale * torch.special.ndtri(value)

    plain = Plain(torch.zeros(2, **F64), torch.ones(2, **F64))
    torch.testing.assert_close(
        upper_quantile(plain, torch.full((2,), 1e-10, **F64)), torch.full((2,), 6.3613409, **F64), rtol=1e-6, atol=0
    )
    assert bool((upper_quantile(plain, torch.full((2,), 1e-30, **F64)) > 8).all())


def test_tails_below_a_value_hold_its_own_mass():
    predicted = Poisson(torch.tensor([4.0], **F64))
    at, below = (each(predicted, torch.tensor([80.0], **F64)) for each in (tails_at, tails_below))
    mass = log_prob(predicted, torch.tensor([80.0], **F64)).exp()
    torch.testing.assert_close(below.upper - at.upper, mass, rtol=1e-5, atol=0)
    draws = from_draws(torch.tensor([[0.0], [1.0], [1.0], [2.0]], **F64))
    below = tails_below(draws, torch.tensor([1.0], **F64))
    assert (below.lower.item(), below.upper.item()) == (0.25, 0.75)


# -- moments -------------------------------------------------------------------------------------------------------


def recalibrated(base, num_knots):
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(80, generator=generator, **F64)
    rows = {
        "normal": (Normal(torch.zeros(80, **F64), 1.0), 1 + 3 * noise),
        "gamma": (Gamma(torch.full((80,), 2.0, **F64), 1.0), (noise + 1).exp()),
        "student_t": (StudentT(torch.full((80,), 8.0, **F64)), 2 * noise),
        "mixture": (MixturePredictive(Normal(torch.tensor([[0.0], [3.0]], **F64).expand(2, 80), 1.0)), 2 * noise),
        "poisson": (Poisson(torch.full((80,), 3.0, **F64)), (2 * noise.abs()).exp().floor()),
        "draws": (from_draws(torch.randn(40, 80, generator=generator, **F64)), noise),
    }
    predicted, targets = rows[base]
    return QuantileRecalibration(num_knots=num_knots).fit(predicted, targets)(predicted), targets


@pytest.mark.filterwarnings("ignore::credibly.core.errors.ConvergenceWarning")  # of outcomes beyond all draws
@pytest.mark.parametrize("base", ["normal", "gamma", "student_t", "mixture", "poisson", "draws"])
@pytest.mark.parametrize("num_knots", [None, 4])
def test_moments_and_scores_are_those_of_the_quantile_function(base, num_knots):
    after, targets = recalibrated(base, num_knots)
    values, weights = points_of(to_rows(after), counts=base == "poisson")
    first = (weights * values).sum()
    second = (weights * (values - first).square()).sum()
    torch.testing.assert_close(mean(after)[:1], first.unsqueeze(0), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(variance(after)[:1], second.unsqueeze(0), rtol=1e-3, atol=1e-4)
    if base == "draws":
        ordered = after.base.draws[:, 0].sort().values
        masses = cdf(to_rows(after), ordered.unsqueeze(-1)).squeeze(-1)
        mass = masses.diff(prepend=masses.new_zeros(1))
        torch.testing.assert_close(mean(after)[0], (mass * ordered).sum())
        score = (mass * (ordered - targets[0]).abs()).sum() - 0.5 * torch.einsum(
            "i,j,ij->", mass, mass, (ordered[:, None] - ordered).abs()
        )
        torch.testing.assert_close(crps(after, targets)[0], score)


def points_of(row, *, counts):
    """All likely counts and their masses, or quantiles at equal steps of the normal scale, tails down to 1e-15."""
    if counts:
        values = torch.arange(2000.0, **F64)
        return values, cdf(row, values.unsqueeze(-1)).squeeze(-1).diff(prepend=torch.zeros(1, **F64))
    z = torch.linspace(-8, 8, 40_001, **F64)
    return icdf(row, torch.special.ndtr(z).unsqueeze(-1)).squeeze(-1), torch.softmax(-(z**2) / 2, 0)


def to_rows(after):
    return credibly.distributions.select(after, slice(0, 1))


def test_moments_exist_where_the_forecasts_have_them():
    predicted = StudentT(torch.tensor([1.0, 2.0, 5.0], **F64))
    after = QuantileRecalibration().fit(predicted, torch.tensor([0.3, -1.0, 2.0], **F64))(predicted)
    assert mean(after).isfinite().tolist() == [False, True, True]
    assert variance(after).isfinite().tolist() == [False, False, True]
    wide = Poisson(torch.full((2,), 1e15, **F64))
    with pytest.raises(NotSupportedError, match="sums over all likely counts"):
        mean(QuantileRecalibration().fit(wide, torch.full((2,), 1e15, **F64))(wide))


def test_residuals_after_recalibration(dtype):
    """What reads a mean: conformal residuals of recalibrated forecasts."""
    predicted = SYMMETRIC["normal"](200, dtype)
    targets = (0.5 + 4 * torch.randn(200, generator=torch.Generator().manual_seed(0))).to(dtype)
    after = QuantileRecalibration().fit(predicted, targets)(predicted)
    assert after.mean.dtype == after.stddev.dtype == dtype
    torch.testing.assert_close(after.mean[0], targets.mean(), rtol=0, atol=0.02)
    torch.testing.assert_close(after.stddev[0], targets.std(), rtol=0.02, atol=0)
    regions = AbsoluteResidual().calibrate(after, targets).predict(after, 0.9)
    assert 0.85 < regions.empirical_coverage(targets) < 0.95


def test_scores_far_outside_are_right():
    """The CRPS of 1000 outcomes 6 times as wide as their forecasts, against that of the outcomes as draws."""
    targets = 6 * torch.randn(1000, generator=torch.Generator().manual_seed(0), **F64)
    after = QuantileRecalibration().fit(SYMMETRIC["normal"](1000), targets)(SYMMETRIC["normal"](20))
    draws = from_draws(targets.unsqueeze(-1).expand(-1, 20))
    torch.testing.assert_close(crps(after, targets[:20]), crps(draws, targets[:20]), rtol=0.01, atol=0.02)
    assert isinstance(after, RecalibratedPredictive)
    assert abs(pit(after, targets[:20]).mean() - 0.5) < 0.3
