"""The area under the risk-coverage curve of many choices of the same rows, sorted once: see `selective`.

Of rows drawn with replacement the area is the mean of the risk over ranks; of rows with weights it is the integral of
the risk over the coverage, with logarithms in place of harmonic numbers.
"""

from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["area_of", "weighted_area"]


def weighted_area(weights: Tensor, losses: Tensor, group: Tensor, last: Tensor, num_groups: int) -> Tensor:
    """The integral of the risk over the coverage, (some,).

    Args:
        weights: of rows, (some, rows + 1), which add up to 1.
        losses: (rows + 1,).
        group: the rank of the group of each row but the last, the first group being the most confident one, (rows,).
        last: that of the last row, (some,).
        num_groups: how many there are.
    """

    def by_group(values: Tensor) -> Tensor:
        sums = values.new_zeros(len(values), num_groups).index_add_(1, group, values[:, :-1])
        return sums.scatter_add_(1, last.unsqueeze(1), values[:, -1:])

    masses, sums = by_group(weights), by_group(weights * losses)
    after = masses.cumsum(-1)
    before = (after - masses).clamp(min=0)
    excess = sums.cumsum(-1) - sums - before * (sums / masses.clamp(min=1e-300))
    return (sums + torch.where(before > 0, excess * (after / before.clamp(min=1e-300)).log(), 0.0)).sum(-1)


def area_of(order: Tensor, losses: Tensor) -> Callable[[Tensor], Tensor]:
    """The area, of any choice of rows, when they are sorted by `order`, smallest first."""
    distinct, group = order.unique(return_inverse=True)  # type: ignore[no-untyped-call]
    num_groups, num_rows = len(distinct), len(order)
    steps = torch.arange(1, num_rows + 1, dtype=torch.float64, device=order.device)
    harmonic = torch.cat([steps.new_zeros(1), steps.reciprocal().cumsum(0)])

    def area(index: Tensor) -> Tensor:
        some = len(index)
        where = (group[index] + torch.arange(some, device=index.device).unsqueeze(1) * num_groups).flatten()
        counts = torch.bincount(where, minlength=some * num_groups).view(some, num_groups)
        sums = torch.bincount(where, weights=losses[index].flatten(), minlength=some * num_groups).view(some, -1)
        after = counts.cumsum(-1)
        before = after - counts
        earlier = sums.cumsum(-1) - sums
        excess = earlier - before * (sums / counts.clamp(min=1))
        return (sums + excess * (harmonic[after] - harmonic[before])).sum(-1) / num_rows

    return area
