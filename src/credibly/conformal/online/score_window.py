"""The scores that an online method compares with: the latest so many, kept in order of time and in order of size.

A step puts one score in and takes the oldest out, a shift of the ordered scores instead of a new sort.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from credibly.conformal.online.base import checked_scores, fitting
from credibly.core.checks import check_count
from credibly.core.errors import ShapeError
from credibly.core.typing import ArrayLike
from credibly.distributions.shapes import broadcast_shape

__all__ = ["ScoreWindow", "check_window"]

_ROUNDING = 2.0**-48


@dataclass(frozen=True, eq=False, kw_only=True)
class ScoreWindow:
    """The latest scores of every series. Make one with `ScoreWindow.of`.

    Attributes:
        recent: in order of time, (*series, n), float64.
        ordered: in order of size, (*series, n), float64.
    """

    recent: Tensor
    ordered: Tensor

    @classmethod
    def of(cls, scores: ArrayLike, limit: int | None) -> "ScoreWindow":
        """The last `limit` scores; all of them for None."""
        given = checked_scores(scores)
        if not given.dim():
            raise ShapeError("`scores` must have shape (*series, n); got a single number")
        recent = (given if limit is None else given[..., -limit:]).clone(memory_format=torch.contiguous_format)
        return cls(recent=recent, ordered=recent.sort(-1).values)

    @property
    def shape(self) -> torch.Size:
        """The shape of the series."""
        return self.recent.shape[:-1]

    def push(self, scores: Tensor, limit: int | None) -> "ScoreWindow":
        """The window after one more score a series, (*series), without the oldest where that makes too many."""
        new = fitting("scores", scores, self.shape).expand(self.shape).unsqueeze(-1)
        recent, ordered = self.recent, self.ordered
        if limit is not None and recent.shape[-1] == limit:
            ordered = _without(ordered, recent[..., :1])
            recent = recent[..., 1:]
        return ScoreWindow(recent=torch.cat([recent, new], -1), ordered=_with(ordered, new))

    def thresholds(self, miscoverage: Tensor) -> Tensor:
        """The conformal threshold at every miscoverage a, (*shape, levels).

        The k-th smallest of n scores, k = ceil((n + 1) (1 - a)) up to rounding; +infinity for k > n and for a <= 0,
        -infinity for a >= 1.
        """
        num_scores = self.ordered.shape[-1]
        rank = torch.ceil((num_scores + 1) * (1 - miscoverage) - (num_scores + 1) * _ROUNDING).clamp(min=1.0)
        rank = torch.where((miscoverage <= 0) | (rank > num_scores), num_scores + 1, rank).to(torch.int64)
        padded = torch.cat([self.ordered, self.ordered.new_full((*self.shape, 1), torch.inf)], -1)
        shape = broadcast_shape(self.shape, miscoverage.shape[:-1])
        index = (rank - 1).expand(*shape, rank.shape[-1])
        found = padded.expand(*shape, num_scores + 1).gather(-1, index)
        return found.masked_fill(miscoverage >= 1, -torch.inf)

    def p_values(self, scores: Tensor) -> Tensor:
        """The conformal p-value of one score a series, (*series): the largest miscoverage that still covers it."""
        num_scores = self.ordered.shape[-1]
        column = scores.expand(self.shape).unsqueeze(-1).contiguous()
        below = torch.searchsorted(self.ordered, column).squeeze(-1)
        return (num_scores + 1 - below).to(torch.float64) / (num_scores + 1)


def check_window(limit: int | None) -> None:
    """Raise a ValueError unless the limit is None or a whole number of 1 or more."""
    if limit is not None:
        check_count("window", limit)


def _with(ordered: Tensor, new: Tensor) -> Tensor:
    """Ordered scores with one more at its place."""
    place = torch.searchsorted(ordered, new.contiguous())
    index = torch.arange(ordered.shape[-1] + 1, device=ordered.device)
    padded = torch.cat([ordered, new], -1)
    shifted = padded.gather(-1, (index - (index > place).to(torch.int64)).expand(padded.shape))
    return torch.where(index == place, new, shifted)


def _without(ordered: Tensor, old: Tensor) -> Tensor:
    """Ordered scores without one of them."""
    place = torch.searchsorted(ordered, old.contiguous())
    index = torch.arange(ordered.shape[-1] - 1, device=ordered.device)
    return ordered.gather(-1, index + (index >= place).to(torch.int64))
