"""Prediction intervals, closed on both sides, with directed rounding at their ends.

An interval mu - q <= y <= mu + q and the condition |y - mu| <= q are the same in exact arithmetic only:
after rounding, y can satisfy one and not the other. Here a score is rounded up, an upper end down and a
lower end up, which makes them the same for floating-point y, mu and q again. The rounding error of a sum is
a floating-point number and can be computed ("The Art of Computer Programming, volume 2", Knuth, 1969,
theorem B of section 4.2.2).
"""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from credibly.conformal.region import Region
from credibly.core.checks import as_tensor, check_finite
from credibly.core.errors import ShapeError
from credibly.core.typing import ArrayLike

__all__ = ["Intervals", "sum_down", "sum_up", "widths"]


@dataclass(frozen=True, eq=False)
class Intervals(Region):
    """A closed interval for every row. Make one with `Intervals.between`.

    Attributes:
        lower: lower ends, (rows,), float64; NaN where the interval is empty.
        upper: upper ends, (rows,), float64; NaN where the interval is empty.
        empty: whether the interval contains nothing, (rows,), bool.
        of_counts: whether the targets are counts, so that `width` is how many of them an interval holds.
    """

    lower: Tensor
    upper: Tensor
    empty: Tensor
    of_counts: bool = field(default=False, kw_only=True)

    @classmethod
    def between(cls, lower: Tensor, upper: Tensor, *, of_counts: bool = False) -> "Intervals":
        """The intervals [lower, upper]; empty where no real number lies between, as for lower > upper."""
        empty = (lower > upper) | (lower == math.inf) | (upper == -math.inf)
        return cls(lower.masked_fill(empty, math.nan), upper.masked_fill(empty, math.nan), empty, of_counts=of_counts)

    @property
    def width(self) -> Tensor:
        """The width of each interval, (rows,): 0 where it is empty, infinite where an end is.

        Of counts it is the number of counts between the ends, both included: 1 for [0, 0], and 3 for [-1.5, 2.5].
        """
        return widths(self.lower, self.upper, of_counts=self.of_counts).masked_fill(self.empty, 0.0)

    def contains(self, targets: ArrayLike) -> Tensor:
        """Whether each row's target lies in its interval, (rows,), bool; an empty interval contains nothing.

        Raises:
            ShapeError: `targets` is not (rows,) or (rows, 1).
            NotFiniteError: NaN or infinite targets.
        """
        values = as_tensor(targets, device=self.lower.device)
        rows = len(self.lower)
        if values.shape not in ((rows,), (rows, 1)):
            raise ShapeError(f"`targets` must have shape ({rows},) or ({rows}, 1); got {tuple(values.shape)}")
        values = check_finite("targets", values.reshape(rows))
        return (self.lower <= values) & (values <= self.upper)


def widths(lower: Tensor, upper: Tensor, *, of_counts: bool) -> Tensor:
    """The lengths from the lower to the upper ends; of counts, how many of 0, 1, 2, ... lie between them."""
    return (upper.floor() - lower.clamp(min=0).ceil() + 1).clamp(min=0) if of_counts else upper - lower


def _sum_and_error(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """The rounded sum, and what rounding took away, exactly; 0 where the sum is infinite."""
    total = a + b
    b_seen = total - a
    error = (a - (total - b_seen)) + (b - b_seen)
    return total, torch.where(total.isfinite(), error, 0.0)


def sum_down(a: Tensor, b: Tensor) -> Tensor:
    """The largest floating-point number that is at most a + b."""
    total, error = _sum_and_error(a, b)
    return torch.where(error < 0, torch.nextafter(total, total.new_tensor(-math.inf)), total)


def sum_up(a: Tensor, b: Tensor) -> Tensor:
    """The smallest floating-point number that is at least a + b."""
    total, error = _sum_and_error(a, b)
    return torch.where(error > 0, torch.nextafter(total, total.new_tensor(math.inf)), total)
