"""Incomplete gamma and beta functions against reference values, scipy, and finite differences."""

import math

import numpy as np
import pytest
import scipy.special
import torch
from hypothesis import given
from hypothesis import strategies as st

from credibly.distributions.special import (
    betainc,
    betainccinv,
    betaincinv,
    gammainc,
    gammaincc,
    gammainccinv,
    gammaincinv,
    log_gamma_ratio,
    ndtr,
    ndtri,
)

# Computed with 60 digits and more (all terms of the series are positive); the arguments are the float64 numbers.
GAMMA = [  # a, x, P, Q
    (0.001, 1e-11, 0.975551777494271, 0.0244482225057288),
    (0.001, 2.0, 0.999951023082169, 4.89769178309815e-5),
    (0.5, 300.0, 1.0, 1.67416798469179e-132),
    (7.5, 1e-07, 2.25323187151069e-57, 1.0),
    (40.0, 200.0, 1.0, 4.62646596150982e-44),
    (300.0, 45.0, 1.01153662653718e-138, 1.0),
    (2000.0, 2600.0, 1.0, 6.02815502008217e-35),
    (15000.0, 13000.0, 5.71329142862414e-66, 1.0),
    (200000.0, 190000.0, 8.25050419856957e-115, 1.0),
    (1000000.0, 995000.0, 2.74958035927007e-7, 0.999999725041964),
    (1000000.0, 970000.0, 4.92090877859116e-202, 1.0),
    (1000000.0, 1030000.0, 1.0, 3.26243014487673e-194),
    (30000000.0, 29800000.0, 1.64133104174008e-293, 1.0),
    (100000000.0, 99700000.0, 1.99088228964671e-198, 1.0),
]
BETA = [  # a, b, x, I_x(a, b)
    (0.001, 0.5, 0.25, 0.997371047555779),
    (0.25, 2000.0, 9.5367431640625e-07, 0.230462647781496),
    (3.0, 7.0, 9.313225746154785e-10, 6.7854659339115e-26),
    (500.0, 0.5, 0.5, 1.08872024717515e-152),
    (2000.0, 3000.0, 0.25, 5.68551565324295e-120),
    (131072.0, 524288.0, 0.1875, 4.4467619776895e-146),
]
EXACT = 1e-10


def tensors(*values: float) -> list[torch.Tensor]:
    return [torch.tensor(value, dtype=torch.float64) for value in values]


@pytest.mark.parametrize(("a", "x", "lower", "upper"), GAMMA)
def test_incomplete_gamma_equals_the_reference(a: float, x: float, lower: float, upper: float) -> None:
    assert float(gammainc(*tensors(a, x))) == pytest.approx(lower, rel=EXACT, abs=0)
    assert float(gammaincc(*tensors(a, x))) == pytest.approx(upper, rel=EXACT, abs=0)


@pytest.mark.parametrize(("a", "x", "lower", "upper"), GAMMA)
def test_incomplete_gamma_is_inverted(a: float, x: float, lower: float, upper: float) -> None:
    if lower < 0.9:
        assert float(gammaincinv(*tensors(a, lower))) == pytest.approx(x, rel=EXACT)
    if upper < 0.9:
        assert float(gammainccinv(*tensors(a, upper))) == pytest.approx(x, rel=EXACT)


@pytest.mark.parametrize(("a", "b", "x", "lower"), BETA)
def test_incomplete_beta_equals_the_reference(a: float, b: float, x: float, lower: float) -> None:
    assert float(betainc(*tensors(a, b, x, 1 - x))) == pytest.approx(lower, rel=EXACT, abs=0)
    assert float(betaincinv(*tensors(a, b, lower))) == pytest.approx(x, rel=EXACT)
    assert float(betainccinv(*tensors(b, a, lower))) == pytest.approx(1 - x, rel=EXACT)


@given(st.floats(-3, 4.6), st.floats(-8, 1.5))
def test_incomplete_gamma_equals_scipy(log_a: float, log_ratio: float) -> None:
    a = 10**log_a
    x = a * 10**log_ratio
    assert float(gammainc(*tensors(a, x))) == pytest.approx(scipy.special.gammainc(a, x), rel=1e-14, abs=0)
    assert float(gammaincc(*tensors(a, x))) == pytest.approx(scipy.special.gammaincc(a, x), rel=1e-14, abs=0)


@given(st.floats(5.1, 8), st.floats(-36, 36))
def test_incomplete_gamma_of_large_shapes_adds_up_and_is_inverted(log_a: float, scales: float) -> None:
    """Across the border between scipy's formula and ours, four standard deviations below the mean."""
    a = 10**log_a
    x = a + scales * math.sqrt(a)
    lower, upper = gammainc(*tensors(a, x)), gammaincc(*tensors(a, x))
    assert float(lower + upper) == pytest.approx(1, rel=1e-15)
    found = gammaincinv(tensors(a)[0], lower) if scales < 0 else gammainccinv(tensors(a)[0], upper)
    assert float(found) == pytest.approx(x, rel=1e-12)


def test_the_two_formulas_meet() -> None:
    a = torch.logspace(5.001, 8, 50, dtype=torch.float64)
    for side in (-3.999, -4.001):
        x = a + side * a.sqrt()
        theirs = scipy.special.gammaincc(a.numpy(), x.numpy())  # right to 1e-12 near the mean
        np.testing.assert_allclose(gammaincc(a, x).numpy(), theirs, rtol=1e-9)
    below, above = (gammainc(a, a - side * a.sqrt()) for side in (4 + 1e-9, 4 - 1e-9))
    slope = 4.23  # -d log P / d scales: 4 + 1/4 - ..., the inverse Mills ratio
    torch.testing.assert_close(torch.log(above / below), torch.full_like(a, 2e-9 * slope), rtol=0.05, atol=1e-10)


GRADIENT_POINTS = [(2.5, 1.0), (0.5, 0.01), (30.0, 12.0), (400.0, 470.0)]


@pytest.mark.parametrize(("a", "x"), GRADIENT_POINTS)
@pytest.mark.parametrize("function", [gammainc, gammaincc])
def test_gradients_of_the_incomplete_gamma(function: object, a: float, x: float) -> None:
    inputs = [t.requires_grad_() for t in tensors(a, x)]
    assert torch.autograd.gradcheck(function, inputs, eps=1e-6 * min(a, x), atol=1e-9, rtol=1e-5)
    in_x = torch.autograd.grad(function(*inputs), inputs[1], create_graph=True)[0]
    twice = torch.autograd.grad(in_x, inputs[1])[0]
    assert float((twice / in_x).detach()) == pytest.approx(
        (a - 1) / x - 1, rel=1e-10
    )  # the logarithmic slope of the density


@pytest.mark.parametrize(("a", "b", "x"), [(2.5, 1.5, 0.3), (0.5, 8.0, 0.9), (60.0, 40.0, 0.4), (3.0, 0.5, 0.02)])
def test_gradients_of_the_incomplete_beta(a: float, b: float, x: float) -> None:
    inputs = [t.requires_grad_() for t in tensors(a, b, x)]
    assert torch.autograd.gradcheck(lambda a, b, x: betainc(a, b, x, 1 - x), inputs, eps=1e-7, atol=1e-8, rtol=1e-5)


def test_gradients_in_far_tails_are_finite_and_right() -> None:
    a, x = (t.requires_grad_() for t in tensors(1e6, 970000.0))
    in_a, in_x = torch.autograd.grad(torch.log(gammainc(a, x)), (a, x))
    # With a and x together, log P(a, x) is a function of their ratio but for terms of the order of 1/a.
    assert float(in_x) == pytest.approx(1e6 / 970000.0 - 1 + 1 / 30000, rel=1e-2)
    assert float(in_a) == pytest.approx(math.log(0.97), rel=1e-2)


def test_special_functions_pass_through_vmap(dtype: torch.dtype) -> None:
    a = torch.linspace(0.5, 4, 6, dtype=dtype).reshape(3, 2)
    x = torch.tensor([0.25, 0.75], dtype=dtype)
    over = {"in_dims": (0, None)}
    for function in (gammainc, gammaincc, lambda a, x: betainc(a, 2 * a, x, 1 - x)):
        expected = function(a, x)
        assert expected.dtype == dtype
        torch.testing.assert_close(torch.func.vmap(function, **over)(a, x), expected, rtol=0, atol=0)
        slopes = torch.func.vmap(torch.func.grad(lambda a, x, f=function: f(a, x).sum(), argnums=(0, 1)), **over)(a, x)
        leaves = a.clone().requires_grad_(), x.expand(3, 2).clone().requires_grad_()
        for got, wanted in zip(slopes, torch.autograd.grad(function(*leaves).sum(), leaves), strict=True):
            torch.testing.assert_close(got, wanted)


@given(st.floats(-4, 12), st.floats(-4, 6))
def test_log_gamma_ratio_does_not_cancel(log_a: float, log_b: float) -> None:
    """Against the recurrence for a step of one, and against itself in two steps."""
    a, b = tensors(10**log_a, 10**log_b)
    one = torch.ones_like(a)
    assert float(log_gamma_ratio(a, one)) == pytest.approx(float(torch.log(a)), rel=1e-12, abs=1e-12)
    whole = log_gamma_ratio(a, b + 1)
    parts = log_gamma_ratio(a, b) + torch.log(a + b)
    assert float(whole) == pytest.approx(float(parts), rel=1e-12, abs=1e-11)
    assert float(log_gamma_ratio(a, 0 * b)) == 0


def test_normal_tails_equal_scipy() -> None:
    z = torch.linspace(-37.5, 8, 200, dtype=torch.float64)
    np.testing.assert_allclose(ndtr(z).numpy(), scipy.special.ndtr(z.numpy()), rtol=1e-12)
    q = torch.logspace(-300, -1e-4, 200, dtype=torch.float64)
    np.testing.assert_allclose(ndtri(q).numpy(), scipy.special.ndtri(q.numpy()), rtol=1e-12, atol=1e-15)
