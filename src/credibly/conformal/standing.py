"""Where classes stand among those of their row: the mass and the number of classes reached on the way down to them.

The same numbers come in three ways. For one class a row masked sums do, and no sort. For any classes of a sorted row
they are read off its running sums. And for the positions of a sorted row, taken as if no two values were equal and
before anything of the position's own is counted, they are lower bounds for what stands there.

Values that are multiples of 2^-52 and sum to 2 at most are added exactly in float64, in any order: the ways agree to
the last bit.
"""

from abc import ABC, abstractmethod

import numpy as np
import torch
from torch import Tensor

__all__ = ["SortedRows", "Standing", "Unsorted", "at_least", "sort_rows"]


class Standing(ABC):
    """The place of some classes of every row. Values are larger for more probable classes."""

    @property
    @abstractmethod
    def largest(self) -> Tensor:
        """The largest value of the row, (rows, 1)."""

    @abstractmethod
    def mass_reached(self, u: Tensor) -> Tensor:
        """The sum of the values above, plus u times the sum of the values tied, the class's own included.

        It is computed from below, as 1 less the rest, so that it ends at exactly 1 for u = 1.
        """

    @abstractmethod
    def rank_reached(self, u: Tensor) -> Tensor:
        """The number of values above, plus u times the number tied: for u = 1 the rank, the last of equals."""


class Unsorted(Standing):
    """The place of the classes of one value a row.

    Args:
        values: of all classes, (rows, classes).
        own: the value asked about, (rows, 1), one of them.
    """

    def __init__(self, values: Tensor, own: Tensor) -> None:
        self._values, self._own = values, own

    @property
    def largest(self) -> Tensor:
        """See `Standing.largest`."""
        return self._values.amax(-1, keepdim=True)

    def mass_reached(self, u: Tensor) -> Tensor:
        """See `Standing.mass_reached`: the sum of min(value, own) is that of the values below, and own for each other.

        All terms are multiples of 2^-52 below 2, and exact. A minimum is many times faster than a masked sum, whose
        branches cannot be foretold.
        """
        capped = torch.minimum(self._values, self._own).sum(-1, keepdim=True)
        below = capped - self._own * _count(at_least(self._values, self._own))
        return (1 - below) - (1 - u) * (self._own * self._num_tied())

    def rank_reached(self, u: Tensor) -> Tensor:
        """See `Standing.rank_reached`: two counts."""
        tied = self._num_tied()
        return (_count(at_least(self._values, self._own)) - tied) + u * tied

    def _num_tied(self) -> Tensor:
        return _count(_equal(self._values, self._own))


class SortedRows:
    """The values of every row in increasing order, with their running sums.

    Args:
        values: of all classes, (rows, classes); not changed.
    """

    def __init__(self, values: Tensor) -> None:
        self.ordered = sort_rows(values.clone(memory_format=torch.contiguous_format))
        self._up_to: Tensor | None = None

    @property
    def up_to(self) -> Tensor:
        """The sum of all values up to each position, (rows, classes)."""
        if self._up_to is None:
            self._up_to = self.ordered.cumsum(-1)
        return self._up_to

    def at(self, own: Tensor) -> Standing:
        """The place of the classes of the given values, (rows, any number)."""
        return _Within(self, own)

    def positions(self) -> Standing:
        """The least place of what stands at each position, whatever u, (rows, classes)."""
        return _Positions(self)


class _Within(Standing):
    """See `SortedRows.at`."""

    def __init__(self, rows: SortedRows, own: Tensor) -> None:
        self._rows = rows
        self._first = torch.searchsorted(rows.ordered, own)
        self._end = torch.searchsorted(rows.ordered, own, right=True)

    @property
    def largest(self) -> Tensor:
        return self._rows.ordered[:, -1:]

    def mass_reached(self, u: Tensor) -> Tensor:
        below = self._sum_of_smallest(self._first)
        return (1 - below) - (1 - u) * (self._sum_of_smallest(self._end) - below)

    def rank_reached(self, u: Tensor) -> Tensor:
        return (self._rows.ordered.shape[-1] - self._end) + u * (self._end - self._first)

    def _sum_of_smallest(self, number: Tensor) -> Tensor:
        return torch.where(number > 0, self._rows.up_to.gather(-1, (number - 1).clamp(min=0)), 0.0)


class _Positions(Standing):
    """See `SortedRows.positions`."""

    def __init__(self, rows: SortedRows) -> None:
        self._rows = rows

    @property
    def largest(self) -> Tensor:
        return self._rows.ordered[:, -1:]

    def mass_reached(self, u: Tensor) -> Tensor:
        return 1 - self._rows.up_to

    def rank_reached(self, u: Tensor) -> Tensor:
        last = self._rows.ordered.shape[-1] - 1
        return torch.arange(last, -1, -1, dtype=torch.float64, device=self._rows.ordered.device)


def _count(which: Tensor) -> Tensor:
    """How many of each row, (rows, 1): in 32 bits, which is twice as fast as in 64."""
    return which.sum(-1, keepdim=True, dtype=torch.int32)


def sort_rows(values: Tensor) -> Tensor:
    """The values of every row, (rows, classes), increasing: in place on the CPU, by numpy, several times faster."""
    if values.device.type != "cpu":
        return values.sort(-1).values
    values.numpy().sort(-1)
    return values


def at_least(values: Tensor, limits: Tensor) -> Tensor:
    """`values >= limits`; on the CPU by numpy, several times faster where the outcome cannot be foretold."""
    if values.device.type != "cpu":
        return values >= limits
    return torch.from_numpy(np.greater_equal(values.numpy(), limits.numpy()))


def _equal(values: Tensor, others: Tensor) -> Tensor:
    if values.device.type != "cpu":
        return values == others
    return torch.from_numpy(np.equal(values.numpy(), others.numpy()))
