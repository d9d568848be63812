"""Cumulative functions and quantiles against scipy, out into the tails, and against each other."""

import numpy as np
import pytest
import scipy.special
import torch
from distribution_cases import ALL, MIXTURES, PLAIN, PREDICTIVE, ROWS, SCIPY, build, targets
from hypothesis import given
from hypothesis import strategies as st
from torch.distributions import (
    Categorical,
    Distribution,
    Gumbel,
    Normal,
    Poisson,
    VonMises,
)

from credibly.core.errors import NotFiniteError, NotSupportedError, ShapeError
from credibly.distributions.cumulative import cdf, icdf
from credibly.distributions.density import element_log_prob, log_prob, safe_log_prob
from credibly.distributions.kinds import kind
from credibly.distributions.mixture import MixturePredictive
from credibly.distributions.rows import select
from credibly.distributions.special import betainc
from credibly.distributions.survival import survival

DISCRETE = [
    n for n in PLAIN | MIXTURES if any(w in n for w in ("poisson", "geometric", "binomial", "bernoulli", "categorical"))
]
SCALES = np.array([-10.0, -8, -5, -3, -1, 0, 1, 3, 5, 8, 10])
# Relative error: the argument (y - loc)/scale is rounded, and at z = 10 that is amplified by z^2.
RELATIVE = {torch.float32: 2e-5, torch.float64: 1e-10}
# The terms of these densities cancel, in float64: rounding is absolute, of the size of the largest of them.
LARGEST_TERM = {
    "gamma_large_shape": 7e3,
    "beta_large": 2.3e4,
    "poisson_large": 3.4e4,
    "negative_binomial_large": 3e4,
    "binomial_large": 3e4,
}
SMALLEST = {torch.float32: 1e-37, torch.float64: 1e-290}


def _points(frozen: object, dtype: torch.dtype) -> torch.Tensor:
    centre, spread = frozen.median(), frozen.ppf(0.84) - frozen.ppf(0.5)
    points = torch.tensor(centre + spread * SCALES, dtype=dtype)
    return points.round() if hasattr(frozen, "pmf") else points


@pytest.mark.parametrize("name", SCIPY)
def test_cdf_equals_scipy_at_ten_scales_from_the_centre(name: str, dtype: torch.dtype) -> None:
    make, frozen = SCIPY[name]
    points = _points(frozen, dtype)
    ours = cdf(make(dtype), points.unsqueeze(-1)).squeeze(-1)
    assert ours.dtype == dtype
    theirs = frozen.cdf(points.double().numpy())
    np.testing.assert_allclose(ours.double().numpy(), theirs, rtol=RELATIVE[dtype], atol=SMALLEST[dtype])


@pytest.mark.parametrize("name", SCIPY)
def test_icdf_equals_scipy(name: str, dtype: torch.dtype) -> None:
    make, frozen = SCIPY[name]
    levels = torch.tensor([1e-10, 1e-5, 0.01, 0.25, 0.5, 0.75, 0.9, 0.999, 1 - 2.0**-20], dtype=dtype)
    ours = icdf(make(dtype), levels.unsqueeze(-1)).squeeze(-1)
    assert ours.dtype == dtype
    theirs = frozen.ppf(levels.double().numpy())
    if hasattr(frozen, "pmf"):  # the smallest count whose distribution function, rounded to the dtype, has the level
        reached = torch.as_tensor(frozen.cdf(theirs - 1)).to(dtype) >= levels
        theirs = theirs - reached.numpy()
    np.testing.assert_allclose(
        ours.double().numpy(), theirs, rtol=RELATIVE[dtype] / 10, atol=4 * torch.finfo(dtype).eps
    )


@pytest.mark.parametrize("name", SCIPY)
def test_log_prob_equals_scipy_inside_the_support(name: str, dtype: torch.dtype) -> None:
    make, frozen = SCIPY[name]
    d, density = make(dtype), getattr(frozen, "logpmf", None) or frozen.logpdf
    points = torch.tensor([frozen.ppf(q) for q in (0.01, 0.3, 0.7, 0.99)], dtype=dtype)
    ours = torch.stack([log_prob(d, point.reshape(1)) for point in points]).squeeze(-1)
    theirs = density(points.double().numpy())
    cancelled = torch.finfo(torch.float64).eps * LARGEST_TERM.get(name, 10.0)
    rounding = 8 * max(10 * torch.finfo(dtype).eps, cancelled)
    np.testing.assert_allclose(ours.double().numpy(), theirs, rtol=0, atol=rounding)


LEVELS = [1e-300, 1e-200, 1e-100, 1e-50, 1e-20, 1e-10, 1e-4, 0.01, 0.3, 0.5]
FAR = 1e-10  # relative


def _tail_points(frozen: object, upper: bool) -> torch.Tensor:
    """Points of the support at far levels, where scipy finds one."""
    with np.errstate(all="ignore"):
        points = (frozen.isf if upper else frozen.ppf)(np.array(LEVELS))
    return torch.tensor(np.unique(points[np.isfinite(points)]), dtype=torch.float64)


@pytest.mark.parametrize("name", SCIPY)
def test_far_tails_equal_scipy(name: str) -> None:
    make, frozen = SCIPY[name]
    d = make(torch.float64)
    for upper, ours, theirs in ((False, cdf, frozen.cdf), (True, survival, frozen.sf)):
        points = _tail_points(frozen, upper)
        expected = theirs(points.numpy())
        got = ours(d, points.unsqueeze(-1)).squeeze(-1).numpy()
        np.testing.assert_allclose(got, expected, rtol=FAR, atol=1e-305)


@pytest.mark.parametrize("name", SCIPY)
def test_quantiles_invert_the_far_lower_tail(name: str) -> None:
    """And the upper one as far as levels reach, to 1 - 1e-16: there they are rounded, and so are the quantiles."""
    make, frozen = SCIPY[name]
    d = make(torch.float64)
    points = torch.cat([_tail_points(frozen, upper) for upper in (False, True)])
    levels = cdf(d, points.unsqueeze(-1))
    kept = (levels > 1e-305) & (levels < 1)
    if kind(d) == "real":
        back = icdf(d, levels)
        rounded = torch.finfo(torch.float64).eps / 2 * levels / log_prob_at(d, points)
        gap = (back.squeeze(-1) - points).abs()
        allowed = FAR * points.abs() + rounded.squeeze(-1) * 4
        assert bool((gap <= allowed)[kept.squeeze(-1)].all())
    else:
        increases = kept & (levels > cdf(d, points.unsqueeze(-1) - 1))
        assert bool((icdf(d, levels) == points.unsqueeze(-1))[increases].all())


def log_prob_at(d: Distribution, points: torch.Tensor) -> torch.Tensor:
    return safe_log_prob(d, points.unsqueeze(-1)).exp().clamp(min=1e-320)


@pytest.mark.parametrize("name", PLAIN | PREDICTIVE)
def test_survival_and_cdf_add_up(name: str, dtype: torch.dtype, device: torch.device) -> None:
    d = build(name, dtype, device)
    for value in (float("-inf"), -1.0, 0.25, 1.0, 3.0, float("inf")):
        total = cdf(d, value) + survival(d, value)
        torch.testing.assert_close(total, torch.ones_like(total), rtol=0, atol=4 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("name", ["mixture_normal", "view_gamma", "independent_normal", "gaussian"])
def test_survival_reaches_far_through_what_contains(name: str, dtype: torch.dtype, device: torch.device) -> None:
    d = build(name, dtype, device)
    far = 2 * icdf(d, 1 - 1e-6) - icdf(d, 0.5)
    tail = survival(d, far)
    assert bool((tail > 0).all())
    assert bool((tail < 1e-7).all())


@pytest.mark.parametrize("name", [n for n in PLAIN if "bernoulli" not in n and "categorical" not in n])
def test_cdf_passes_through_vmap_with_gradients(name: str, dtype: torch.dtype, device: torch.device) -> None:
    d = build(name, dtype, device)
    grid = cdf(d, 0.25).new_tensor([[0.25], [0.75], [2.0]]).expand(3, ROWS)
    grid = grid.unsqueeze(-1).expand(3, *d.batch_shape, *d.event_shape) if d.event_shape else grid
    for operation in (cdf, survival):
        expected = operation(d, grid)
        got = torch.func.vmap(lambda v, f=operation: f.formula(d, v))(grid)
        torch.testing.assert_close(got, expected, rtol=0, atol=0)
        slope = torch.func.vmap(torch.func.grad(lambda v, f=operation: f.formula(d, v).sum()))(grid)
        sign = 1 if operation is cdf else -1
        density = element_log_prob(d, grid).exp() if kind(d) == "real" else torch.zeros_like(grid)
        torch.testing.assert_close(sign * slope, density, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", SCIPY)
def test_levels_0_and_1_are_the_ends_of_the_support(name: str, dtype: torch.dtype) -> None:
    make, frozen = SCIPY[name]
    low, high = (float(icdf(make(dtype), q)) for q in (0.0, 1.0))
    expected = frozen.support()
    assert (low, high) == pytest.approx(expected)


@pytest.mark.parametrize("name", PLAIN | PREDICTIVE)
def test_cdf_is_0_and_1_at_the_ends(name: str, dtype: torch.dtype, device: torch.device) -> None:
    d = build(name, dtype, device)
    assert bool((cdf(d, float("-inf")) == 0).all())
    assert bool((cdf(d, float("inf")) == 1).all())


@pytest.mark.parametrize("name", [n for n in PLAIN | PREDICTIVE if "empirical" not in n])
def test_quantile_then_cdf(name: str, dtype: torch.dtype, device: torch.device) -> None:
    d = build(name, dtype, device)
    for q in (0.01, 0.3, 0.5, 0.97):
        value = icdf(d, q)
        assert value.shape == d.batch_shape + d.event_shape
        assert value.dtype == dtype
        reached = cdf(d, value)
        if kind(d) == "real":
            levels = torch.full_like(reached, q)
            torch.testing.assert_close(reached, levels, rtol=0, atol=8 * torch.finfo(dtype).eps)
        else:
            level = torch.tensor(q, dtype=dtype, device=device)
            assert bool((reached >= level).all())
            assert bool((cdf(d, value - 1) < level).all())


@pytest.mark.parametrize("name", DISCRETE)
def test_counts_and_classes_come_back_from_their_own_cdf(name: str, dtype: torch.dtype, device: torch.device) -> None:
    d = build(name, dtype, device)
    shape = d.batch_shape + d.event_shape
    for k in range(12 if kind(d) == "count" else 2):
        count = torch.full(shape, float(k), dtype=dtype, device=device)
        level = cdf(d, count)
        increases = (level > cdf(d, count - 1)) & (level < 1)
        assert bool((icdf(d, level)[increases] == k).all())
        torch.testing.assert_close(cdf(d, count + 0.5), level, rtol=0, atol=0)
    assert bool((cdf(d, -1.0) == 0).all())


@given(st.floats(0.01, 1e6), st.integers(0, 2**20))
def test_poisson_quantile_inverts_its_cdf_at_any_rate(rate: float, offset: int) -> None:
    d = Poisson(torch.tensor([rate]), validate_args=False)
    count = torch.tensor([float(int(rate) + offset % (2 + int(4 * rate**0.5)))])
    level = cdf(d, count)
    if 0 < float(level) < 1 and float(level) > float(cdf(d, count - 1)):
        assert float(icdf(d, level)) == float(count)


@given(st.floats(0.02, 500), st.floats(0.02, 500), st.floats(0, 1))
def test_incomplete_beta_equals_scipy(a: float, b: float, x: float) -> None:
    tensors = (torch.tensor(value, dtype=torch.float64) for value in (a, b, x, 1 - x))
    assert float(betainc(*tensors)) == pytest.approx(scipy.special.betainc(a, b, x), rel=1e-9, abs=1e-290)


def test_a_grid_of_points_and_levels(dtype: torch.dtype) -> None:
    d = Normal(torch.zeros(4, dtype=dtype), torch.ones(4, dtype=dtype))
    mixture = MixturePredictive(Normal(torch.zeros(3, 4, dtype=dtype), torch.ones(3, 4, dtype=dtype)))
    grid = torch.linspace(-2, 2, 20, dtype=dtype).reshape(5, 4)
    for each in (d, mixture):
        levels = cdf(each, grid)
        assert levels.shape == (5, 4)
        torch.testing.assert_close(levels[2], cdf(each, grid[2]))
        torch.testing.assert_close(icdf(each, levels), grid, rtol=1e-5, atol=1e-6)
        assert icdf(each, torch.tensor([[0.1], [0.9]], dtype=dtype)).shape == (2, 4)
        assert icdf(each, [0.1, 0.2, 0.3, 0.4]).shape == (4,)


def test_one_level_a_row_serves_all_outputs(dtype: torch.dtype, device: torch.device) -> None:
    d = build("independent_normal", dtype, device)
    levels = torch.tensor([0.1, 0.4, 0.6, 0.9], dtype=dtype, device=device)
    torch.testing.assert_close(icdf(d, levels), icdf(d, levels.unsqueeze(-1).expand(4, 2)))


@pytest.mark.parametrize("q", [-0.1, 1.1, float("nan")])
@pytest.mark.parametrize("name", ["normal", "mixture_normal", "empirical"])
def test_levels_outside_0_and_1_are_refused(name: str, q: float, dtype: torch.dtype, device: torch.device) -> None:
    with pytest.raises(ValueError, match=r"`q` must lie in \[0, 1\]"):
        icdf(build(name, dtype, device), q)


def test_shapes_that_do_not_fit_are_refused(dtype: torch.dtype, device: torch.device) -> None:
    d = build("normal", dtype, device)
    with pytest.raises(ShapeError, match=r"`q` must broadcast against \(4,\).*got \(3,\)"):
        icdf(d, [0.1, 0.2, 0.3])
    with pytest.raises(ShapeError, match=r"`values` must have shape \(4,\) or \(4, 1\); got \(3,\)"):
        cdf(d, [0.1, 0.2, 0.3])
    with pytest.raises(NotFiniteError):
        cdf(d, float("nan"))


def test_an_unknown_type_is_refused_with_the_known_ones() -> None:
    with pytest.raises(NotSupportedError, match=r"icdf.*VonMises; entries exist for .*Normal"):
        icdf(VonMises(torch.zeros(2), torch.ones(2)), 0.5)


def test_a_type_with_its_own_methods_needs_no_entry() -> None:
    d = Gumbel(torch.zeros(2), torch.ones(2))
    torch.testing.assert_close(cdf(d, 0.5), d.cdf(torch.tensor(0.5)).expand(2))
    torch.testing.assert_close(cdf(d, icdf(d, 0.3)), torch.full((2,), 0.3))


def test_a_type_can_be_registered() -> None:
    class Point(Distribution):
        def __init__(self, at: torch.Tensor) -> None:
            super().__init__(at.shape, validate_args=False)
            self.at = at

    d = Point(torch.tensor([1.0, 2.0]))
    with pytest.raises(NotSupportedError, match="Point"):
        cdf(d, 1.5)

    @cdf.register(Point)
    def _(d: Point, value: torch.Tensor) -> torch.Tensor:
        return (value >= d.at).to(value.dtype)

    assert cdf(d, 1.5).tolist() == [1.0, 0.0]


def test_float32_classes_accumulate_in_float64() -> None:
    d = Categorical(logits=torch.zeros(1, 100_000), validate_args=False)
    assert float(cdf(d, 49_999.0)) == 0.5
    assert float(icdf(d, 0.5)) == 49_999


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
def test_half_precision(half: torch.dtype) -> None:
    d = Normal(torch.zeros(3, dtype=half), torch.ones(3, dtype=half), validate_args=False)
    mixture = MixturePredictive(Normal(torch.zeros(2, 3, dtype=half), torch.ones(2, 3, dtype=half)))
    for each in (d, mixture):
        assert cdf(each, 1.0).dtype == half
        torch.testing.assert_close(cdf(each, 1.0).float(), torch.full((3,), 0.8413), atol=4e-3, rtol=0)
        torch.testing.assert_close(icdf(each, 0.75).float(), torch.full((3,), 0.6745), atol=1e-2, rtol=0)


@pytest.mark.parametrize("name", [n for n in ALL if n != "quantiles"])
def test_no_rows(name: str, dtype: torch.dtype, device: torch.device) -> None:
    d = select(build(name, dtype, device), slice(0, 0))
    shape = (0, *d.event_shape)
    assert cdf(d, targets(d)).shape == shape
    assert icdf(d, 0.3).shape == shape
