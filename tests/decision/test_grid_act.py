"""Acts about numbers: expectations against closed forms, and the newsvendor's quantile."""

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributions import Gamma, Independent, Normal, Poisson, StudentT

from credibly.core.errors import NotFiniteError, NotSupportedError, ShapeError
from credibly.decision import grid_act, newsvendor_act
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
