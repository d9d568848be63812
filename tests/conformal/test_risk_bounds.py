"""Risk bounds: golden values, scipy as the oracle, duality of p-values and bounds, and their type-I error."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from credibly.conformal.bounds import Betting, ExactBinomial, HoeffdingBentkus, whole_above
from credibly.core.errors import NotFiniteError, ShapeError, SupportError

BOUNDS = {"exact": ExactBinomial(), "hoeffding_bentkus": HoeffdingBentkus(), "betting": Betting()}
NUM_DRAWS = 20_000


@pytest.fixture(params=BOUNDS)
def bound(request):
    return BOUNDS[request.param]


def losses_of(count, rows, dtype=torch.float64):
    table = torch.zeros(rows, dtype=dtype)
    table[:count] = 1
    return table


@pytest.mark.parametrize(
    ("count", "rows", "risk", "hoeffding", "bentkus", "exact"),
    [
        (5, 100, 0.1, 0.18812, 0.15651, 0.05758),
        (80, 1000, 0.1, 0.09356, 0.04787, 0.01761),
        (0, 50, 0.1, 0.005154, 0.014009, 0.005154),
    ],
)
def test_golden_values(count, rows, risk, hoeffding, bentkus, exact, dtype):
    table = losses_of(count, rows, dtype)
    both = HoeffdingBentkus().p_values(table, risk).item()
    assert both == pytest.approx(min(hoeffding, bentkus), abs=6e-6)
    mean = count / rows
    other = math.exp(-rows * float(stats.entropy([mean, 1 - mean], [risk, 1 - risk])))
    tail = math.e * stats.binom(rows, risk).cdf(count)
    assert both == pytest.approx(min(other, tail), rel=1e-12)
    assert (other, tail) == pytest.approx((hoeffding, bentkus), abs=6e-6)
    assert ExactBinomial().p_values(table, risk).item() == pytest.approx(exact, abs=6e-6)


def test_a_sum_of_seven_is_seven():
    # 100 losses of .07, and the mean .07 of 100: floats make 8 of either
    assert math.ceil(100 * 0.07) == 8
    assert whole_above(torch.full((100,), 0.07, dtype=torch.float64).sum()).item() == 7.0
    assert whole_above(torch.tensor([0.0, 7.0, 7.0001, 6.9999], dtype=torch.float64)).tolist() == [0.0, 7.0, 8.0, 7.0]
    around = torch.tensor([7 + 2**-50, 7 - 2**-50, 7 + 2**-40], dtype=torch.float64)
    assert whole_above(around).tolist() == [7.0, 7.0, 8.0]
    fractions, whole = torch.full((100,), 0.07, dtype=torch.float64), losses_of(7, 100)
    equal = [HoeffdingBentkus().p_values(each, 0.2).item() for each in (fractions, whole)]
    assert equal[0] == pytest.approx(equal[1], rel=1e-12)


@given(st.integers(1, 200), st.integers(0, 200), st.floats(0, 1))
def test_exact_binomial_is_scipys(rows, count, risk):
    count = min(count, rows)
    found = ExactBinomial().p_values(losses_of(count, rows), risk).item()
    assert found == pytest.approx(stats.binom(rows, risk).cdf(count), rel=1e-9, abs=1e-280)


def test_exact_upper_bound_is_clopper_and_pearsons():
    for rows, count in ((10, 0), (10, 3), (10, 10), (500, 25)):
        found = ExactBinomial().upper_bound(losses_of(count, rows), 0.05).item()
        interval = stats.binomtest(count, rows, alternative="less").proportion_ci(0.95, "exact")
        assert found == pytest.approx(interval.high, rel=1e-10)


def slow_wealth(losses, risk, delta):
    """The betting martingale as the paper writes it, one loss after the other; the supremum over its whole path."""
    n, total, spread, variance, wealth, largest = len(losses), 0.0, 0.0, 0.25, 1.0, 1.0
    for i, loss in enumerate(losses, 1):
        bet = min(1.0, math.sqrt(2 * math.log(1 / delta) / (n * variance)))
        wealth *= 1 - bet * (loss - risk)
        largest = max(largest, wealth)
        total += loss
        spread += (loss - (0.5 + total) / (1 + i)) ** 2
        variance = (0.25 + spread) / (1 + i)
    return largest


@given(st.lists(st.floats(0, 1), min_size=1, max_size=40), st.floats(0, 1), st.floats(0.01, 0.5))
def test_betting_is_the_papers_martingale(losses, risk, delta):
    found = Betting().p_values(torch.tensor(losses, dtype=torch.float64), risk, delta=delta).item()
    assert found == pytest.approx(1 / slow_wealth(losses, risk, delta), rel=1e-9)


def test_betting_takes_its_supremum_over_the_whole_path():
    # the wealth rises on the zeros and is lost again on the ones: its end alone would show nothing
    table = torch.cat([torch.zeros(60), torch.ones(40)]).double()
    assert Betting().p_values(table, 0.2).item() < 0.01
    assert Betting().p_values(table.flip(0), 0.2).item() == 1.0


def table_for(bound, rows, tests, seed):
    generator = torch.Generator().manual_seed(seed)
    table = torch.rand(rows, tests, generator=generator, dtype=torch.float64)
    level = torch.linspace(0.02, 0.9, tests, dtype=torch.float64)
    return (table < level).double() if isinstance(bound, ExactBinomial) else table * level


@pytest.mark.parametrize("delta", [0.02, 0.1, 0.3])
def test_the_upper_bound_is_the_smallest_risk_that_is_rejected(bound, delta):
    table = table_for(bound, 60, 15, 0)
    upper = bound.upper_bound(table, delta)
    assert bool((upper >= table.mean(0)).all()) or isinstance(bound, Betting)
    for column, limit in zip(table.T, upper.tolist(), strict=True):
        if limit < 1:
            assert bound.p_values(column, min(limit + 1e-9, 1), delta=delta).item() <= delta
        assert bound.p_values(column, limit - 1e-9, delta=delta).item() > delta


def test_p_values_fall_with_the_risk(bound):
    table = table_for(bound, 80, 10, 1)
    levels = torch.linspace(0, 1, 41).tolist()
    p = torch.stack([bound.p_values(table, level) for level in levels])
    assert bool((p.diff(dim=0) <= 1e-12).all())
    assert bool(((p >= 0) & (p <= 1)).all())
    assert p[0].tolist() == [1.0] * 10  # nothing shows a risk of at most 0


def type_one_errors(bound, losses, risk, deltas):
    """How often the true risk is rejected, at each delta: it may be as often as delta and 4 standard errors (3e-5)."""
    for delta in deltas:
        rate = (bound.p_values(losses, risk, delta=delta) <= delta).double().mean().item()
        assert rate <= delta + 4 * math.sqrt(delta * (1 - delta) / NUM_DRAWS), (rate, delta)


@pytest.mark.parametrize(("rows", "risk"), [(30, 0.2), (100, 0.1), (100, 0.5)])
def test_type_one_error_for_zero_one_losses(bound, rows, risk):
    generator = torch.Generator().manual_seed(rows)
    table = (torch.rand(rows, NUM_DRAWS, generator=generator, dtype=torch.float64) < risk).double()
    type_one_errors(bound, table, risk, (0.05, 0.1))


@pytest.mark.parametrize("name", ["hoeffding_bentkus", "betting"])
@pytest.mark.parametrize("power", [1, 4])
def test_type_one_error_for_other_losses(name, power):
    # U^power has mean 1 / (power + 1)
    generator = torch.Generator().manual_seed(power)
    table = torch.rand(60, NUM_DRAWS, generator=generator, dtype=torch.float64) ** power
    type_one_errors(BOUNDS[name], table, 1 / (power + 1), (0.05, 0.2))


def test_the_exact_test_is_not_needlessly_conservative():
    # its level is the largest binomial tail below delta; 5 standard errors on either side
    generator = torch.Generator().manual_seed(9)
    table = (torch.rand(100, NUM_DRAWS, generator=generator, dtype=torch.float64) < 0.1).double()
    tails = stats.binom(100, 0.1).cdf(range(101))
    expected = float(tails[tails <= 0.1].max())
    rate = (ExactBinomial().p_values(table, 0.1) <= 0.1).double().mean().item()
    assert abs(rate - expected) < 5 * math.sqrt(expected * (1 - expected) / NUM_DRAWS)


def test_bets_on_small_variance_beat_the_other_bounds():
    table = 0.05 + 0.01 * torch.rand(200, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    bounds = [each.upper_bound(table, 0.1).item() for each in (Betting(), HoeffdingBentkus())]
    assert 0.055 < bounds[0] < bounds[1]


def test_one_row_and_certain_losses(bound):
    assert bound.p_values(torch.zeros(1), 1).item() <= 0.5
    assert bound.p_values(torch.ones(5), 0.999).item() > 0.5
    assert bound.upper_bound(torch.ones(5), 0.1).item() == 1.0
    assert bound.upper_bound(torch.zeros(1), 0.1).item() > 0.85
    assert bound.p_values(torch.zeros(3, 0), 0.1).shape == (0,)
    assert bound.p_values(torch.ones(3, 2, 4, dtype=torch.bool), 0.1).shape == (2, 4)


def test_bad_losses_are_refused(bound, device):
    for bad, error in (
        (torch.empty(0), ShapeError),
        (torch.tensor(0.5), ShapeError),
        (torch.tensor([math.nan]), NotFiniteError),
        (torch.tensor([math.inf]), NotFiniteError),
        (torch.tensor([1.5]), SupportError),
        (torch.tensor([-0.5]), SupportError),
    ):
        with pytest.raises(error, match="losses"):
            bound.p_values(bad.to(device), 0.1)
        with pytest.raises(error, match="losses"):
            bound.upper_bound(bad.to(device), 0.1)
    for risk in (-0.1, 1.1, math.nan):
        with pytest.raises(ValueError, match="risk"):
            bound.p_values(torch.ones(2), risk)
    for delta in (0, 1, math.nan):
        with pytest.raises(ValueError, match="delta"):
            bound.upper_bound(torch.ones(2), delta)
    with pytest.raises(SupportError, match="HoeffdingBentkus"):
        ExactBinomial().p_values([0.5], 0.1)
