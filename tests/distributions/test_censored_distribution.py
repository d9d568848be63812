"""Censored observations: densities, probabilities of intervals in both tails, targets, rows and units."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import special, stats
from torch.distributions import Categorical, Exponential, Gamma, Laplace, LogNormal, MixtureSameFamily, Normal, Weibull
from torch.func import vmap

from credibly.core.errors import NotFiniteError, NotSupportedError, ShapeError, SupportError
from credibly.distributions import AffineView, Censored
from credibly.distributions import functions as waist
from credibly.distributions.affine import affine
from credibly.distributions.censored import log_interval, log_tails
from credibly.distributions.log_gamma_tails import log_gamma_tails
from credibly.distributions.mixture import MixturePredictive
from credibly.distributions.shapes import broadcast
from credibly.metrics import log_score

INF = math.inf


def _mixture(loc, scale):
    logits, parts = (
        torch.zeros(*loc.shape, 2).to(loc),
        Normal(torch.stack([loc, loc + 2], -1), torch.stack([scale] * 2, -1)),
    )
    return MixtureSameFamily(Categorical(logits=logits, validate_args=False), parts, validate_args=False)


FAMILIES = {
    "normal": (Normal, lambda a, b: stats.norm(a, b)),
    "laplace": (Laplace, lambda a, b: stats.laplace(a, b)),
    "log_normal": (LogNormal, lambda a, b: stats.lognorm(b, scale=np.exp(a))),
    "gamma": (Gamma, lambda a, b: stats.gamma(a, scale=1 / b)),
    "weibull": (Weibull, lambda a, b: stats.weibull_min(b, scale=a)),
    "exponential": (
        lambda a, b, **_: Exponential(a * b, validate_args=False),
        lambda a, b: stats.expon(scale=1 / (a * b)),
    ),
    "affine": (
        lambda a, b, **_: AffineView(Gamma(a, b, validate_args=False), 1.0, 2.0),
        lambda a, b: stats.gamma(a, scale=2 / b, loc=1.0),
    ),
}
EVERY = pytest.mark.parametrize("name", FAMILIES)
FIRST, SECOND = [0.5, 1.0, 3.0], [0.7, 2.0, 1.3]


def build(name, dtype=torch.float64):
    make, law = FAMILIES[name]
    a, b = torch.tensor(FIRST, dtype=dtype), torch.tensor(SECOND, dtype=dtype)
    return Censored(make(a, b, validate_args=False)), law(np.array(FIRST), np.array(SECOND))


@EVERY
def test_bounds_have_the_probability_between_them(name, dtype):
    d, law = build(name, dtype)
    low, high = law.ppf(0.2), law.ppf(0.7)
    pairs = {
        "exact": (low, low, law.logpdf(low)),
        "right": (low, np.full(3, INF), np.log(law.sf(low))),
        "left": (np.full(3, -INF), high, np.log(law.cdf(high))),
        "between": (low, high, np.log(0.5) * np.ones(3)),
        "nothing known": (np.full(3, -INF), np.full(3, INF), np.zeros(3)),
    }
    for lower, upper, expected in pairs.values():
        y = torch.as_tensor(np.stack([lower, upper], -1)).to(dtype)
        own = waist.log_prob(d, y)
        assert own.dtype == dtype
        np.testing.assert_allclose(
            own,
            expected,
            rtol=1e-5 if dtype == torch.float32 else 1e-12,
            atol=1e-5 if dtype == torch.float32 else 1e-12,
        )
        np.testing.assert_array_equal(own, d.log_prob(y.numpy()))
    assert float(log_score(d, y)) == 0


@EVERY
@pytest.mark.parametrize("side", ["upper", "lower"])
def test_far_tails_are_scipys_logarithms_with_finite_gradients(name, side, dtype):
    make, law_of = FAMILIES[name]
    a, b = (torch.tensor(v, dtype=dtype, requires_grad=True) for v in (FIRST, SECOND))
    d, law = make(a, b, validate_args=False), law_of(np.array(FIRST), np.array(SECOND))
    upper = side == "upper"
    points = law.isf(1e-280) if upper else law.ppf(1e-30)
    y = torch.as_tensor(points).to(dtype)
    y = (
        torch.where(y <= 0, torch.tensor(torch.finfo(dtype).tiny).to(y), y)
        if name not in ("normal", "laplace", "affine")
        else y
    )
    exact = y.double().numpy()
    one_sided = log_interval(d, y, torch.full_like(y, INF)) if upper else log_interval(d, torch.full_like(y, -INF), y)
    expected = law.logsf(exact) if upper else law.logcdf(exact)
    np.testing.assert_allclose(one_sided.detach(), expected, rtol=1e-4 if dtype == torch.float32 else 1e-8)
    shifted = y + 0.01 * y.abs() + 1e-3
    within = log_interval(d, y, shifted)
    assert bool(within.isfinite().all())
    gradients = torch.autograd.grad((one_sided + within).sum(), (a, b))
    assert all(bool(g.isfinite().all()) for g in gradients)


@EVERY
@pytest.mark.parametrize("level", [1e-200, 1e-10, 0.1, 0.4, 0.999])
@pytest.mark.parametrize("width", [1e-2, 1e-4, 1e-6, 1e-9])
def test_narrow_intervals_have_the_integral_of_the_density(name, level, width):
    """By Simpson's rule, whose error is about the fourth power of the width."""
    d, law = build(name)
    low = law.isf(level)
    step = law.isf(level / 2) - low if level < 0.5 else low - law.ppf((1 - level) / 2)  # to where the tail is half
    high = low + width * step
    density = law.logpdf(np.stack([low, (low + high) / 2, high]))
    expected = special.logsumexp(density, axis=0, b=np.array([[1], [4], [1]]) / 6) + np.log(high - low)
    own = log_interval(d.of, torch.as_tensor(low), torch.as_tensor(high))
    np.testing.assert_allclose(own, expected, atol=width**4 + 1e-9, rtol=1e-10)


@EVERY
def test_gradients_are_those_of_finite_differences_and_pass_through_vmap(name):
    make, law_of = FAMILIES[name]
    law = law_of(np.array(FIRST), np.array(SECOND))
    ends = [torch.as_tensor(law.ppf(level)) for level in (0.3, 0.9)]
    infinite = torch.full((3,), INF, dtype=torch.float64)

    def total(a, b):
        d = make(a, b, validate_args=False)
        return torch.stack(
            [log_interval(d, *ends), log_interval(d, ends[0], infinite), log_interval(d, -infinite, ends[1])]
        )

    a, b = (torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in (FIRST, SECOND))
    assert torch.autograd.gradcheck(total, (a, b))
    many = a.detach() + torch.tensor([[0.0], [0.3]]).double()
    if name != "affine":  # a view checks its units, which has no place under vmap
        torch.testing.assert_close(
            vmap(total, in_dims=(0, None))(many, b), torch.stack([total(row, b) for row in many])
        )


def test_a_mixture_of_normals_is_the_mean_of_its_parts():
    d = _mixture(torch.tensor([0.0, 1.0]).double(), torch.tensor([1.0, 2.0]).double())
    y = torch.tensor([[0.5, INF], [-1.0, 3.0]]).double()
    own = waist.log_prob(Censored(d), y)
    first = np.log(np.mean(stats.norm([0, 2], 1).sf(0.5)))
    second = np.log(np.mean(np.diff(stats.norm([1, 3], 2).cdf([[-1.0], [3.0]]), axis=0)))
    np.testing.assert_allclose(own, [first, second], rtol=1e-12)


def test_incomplete_gamma_functions_are_scipys():
    a = torch.tensor([0.01, 0.3, 1.0, 2.5, 40.0, 3e3], dtype=torch.float64).unsqueeze(1)
    x = torch.tensor([1e-8, 0.1, 0.9, 3.0, 60.0, 650.0, 3e3], dtype=torch.float64)
    log_p, log_q = (t.numpy() for t in log_gamma_tails(*broadcast(a, x)))
    p, q = special.gammainc(a.numpy(), x.numpy()), special.gammaincc(a.numpy(), x.numpy())
    # logarithms cancel to about the logarithm of Gamma(a) in units of rounding
    np.testing.assert_allclose(log_p[p > 1e-290], np.log(p[p > 1e-290]), rtol=1e-11, atol=1e-11)
    np.testing.assert_allclose(log_q[q > 1e-290], np.log(q[q > 1e-290]), rtol=1e-11, atol=1e-11)
    far = log_gamma_tails(torch.tensor([2.0]).double(), torch.tensor([1e6]).double())
    assert float(far[1]) == pytest.approx(-1e6 + math.log1p(1e6), rel=1e-14)  # Q(2, x) = (1 + x) e^-x


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_exact_targets_and_pairs_are_told_by_their_shape(rows, dtype):
    d = Censored(Normal(torch.zeros(rows, dtype=dtype), torch.ones(rows, dtype=dtype)))
    y = torch.linspace(-1, 1, rows, dtype=dtype)
    expected = waist.log_prob(d.of, y)
    for same in (y, y.unsqueeze(-1), torch.stack([y, y], -1), y.tolist(), torch.stack([y, y], -1).tolist()):
        torch.testing.assert_close(waist.log_prob(d, same), expected)
    with pytest.raises(ShapeError):
        waist.log_prob(d, torch.zeros(rows, 3))
    torch.testing.assert_close(waist.crps(d, torch.stack([y, y], -1)), waist.crps(d.of, y))
    assert waist.match_targets(d, torch.stack([y, y], -1)).shape == (rows,)


def test_what_is_not_a_pair_of_bounds_is_refused_by_name():
    d = Censored(Weibull(torch.ones(2), torch.ones(2), validate_args=False))
    for pair, error, message in (
        ([[1.0, 2.0], [2.0, 1.0]], ValueError, r"row 1 holds \[2, 1\]"),
        ([[1.0, 2.0], [math.nan, 1.0]], NotFiniteError, "NaN"),
        ([[1.0, 2.0], [INF, INF]], NotFiniteError, "both bounds are equal"),
        ([[1.0, 2.0], [-2.0, -1.0]], SupportError, r"\[-2, -1\] of row 1 .* support of Weibull"),
        ([[1.0, 2.0], [-2.0, -2.0]], SupportError, "row 1"),
        ([1.0, INF], NotFiniteError, "targets"),
    ):
        with pytest.raises(error, match=message):
            waist.log_prob(d, pair)
    with pytest.raises(NotSupportedError, match=r"row 1 is censored.*log_score"):
        waist.crps(d, [[1.0, 1.0], [1.0, INF]])
    with pytest.raises(NotSupportedError, match="Poisson"):
        Censored(torch.distributions.Poisson(torch.ones(2)))
    with pytest.raises(NotSupportedError, match="log_tails is not available for StudentT"):
        log_tails(torch.distributions.StudentT(torch.ones(2)), torch.ones(2))
    with pytest.raises(NotSupportedError, match=r"affine\(predicted"):
        waist.log_prob(AffineView(Censored(Normal(torch.zeros(2), torch.ones(2))), 0.0, 1.0), [[1.0, 2.0], [1.0, INF]])


def test_mixtures_over_draws_rows_and_units(dtype):
    loc = torch.tensor([[0.0, 1.0, 2.0], [0.5, -1.0, 3.0]], dtype=dtype)
    d = MixturePredictive(Censored(Normal(loc, torch.ones_like(loc))))
    y = torch.tensor([[0.0, 0.0], [0.5, INF], [-1.0, 4.0]], dtype=dtype)
    each = torch.stack([waist.log_prob(Censored(Normal(row, torch.ones_like(row))), y) for row in loc])
    torch.testing.assert_close(d.log_prob(y), each.logsumexp(0) - math.log(2))
    torch.testing.assert_close(d.joint_log_prob(y), each.sum(-1).logsumexp(0) - math.log(2))
    plain = MixturePredictive(Normal(loc, torch.ones_like(loc)))
    torch.testing.assert_close(d.interval(0.9), plain.interval(0.9))
    torch.testing.assert_close(d.variance, plain.variance)
    torch.testing.assert_close(waist.crps(d, y[:, 0]), waist.crps(plain, y[:, 0]))
    with pytest.raises(NotSupportedError, match="row 1 is censored"):
        waist.crps(d, y)
    assert d.draw(3, seed=1).shape == (3, 3)
    parts = waist.concatenate([waist.select(d, [0]), waist.select(d, slice(1, 3))])
    torch.testing.assert_close(parts.log_prob(y), d.log_prob(y))
    moved = affine(d, 1.0, 2.0)
    difference = moved.log_prob(1 + 2 * y) - d.log_prob(y)
    torch.testing.assert_close(difference, torch.tensor([-math.log(2), 0.0, 0.0], dtype=dtype), rtol=0, atol=1e-6)


@given(
    name=st.sampled_from(list(FAMILIES)),
    ends=st.tuples(*[st.floats(-1e6, 1e6) | st.sampled_from([-INF, INF, 0.0, 1e-300, 1e30, -1e30])] * 2),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_log_probabilities_and_gradients_are_never_nan(name, ends, dtype):
    make, _ = FAMILIES[name]
    a, b = (torch.tensor(v, dtype=dtype, requires_grad=True) for v in (FIRST, SECOND))
    lower, upper = (torch.full((3,), end, dtype=dtype) for end in sorted(ends))
    d = Censored(make(a, b, validate_args=False))
    own = waist.safe_log_prob(d, torch.stack([lower, upper], -1))
    assert not bool(own.isnan().any())
    finite = own[own.isfinite()]
    if len(finite) and float(sorted(ends)[0]) != float(sorted(ends)[1]):
        assert bool((finite <= 1e-6).all())
        gradients = torch.autograd.grad(finite.sum(), (a, b), allow_unused=True)
        assert all(g is None or not bool(g.isnan().any()) for g in gradients)
