"""CRPS: golden values, the defining integral and sum, the ensemble and the quantile forms."""

import itertools
import math

import numpy as np
import pytest
import torch
from distribution_cases import ALL, build, targets
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.integrate import quad
from torch.distributions import (
    Beta,
    Binomial,
    Categorical,
    Exponential,
    Gamma,
    Geometric,
    Independent,
    Laplace,
    LogNormal,
    NegativeBinomial,
    Normal,
    Poisson,
    StudentT,
    Uniform,
    VonMises,
    Weibull,
)

from credibly.core.errors import ConvergenceWarning, NotFiniteError, NotSupportedError, ShapeError
from credibly.distributions import crps_numeric
from credibly.distributions.affine import affine
from credibly.distributions.crps import crps, integrated
from credibly.distributions.cumulative import cdf, icdf
from credibly.distributions.empirical import Empirical, fair_crps
from credibly.distributions.entry import from_draws, from_quantiles
from credibly.distributions.kinds import kind
from credibly.distributions.mixture import MixturePredictive
from credibly.distributions.quantiles import QuantileForecast
from credibly.distributions.rows import rebuild, select, to

CLOSED = [
    *("normal", "laplace", "log_normal", "exponential", "gamma", "uniform", "beta", "student_t", "poisson"),
    *("mixture_gamma", "mixture_uniform", "mixture_poisson", "mixture_view"),
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


def _rows(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


COUNTS = {
    "negative_binomial": (NegativeBinomial(_rows(0.3, 1, 40, 2.5), probs=_rows(0.9, 0.2, 0.7, 0.05)), [0, 3, 70, 1]),
    "geometric": (Geometric(probs=_rows(1, 0.5, 0.02, 0.3)), [2, 0, 70, 3]),
    "geometric_logits": (Geometric(logits=_rows(40, 0, -3, 1)), [0, 0, 70, 3]),
    "binomial": (Binomial(_rows(1, 7, 200, 30), probs=_rows(0.3, 0.5, 0.99, 1e-3)), [1, 7, 150, 0]),
    "poisson": (Poisson(_rows(1e-3, 1, 250, 12)), [0, 4, 300, 50]),
}


@pytest.mark.parametrize("name", COUNTS)
def test_counts_equal_the_sum_over_all_of_them(name: str) -> None:
    d, targets_ = COUNTS[name]
    y, k = _rows(*targets_), torch.arange(3000.0, dtype=torch.float64).unsqueeze(-1)
    expected = ((cdf(d, k.expand(-1, 4)) - (k >= y).double()) ** 2).sum(0)
    torch.testing.assert_close(crps(d, y), expected, rtol=1e-11, atol=1e-13)
    torch.testing.assert_close(integrated(d, y), expected, rtol=1e-11, atol=1e-13)


def test_counts_in_the_millions_are_summed_from_a_few() -> None:
    d = Poisson(_rows(2e6, 1e6, 5e4, 1e4))
    y = _rows(2_003_000, 1_000_000, 0, 20_000)
    torch.testing.assert_close(integrated(d, y), crps(d, y), rtol=1e-8, atol=0)
    wide = NegativeBinomial(_rows(0.5), probs=_rows(0.9999))
    torch.testing.assert_close(integrated(wide, _rows(5000)), crps(wide, _rows(5000)), rtol=1e-8, atol=0)


REALS = {
    "normal": (Normal(_rows(0, 3, -1e5), _rows(1, 1e-3, 7)), [0.3, 3.0, 1e5]),
    "laplace": (Laplace(_rows(0, 3, 1), _rows(1, 1e-3, 7)), [0.3, 3.01, -90.0]),
    "log_normal": (LogNormal(_rows(0, 3, 1), _rows(1, 1e-2, 3)), [0.3, 20.0, 500.0]),
    "exponential": (Exponential(_rows(0.1, 3, 1)), [1e-3, 20.0, 1.0]),
    "gamma": (Gamma(_rows(0.1, 3, 500), _rows(1, 9, 0.2)), [1e-3, 2.0, 2400.0]),
    "beta": (Beta(_rows(0.2, 3, 500), _rows(0.3, 9, 20)), [0.5, 0.01, 0.97]),
    "weibull": (Weibull(_rows(1, 3, 0.1), _rows(0.6, 1, 8)), [0.5, 9.0, 0.09]),
    "student_t": (StudentT(_rows(1.3, 4, 300), _rows(0, 1, 2), _rows(1, 2, 0.1)), [7.0, 1.0, 1.9]),
    "uniform": (Uniform(_rows(0, -3, 5), _rows(1, 9, 5.1)), [1.0, 0.0, 5.05]),
}


@pytest.mark.parametrize("name", REALS)
def test_integration_equals_the_closed_forms(name: str, dtype: torch.dtype) -> None:
    d, targets_ = REALS[name]
    y = _rows(*targets_)
    torch.testing.assert_close(integrated(d, y), crps(d, y), rtol=1e-6, atol=0)
    if name != "normal":  # whose row of scale 1e-3 around 3 is rounded at the start
        single = to(d, dtype=dtype)
        torch.testing.assert_close(crps(single, y.to(dtype)).double(), crps(d, y), rtol=3e-5, atol=0)


@pytest.mark.parametrize("df", [0.75, 0.9995, 1.0, 1.0009, 1.0011, 1.5, 30.0, 1e7])
def test_student_t_from_half_a_degree_of_freedom_on(df: float) -> None:
    """Against the trapezoidal rule in the logarithm of the distance from the target, tails and all."""
    step, y = 0.02, 0.7
    distance = torch.exp(torch.arange(-40, 200, step, dtype=torch.float64))
    d = StudentT(_rows(df).expand(len(distance)))
    below, above = cdf(d, y - distance), cdf(d, -(y + distance))
    expected = step * float(((below**2 + above**2) * distance).sum())
    assert float(crps(StudentT(_rows(df)), [y])) == pytest.approx(expected, rel=1e-9)


def test_student_t_without_a_finite_integral_scores_infinity() -> None:
    assert crps(StudentT(_rows(0.5, 0.3)), [0.0, 1.0]).tolist() == [math.inf, math.inf]


@pytest.mark.parametrize("name", ["mixture_gamma", "mixture_uniform", "mixture_poisson", "mixture_view"])
def test_a_mixture_of_equal_components_scores_like_one(name: str) -> None:
    d = ALL[name](torch.float64)
    one, many = _with_draws(d, 0), _with_draws(d, 0, 0, 0)
    y = icdf(one, 0.7)
    torch.testing.assert_close(crps(many, y), crps(one, y), rtol=1e-6, atol=0)


def _with_draws(d: MixturePredictive, *draws: int) -> MixturePredictive:
    def pick(tensors, event_dim):
        return tensors[0] if event_dim is None else tensors[0][list(draws)]

    return MixturePredictive(rebuild(d.components, (), pick))


def test_jumps_and_kinks_are_closed_in_upon() -> None:
    """Uniforms of very different widths, one of them next to a point."""
    low, width = _rows(0, 1.7, -30).unsqueeze(-1), _rows(1, 1e-7, 60).unsqueeze(-1)
    d = MixturePredictive(Uniform(low, low + width, validate_args=False), torch.log(_rows(0.3, 0.25, 0.45)))
    draws_of = [(0.3, 0.0, 1.0), (0.25, 1.7, 1e-7), (0.45, -30.0, 60.0)]
    points = sorted({p for _, a, h in draws_of for p in (a, a + h)} | {0.4})

    def square(x: float) -> float:
        f = sum(w * min(max((x - a) / h, 0.0), 1.0) for w, a, h in draws_of)
        return (f - (x >= 0.4)) ** 2

    # between neighbouring points the integrand is a parabola: Simpson's rule is exact
    expected = sum(
        (b - a) / 6 * (square(a + 1e-13 * (b - a)) + 4 * square((a + b) / 2) + square(b - 1e-13 * (b - a)))
        for a, b in itertools.pairwise(points)
    )
    assert float(crps(d, [0.4])) == pytest.approx(expected, rel=1e-6)


def test_rows_are_scored_alone_whatever_the_chunks(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    d = MixturePredictive(Independent(StudentT(2 + torch.rand(3, 9, 2, dtype=dtype)), 1))
    y = torch.randn(9, 2, dtype=dtype)
    whole = crps(d, y)
    assert whole.shape == (9, 2)
    assert whole.dtype == dtype
    monkeypatch.setattr(crps_numeric, "CHUNK", 1)
    torch.testing.assert_close(crps(d, y), whole, rtol=1e-6, atol=0)
    torch.testing.assert_close(crps(select(d, [4]), y[4:5]), whole[4:5], rtol=1e-6, atol=0)
    empty = select(d, [])
    assert crps(empty, y[:0]).shape == (0, 2)


def test_a_solver_that_stops_early_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crps_numeric, "MAX_ROUNDS", 1)
    ones = torch.ones(2, 1)
    d = MixturePredictive(Uniform(_rows(0, 0.4).unsqueeze(-1), _rows(1, 0.41).unsqueeze(-1)))
    with pytest.warns(ConvergenceWarning, match="1 rows"):
        crps(d, 0.9 * ones[:1, 0])


def test_what_has_no_quantiles_gives_advice() -> None:
    with pytest.raises(NotSupportedError, match=r"icdf is not .*from_draws\(d\.sample\(\(1000,\)\)\)"):
        crps(VonMises(_rows(0.0), _rows(1.0)), [1.0])
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
