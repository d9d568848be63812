"""Bisection over the float64 numbers themselves: the last one at which a condition still holds.

The bits of a floating-point number, read as an integer, increase with it on either side of 0. Halving that integer
range rather than the interval of reals ends after 64 steps at two neighbouring numbers, whatever their sizes, and
also from an infinite end.
"""

from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["last_true"]

_LOWEST = torch.iinfo(torch.int64).min


def last_true(condition: Callable[[Tensor], Tensor], true: Tensor, false: Tensor) -> Tensor:
    """The last number on the way from `true` to `false` at which the condition holds, element by element.

    Args:
        condition: takes numbers, float64, and says where it holds; along the way it changes once.
        true: float64 numbers at which it holds, on either side of `false`. It is not asked there.
        false: numbers at which it does not hold, of the same shape.
    """
    holds, fails = _place(true), _place(false)
    for _ in range(64):
        middle = (holds & fails) + ((holds ^ fails) >> 1)
        inside = condition(_number(middle))
        holds, fails = torch.where(inside, middle, holds), torch.where(inside, fails, middle)
        if bool(((holds - fails).abs() <= 1).all()):
            break
    return _number(holds)


def _place(number: Tensor) -> Tensor:
    bits = (number + 0.0).view(torch.int64)  # one zero
    return torch.where(bits < 0, _LOWEST - bits, bits)


def _number(place: Tensor) -> Tensor:
    return torch.where(place < 0, _LOWEST - place, place).view(torch.float64)
