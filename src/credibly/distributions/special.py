"""Special functions: torch's own with types and in half precision, and the one that torch lacks.

I_x(a, b) is evaluated by its continued fraction with the modified Lentz method (Press, Teukolsky, Vetterling,
Flannery, Numerical Recipes, 3rd edition, 2007, section 6.4), on the side of the mean where it converges
fast; the other side follows from I_x(a, b) = 1 - I_{1-x}(b, a). It takes O(sqrt(max(a, b))) terms.
"""

import torch
from torch import Tensor

from credibly.distributions.shapes import broadcast

__all__ = ["betainc", "gammainc", "gammaincc", "ndtr", "ndtri"]

TINY = 1e-300
MAX_TERMS = 100_000


def ndtr(z: Tensor) -> Tensor:
    """The standard normal distribution function; torch's own goes through erf and is 0 below -8."""
    return (0.5 * torch.erfc(_wide(z) * -(0.5**0.5))).to(z.dtype)


def ndtri(q: Tensor) -> Tensor:
    """The standard normal quantile."""
    value: Tensor = torch.special.ndtri(_wide(q))
    return value.to(q.dtype)


def gammainc(a: Tensor, x: Tensor) -> Tensor:
    """The regularised lower incomplete gamma function P(a, x); it has no gradient in `a`."""
    value: Tensor = torch.special.gammainc(a, x)
    return value


def gammaincc(a: Tensor, x: Tensor) -> Tensor:
    """The regularised upper incomplete gamma function Q(a, x); it has no gradient in `a`."""
    value: Tensor = torch.special.gammaincc(a, x)
    return value


def _wide(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def betainc(a: Tensor, b: Tensor, x: Tensor, complement: Tensor) -> Tensor:
    """The regularised incomplete beta function I_x(a, b) in float64.

    Args:
        a: first shape, above 0.
        b: second shape, above 0.
        x: the argument in [0, 1].
        complement: 1 - x, given apart so that arguments near 1 keep their precision.

    Returns:
        I_x(a, b), of the common broadcast shape. It has no gradient in `a` and `b`.
    """
    a, b, x, y = broadcast(*(t.detach().double() for t in (a, b, x, complement)))
    swap = x > (a + 1) / (a + b + 2)
    a, b = torch.where(swap, b, a), torch.where(swap, a, b)
    x, y = torch.where(swap, y, x), torch.where(swap, x, y)
    log_front = torch.special.xlogy(a, x) + torch.special.xlogy(b, y) - _log_beta(a, b) - torch.log(a)
    value = torch.exp(log_front) * _continued_fraction(a, b, x)
    return torch.where(swap, 1 - value, value)


def _log_beta(a: Tensor, b: Tensor) -> Tensor:
    return torch.lgamma(a) + torch.lgamma(b) - torch.lgamma(a + b)


def _continued_fraction(a: Tensor, b: Tensor, x: Tensor) -> Tensor:
    c = torch.ones_like(x)
    d = 1 / _away_from_zero(1 - (a + b) * x / (a + 1))
    h = d
    for m in range(1, MAX_TERMS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1 / _away_from_zero(1 + term * d)
            c = _away_from_zero(1 + term / c)
            change = c * d
            h = h * change
        if bool(((change - 1).abs() <= 1e-15).all()):
            break
    return h


def _away_from_zero(t: Tensor) -> Tensor:
    return torch.where(t.abs() < TINY, TINY, t)
