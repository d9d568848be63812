"""Prediction sets from values rounded to float32, for all rows in which the rounding changes nothing.

Numbers of half the size sort twice as fast. Rounding keeps the order of values, may make neighbours equal, and moves
each by at most a part in 2^24, and with it every sum of them. A row is decided where the class at the edge of the set
is like no other of its row, and where the comparisons that name it come out the same when all masses are somewhat
larger and when they are somewhat smaller.

Nor is the whole row sorted. One half in increasing order and the other in decreasing order are a bitonic sequence:
the smaller of each value and the one half a row further on are the smaller half of the row, the larger ones are the
larger half, and both halves are bitonic again ("Sorting networks and their applications", Batcher, 1968). The mass of
the larger half tells in which of them the edge is, and so on until few values are left.

A row in a hundred is not decided: where the edge is among equals, or where its neighbour went with the other half.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from credibly.conformal.standing import Standing, at_least, sort_rows

__all__ = ["RoundedRows"]

_ERROR = 2.0**-22
"""More than the rounding, of values and in a formula, moves a mass of at most 1."""

_FINEST = 2.0**-50
"""More than by which a score may move a value before it looks for equals."""

_WINDOW = 256
"""Values that are left to sort, at most."""

Formula = Callable[[Standing, Tensor], Tensor]


class RoundedRows:
    """The rounded values of every row.

    Args:
        values: of all classes, (rows, classes), float64, from 0 to 1; not yet rounded to any grid.
        least: a value below which no class of the row can be in the set, (rows, 1); None if nothing is known.
    """

    def __init__(self, values: Tensor, least: Tensor | None) -> None:
        self.values = values
        self.rounded = values.float()
        self._useless = 0.0 if least is None or not least.numel() else float(least.min()) * (1 - 2.0**-20)

    def members(self, formula: Formula, thresholds: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        """Which classes are in the set, and which rows have yet to be decided, (rows,).

        Args:
            formula: the score at a standing and u; it does not fall as the mass or the rank grows.
            thresholds: of the scores, (rows, 1).
            u: one number in [0, 1] a row, (rows, 1).
        """

        def bound(above: Tensor, rank: Tensor) -> Tensor:
            return formula(_At(self, above, rank), u)

        window, mass, number = self._window(bound, thresholds)
        last = window.shape[-1] - 1
        up_to = window.cumsum(-1, dtype=torch.float64)
        ranks = number + torch.arange(last, -1, -1, dtype=torch.float64, device=u.device)
        masses = mass + (up_to[:, -1:] - up_to)
        first = (bound(masses, ranks) > thresholds).sum(-1, keepdim=True, dtype=torch.int32).long()
        edge = first.clamp(max=last)
        above, rank, cutoff = masses.gather(-1, edge), ranks.gather(-1, edge), window.gather(-1, edge)

        following = window.gather(-1, (edge + 1).clamp(max=last)).masked_fill_((edge == last) & (rank == 0), torch.inf)
        before = window.gather(-1, (edge - 1).clamp(min=0)).masked_fill_(rank == self.values.shape[-1] - 1, -torch.inf)
        apart = _ERROR * cutoff + _FINEST
        sure = (cutoff - before > apart) & (following - cutoff > apart) & (cutoff > 0)
        sure &= bound(above + _ERROR, rank) <= thresholds
        sure &= (before < 0) | (bound(above + cutoff - _ERROR, rank + 1) > thresholds)

        included = formula(_Own(self, above + _ERROR, rank, cutoff), u) <= thresholds
        sure &= included == (formula(_Own(self, above - _ERROR, rank, cutoff), u) <= thresholds)
        return at_least(self.rounded, torch.where(included, cutoff, following)), ~sure.squeeze(-1)

    def _window(self, bound: Callable[[Tensor, Tensor], Tensor], thresholds: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Some values in increasing order, the edge among them, with the mass and the number above them, (rows, 1)."""
        rows, classes = self.values.shape
        halvings = ((classes - 1) // _WINDOW).bit_length()
        fill = -classes % 2**halvings
        window = self.rounded.new_zeros(rows, fill + classes)
        torch.threshold(self.rounded, self._useless, 0.0, out=window[:, fill:])  # zeros sort fast
        mass = number = thresholds.new_zeros(rows, 1)
        if not halvings:
            return sort_rows(window), mass, number
        rising, falling = sort_rows(window.view(rows, 2, window.shape[-1] // 2)).unbind(1)
        first, second = rising, falling.flip(-1)
        row = torch.arange(rows, device=window.device)
        for _ in range(halvings):
            halves = torch.stack([torch.maximum(first, second), torch.minimum(first, second)])
            mass_of_larger = halves[0].sum(-1, keepdim=True, dtype=torch.float64)
            lower = bound(mass + mass_of_larger, number + first.shape[-1]) <= thresholds
            mass, number = mass + lower * mass_of_larger, number + lower * first.shape[-1]
            window = halves.flatten(0, 1).index_select(0, row + rows * lower.squeeze(-1))
            first, second = window.chunk(2, -1)
        return sort_rows(window), mass, number


@dataclass(frozen=True, eq=False)
class _At(Standing):
    """Places with that much mass and so many classes above, and nothing of their own counted."""

    rows: RoundedRows
    above: Tensor
    rank: Tensor

    @property
    def largest(self) -> Tensor:
        return self.rows.values.amax(-1, keepdim=True)

    def mass_reached(self, u: Tensor) -> Tensor:
        return self.above

    def rank_reached(self, u: Tensor) -> Tensor:
        return self.rank


@dataclass(frozen=True, eq=False)
class _Own(_At):
    """Places of one class each, which counts."""

    mass: Tensor

    def mass_reached(self, u: Tensor) -> Tensor:
        return self.above + u * self.mass

    def rank_reached(self, u: Tensor) -> Tensor:
        return self.rank + u
