"""Class-conditional conformal prediction: a threshold for every class, so that each class is covered by itself.

"Conditional Validity of Inductive Conformal Predictors" (Vovk, 2012). Sets of a marginal method may cover frequent
classes too often and rare ones too seldom. Here class y belongs to the set of a row when its score is at most the
threshold of the calibration rows whose class was y, so that each class is held with the coverage, whatever the
frequencies; it costs n_y scores a class. A class without calibration rows has the threshold +infinity and belongs to
every set. Groups, weights and difficulty work as they do for any score: with groups each class of each group has its
own threshold.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributions import Distribution

from credibly.conformal.base import ConformalPredictor
from credibly.conformal.class_score import ClassScore, check_class_score
from credibly.conformal.groups import group_labels, row_groups
from credibly.conformal.rows import (
    check_agreement,
    row_difficulty,
    row_uniforms,
    row_weights,
    scaled_thresholds,
)
from credibly.conformal.sets import PredictionSets
from credibly.conformal.target_sizes import check_target_size
from credibly.conformal.thresholds import thresholds_of_rows
from credibly.core.checks import as_tensor, check_coverage
from credibly.core.errors import ShapeError
from credibly.core.typing import ArrayLike
from credibly.distributions.classes import class_log_probs
from credibly.distributions.kinds import reference
from credibly.distributions.rows import num_rows, select
from credibly.distributions.targets import match_targets

__all__ = ["ClassConditional", "ClassConditionalPredictor"]


@dataclass(frozen=True)
class ClassConditional:
    """A score of classes, to be calibrated class by class.

    Args:
        score: any score of classes.
    """

    score: ClassScore

    def __post_init__(self) -> None:
        check_class_score(type(self).__name__, self.score)

    def calibrate(
        self,
        predicted: Distribution,
        targets: ArrayLike,
        *,
        groups: ArrayLike | None = None,
        weights: ArrayLike | None = None,
        difficulty: ArrayLike | None = None,
        seed: int | None = None,
    ) -> "ClassConditionalPredictor":
        """Score held-out rows, and keep the scores with their classes; the arguments are those of `Score.calibrate`.

        Raises:
            NotSupportedError: `predicted` is not one choice among classes a row.
            ShapeError: no rows, or arguments of different lengths.
            SupportError: a target is not the index of a class.
        """
        self.score.check(predicted)
        targets = match_targets(predicted, as_tensor(targets))
        if not num_rows(predicted):
            raise ShapeError("calibration needs at least one row; `predicted` and `targets` are empty")
        classes = class_log_probs(select(predicted, slice(0, 0))).shape[-1]
        by_class = targets.to(torch.int64)
        labels = None if groups is None else group_labels(groups)
        if groups is not None:
            own = row_groups(groups, len(by_class), by_class.device, labels=labels)
            by_class = by_class + _first_cells(own, classes)
        of_cells = self.score.calibrate(
            predicted, targets, groups=by_class, weights=weights, difficulty=difficulty, seed=seed
        )
        return ClassConditionalPredictor(
            of_cells=of_cells, num_classes=classes, uses_groups=groups is not None, group_labels=labels
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class ClassConditionalPredictor:
    """A calibrated score with a threshold for every class.

    Attributes:
        of_cells: the calibrated score with the cells as its groups: cell g * num_classes + y is class y in group g,
            and g is 0 where there are no groups.
        num_classes: how many classes there are, seen or not.
        uses_groups: whether calibration was given groups.
        group_labels: what groups that are text are called.
    """

    of_cells: ConformalPredictor[PredictionSets]
    num_classes: int
    uses_groups: bool = False
    group_labels: tuple[str, ...] | None = None

    def predict(
        self,
        predicted: Distribution,
        coverage: float = 0.9,
        *,
        groups: ArrayLike | None = None,
        weights: ArrayLike | None = None,
        difficulty: ArrayLike | None = None,
        seed: int | None = None,
    ) -> PredictionSets:
        """The sets that hold every class with the given coverage; see `ConformalPredictor.predict`.

        Raises:
            ValueError: coverage outside [0, 1]; groups, weights or difficulty missing or superfluous.
            ShapeError: another number of classes than in calibration.
        """
        coverage = check_coverage(coverage)
        score = self.of_cells.score
        check_agreement("groups", groups is not None, self.uses_groups)
        check_agreement("weights", weights is not None, self.of_cells.weights is not None)
        check_agreement("difficulty", difficulty is not None, self.of_cells.uses_difficulty)
        check_target_size(predicted, self.num_classes, None)
        rows, device = num_rows(predicted), reference(predicted).device
        cells = torch.arange(self.num_classes, device=device)
        if groups is not None:
            own = row_groups(groups, rows, device, labels=self.group_labels)
            cells = cells + _first_cells(own, self.num_classes).unsqueeze(-1)
        limits = self._limits(
            coverage,
            cells if groups is not None or weights is None else cells.expand(rows, -1),
            None if weights is None else row_weights(weights, rows, device),
        )
        if difficulty is not None:
            limits = scaled_thresholds(limits, row_difficulty(difficulty, rows, device).unsqueeze(-1))
        u = row_uniforms(rows, seed, "predict", device) if score.uses_uniforms else None
        return score.region(predicted, limits, u)

    def _limits(self, coverage: float, cells: Tensor, weights: Tensor | None) -> Tensor:
        """The threshold of every cell, (1 or rows, classes)."""
        device, known = cells.device, self.of_cells
        limits = thresholds_of_rows(
            known.scores.to(device),
            coverage,
            cells.numel(),
            calibration_groups=None if known.groups is None else known.groups.to(device),
            groups=cells.reshape(-1),
            calibration_weights=None if known.weights is None else known.weights.to(device),
            weights=None if weights is None else weights.repeat_interleave(self.num_classes),
        )
        return limits.reshape(-1, self.num_classes)


def _first_cells(groups: Tensor, num_classes: int) -> Tensor:
    """The cell of class 0 in each group."""
    limit = 2**63 // num_classes - 1
    if len(groups) and int(groups.abs().max()) > limit:
        raise ValueError(f"`groups` must lie between {-limit} and {limit} for {num_classes} classes")
    return groups * num_classes
