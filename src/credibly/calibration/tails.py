"""Both tails of a distribution function at once: P(Y <= y) and P(Y > y), each with all its digits.

1 - F is 0 in float64 from 1 - 1e-16 on, for a Gaussian from 8.3 standard deviations on, while F itself is told from 0
down to 1e-308. A level is therefore a pair that adds up to 1, of which the smaller member says where it lies; turned
round it is the level of the mirrored distribution, and what is computed from pairs has no better side.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributions import Distribution

from credibly.distributions.cumulative import cdf
from credibly.distributions.kinds import kind
from credibly.distributions.operations import Operation
from credibly.distributions.pit import cdf_below, cdf_limits
from credibly.distributions.quantiles import QuantileForecast
from credibly.distributions.survival import survival

__all__ = ["TINY", "Tails", "distance", "level", "limit_tails", "place", "tails_at", "tails_below"]

TINY = torch.finfo(torch.float64).tiny


class Tails(NamedTuple):
    """A level of a distribution function and its complement, float64 tensors of one shape."""

    lower: Tensor
    upper: Tensor

    def gather(self, index: Tensor) -> "Tails":
        """The levels at an index along the last axis."""
        return Tails(self.lower.gather(-1, index), self.upper.gather(-1, index))

    def at_least(self, tail: float | Tensor) -> "Tails":
        """Neither tail below this one."""
        tail = torch.as_tensor(tail, dtype=torch.float64, device=self.lower.device)
        return Tails(torch.maximum(self.lower, tail), torch.maximum(self.upper, tail))


def level(probs: Tensor) -> Tails:
    """The pair of a level that is given as one number."""
    lower = probs.double()
    return Tails(lower, 1 - lower)


def place(tails: Tails) -> Tensor:
    """Whole numbers that increase with the level, and differ where either tail does."""
    half = _bits(torch.tensor(0.5, dtype=torch.float64, device=tails.lower.device))
    return torch.where(tails.lower <= tails.upper, _bits(tails.lower) - half, half - _bits(tails.upper))


def _bits(number: Tensor) -> Tensor:
    """The bits of numbers that are not negative increase with them."""
    return number.clamp(min=0.0).contiguous().view(torch.int64)


def distance(first: Tails, second: Tails) -> Tensor:
    """The probability between two levels, the second not below the first, from the tail on their own side."""
    below, above = second.lower - first.lower, first.upper - second.upper
    across = (0.5 - first.lower) + (0.5 - second.upper)
    return torch.where(second.lower <= 0.5, below, torch.where(first.upper <= 0.5, above, across)).clamp(min=0)


def tails_at(d: Distribution, value: Tensor) -> Tails:
    """P(Y <= value) and P(Y > value)."""
    return Tails(cdf.formula(d, value).double(), survival.formula(d, value).double())


def tails_below(d: Distribution, value: Tensor) -> Tails:
    """P(Y < value) and P(Y >= value)."""
    if kind(d) == "count":
        return tails_at(d, torch.ceil(value) - 1)
    at, below = tails_at(d, value), cdf_below.formula(d, value).double()
    below = torch.minimum(below, at.lower)
    return Tails(below, at.upper + (at.lower - below))


@Operation
def limit_tails(d: Distribution, value: Tensor) -> tuple[Tails, Tails]:
    """Between which levels the transform of a value lies, as `distributions.pit.cdf_limits` says it."""
    return tails_below(d, value), tails_at(d, value)


@limit_tails.register(QuantileForecast)
def _(d: QuantileForecast, value: Tensor) -> tuple[Tails, Tails]:
    below, at = cdf_limits.formula(d, value)
    return level(below), level(at)
