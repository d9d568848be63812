"""Prediction sets from values rounded to float32, for all rows in which the rounding changes nothing.

Numbers of half the size sort twice as fast. Rounding keeps the order of values, may make neighbours equal, and moves
each by at most a part in 2^24, and with it every sum of them. A row is decided where the class at the edge of the set
is like no other of its row, and where the comparisons that name it come out the same when all masses are somewhat
larger and when they are somewhat smaller. A few rows in 10,000 are not, and those whose edge is among equals.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from credibly.conformal.standing import Standing, at_least, sort_rows

__all__ = ["RoundedRows"]

_ERROR = 2.0**-22
"""More than the rounding, of values and in a formula, moves a mass of at most 1."""

Formula = Callable[[Standing, Tensor], Tensor]


class RoundedRows:
    """The rounded values of every row, also in increasing order.

    Args:
        values: of all classes, (rows, classes), float64, from 0 to 1.
        least: a value below which no class of the row can be in the set, (rows, 1); None if nothing is known.
    """

    def __init__(self, values: Tensor, least: Tensor | None) -> None:
        self.values = values
        self.rounded = values.float()
        if least is None or not least.numel():
            candidates = self.rounded.clone(memory_format=torch.contiguous_format)
        else:  # zeros sort fast
            candidates = F.threshold(self.rounded, float(least.min()) * (1 - 2.0**-20), 0.0).contiguous()
        self.ordered = sort_rows(candidates)
        up_to = self.ordered.cumsum(-1, dtype=torch.float64)
        self.above = up_to[:, -1:] - up_to

    def members(self, formula: Formula, thresholds: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        """Which classes are in the set, and which rows have yet to be decided, (rows,).

        Args:
            formula: the score at a standing and u; it does not fall as the mass or the rank grows.
            thresholds: of the scores, (rows, 1).
            u: one number in [0, 1] a row, (rows, 1).
        """
        last = self.ordered.shape[-1] - 1

        def bound(position: Tensor, error: float) -> Tensor:
            return formula(_At(self, self.above.gather(-1, position) + error, last - position), u)

        everywhere = _At(self, self.above, torch.arange(last, -1, -1, dtype=torch.float64, device=u.device))
        first = (formula(everywhere, u) > thresholds).sum(-1, keepdim=True, dtype=torch.int32).long()
        edge, before, after = first.clamp(max=last), (first - 1).clamp(min=0), (first + 1).clamp(max=last)
        sure = (first <= last) & (bound(edge, _ERROR) <= thresholds)
        sure &= (first == 0) | (bound(before, -_ERROR) > thresholds)

        cutoff = self.ordered.gather(-1, edge)
        following = self.ordered.gather(-1, after).masked_fill_(edge == last, torch.inf)
        sure &= (cutoff > 0) & (following > cutoff)
        sure &= (first == 0) | (self.ordered.gather(-1, before) < cutoff)

        above, rank = self.above.gather(-1, edge), last - edge
        included = formula(_Own(self, above + _ERROR, rank, cutoff), u) <= thresholds
        sure &= included == (formula(_Own(self, above - _ERROR, rank, cutoff), u) <= thresholds)
        return at_least(self.rounded, torch.where(included, cutoff, following)), ~sure.squeeze(-1)


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
