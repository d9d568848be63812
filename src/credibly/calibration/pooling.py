r"""Isotonic regression by pooling adjacent violators, of many curves at once.

Of values at increasing points, the non-decreasing ones nearest in squares are means over blocks; neighbours that
decrease belong to one block, in whatever order they are pooled ("An Empirical Distribution Function for Sampling with
Incomplete Information", Ayer, Brunk, Ewing, Reid, Silverman, 1955). Here each round pools every run of decreasing
neighbours of all curves together, which takes few rounds on data; a curve that would take many goes through the usual
pass with a stack. Sums of 0 and 1 are compared by cross products, so that ties are exact.
"""

from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Blocks", "pooled"]

_ROUNDS = 64


class Blocks(NamedTuple):
    """Blocks of all curves in order, each (blocks,).

    Attributes:
        curve: the curve that it belongs to.
        total: the sum of the values.
        size: how many values there are.
        first: the smallest point.
        last: the largest point.
        point_sum: the sum of the points.
    """

    curve: Tensor
    total: Tensor
    size: Tensor
    first: Tensor
    last: Tensor
    point_sum: Tensor

    @property
    def value(self) -> Tensor:
        """The mean."""
        return self.total / self.size

    def of(self, curve: int) -> "Blocks":
        """The blocks of one curve."""
        own = self.curve == curve
        return Blocks(*(column[own] for column in self))

    def merged(self, starts: Tensor) -> "Blocks":
        """Blocks put together; `starts` marks the first of each new one."""
        index = starts.cumsum(0) - 1
        last = torch.cat([starts[1:], starts.new_ones(1)])
        length = int(index[-1]) + 1
        total, size, point_sum = (
            column.new_zeros(length).index_add_(0, index, column) for column in (self.total, self.size, self.point_sum)
        )
        return Blocks(self.curve[starts], total, size, self.first[starts], self.last[last], point_sum)


def pooled(
    points: Tensor,  # (curves, n)
    values: Tensor,  # (curves, n)
    *,
    pool_equal: bool = False,
) -> Blocks:
    """The blocks of the isotonic regression of values on points; equal points are one.

    Args:
        points: in any order, finite.
        values: one a point.
        pool_equal: whether neighbouring blocks of one value become one.
    """
    blocks = _by_point(points, values)
    for _ in range(_ROUNDS):
        starts = ~_violations(blocks, pool_equal=pool_equal)
        if bool(starts.all()):
            return blocks
        blocks = blocks.merged(starts)
    return blocks.merged(_starts_by_stack(blocks, pool_equal=pool_equal))


def _by_point(points: Tensor, values: Tensor) -> Blocks:
    """One block for each different point of each curve."""
    ordered, order = points.sort(stable=True, dim=-1)
    starts = torch.ones_like(ordered, dtype=torch.bool)
    starts[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    curve = torch.arange(len(points), device=points.device).unsqueeze(-1).expand_as(ordered).reshape(-1)
    x, y = ordered.reshape(-1), values.gather(-1, order).reshape(-1)
    return Blocks(curve, y, torch.ones_like(y), x, x, x).merged(starts.reshape(-1))


def _violations(blocks: Blocks, *, pool_equal: bool) -> Tensor:
    """Which blocks lie below the one before them in the same curve (or, `pool_equal`, not above it)."""
    left = blocks.total[:-1] * blocks.size[1:]
    right = blocks.total[1:] * blocks.size[:-1]
    bad = (left >= right) if pool_equal else (left > right)
    return torch.cat([bad.new_zeros(1), bad & (blocks.curve[1:] == blocks.curve[:-1])])


def _starts_by_stack(blocks: Blocks, *, pool_equal: bool) -> Tensor:
    """The first block of each pooled one, by a single pass."""
    stack: list[tuple[int, int, float, float]] = []  # start, curve, total, count
    columns = zip(blocks.curve.tolist(), blocks.total.tolist(), blocks.size.tolist(), strict=True)
    for start, (curve, total, count) in enumerate(columns):
        at = (start, curve, total, count)
        while stack and stack[-1][1] == curve:
            left, right = stack[-1][2] * at[3], at[2] * stack[-1][3]
            if left < right or (left == right and not pool_equal):
                break
            before = stack.pop()
            at = (before[0], curve, before[2] + at[2], before[3] + at[3])
        stack.append(at)
    starts = torch.zeros(len(blocks.curve), dtype=torch.bool, device=blocks.curve.device)
    starts[[entry[0] for entry in stack]] = True
    return starts
