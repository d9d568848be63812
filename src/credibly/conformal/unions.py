"""Regions of several intervals a row, and regions whose membership is decided by the score itself."""

import math
from dataclasses import dataclass, field

from torch import Tensor
from torch.distributions import Distribution

from credibly.conformal.base import Score
from credibly.conformal.intervals import Intervals, widths
from credibly.conformal.region import Region
from credibly.core.checks import as_tensor, check_finite
from credibly.core.errors import ShapeError
from credibly.core.typing import ArrayLike

__all__ = ["ScoredIntervals", "ScoredUnions", "UnionOfIntervals"]


@dataclass(frozen=True, eq=False)
class UnionOfIntervals(Region):
    """Disjoint closed intervals for every row, from left to right.

    Attributes:
        lower: lower ends, (rows, pieces), float64, increasing along a row; NaN beyond the row's last piece.
        upper: upper ends, likewise.
        of_counts: whether the targets are counts, so that `width` is how many of them a region holds.

    Raises:
        ShapeError: ends of different shapes.
    """

    lower: Tensor
    upper: Tensor
    of_counts: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        if self.lower.dim() != 2 or self.lower.shape != self.upper.shape:
            raise ShapeError(
                "`lower` and `upper` must both have shape (rows, pieces); "
                f"got {tuple(self.lower.shape)} and {tuple(self.upper.shape)}"
            )

    @property
    def num_pieces(self) -> Tensor:
        """The number of intervals of each row, (rows,), int64."""
        return (~self.lower.isnan()).sum(-1)

    @property
    def empty(self) -> Tensor:
        """Whether the region contains nothing, (rows,), bool."""
        return self.num_pieces == 0

    @property
    def width(self) -> Tensor:
        """The total length of each row's intervals, (rows,): 0 where there is none, infinite where an end is.

        Of counts it is the number of counts held: 1 for the run from 0 to 0.
        """
        return widths(self.lower, self.upper, of_counts=self.of_counts).nan_to_num(0.0, posinf=math.inf).sum(-1)

    @property
    def pieces(self) -> list[list[tuple[float, float]]]:
        """The ends of each row's intervals."""
        rows = zip(self.lower.tolist(), self.upper.tolist(), self.num_pieces.tolist(), strict=True)
        return [list(zip(low[:count], high[:count], strict=True)) for low, high, count in rows]

    def contains(self, targets: ArrayLike) -> Tensor:
        """Whether each row's target lies in one of its intervals, (rows,), bool.

        Raises:
            ShapeError: `targets` is not (rows,) or (rows, 1).
            NotFiniteError: NaN or infinite targets.
        """
        values = as_tensor(targets, device=self.lower.device)
        rows = len(self.lower)
        if values.shape not in ((rows,), (rows, 1)):
            raise ShapeError(f"`targets` must have shape ({rows},) or ({rows}, 1); got {tuple(values.shape)}")
        column = check_finite("targets", values.reshape(rows, 1))
        return ((self.lower <= column) & (column <= self.upper)).any(-1)


@dataclass(frozen=True, eq=False)
class ScoredIntervals(Intervals):
    """Intervals whose ends are computed from the score, while the score itself decides what they contain.

    Attributes:
        score: the score.
        predicted: what was predicted for the rows.
        thresholds: the largest score inside, (rows,), float64.
        u: the uniform numbers of the rows, or None.
    """

    score: "Score[ScoredIntervals]"
    predicted: Distribution
    thresholds: Tensor
    u: Tensor | None = None

    def contains(self, targets: ArrayLike) -> Tensor:
        """Whether each target's score is at most its row's threshold, (rows,), bool.

        Raises:
            ShapeError, NotFiniteError, SupportError: see `Score.score`.
        """
        return self.score.score(self.predicted, targets, self.u) <= self.thresholds


@dataclass(frozen=True, eq=False)
class ScoredUnions(UnionOfIntervals):
    """Unions of intervals whose ends are computed from the score, while the score itself decides what they contain.

    Attributes:
        score: the score.
        predicted: what was predicted for the rows.
        thresholds: the largest score inside, (rows,), float64.
    """

    score: "Score[ScoredUnions]"
    predicted: Distribution
    thresholds: Tensor

    def contains(self, targets: ArrayLike) -> Tensor:
        """Whether each target's score is at most its row's threshold, (rows,), bool.

        Raises:
            ShapeError, NotFiniteError, SupportError: see `Score.score`.
        """
        return self.score.score(self.predicted, targets) <= self.thresholds
