"""Recalibration of numbers and counts: closed forms, exact laws by counting, and densities that integrate to one."""

import copy
import pickle

import pytest
import torch
from torch.distributions import (
    Categorical,
    Gamma,
    Independent,
    Laplace,
    LogNormal,
    NegativeBinomial,
    Normal,
    Poisson,
    StudentT,
    Uniform,
)

import credibly
from cases import NUMBER_RECALIBRATORS
from credibly.calibration import (
    ConformalPredictive,
    ConformalPredictiveSystem,
    QuantileRecalibration,
    RecalibratedPredictive,
    VarianceScaling,
)
from credibly.core.errors import ConvergenceWarning, NotFiniteError, NotSupportedError, ShapeError
from credibly.distributions import cdf, concatenate, crps, from_draws, icdf, log_prob, mean, select, to, variance
from credibly.distributions.crps_numeric import numeric_crps
from credibly.distributions.mixture import MixturePredictive
from credibly.metrics import pit

recalibrators = pytest.mark.parametrize("name", NUMBER_RECALIBRATORS)


def reals(rows=150, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    loc = torch.randn(rows, generator=generator, dtype=torch.float64)
    targets = loc + 0.5 + 2 * torch.randn(rows, generator=generator, dtype=torch.float64)
    return Normal(loc.to(dtype), torch.ones(rows, dtype=dtype)), targets.to(dtype)


def counts(rows=200, seed=0):
    generator = torch.Generator().manual_seed(seed)
    rate = 4 * torch.rand(rows, generator=generator, dtype=torch.float64) + 0.5
    noise = -torch.log(torch.rand(rows, generator=generator, dtype=torch.float64))
    return Poisson(rate), torch.poisson(rate * noise, generator=generator)


@recalibrators
def test_the_contract(name, dtype, device, tmp_path):
    predicted, targets = reals(dtype=dtype)
    predicted = to(predicted, device=device)
    kept = targets.clone()
    fitted = NUMBER_RECALIBRATORS[name]().fit(predicted, targets.to(device))
    after = fitted(predicted)
    assert after.batch_shape == predicted.batch_shape
    assert mean_crps(after, targets.to(device)) < mean_crps(predicted, targets.to(device))
    assert icdf(after, 0.3).dtype == dtype
    halves = concatenate([fitted(select(predicted, slice(0, 40))), fitted(select(predicted, slice(40, 150)))])
    torch.testing.assert_close(icdf(halves, 0.3), icdf(after, 0.3))
    order = torch.randperm(150)
    again = NUMBER_RECALIBRATORS[name]().fit(select(predicted, order), targets.to(device)[order])
    torch.testing.assert_close(icdf(again(predicted), 0.3), icdf(after, 0.3))
    assert torch.equal(targets, kept)
    credibly.save(fitted, tmp_path / "map")
    loaded = credibly.load(tmp_path / "map", device=device)
    for other in (loaded, copy.deepcopy(fitted), pickle.loads(pickle.dumps(fitted))):
        assert other.report == fitted.report
        assert torch.equal(icdf(other(predicted), 0.3), icdf(after, 0.3))


def mean_crps(predicted, targets):
    return crps(predicted, targets).double().mean().item()


@recalibrators
def test_refusals(name):
    recipe = NUMBER_RECALIBRATORS[name]()
    with pytest.raises(NotSupportedError, match=r"class|Categorical"):
        recipe.fit(Categorical(logits=torch.zeros(2, 3)), torch.zeros(2))
    with pytest.raises(ShapeError, match="empty"):
        recipe.fit(Normal(torch.zeros(0), torch.ones(0)), torch.zeros(0))
    with pytest.raises(NotFiniteError, match="targets"):
        recipe.fit(Normal(torch.zeros(2), torch.ones(2)), torch.tensor([0.0, float("nan")]))


@recalibrators
def test_one_row_and_a_constant_target(name):
    for rows in (1, 5):
        predicted = Normal(torch.zeros(rows), torch.ones(rows))
        after = NUMBER_RECALIBRATORS[name]().fit(predicted, torch.full((rows,), 0.7))(predicted)
        assert bool(cdf(after, torch.full((rows,), 0.7)).isfinite().all())
        assert bool((cdf(after, torch.tensor(-9.0)) <= cdf(after, torch.tensor(9.0))).all())


def test_variance_scaling_is_the_closed_form_and_the_maximum():
    predicted, targets = reals()
    fitted = VarianceScaling().fit(predicted, targets)
    assert fitted.factor.item() == pytest.approx((targets - predicted.loc).square().mean().sqrt().item(), rel=1e-12)
    after = fitted(predicted)
    assert type(after) is Normal
    torch.testing.assert_close(after.loc, predicted.loc)
    torch.testing.assert_close(after.scale, fitted.factor * predicted.scale)
    for factor in (0.99, 1.01):
        other = Normal(after.loc, after.scale * factor)
        assert -log_prob(other, targets).mean().item() > fitted.report.nll_after
    assert fitted.report.nll_after == pytest.approx(-log_prob(after, targets).mean().item(), rel=1e-12)


@pytest.mark.parametrize(
    "predicted",
    [
        LogNormal(torch.zeros(50).double(), 0.5),
        MixturePredictive(Normal(torch.randn(4, 50).double(), 1.0)),
        Independent(Laplace(torch.zeros(50, 2).double(), 1.0), 1),
    ],
)
def test_variance_scaling_keeps_means_and_makes_squared_errors_one(predicted):
    targets = 3 * predicted.sample()
    fitted = VarianceScaling().fit(predicted, targets)
    after = fitted(predicted)
    torch.testing.assert_close(mean(after), mean(predicted))
    standard = (targets - mean(after)).square() / variance(after)
    torch.testing.assert_close(standard.mean(0), torch.ones(predicted.event_shape).double())


def test_variance_scaling_at_its_limits():
    exact = Normal(torch.arange(3.0), 1.0)
    with pytest.warns(ConvergenceWarning, match="bound"):
        fitted = VarianceScaling().fit(exact, torch.arange(3.0))
    assert not fitted.report.converged
    assert fitted.factor.item() == 1e-6
    with pytest.raises(NotFiniteError, match="variances"):
        VarianceScaling().fit(Normal(torch.zeros(2), torch.tensor([0.0, 1.0]), validate_args=False), torch.zeros(2))
    with pytest.raises(NotSupportedError, match="counts"):
        VarianceScaling().fit(*counts())


@pytest.mark.parametrize("num_knots", [None, 7])
def test_quantile_recalibration_is_the_distribution_function_of_the_pit(num_knots):
    predicted, targets = reals(49)
    fitted = QuantileRecalibration(num_knots=num_knots).fit(predicted, targets)
    u = pit(predicted, targets)
    after = fitted(predicted)
    if num_knots is None:
        ranks = u.argsort().argsort() + 1
        torch.testing.assert_close(cdf(after, targets), ranks / 50.0, check_dtype=False)
    else:
        assert fitted.recalibrated[0, :, 0].tolist() == pytest.approx([i / 7 for i in range(8)])
        ordered = torch.cat([torch.zeros(1), u.sort().values, torch.ones(1)]).double()
        torch.testing.assert_close(fitted.levels[0, :, 0], torch.quantile(ordered, torch.arange(8).double() / 7))
    levels = torch.linspace(0.01, 0.99, 9).double().unsqueeze(-1)
    torch.testing.assert_close(cdf(after, icdf(after, levels)), levels.expand(9, 49))


def test_quantile_recalibration_makes_coverage_right():
    predicted, targets = reals(2000)
    fitted = QuantileRecalibration().fit(predicted, targets)
    fresh, came = reals(4000, seed=1)
    for coverage in (0.5, 0.9):
        low, high = fitted(fresh).interval(coverage)
        inside = ((came >= low) & (came <= high)).double().mean().item()
        # 2000 rows of the fit and 4000 fresh ones: standard error sqrt(c (1 - c) (1/2000 + 1/4000)); 5 of them
        assert abs(inside - coverage) < 5 * (coverage * (1 - coverage) * 3 / 4000) ** 0.5


BASES = {
    "normal": lambda: Normal(torch.randn(8).double(), 0.7),
    "student_t": lambda: StudentT(2.0, torch.randn(8).double(), 1.0),
    "gamma": lambda: Gamma(torch.rand(8).double() + 0.5, torch.ones(8).double()),
    "uniform": lambda: Uniform(torch.zeros(8).double(), 2.0),
    "mixture": lambda: MixturePredictive(Normal(3 * torch.randn(3, 8).double(), 1.0)),
}


@pytest.mark.parametrize("base", BASES)
@pytest.mark.filterwarnings("ignore::credibly.core.errors.ConvergenceWarning")  # of the oracle
def test_density_and_crps_belong_to_the_distribution_function(base):
    predicted = BASES[base]()
    targets = predicted.sample()
    after = QuantileRecalibration(num_knots=3).fit(predicted, targets)(predicted)
    step = 1e-6
    slope = (cdf(after, targets + step) - cdf(after, targets - step)) / (2 * step)
    inner = ((pit(predicted, targets).unsqueeze(-1) - after.levels[0, :, 0]).abs() > 1e-4).all(-1)
    torch.testing.assert_close(log_prob(after, targets).exp()[inner], slope[inner], rtol=1e-4, atol=1e-8)
    # pieces of a mixture are as smooth as it is only if they are short: few knots are the hard case
    torch.testing.assert_close(crps(after, targets), numeric_crps(after, targets), rtol=2e-3, atol=1e-6)
    if base != "mixture":
        torch.testing.assert_close(crps(after, targets), numeric_crps(after, targets), rtol=2e-6, atol=1e-9)
    many = QuantileRecalibration().fit(predicted, targets)(predicted)
    draws = from_draws(icdf(many, ((torch.arange(4000) + 0.5) / 4000).double().unsqueeze(-1)))
    if base != "student_t":  # whose outer quantiles no number of draws gets right
        torch.testing.assert_close(crps(many, targets), crps(draws, targets), rtol=2e-3, atol=1e-3)


def test_the_identity_changes_no_score():
    predicted, targets = reals(20)
    knots = torch.tensor([[0.0, 0.4, 1.0]]).double()
    ends = torch.stack([knots, 1 - knots], -1)
    same = RecalibratedPredictive(predicted, ends, ends)
    torch.testing.assert_close(crps(same, targets), crps(predicted, targets), rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(log_prob(same, targets), log_prob(predicted, targets))


def test_recalibrated_counts_have_masses_that_sum_to_one():
    predicted, targets = counts()
    fitted = QuantileRecalibration(seed=3).fit(predicted, targets)
    after = fitted(predicted)
    grid = torch.arange(80.0).double().unsqueeze(-1).expand(80, 200)
    masses = torch.stack([log_prob(after, row).exp() for row in grid])
    torch.testing.assert_close(masses.cumsum(0), cdf(after, grid))
    torch.testing.assert_close(masses.sum(0), torch.ones(200).double())
    half = icdf(after, 0.5)
    assert bool((cdf(after, half) >= 0.5).all() & (cdf(after, half - 1) < 0.5).all())
    assert log_prob(after, targets).mean() > log_prob(predicted, targets).mean()
    fresh, came = counts(3000, seed=5)
    # mean and variance of uniform numbers, from 3000 rows after a fit to 200: 5 standard errors of the mean
    assert abs(pit(fitted(fresh), came, seed=0).mean().item() - 0.5) < 5 * (1 / 12 * (1 / 200 + 1 / 3000)) ** 0.5


def test_a_far_count_keeps_a_finite_density():
    predicted = Poisson(torch.full((50,), 0.5))
    targets = torch.cat([torch.poisson(torch.full((49,), 0.5)), torch.tensor([60.0])])
    fitted = QuantileRecalibration().fit(predicted, targets)
    assert bool(log_prob(fitted(predicted), targets).isfinite().all())


def test_each_output_has_its_own_curve():
    loc = torch.randn(60, 2).double()
    predicted = Independent(Normal(loc, 1.0), 1)
    targets = loc + torch.randn(60, 2).double() * torch.tensor([0.5, 3.0]).double()
    after = QuantileRecalibration(num_knots=6).fit(predicted, targets)(predicted)
    alone = [
        QuantileRecalibration(num_knots=6).fit(Normal(loc[:, i], 1.0), targets[:, i])(Normal(loc[:, i], 1.0))
        for i in range(2)
    ]
    joint = log_prob(alone[0], targets[:, 0]) + log_prob(alone[1], targets[:, 1])
    torch.testing.assert_close(log_prob(after, targets), joint)
    torch.testing.assert_close(crps(after, targets)[:, 1], crps(alone[1], targets[:, 1]))
    assert after.draw(5, seed=0).shape == (5, 60, 2)
    assert torch.equal(icdf(select(after, slice(3, 7)), 0.2), icdf(after, 0.2)[3:7])


def test_conformal_predictive_distribution_by_hand():
    predicted = Normal(torch.zeros(4), torch.ones(4))
    fitted = ConformalPredictiveSystem().fit(predicted, torch.tensor([3.0, 1.0, 1.0, 2.0]))
    after = fitted(Normal(torch.tensor([10.0]), torch.tensor([2.0])), u=0.5)
    assert fitted.errors.tolist() == [1.0, 1.0, 2.0, 3.0]
    assert after.points().squeeze(-1).tolist() == [12.0, 12.0, 14.0, 16.0]
    at = torch.tensor([0.0, 12.0, 13.0, 14.0, 99.0])
    expected = [0.1, 0.3, 0.5, 0.6, 0.9]  # (below + u (tied + 1)) / 5
    assert [cdf(after, value).item() for value in at] == pytest.approx(expected)
    low, high = after.bounds(torch.tensor([12.0]))
    assert (low.item(), high.item()) == (0.0, pytest.approx(0.6))
    assert icdf(after, 0.05).item() == float("-inf")
    assert [icdf(after, q).item() for q in (0.2, 0.5, 0.7, 0.9)] == [12.0, 12.0, 14.0, 16.0]
    assert icdf(after, 0.95).item() == float("inf")
    assert [end.item() for end in after.interval(0.6)] == [12.0, 16.0]
    assert [end.item() for end in after.interval(0.7)] == [float("-inf"), float("inf")]
    ensemble = from_draws(after.points())
    for y in (9.0, 12.0, 13.5, 20.0):
        target = torch.tensor([y])
        torch.testing.assert_close(crps(after, target), crps(ensemble, target))
    torch.testing.assert_close(mean(after), mean(ensemble))
    torch.testing.assert_close(variance(after), variance(ensemble))


@pytest.mark.parametrize("ties", [False, True])
def test_the_randomised_distribution_function_is_exactly_uniform(ties):
    """Each of n + 1 exchangeable rows in turn is the new one: the bands of all together fill [0, 1] evenly."""
    values = torch.randn(21).double()
    values = values.round() if ties else values
    bands = []
    for new in range(21):
        rest = torch.cat([values[:new], values[new + 1 :]])
        fitted = ConformalPredictiveSystem(normalized=False).fit(Normal(torch.zeros(20).double(), 1.0), rest)
        after = fitted(Normal(torch.zeros(1).double(), 1.0))
        bands.append([edge.item() for edge in after.bounds(values[new : new + 1])])
        u = torch.tensor([0.3]).double()
        low, high = bands[-1]
        assert pit(after, values[new : new + 1], u=u).item() == pytest.approx(low + 0.3 * (high - low))
    for level in torch.linspace(0, 1, 41).tolist():
        share = sum(min(max((level - low) / (high - low), 0.0), 1.0) for low, high in bands) / 21
        assert share == pytest.approx(level, abs=1e-12)


@pytest.mark.parametrize("coverage", [0.0, 0.005, 0.5, 0.9, 0.995, 1.0])
def test_intervals_hold_exactly_the_share_of_exchangeable_rows_that_their_ranks_say(coverage):
    values = torch.randn(40).double()
    held = 0
    for new in range(40):
        rest = torch.cat([values[:new], values[new + 1 :]])
        fitted = ConformalPredictiveSystem(normalized=False).fit(Normal(torch.zeros(39).double(), 1.0), rest)
        low, high = fitted(Normal(torch.zeros(1).double(), 1.0)).interval(coverage)
        held += int(low <= values[new] <= high)
    assert held / 40 >= coverage
    assert held / 40 <= coverage + 2 / 40 + 1e-12 or coverage > 0.95


def test_conformal_predictive_of_counts_and_its_limits():
    predicted, targets = counts()
    after = ConformalPredictiveSystem().fit(predicted, targets)(predicted)
    assert isinstance(after, ConformalPredictive)
    assert after.draw(3, seed=1).shape == (3, 200)
    assert to(after, dtype=torch.float32).loc.dtype == torch.float32
    with pytest.raises(NotSupportedError, match="crps"):
        log_prob(after, targets)
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        ConformalPredictiveSystem().fit(predicted, targets)(predicted, u=1.5)
    with pytest.raises(ShapeError, match="one number a row"):
        ConformalPredictiveSystem().fit(Independent(Normal(torch.zeros(3, 2), 1.0), 1), torch.zeros(3, 2))
    with pytest.raises(NotFiniteError, match="standard deviations"):
        ConformalPredictiveSystem().fit(StudentT(torch.full((3,), 1.5)), torch.zeros(3))


def test_counts_that_are_overdispersed_score_better_after_quantile_recalibration():
    predicted, targets = counts(600)
    after = QuantileRecalibration(num_knots=10).fit(predicted, targets)(predicted)
    true = NegativeBinomial(torch.ones(600).double(), logits=torch.log(predicted.rate))
    scores = [mean_crps(d, targets) for d in (predicted, after, true)]
    assert scores[0] > scores[1]
    assert scores[1] < 1.05 * scores[2]
