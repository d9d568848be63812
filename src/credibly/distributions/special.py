"""Special functions: torch's own where it has them, scipy's on the host where it has not.

The incomplete gamma and beta functions and their inverses come from `scipy.special`, in float64, behind a torch
function that keeps dtype and device, passes through `torch.func.vmap` and has gradients in every argument. One
region is ours: for large `a`, scipy sums too few terms of P(a, x) far below the mean. There P is the uniform
expansion of Nico Temme, "The asymptotic expansion of the incomplete gamma functions" (1979), equations 1.3 to 1.5:
P(a, x) = erfc(-eta sqrt(a/2))/2 - R, with eta^2/2 = x/a - 1 - log(x/a) and R = exp(-a eta^2/2) (c_0 + c_1/a + ...)
/ sqrt(2 pi a).
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.special
import torch
from torch import Tensor

from credibly.distributions.shapes import broadcast

__all__ = [
    "betainc",
    "betainccinv",
    "betaincinv",
    "gammainc",
    "gammaincc",
    "gammainccinv",
    "gammaincinv",
    "log_gamma_ratio",
    "ndtr",
    "ndtri",
]

LARGE = 1e5
"""From this `a` on, P(a, x) far below the mean is Temme's: the next term, c_2/a^2, is below 1e-12."""

STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156)


def ndtr(z: Tensor) -> Tensor:
    """The standard normal distribution function; torch's own goes through erf and is 0 below -8."""
    return (0.5 * torch.erfc(_wide(z) * -(0.5**0.5))).to(z.dtype)


def ndtri(q: Tensor) -> Tensor:
    """The standard normal quantile."""
    value: Tensor = torch.special.ndtri(_wide(q))
    return value.to(q.dtype)


def _wide(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def gammainc(a: Tensor, x: Tensor) -> Tensor:
    """The regularised lower incomplete gamma function P(a, x), in the dtype of `x`.

    Args:
        a: shape, above 0.
        x: the argument, 0 or above.
    """
    return _gamma_tail(*broadcast(a.double(), x.double()), upper=False).to(x.dtype)


def gammaincc(a: Tensor, x: Tensor) -> Tensor:
    """The regularised upper incomplete gamma function Q(a, x) = 1 - P(a, x), in the dtype of `x`."""
    return _gamma_tail(*broadcast(a.double(), x.double()), upper=True).to(x.dtype)


def gammaincinv(a: Tensor, q: Tensor) -> Tensor:
    """The x with P(a, x) = q; it has no gradient."""
    return _on_host(_gamma_quantile, a, q)


def gammainccinv(a: Tensor, q: Tensor) -> Tensor:
    """The x with Q(a, x) = q; it has no gradient."""
    return _on_host(scipy.special.gammainccinv, a, q)


def betainc(a: Tensor, b: Tensor, x: Tensor, complement: Tensor) -> Tensor:
    """The regularised incomplete beta function I_x(a, b), in the dtype of `x`.

    Args:
        a: first shape, above 0.
        b: second shape, above 0.
        x: the argument in [0, 1]; it carries the gradient.
        complement: 1 - x, given apart so that arguments near 1 keep their precision.
    """
    tensors = broadcast(*(t.double() for t in (a, b, x, complement.detach())))
    value: Tensor = _BetaTail.apply(*tensors)  # type: ignore[no-untyped-call]
    return value.to(x.dtype)


def betaincinv(a: Tensor, b: Tensor, q: Tensor) -> Tensor:
    """The x with I_x(a, b) = q; it has no gradient."""
    return _on_host(scipy.special.betaincinv, a, b, q)


def betainccinv(a: Tensor, b: Tensor, q: Tensor) -> Tensor:
    """The x with 1 - I_x(a, b) = q; it has no gradient."""
    return _on_host(scipy.special.betainccinv, a, b, q)


def log_gamma_ratio(a: Tensor, b: Tensor) -> Tensor:
    """log(Gamma(a + b) / Gamma(a)) in float64, for a and b of 0 or above, not both 0: Stirling's terms do not cancel.

    Two log-gamma functions of 1e10 differ by a number without correct digits; here the large terms are gone.
    """
    a, b = broadcast(a.double(), b.double())
    large = a >= 10
    base = torch.where(large, a, 10.0)
    rising = (base - 0.5) * torch.log1p(b / base) + b * (torch.log(base + b) - 1)
    stirling = rising + _stirling(base + b) - _stirling(base)
    small = torch.where(large, 1.0, a)
    plain = torch.lgamma(small + torch.where(large, 0.0, b)) - torch.lgamma(small)
    return torch.where(large, stirling, plain)


def _stirling(x: Tensor) -> Tensor:
    """lgamma(x) - ((x - 1/2) log x - x + log(2 pi)/2) for x of 10 or more."""
    inverse = 1 / x
    square, total = inverse * inverse, torch.zeros_like(x)
    for coefficient in reversed(STIRLING):
        total = total * square + coefficient
    return total * inverse


def _on_host(function: Callable[..., Any], *tensors: Tensor) -> Tensor:
    """A numpy function of float64 arrays, with the dtype and the device of the last tensor."""
    like = tensors[-1]
    arrays = [t.detach().double().cpu().numpy() for t in tensors]
    with np.errstate(all="ignore"):
        value = torch.as_tensor(np.asarray(function(*arrays)))
    return value.to(like.device, like.dtype)


def _lower_gamma(a: Any, x: Any) -> Any:
    value = scipy.special.gammainc(a, x)
    far_below = (a > LARGE) & (x < a - 4 * np.sqrt(a))
    return np.where(far_below, _temme(np.where(far_below, a, 1.0), x), value) if far_below.any() else value


def _upper_gamma(a: Any, x: Any) -> Any:
    return np.where((a > LARGE) & (x < a), 1 - _lower_gamma(a, x), scipy.special.gammaincc(a, x))


def _temme(a: Any, x: Any) -> Any:
    """P(a, x) below the mean."""
    mu = np.clip((x - a) / a, -1 + 1e-12, -1e-12)
    eta = -np.sqrt(-2 * _log1p_minus(mu))
    c0 = 1 / mu - 1 / eta
    c1 = 1 / eta**3 - 1 / mu**3 - 1 / mu**2 - 1 / (12 * mu)
    rest = np.exp(-a * eta * eta / 2) / np.sqrt(2 * np.pi * a) * (c0 + c1 / a)
    return scipy.special.erfc(-eta * np.sqrt(a / 2)) / 2 - rest


def _log1p_minus(mu: Any) -> Any:
    """log(1 + mu) - mu; by its series where the two cancel."""
    series = np.zeros_like(mu)
    for k in range(14, 1, -1):
        series = 1 / k - series * mu
    return np.where(np.abs(mu) < 0.02, -mu * mu * series, np.log1p(mu) - mu)


def _gamma_quantile(a: Any, q: Any) -> Any:
    """scipy's, moved by Newton's method on log P where scipy's P is wrong."""
    x = scipy.special.gammaincinv(a, q)
    far_below = (a > LARGE) & (q < 1e-3) & (q > 0)
    if not far_below.any():
        return x
    for _ in range(4):
        p = _lower_gamma(a, x)
        density = np.exp(a * _log1p_minus((x - a) / a) + 1 / (-12 * a)) * np.sqrt(a / (2 * np.pi)) / x
        x = np.where(far_below, x - np.log(p / q) * p / density, x)
    return x


class _GammaTail(torch.autograd.Function):
    """P(a, x) or Q(a, x) of float64 tensors of one shape."""

    @staticmethod
    def forward(a: Tensor, x: Tensor, upper: bool) -> Tensor:
        return _on_host(_upper_gamma if upper else _lower_gamma, a, x)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:  # noqa: ARG004
        ctx.save_for_backward(*inputs[:2])
        ctx.upper = inputs[2]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        a, x = ctx.saved_tensors
        signed = -grad if ctx.upper else grad
        in_a = in_x = None
        if ctx.needs_input_grad[0]:
            in_a = signed * _slope(lambda s: (_gamma_tail(s, x, upper=False), _gamma_tail(s, x, upper=True)), a)
        if ctx.needs_input_grad[1]:
            in_x = signed * torch.exp(torch.special.xlogy(a - 1, x) - x - torch.lgamma(a))
        return in_a, in_x, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, a: Tensor, x: Tensor, upper: bool) -> Any:
        return _gamma_tail(*_batched(info, in_dims, a, x), upper=upper), 0


def _gamma_tail(a: Tensor, x: Tensor, *, upper: bool) -> Tensor:
    value: Tensor = _GammaTail.apply(a, x, upper)  # type: ignore[no-untyped-call]
    return value


class _BetaTail(torch.autograd.Function):
    """I_x(a, b) of float64 tensors a, b, x and 1 - x of one shape."""

    @staticmethod
    def forward(a: Tensor, b: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return _on_host(_lower_beta, a, b, x, y)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:  # noqa: ARG004
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        a, b, x, y = ctx.saved_tensors
        in_a = in_b = in_x = None
        if ctx.needs_input_grad[0]:
            in_a = grad * _slope(lambda s: (_beta_tail(s, b, x, y), _beta_tail(b, s, y, x)), a)
        if ctx.needs_input_grad[1]:
            in_b = -grad * _slope(lambda s: (_beta_tail(s, a, y, x), _beta_tail(a, s, x, y)), b)
        if ctx.needs_input_grad[2]:
            log_beta = torch.lgamma(b) - log_gamma_ratio(a, b)
            powers = torch.special.xlogy(a - 1, x) + torch.special.xlogy(b - 1, y)
            in_x = grad * torch.exp(powers - log_beta)
        return in_a, in_b, in_x, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, *tensors: Tensor) -> Any:
        return _beta_tail(*_batched(info, in_dims, *tensors)), 0


def _beta_tail(a: Tensor, b: Tensor, x: Tensor, y: Tensor) -> Tensor:
    value: Tensor = _BetaTail.apply(a, b, x, y)  # type: ignore[no-untyped-call]
    return value


def _lower_beta(a: Any, b: Any, x: Any, y: Any) -> Any:
    value, near = np.empty_like(x), x <= 0.5
    scipy.special.betainc(a, b, x, out=value, where=near)
    scipy.special.betaincc(b, a, y, out=value, where=~near)
    return value


def _batched(info: Any, in_dims: Any, *tensors: Tensor) -> list[Tensor]:
    """The tensors with the mapped axis first, also those that do not have it."""
    return [
        t.expand(info.batch_size, *t.shape) if dim is None else t.movedim(dim, 0)
        for t, dim in zip(tensors, in_dims, strict=False)
    ]


def _slope(tails: Callable[[Tensor], tuple[Tensor, Tensor]], shape: Tensor) -> Tensor:
    """The derivative of a lower tail in its shape: a central difference of fourth order.

    It differentiates the logarithm of the smaller tail, which is smooth however small the tail.
    """
    lower, upper = tails(shape)
    below = lower < upper

    def log_tail(s: Tensor) -> Tensor:
        return torch.log(torch.where(below, *tails(s)))

    step = 0.01 * shape / (1 + shape.sqrt())
    near = log_tail(shape + step) - log_tail(shape - step)
    far = log_tail(shape + 2 * step) - log_tail(shape - 2 * step)
    slope = (8 * near - far) / (12 * step) * torch.where(below, lower, -upper)
    return torch.where(torch.isfinite(slope), slope, 0.0)
