"""CV+ for classes: sets from K models, each of which scores the rows it was not trained on, so no row is set aside.

"Classification with Valid and Adaptive Coverage" (Romano, Sesia, Candes, 2020), after "Predictive Inference with the
Jackknife+" (Barber, Candes, Ramdas, Tibshirani, 2021). All n training rows lie in K folds; s_i is the score of row i
by the model that was fitted without the fold k(i) of i. Class y is in the set of a test row at coverage c when

    #{i: s_i < s_k(i)(y)}  <  c (n + 1),

where s_k(y) is the score of y for the test row by model k. In theory the sets hold the target with probability at
least 2 c - 1 up to a term of order sqrt(2 / n); in practice about c. A count is a whole number, so it is compared
with the exact rank ceil(c (n + 1)).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.distributions import Distribution

from credibly.conformal.class_score import ClassScore, check_class_score
from credibly.conformal.fold_counts import count_below, row_folds, sort_by_fold
from credibly.conformal.members import Members, each_member
from credibly.conformal.ranks import rank
from credibly.conformal.rows import row_uniforms
from credibly.conformal.sets import PredictionSets
from credibly.conformal.target_sizes import check_target_size, num_classes
from credibly.core.checks import check_coverage, check_same_rows
from credibly.core.errors import NotFiniteError, ShapeError
from credibly.core.typing import ArrayLike
from credibly.distributions.kinds import reference
from credibly.distributions.rows import num_rows

__all__ = ["ClassCVPlus", "ClassCVPlusPredictor"]


@dataclass(frozen=True)
class ClassCVPlus:
    """A score of classes, to be calibrated by cross-validation.

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
        folds: ArrayLike,
        *,
        seed: int | None = None,
    ) -> "ClassCVPlusPredictor":
        """Score every training row by the model that did not see it.

        Args:
            predicted: a prediction for every row, made by the model fitted without the row's fold.
            targets: the class of each row, (rows,).
            folds: the fold of each row, (rows,): 0, 1, ..., num_folds - 1.
            seed: of the uniform numbers of randomised scores.

        Raises:
            ShapeError: arguments of different lengths.
            ValueError: folds that are not 0, 1, ..., each with a row, or fewer than two.
            NotSupportedError: `predicted` is not one choice among classes a row.
        """
        rows, device = num_rows(predicted), reference(predicted).device
        of_row, num_folds = row_folds(folds, rows, device)
        u = row_uniforms(rows, seed, "calibrate", device) if self.score.uses_uniforms else None
        scores = self.score.score(predicted, targets, u)
        if bool(scores.isnan().any()):
            raise NotFiniteError(f"the scores of {int(scores.isnan().sum())} rows are NaN")
        return ClassCVPlusPredictor(
            score=self.score, scores=sort_by_fold(scores, of_row, num_folds), num_classes=num_classes(predicted)
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class ClassCVPlusPredictor:
    """Scores by fold: it turns the predictions of the folds' models into sets of any coverage.

    Attributes:
        score: the score that was calibrated.
        scores: the scores of the rows of each fold, increasing, one float64 tensor a fold.
        num_classes: how many classes the calibrated predictions had.
    """

    score: ClassScore
    scores: tuple[Tensor, ...] = field(repr=False)
    num_classes: int | None = None

    def predict(
        self,
        predicted: Members,
        coverage: float = 0.9,
        *,
        seed: int | None = None,
    ) -> PredictionSets:
        """The sets of the given coverage. Coverage 0 gives nothing, coverage 1 everything.

        Args:
            predicted: the predictions of every model for all test rows, in the order of the folds: a sequence of
                distributions, one with batch_shape (num_folds, rows), or a mixture of as many components.
            coverage: c; what is guaranteed is about 2 c - 1.
            seed: of the uniform numbers of randomised scores; a row has one for all models and classes.

        Raises:
            ValueError: coverage outside [0, 1].
            ShapeError: not one prediction a fold, predictions of different numbers of rows, or other numbers of
                classes than in calibration.
        """
        coverage = check_coverage(coverage)
        members = each_member("predicted", predicted, len(self.scores))
        rows, device = num_rows(members[0]), reference(members[0]).device
        for each in members:
            check_same_rows("predicted[0]", rows, "another of `predicted`", num_rows(each))
            check_target_size(each, self.num_classes, None)
        u = row_uniforms(rows, seed, "predict", device) if self.score.uses_uniforms else None
        k = rank(sum(len(scores) for scores in self.scores), coverage)
        return PredictionSets(self._counts(members, u) < k)

    def _counts(self, members: Sequence[Distribution], u: Tensor | None) -> Tensor:
        """The number of scores below each class's own, (rows, classes), one fold at a time."""
        counts: Tensor | None = None
        for scores, each in zip(self.scores, members, strict=True):
            table = self.score.scores_of_classes(each, u)
            below = count_below((scores.to(table.device),), (table,))
            if counts is not None and counts.shape != below.shape:
                raise ShapeError(
                    f"all of `predicted` must have the same classes; got {counts.shape[-1]} and {below.shape[-1]}"
                )
            counts = below if counts is None else counts.add_(below)
        return torch.zeros(0, 0) if counts is None else counts
