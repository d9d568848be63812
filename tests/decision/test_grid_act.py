"""Acts about numbers: expectations against closed forms, and the newsvendor's quantile."""

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributions import Gamma, Independent, Normal, Poisson, StudentT

from credibly import calibration
from credibly.core.errors import NotFiniteError, NotSupportedError, ShapeError
from credibly.decision import grid_act, newsvendor_act
from credibly.decision.nodes import integration_nodes
from credibly.distributions.cumulative import cdf
from credibly.distributions.entry import from_draws, from_probs, from_quantiles
from credibly.distributions.mixture import MixturePredictive


def normal(dtype: torch.dtype = torch.float64, device: str | torch.device = "cpu") -> Normal:
    loc = torch.tensor([0.0, 3.0, -1.0], dtype=dtype, device=device)
    return Normal(loc, torch.tensor([1.0, 0.5, 2.0], dtype=dtype, device=device), validate_args=False)


def newsvendor(act: Tensor, target: Tensor) -> Tensor:
    return 3.0 * (target - act).clamp(min=0) + 1.0 * (act - target).clamp(min=0)


def test_smooth_costs_are_exact(dtype: torch.dtype, device: torch.device) -> None:
    acts = torch.linspace(-2, 4, 13)
    predicted = normal(dtype, device)
    decided = grid_act(predicted, lambda a, y: (a - y) ** 2, acts)
    loc, scale = predicted.loc.double().cpu(), predicted.scale.double().cpu()
    exact = (acts - loc[:, None]) ** 2 + scale[:, None] ** 2
    np.testing.assert_allclose(decided.expected_costs.cpu(), exact, rtol=1e-9)
    assert decided.acts.tolist() == [0, 3, -1]
    np.testing.assert_allclose(decided.expected_cost.cpu(), scale**2, rtol=1e-9)


def test_a_kink_costs_what_the_documentation_says() -> None:
    predicted = normal()
    acts = torch.linspace(-4, 5, 60, dtype=torch.float64)
    decided = grid_act(predicted, lambda a, y: (a - y).abs(), acts)
    z = (acts - predicted.loc[:, None]) / predicted.scale[:, None]
    standard = Normal(torch.tensor(0.0, dtype=torch.float64), 1.0)
    exact = predicted.scale[:, None] * (z * (2 * standard.cdf(z) - 1) + 2 * standard.log_prob(z).exp())
    error = (decided.expected_costs - exact).abs() / predicted.scale[:, None]
    assert (
        4e-5 < float(error.max()) < 2 * float(standard.log_prob(torch.zeros(())).exp()) * 0.03**2 / 12
    )  # the kink's jump of 2


def test_counts_are_summed_exactly() -> None:
    rates = torch.tensor([0.3, 4.0, 700.0], dtype=torch.float64)
    decided = grid_act(Poisson(rates, validate_args=False), newsvendor, torch.arange(800))
    counts = torch.arange(3000, dtype=torch.float64)
    mass = (torch.xlogy(counts, rates[:, None]) - rates[:, None] - torch.lgamma(counts + 1)).exp()
    table = newsvendor(torch.arange(800.0, dtype=torch.float64)[:, None], counts)
    np.testing.assert_allclose(decided.expected_costs, mass @ table.T, rtol=1e-8)
    assert torch.equal(decided.acts, newsvendor_act(Poisson(rates, validate_args=False), underage=3, overage=1))


def test_wide_counts_are_as_good_as_continuous() -> None:
    rates = torch.tensor([1e10], dtype=torch.float64)
    decided = grid_act(Poisson(rates, validate_args=False), lambda a, y: ((a - y) / 1e5) ** 2, [1e10])
    np.testing.assert_allclose(decided.expected_costs, [[1.0]], rtol=1e-4)


def test_draws_stand_for_themselves() -> None:
    draws = torch.randn(37, 5, dtype=torch.float64)
    acts = torch.randn(5, 4, dtype=torch.float64)
    decided = grid_act(from_draws(draws), newsvendor, acts)
    exact = newsvendor(acts.T[:, None], draws).mean(1).T
    np.testing.assert_allclose(decided.expected_costs, exact, rtol=1e-12)
    np.testing.assert_array_equal(decided.acts, acts.gather(1, exact.argmin(1, keepdim=True)).squeeze(1))


@pytest.mark.parametrize(
    "predicted",
    [
        normal(),
        Gamma(torch.tensor([0.7, 9.0], dtype=torch.float64), torch.tensor(2.0, dtype=torch.float64), False),
        StudentT(torch.tensor([3.0, 8.0], dtype=torch.float64), validate_args=False),
        MixturePredictive(Normal(torch.tensor([[0.0], [4.0]], dtype=torch.float64), 1.0, validate_args=False)),
    ],
    ids=["normal", "gamma", "student_t", "mixture"],
)
def test_newsvendor_is_a_quantile_and_no_act_of_a_grid_is_better(predicted: torch.distributions.Distribution) -> None:
    best = newsvendor_act(predicted, underage=3.0, overage=1.0)
    np.testing.assert_allclose(cdf(predicted, best), 0.75, rtol=1e-9)
    around = best[:, None] + torch.linspace(-0.5, 0.5, 21, dtype=torch.float64)
    assert grid_act(predicted, newsvendor, around, num_points=4001).indices.tolist() == [10] * len(best)


def test_newsvendor_costs_may_differ_by_row_and_hold_for_every_output(dtype: torch.dtype) -> None:
    predicted = normal(dtype)
    levels = torch.tensor([0.5, 0.9, 0.25], dtype=dtype)
    found = newsvendor_act(predicted, underage=[1.0, 9.0, 1.0], overage=[1.0, 1.0, 3.0])
    torch.testing.assert_close(found, predicted.icdf(levels))
    assert found.dtype == dtype
    pairs = Independent(Normal(torch.zeros(3, 2), 1.0, validate_args=False), 1, validate_args=False)
    torch.testing.assert_close(
        newsvendor_act(pairs, underage=[1.0, 9.0, 1.0], overage=[1.0, 1.0, 3.0]),
        Normal(0.0, 1.0).icdf(levels.float())[:, None].expand(3, 2),
    )


def test_quantiles_alone_give_the_newsvendor_and_no_expectation() -> None:
    forecast = from_quantiles([0.1, 0.5, 0.9], torch.tensor([[0.0, 1.0, 5.0]]))
    assert newsvendor_act(forecast, underage=[9.0], overage=1.0).tolist() == [5.0]
    with pytest.raises(ValueError, match=r"outer levels, 0\.1 and 0\.9"):
        grid_act(forecast, newsvendor, [0.0])


def test_infinite_costs_forbid_acts_and_negative_ones_are_gains() -> None:
    limit = torch.tensor([[0.2, 0.5], [0.4, 0.9]], dtype=torch.float64)
    decided = grid_act(from_draws(limit), lambda a, y: torch.where(a < y, torch.inf, a - 3.0 + 0 * y), [0.1, 0.45, 1.0])
    assert decided.expected_costs.tolist() == [[torch.inf, -2.55, -2], [torch.inf, torch.inf, -2]]
    assert decided.acts.tolist() == [0.45, 1.0]
    tied = grid_act(from_draws(limit), lambda a, y: 0 * (a + y), [3.0, 1.0, 2.0])
    assert tied.indices.tolist() == [0, 0]


def absolute(act: Tensor, target: Tensor) -> Tensor:
    return (act - target).abs()


@pytest.mark.parametrize("normalized", [True, False])
@pytest.mark.parametrize("u", [0.0, 0.4, 1.0])
def test_a_mass_at_infinity_is_left_out(normalized: bool, u: float, dtype: torch.dtype) -> None:
    errors = torch.randn(100, generator=torch.Generator().manual_seed(0)).to(dtype)
    held_out = Normal(torch.zeros(100, dtype=dtype), 1.0, validate_args=False)
    recalibrate = calibration.ConformalPredictiveSystem(normalized=normalized).fit(held_out, errors)
    predicted = recalibrate(normal(dtype), u=u)
    acts = torch.linspace(-4, 5, 91, dtype=torch.float64)
    for cost in (absolute, newsvendor):
        decided = grid_act(predicted, cost, acts)
        draws = predicted.points().double()
        exact = cost(acts, draws.unsqueeze(-1)).mean(0)
        # of 8016 quantiles each of the 100 points has 79 or 80: masses are off by 1 / 79
        np.testing.assert_allclose(decided.expected_costs, exact, rtol=0.01)
        regret = exact.gather(1, decided.indices.unsqueeze(1)).squeeze(1) - exact.amin(1)
        assert float(regret.max()) < 0.01
    assert decided.acts.unique().numel() > 1


@pytest.mark.parametrize("factor", [1.0, 8.0])
def test_acts_about_recalibrated_numbers_and_counts(factor: float, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    targets = (factor * torch.randn(400, generator=generator)).to(dtype)
    held_out = Normal(torch.zeros(400, dtype=dtype), 1.0, validate_args=False)
    predicted = calibration.QuantileRecalibration().fit(held_out, targets)(normal(dtype))
    decided = grid_act(predicted, lambda a, y: (a - y) ** 2, factor * torch.linspace(-3, 3, 61))
    assert float((decided.acts - predicted.mean).abs().max()) <= factor * 0.06
    rates = torch.full((400,), 3.0, dtype=dtype)
    counts = torch.poisson(rates, generator=generator)
    counts[:20] = 60
    after = calibration.QuantileRecalibration().fit(Poisson(rates), counts)(Poisson(rates[:2]))
    chosen = grid_act(after, newsvendor, torch.arange(70))
    table = newsvendor(torch.arange(70.0, dtype=torch.float64)[:, None], counts.double()).mean(1)
    assert abs(float(chosen.expected_cost[0] - table.amin())) < 0.05 * float(table.amin())
    assert chosen.acts.tolist() == newsvendor_act(after, underage=3.0, overage=1.0).tolist()


def test_no_act_is_chosen_where_all_cost_infinity() -> None:
    with pytest.raises(NotFiniteError, match="has an infinite expected cost in 3 rows, first row 0"):
        grid_act(normal(), lambda a, y: torch.where(a < y, torch.inf, a - y), [0.0, 1.0])
    draws = from_draws(torch.tensor([[0.2, 5.0], [0.4, 0.9]], dtype=torch.float64))
    with pytest.raises(NotFiniteError, match="in 1 rows, first row 1"):
        grid_act(draws, lambda a, y: torch.where(a < y, torch.inf, a - y), [0.1, 1.0])


def test_a_row_without_a_finite_quantile_is_refused() -> None:
    held_out = Normal(torch.zeros(9), 1.0)
    system = calibration.ConformalPredictiveSystem().fit(held_out, torch.arange(9.0))
    with pytest.raises(NotFiniteError, match="`predicted` must be finite; 1 of 1"):
        newsvendor_act(system(Normal(torch.zeros(1), 1.0), u=0.0), underage=99.0, overage=1.0)
    with pytest.raises(NotFiniteError, match="no finite quantiles in 1 rows, first row 1"):
        grid_act(Poisson(torch.tensor([1.0, torch.nan]), validate_args=False), newsvendor, [0.0])


def test_points_of_a_step_function_hold_its_masses() -> None:
    points, weights = integration_nodes(Own(torch.tensor([0.0, 10.0], dtype=torch.float64)), 501)
    assert bool(points.isfinite().all())
    np.testing.assert_allclose(weights.expand(points.shape).sum(0), 1.0)
    for row in range(2):
        for step, mass in ((-1.0, 0.25), (0.0, 0.5), (1.0, 0.25)):
            at = (points[:, row] - 10 * row == step).double()
            assert float((at * weights.expand(points.shape)[:, row]).sum()) == pytest.approx(mass, abs=1 / 2000)


class Own(torch.distributions.Distribution):
    """Masses at minus infinity, -1, 0, 1 and infinity: 1/6, 1/6, 1/3, 1/6, 1/6."""

    arg_constraints = {"loc": torch.distributions.constraints.real}  # noqa: RUF012
    support = torch.distributions.constraints.real

    def __init__(self, loc: Tensor, validate_args: bool | None = False) -> None:
        self.loc = loc
        super().__init__(loc.shape, validate_args=validate_args)

    def icdf(self, value: Tensor) -> Tensor:
        steps = torch.tensor([-torch.inf, -1, 0, 0, 1, torch.inf], dtype=torch.float64)
        return self.loc + steps[(value * 6).long().clamp(max=5)]


def test_no_rows() -> None:
    empty = grid_act(Normal(torch.empty(0), 1.0, validate_args=False), newsvendor, [1.0, 2.0])
    assert empty.acts.shape == (0,)
    assert empty.expected_costs.shape == (0, 2)
    assert grid_act(Poisson(torch.empty(0), validate_args=False), newsvendor, [1.0]).acts.shape == (0,)
    assert newsvendor_act(Normal(torch.empty(0), 1.0), underage=1, overage=1).shape == (0,)


def test_refusals_name_what_is_needed() -> None:
    predicted = normal()
    with pytest.raises(NotSupportedError, match="use bayes_act with a cost matrix"):
        grid_act(from_probs([0.5]), newsvendor, [0.0])
    with pytest.raises(NotSupportedError, match="use bayes_act with a cost matrix"):
        newsvendor_act(from_probs([0.5]), underage=1, overage=1)
    with pytest.raises(NotSupportedError, match=r"one number a row; `predicted` has event_shape \(2,\)"):
        grid_act(Independent(Normal(torch.zeros(3, 2), 1.0), 1), newsvendor, [0.0])
    for wrong in ([], torch.zeros(2, 4), torch.zeros(3, 2, 2)):
        with pytest.raises(ShapeError, match=r"`acts` must have shape \(acts,\) or \(3, acts\)"):
            grid_act(predicted, newsvendor, wrong)
    with pytest.raises(NotFiniteError, match="`acts` must be finite"):
        grid_act(predicted, newsvendor, [torch.nan])
    with pytest.raises(NotFiniteError, match="`cost` must not give NaN"):
        grid_act(predicted, lambda a, y: (a - y) * torch.nan, [0.0])
    with pytest.raises(ValueError, match="`cost` must not give -infinity"):
        grid_act(predicted, lambda a, y: (a - y) - torch.inf, [0.0])
    with pytest.raises(ShapeError, match=r"`cost` must work element by element and give shape \(3, 1, 501\) here"):
        grid_act(predicted, lambda a, y: a - y.mean(), [0.0])
    with pytest.raises(ValueError, match="`underage` must be a finite number above 0"):
        newsvendor_act(predicted, underage=0.0, overage=1.0)
    with pytest.raises(ShapeError, match=r"`overage` must be one number or have shape \(3,\); got \(2,\)"):
        newsvendor_act(predicted, underage=1.0, overage=[1.0, 2.0])
