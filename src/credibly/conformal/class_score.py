"""Scores of classes, which are functions of the row's class probabilities alone.

A subclass writes one function, the scores of all classes of some rows. The score of a target is a column of
that table and the region is a comparison with it, so the two cannot disagree.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.distributions import Distribution

from credibly.conformal.base import Score
from credibly.conformal.rows import given_uniforms, row_thresholds
from credibly.conformal.sets import PredictionSets
from credibly.core.errors import NotFiniteError, NotSupportedError
from credibly.core.typing import ArrayLike
from credibly.distributions.class_rows import class_log_prob_blocks
from credibly.distributions.kinds import kind, reference
from credibly.distributions.rows import num_rows
from credibly.distributions.targets import check_rows, match_targets

__all__ = ["ClassScore", "check_class_score"]


class ClassScore(Score[PredictionSets]):
    """A score of classes. A frozen dataclass of options."""

    def blocks(self, predicted: Distribution) -> Iterator[tuple[slice, Tensor]]:
        """Some rows at a time, with what `table`, `of_targets` and `members` read: log probabilities."""
        return class_log_prob_blocks(predicted)

    def over_blocks(
        self, predicted: Distribution, work: Callable[[slice, Tensor], Tensor], *, first: int = 0
    ) -> list[Tensor]:
        """What `work` gives for some rows after the other.

        Args:
            predicted: the rows.
            work: takes their numbers and what `blocks` gives for them.
            first: the number of the first row.
        """
        parts = []
        for rows, block in self.blocks(predicted):
            numbers = slice(first + rows.start, first + rows.stop)
            parts.append(work(numbers, _without_nan(block, numbers)))
        return parts

    @abstractmethod
    def table(self, log_probs: Tensor, u: Tensor) -> Tensor:
        """The scores of all classes, (rows, classes).

        Args:
            log_probs: log probabilities, (rows, classes), float64; -inf is probability 0.
            u: one number in [0, 1] a row, (rows, 1).
        """

    def of_targets(self, log_probs: Tensor, targets: Tensor, u: Tensor) -> Tensor:
        """The scores of one class a row; `targets` and the result are (rows, 1)."""
        return self.table(log_probs, u).gather(-1, targets)

    def members(self, log_probs: Tensor, thresholds: Tensor, u: Tensor) -> Tensor:
        """Whether each class's score is at most its threshold; `thresholds` broadcast to (rows, classes)."""
        return self.table(log_probs, u) <= thresholds

    def score(self, predicted: Distribution, targets: ArrayLike, u: ArrayLike | None = None) -> Tensor:
        """The score of every row's class, (rows,), float64; see `Score.score`.

        Raises:
            NotSupportedError: `predicted` is not one choice among classes a row.
            NotFiniteError: NaN probabilities.
        """
        self.check(predicted)
        column = match_targets(predicted, targets).to(torch.int64).unsqueeze(-1)
        u = _column(u, predicted)
        scores = self.over_blocks(predicted, lambda rows, block: self.of_targets(block, column[rows], u[rows]))
        return torch.cat(scores).squeeze(-1)

    def scores_of_classes(self, predicted: Distribution, u: ArrayLike | None = None) -> Tensor:
        """The scores of all classes of every row, (rows, classes), float64; `u` as in `Score.score`.

        Raises:
            NotSupportedError: `predicted` is not one choice among classes a row.
            NotFiniteError: NaN probabilities.
        """
        self.check(predicted)
        u = _column(u, predicted)
        return torch.cat(self.over_blocks(predicted, lambda rows, block: self.table(block, u[rows])))

    def region(self, predicted: Distribution, thresholds: ArrayLike, u: ArrayLike | None = None) -> PredictionSets:
        """The classes whose score is at most the threshold; see `Score.region`.

        Raises:
            NotSupportedError: `predicted` is not one choice among classes a row.
            NotFiniteError: NaN probabilities.
        """
        self.check(predicted)
        count = num_rows(predicted)
        limits = row_thresholds(thresholds, count, reference(predicted).device)
        limits = limits.expand(count, limits.shape[-1] if limits.dim() else 1)
        u = _column(u, predicted)
        members = self.over_blocks(predicted, lambda rows, block: self.members(block, limits[rows], u[rows]))
        return PredictionSets(torch.cat(members))

    def check(self, predicted: Distribution) -> None:
        """Raise a NotSupportedError unless the prediction is one choice among classes a row.

        Raises:
            ShapeError: it has other axes than the rows.
        """
        check_rows(predicted)
        name = type(self).__name__
        if kind(predicted) != "class":
            raise NotSupportedError(
                f"{name} scores classes; a {type(predicted).__name__} is about a {kind(predicted)} target: "
                "use AbsoluteResidual"
            )
        if predicted.event_shape:
            raise NotSupportedError(
                f"{name} needs one class a row; `predicted` has event_shape {tuple(predicted.event_shape)}: "
                "take each label by itself"
            )


def check_class_score(name: str, score: object) -> None:
    """Raise a TypeError unless the score is one of classes; `name` is who needs it."""
    if not isinstance(score, ClassScore):
        raise TypeError(f"{name} needs a score of classes, such as LAC() or APS(); got {score!r}")


def _without_nan(block: Tensor, rows: slice) -> Tensor:
    missing = block[:, 0].isnan()  # the classes of a row are divided by their sum, and are NaN together
    if bool(missing.any()):
        row = int(missing.nonzero()[0]) + rows.start
        raise NotFiniteError(f"`predicted` must have no NaN probabilities; the first is in row {row}")
    return block.detach()


def _column(u: ArrayLike | None, predicted: Distribution) -> Tensor:
    """The uniform numbers as a column, (rows, 1), float64; 1 for None."""
    like, rows = reference(predicted), num_rows(predicted)
    if u is None:
        return torch.ones(rows, 1, dtype=torch.float64, device=like.device)
    return given_uniforms(u, rows, like.device).unsqueeze(-1)
