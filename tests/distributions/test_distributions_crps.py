"""CRPS: golden values, the defining integral, the ensemble and the quantile forms."""

import math

import numpy as np
import pytest
import torch
from distribution_cases import ALL, build, targets
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.integrate import quad
from torch.distributions import Beta, Categorical, Gamma, Independent, Normal, StudentT

from credibly.core.errors import NotFiniteError, NotSupportedError, ShapeError
from credibly.distributions.affine import affine
from credibly.distributions.crps import crps
from credibly.distributions.cumulative import cdf, icdf
from credibly.distributions.empirical import Empirical, fair_crps
from credibly.distributions.entry import from_draws, from_quantiles
from credibly.distributions.kinds import kind
from credibly.distributions.mixture import MixturePredictive
from credibly.distributions.quantiles import QuantileForecast
from credibly.distributions.rows import select, to

CLOSED = [
    *("normal", "laplace", "log_normal", "exponential", "gamma", "uniform", "poisson"),
    *("bernoulli_logits", "bernoulli_probs", "independent_normal", "independent_bernoulli"),
    *("mixture_normal", "mixture_weighted", "mixture_outputs", "mixture_bernoulli"),
    *("gaussian", "gaussian_outputs", "class_event", "view_gamma", "view_outputs"),
    *("empirical", "empirical_weighted"),
]


def test_golden_values(dtype: torch.dtype) -> None:
    d = Normal(torch.zeros(2, dtype=dtype), torch.ones(2, dtype=dtype))
    scores = crps(d, [0.0, 1.0]).tolist()
    assert scores == pytest.approx([0.2336949773, 0.6024413576], rel=1e-6 if dtype == torch.float32 else 1e-9)


@pytest.mark.parametrize("name", [n for n in CLOSED if "empirical" not in n])
def test_closed_forms_equal_the_defining_integral(name: str, device: torch.device) -> None:
    d = to(ALL[name](torch.float64), device=device)
    y = targets(d).double()
    score = crps(d, y)
    for row in range(2):
        element = (row, *(0,) * len(d.event_shape))
        one = select(d, [row])

        def square(x: float, one=one, y=y, element=element) -> float:
            f = float(cdf(one, torch.full(one.batch_shape + one.event_shape, x, dtype=torch.float64)).reshape(-1)[0])
            return (f - (x >= float(y[element]))) ** 2

        low, high = (float(icdf(one, q).reshape(-1)[0]) for q in (1e-9, 1 - 1e-9))
        if kind(d) == "real":
            low, high, at = min(low, float(y[element])), max(high, float(y[element])), float(y[element])
            expected = sum(quad(square, a, b, epsabs=1e-10, limit=200)[0] for a, b in ((low, at), (at, high)))
        else:
            expected = sum(square(k) for k in range(int(high) + 2))
        assert float(score[element]) == pytest.approx(expected, abs=2e-7)


@pytest.mark.parametrize("name", CLOSED)
def test_closed_forms_equal_the_ensemble_form(name: str, dtype: torch.dtype, device: torch.device) -> None:
    d = build(name, dtype, device)
    y, num_draws = targets(d), 4000
    draws = d.sample((num_draws,)).double()
    closed = crps(d, y).double()
    assert closed.shape == d.batch_shape + d.event_shape
    ensemble = fair_crps(from_draws(draws), y)
    # a U-statistic: its error is at most that of E|X - y| plus that of E|X - X'|/2, each a mean over draws
    spread = (draws - y).abs().std(0) + draws.std(0)
    assert bool(((closed - ensemble).abs() <= 5 * spread / math.sqrt(num_draws)).all())


@pytest.mark.parametrize("name", ["normal", "mixture_normal", "independent_normal", "empirical", "quantiles"])
def test_scores_are_in_the_units_of_the_targets(name: str, dtype: torch.dtype, device: torch.device) -> None:
    d = build(name, dtype, device)
    y = targets(d)
    torch.testing.assert_close(crps(affine(d, 3.0, 10.0), 3 + 10 * y), 10 * crps(d, y), rtol=1e-4, atol=1e-5)


def test_a_mixture_of_equal_gaussians_is_the_gaussian(dtype: torch.dtype) -> None:
    loc, scale = torch.tensor([0.0, 5.0], dtype=dtype), torch.tensor([1.0, 0.5], dtype=dtype)
    d = MixturePredictive(Normal(loc.expand(7, 2), scale.expand(7, 2)))
    y = torch.tensor([0.7, 2.0], dtype=dtype)
    torch.testing.assert_close(crps(d, y), crps(Normal(loc, scale), y))


def test_point_masses_score_their_distance() -> None:
    d = MixturePredictive(Normal(torch.tensor([[0.0], [2.0]]), torch.zeros(2, 1), validate_args=False))
    assert float(crps(d, [1.0])) == pytest.approx(0.5)
    assert float(crps(Normal(torch.zeros(1), torch.zeros(1), validate_args=False), [3.0])) == 3


@given(
    hnp.arrays(np.float64, (6, 3), elements=st.floats(-100, 100)),
    hnp.arrays(np.float64, 6, elements=st.floats(-10, 0)),
    hnp.arrays(np.float64, 3, elements=st.floats(-100, 100)),
)
def test_the_sorted_form_equals_the_pairwise_table(draws: np.ndarray, log_w: np.ndarray, y: np.ndarray) -> None:
    w = np.exp(log_w) / np.exp(log_w).sum()
    pairs = np.abs(draws[:, None] - draws[None])
    near = np.einsum("i,j,ijn->n", w, w, pairs) / 2
    far = np.einsum("i,in->n", w, np.abs(draws - y))
    np.testing.assert_allclose(crps(Empirical(draws, log_w), y).numpy(), far - near, atol=1e-11)
    fair = np.abs(draws - y).mean(0) - pairs.sum((0, 1)) / (2 * 6 * 5)
    np.testing.assert_allclose(fair_crps(from_draws(draws), y).numpy(), fair, atol=1e-11)


def test_the_fair_form_is_unbiased() -> None:
    d = Normal(torch.zeros(20_000, dtype=torch.float64), torch.ones(20_000, dtype=torch.float64))
    draws, y = d.sample((3,)), torch.ones(20_000, dtype=torch.float64)
    scores = fair_crps(from_draws(draws), y)
    error = float(scores.std()) / math.sqrt(len(scores))  # 5 errors: a false alarm with probability 6e-7
    assert abs(float(scores.mean()) - 0.6024413576) < 5 * error
    assert float(crps(from_draws(draws), y).mean()) > 0.6024413576 + 5 * error


def test_quantile_form_is_twice_the_mean_pinball_loss(dtype: torch.dtype) -> None:
    d = from_quantiles([0.1, 0.5], torch.tensor([[1.0, 3.0]], dtype=dtype))
    assert float(crps(d, [2.0])) == pytest.approx(0.1 * 1 + 0.5 * 1)
    levels = (torch.arange(2000, dtype=torch.float64) + 0.5) / 2000
    gaussian = Normal(torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64))
    many = QuantileForecast(levels, icdf(gaussian, levels.unsqueeze(-1)).T)
    assert float(crps(many, [1.0])) == pytest.approx(0.6024413576, abs=1e-3)


def test_what_has_no_closed_form_gives_advice() -> None:
    ones = torch.ones(2, 3)
    for d in (
        Beta(ones[0], ones[0]),
        StudentT(ones[0]),
        MixturePredictive(Gamma(ones, ones)),
        MixturePredictive(Independent(StudentT(torch.ones(2, 3, 1)), 1)),
    ):
        with pytest.raises(NotSupportedError, match=r"from_draws\(d\.sample\(\(1000,\)\)\)"):
            crps(d, 0.5 * ones[0])
    for classes in (Categorical(logits=torch.zeros(1, 3)), MixturePredictive(Categorical(logits=torch.zeros(2, 1, 3)))):
        with pytest.raises(NotSupportedError, match="Brier"):
            crps(classes, [1])


def test_fair_crps_says_what_it_needs() -> None:
    with pytest.raises(ValueError, match="at least 2 draws; got 1"):
        fair_crps(from_draws([[1.0]]), [1.0])
    with pytest.raises(NotSupportedError, match="equally weighted"):
        fair_crps(Empirical([[1.0], [2.0]], [0.0, 1.0]), [1.0])


def test_scores_check_their_targets() -> None:
    d = Normal(torch.zeros(3), torch.ones(3))
    with pytest.raises(ShapeError):
        crps(d, torch.zeros(3, 3))
    with pytest.raises(NotFiniteError):
        crps(d, [0.0, math.nan, 0.0])
