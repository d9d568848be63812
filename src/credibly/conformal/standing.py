"""Where classes stand among those of their row: the mass and the number of classes reached on the way down to them.

The same numbers come in three ways. For one class a row masked sums do, and no sort. For any classes of a sorted row
they are read off its running sums. And for the positions of a sorted row, taken as if no two values were equal and
before anything of the position's own is counted, they are lower bounds for what stands there.

Values that are multiples of 2^-52 and sum to 2 at most are added exactly in float64, in any order: the ways agree to
the last bit.
"""

from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["SortedRows", "Standing", "Unsorted", "sorted_rows"]

_PER_THREAD = 2**16  # numbers that are worth a thread


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
        below = capped - self._own * _count(self._values >= self._own)
        return (1 - below) - (1 - u) * (self._own * self._num_tied())

    def rank_reached(self, u: Tensor) -> Tensor:
        """See `Standing.rank_reached`: two counts."""
        return _count(self._values > self._own) + u * self._num_tied()

    def _num_tied(self) -> Tensor:
        return _count(self._values == self._own)


class SortedRows:
    """The largest values of every row in increasing order, with their running sums.

    Args:
        values: of all classes, (rows, classes); not changed.
        num_largest: how many of the largest values will be asked about, all without it. More may be kept.
    """

    def __init__(self, values: Tensor, num_largest: int | None = None) -> None:
        num_classes = values.shape[-1]
        kept = num_classes if num_largest is None or 2 * num_largest >= num_classes else num_largest
        ordered = sorted_rows(values, kept)
        self.ordered = ordered[:, num_classes - kept :].contiguous()  # (rows, kept)
        self.rest = ordered[:, : num_classes - kept].sum(-1, keepdim=True)  # the mass of the others
        self._up_to: Tensor | None = None

    @property
    def up_to(self) -> Tensor:
        """The sum of all values up to each position, (rows, kept)."""
        if self._up_to is None:
            self._up_to = self.ordered.cumsum(-1).add_(self.rest)
        return self._up_to

    def at(self, own: Tensor) -> Standing:
        """The place of the classes of the given values, (rows, any number)."""
        return _Within(self, own)

    def positions(self) -> Standing:
        """The least place of what stands at each position, whatever u, (rows, kept)."""
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
        return torch.where(number > 0, self._rows.up_to.gather(-1, (number - 1).clamp(min=0)), self._rows.rest)


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


def sorted_rows(values: Tensor, num_largest: int) -> Tensor:
    """The values of every row, increasing; on the CPU by numpy, several times faster, in as many threads as torch has.

    Args:
        values: (rows, classes); not changed.
        num_largest: how many of the largest have to be in order, at the end of each row; the others, which are no
            larger, may come in any order before them.
    """
    if values.device.type != "cpu":
        return values.sort(-1).values
    ordered = values.clone(memory_format=torch.contiguous_format)
    threads = min(torch.get_num_threads(), 1 + ordered.numel() // _PER_THREAD)
    parts = np.array_split(ordered.numpy(), threads)
    unsorted = values.shape[-1] - num_largest
    if threads == 1:
        _sort_in_place(parts[0], unsorted)
    else:
        with ThreadPoolExecutor(threads) as pool:  # numpy sorts without the interpreter's lock
            list(pool.map(_sort_in_place, parts, [unsorted] * threads))
    return ordered


def _sort_in_place(part: "np.ndarray[Any, Any]", unsorted: int) -> None:
    if unsorted:
        part.partition(unsorted, axis=-1)
    part[:, unsorted:].sort(-1)
