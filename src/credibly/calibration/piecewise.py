"""Piecewise linear and piecewise constant curves, many at once: knots (maps, knots), padded by their last one."""

from collections.abc import Sequence

import torch
from torch import Tensor

from credibly.calibration.tails import Tails, distance, place

__all__ = ["interpolate", "interpolate_tails", "padded", "segment"]


def padded(columns: Sequence[Tensor], value: float | None = None) -> Tensor:
    """Columns of different lengths as one table, (columns, longest), filled up with `value` or their last entry."""
    longest = max(len(column) for column in columns)
    rows = [
        torch.cat([c, (c[-1:] if value is None else c.new_tensor([value])).expand(longest - len(c))]) for c in columns
    ]
    return torch.stack(rows)


def segment(knots: Tensor, points: Tensor) -> Tensor:
    """The index of the last knot at or below each point, between 0 and knots - 2: (maps, points)."""
    index = torch.searchsorted(knots, points.contiguous(), right=True) - 1
    return index.clamp(0, max(knots.shape[-1] - 2, 0))


def interpolate_tails(
    knots: Tails,  # (maps, knots), not decreasing
    values: Tails,  # (maps, knots)
    points: Tails,  # (maps, points)
) -> Tails:
    """A piecewise linear curve from levels to levels, each tail to its own precision; mirrored knots mirror it."""
    left = segment(place(knots), place(points))
    right = (left + 1).clamp(max=knots.lower.shape[-1] - 1)
    start, end, low, high = knots.gather(left), knots.gather(right), values.gather(left), values.gather(right)
    gap = distance(start, end)
    size = torch.where(gap > 0, gap, 1.0)
    passed, rest = (distance(start, points) / size).clamp(max=1), (distance(points, end) / size).clamp(max=1)
    rise = distance(low, high)
    lower = torch.where(rest <= 0, high.lower, low.lower + passed * rise)
    upper = torch.where(passed <= 0, low.upper, high.upper + rest * rise)
    return Tails(torch.where(passed <= 0, low.lower, lower), torch.where(rest <= 0, high.upper, upper))


def interpolate(
    knots: Tensor,  # (maps, knots), not decreasing
    values: Tensor,  # (maps, knots)
    points: Tensor,  # (maps, points)
) -> Tensor:
    """Linear between the knots, constant beyond them."""
    left = segment(knots, points)
    right = (left + 1).clamp(max=knots.shape[-1] - 1)
    x0, x1, y0, y1 = (t.gather(-1, i) for t, i in ((knots, left), (knots, right), (values, left), (values, right)))
    gap = x1 - x0
    weight = torch.where(gap > 0, (points - x0) / torch.where(gap > 0, gap, 1.0), (points >= x1).to(points.dtype))
    return torch.lerp(y0, y1, weight.clamp(0, 1))
