"""Logarithms of the incomplete gamma functions, with gradients in both arguments.

With x below a + 1, P(a, x) = x^a e^-x / Gamma(a + 1) * S(a, x), S a series of positive terms; above, Q(a, x) =
x^a e^-x / Gamma(a) * K(a, x), K a continued fraction, by the modified Lentz method (Press, Teukolsky, Vetterling,
Flannery, "Numerical Recipes", 3rd edition, 2007, section 6.2). The derivatives of S and K in a come from a complex
step, Im S(a + ih)/h, which loses no digits (William Squire, George Trapp, "Using Complex Variables to Estimate
Derivatives of Real Functions", 1998).
"""

from typing import Any

import torch
from torch import Tensor

from credibly.distributions.shapes import broadcast

__all__ = ["log_gamma_tails"]

_STEP = 1e-30
_TINY = 1e-300
_MAX_TERMS = 100_000
_PRECISION = 1e-15


def log_gamma_tails(a: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """`log P(a, x)` and `log Q(a, x)` in float64.

    Args:
        a: the shape, above 0.
        x: the argument, above 0; broadcasts with `a`.
    """
    shape, argument = broadcast(a.double(), x.double())
    log_p, log_q, *_ = _LogGammaTails.apply(shape, argument.clamp_min(_TINY))  # type: ignore[no-untyped-call]
    return log_p, log_q


class _LogGammaTails(torch.autograd.Function):
    """Both logarithms, and their four derivatives for the way back."""

    @staticmethod
    def forward(a: Tensor, x: Tensor) -> tuple[Tensor, ...]:
        small = x < a + 1
        p, p_a, p_x = _lower(a, torch.where(small, x, a))
        q, q_a, q_x = _upper(a, torch.where(small, a + 1, x))
        other_q, odds_p = torch.log(-torch.expm1(p)), torch.exp(p) / -torch.expm1(p)
        other_p, odds_q = torch.log(-torch.expm1(q)), torch.exp(q) / -torch.expm1(q)
        log_p, log_q = torch.where(small, p, other_p), torch.where(small, other_q, q)
        slopes = (
            torch.where(small, p_a, -odds_q * q_a),
            torch.where(small, p_x, -odds_q * q_x),
            torch.where(small, -odds_p * p_a, q_a),
            torch.where(small, -odds_p * p_x, q_x),
        )
        return log_p, log_q, *slopes

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: tuple[Tensor, ...]) -> None:  # noqa: ARG004
        slopes = output[2:]
        ctx.mark_non_differentiable(*slopes)
        ctx.save_for_backward(*slopes)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        p_a, p_x, q_a, q_x = ctx.saved_tensors
        return grads[0] * p_a + grads[1] * q_a, grads[0] * p_x + grads[1] * q_x

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *arguments: Tensor) -> tuple[tuple[Tensor, ...], int]:
        """Element by element: mapped axes go first."""
        first = [
            value.expand(info.batch_size, *value.shape) if axis is None else value.movedim(axis, 0)
            for value, axis in zip(arguments, in_dims, strict=True)
        ]
        made: tuple[Tensor, ...] = _LogGammaTails.apply(*first)  # type: ignore[no-untyped-call]
        return made, 0


def _lower(a: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`log P` and its derivatives in a and x, for x below a + 1."""
    shape = torch.complex(a, torch.full_like(a, _STEP))
    term, total = torch.ones_like(shape), torch.ones_like(shape)
    for n in range(1, _MAX_TERMS):
        term = term * x / (shape + n)
        total = total + term
        if bool((term.real <= _PRECISION * total.real).all()):
            break
    value = a * torch.log(x) - x - torch.lgamma(a + 1) + torch.log(total.real)
    slope = torch.log(x) - torch.digamma(a + 1) + total.imag / (_STEP * total.real)
    return value, slope, a / (x * total.real)


def _upper(a: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`log Q` and its derivatives in a and x, for x of at least a + 1."""
    shape = torch.complex(a, torch.full_like(a, _STEP))
    b = x + 1 - shape
    c = torch.full_like(shape, 1 / _TINY)
    d = 1 / b
    fraction = d
    for n in range(1, _MAX_TERMS):
        step = -n * (n - shape)
        b = b + 2
        d = 1 / _away_from_zero(step * d + b)
        c = _away_from_zero(b + step / c)
        change = c * d
        fraction = fraction * change
        if bool(((change - 1).abs() <= _PRECISION).all()):
            break
    value = a * torch.log(x) - x - torch.lgamma(a) + torch.log(fraction.real)
    slope = torch.log(x) - torch.digamma(a) + fraction.imag / (_STEP * fraction.real)
    return value, slope, -1 / (x * fraction.real)


def _away_from_zero(t: Tensor) -> Tensor:
    return torch.where(t.abs() < _TINY, torch.full_like(t, _TINY), t)
