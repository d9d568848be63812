r"""The contracts of split conformal prediction: a score, and the predictor that it becomes by calibration.

A score says how badly a target fits a prediction; the region of a threshold q is every target whose score
is at most q. Both are methods of one object, and y lies in `region(predicted, q)` exactly when
`score(predicted, y) <= q`, ties and infinite values included. Calibration sorts the scores of held-out
rows; prediction takes their threshold at the coverage asked for. If calibration and test rows are
exchangeable, a test target lies in its region with probability at least the coverage ("Inductive Confidence
Machines for Regression", Papadopoulos, Proedrou, Vovk, Gammerman, 2002).

Orthogonal to the score are groups, one threshold within each ("Mondrian Confidence Machine", Vovk, Lindsay,
Nouretdinov, Gammerman, 2003); weights for covariate shift (Tibshirani, Barber, Candes, Ramdas, 2019); and a
difficulty by which scores are divided and thresholds multiplied ("Normalized Nonconformity Measures for
Regression Conformal Prediction", Papadopoulos, Gammerman, Vovk, 2008).
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from torch import Tensor
from torch.distributions import Distribution

from credibly.conformal.groups import group_labels, row_groups
from credibly.conformal.region import Region
from credibly.conformal.rows import (
    check_agreement,
    row_difficulty,
    row_uniforms,
    row_weights,
    scaled_thresholds,
)
from credibly.conformal.shift import effective_sample_size
from credibly.conformal.target_sizes import check_target_size, num_classes, num_targets
from credibly.conformal.thresholds import thresholds_of_rows
from credibly.core.checks import as_tensor, check_coverage
from credibly.core.errors import NotFiniteError, ShapeError
from credibly.core.typing import ArrayLike
from credibly.distributions.kinds import reference
from credibly.distributions.rows import num_rows
from credibly.distributions.targets import check_rows, match_targets

__all__ = ["ConformalPredictor", "Score"]

R = TypeVar("R", bound=Region)


class Score(ABC, Generic[R]):
    """How badly a target fits a prediction, with the regions it leads to. A frozen dataclass of options."""

    @property
    def uses_uniforms(self) -> bool:
        """Whether `score` and `region` read `u`, one uniform number a row."""
        return False

    @abstractmethod
    def score(self, predicted: Distribution, targets: ArrayLike, u: ArrayLike | None = None) -> Tensor:
        """The score of every row's target, (rows,), float64.

        Args:
            predicted: the predictions, one a row.
            targets: what came, (rows,).
            u: numbers in [0, 1], (rows,), for randomised scores; None is their deterministic form. Scores that
                have no other form do not read it.

        Raises:
            ShapeError, ValueError: `u` is not one number in [0, 1] a row.
        """

    @abstractmethod
    def region(self, predicted: Distribution, thresholds: ArrayLike, u: ArrayLike | None = None) -> R:
        """All targets whose score is at most the threshold.

        Args:
            predicted: the predictions, one a row.
            thresholds: one number; one a row, (rows,) or (rows, 1); for scores of classes also one a class,
                (1, classes), or one a row and class, (rows, classes).
            u: the same numbers as in `score`.
        """

    def calibrate(
        self,
        predicted: Distribution,
        targets: ArrayLike,
        *,
        groups: ArrayLike | None = None,
        weights: ArrayLike | None = None,
        difficulty: ArrayLike | None = None,
        seed: int | None = None,
    ) -> "ConformalPredictor[R]":
        """Score held-out rows, and keep the scores.

        Args:
            predicted: predictions for rows that their maker was not trained on.
            targets: what came, (rows,).
            groups: the group of each row, (rows,), whole numbers or text.
            weights: the likelihood ratio of test to calibration inputs, up to a factor, (rows,).
            difficulty: a positive estimate of how far off each prediction may be, (rows,).
            seed: of the uniform numbers of randomised scores.

        Raises:
            ShapeError: no rows, or arguments of different lengths.
            NotFiniteError: a NaN score, NaN or infinite targets.
            NotSupportedError: the score does not apply to this kind of prediction.
        """
        check_rows(predicted)
        rows, device = num_rows(predicted), reference(predicted).device
        targets = match_targets(predicted, as_tensor(targets))
        if not rows:
            raise ShapeError("calibration needs at least one row; `predicted` and `targets` are empty")
        u = row_uniforms(rows, seed, "calibrate", device) if self.uses_uniforms else None
        scores = _without_nan(self.score(predicted, targets, u)).detach()
        if difficulty is not None:
            scores = scores / row_difficulty(difficulty, rows, device)
        scores, order = scores.sort()
        labels = None if groups is None else group_labels(groups)
        return ConformalPredictor(
            score=self,
            scores=scores,
            groups=None if groups is None else row_groups(groups, rows, device, labels=labels)[order],
            weights=None if weights is None else row_weights(weights, rows, device)[order],
            uses_difficulty=difficulty is not None,
            group_labels=labels,
            num_classes=num_classes(predicted),
            num_targets=num_targets(predicted),
        )


def _without_nan(scores: Tensor) -> Tensor:
    bad = scores.isnan().nonzero().squeeze(-1)
    if len(bad):
        raise NotFiniteError(
            f"the scores of {len(bad)} of {len(scores)} rows are NaN, first row {int(bad[0])}; "
            "`predicted` must have no NaN"
        )
    return scores


@dataclass(frozen=True, eq=False, kw_only=True)
class ConformalPredictor(Generic[R]):
    """A calibrated score: it turns predictions into regions of any coverage.

    Attributes:
        score: the score that was calibrated.
        scores: the calibration scores, increasing, (n,), float64, divided by the difficulty if there is one.
        groups: the group of each score, (n,), int64, or None.
        weights: the weight of each score, (n,), float64, or None.
        uses_difficulty: whether the scores were divided by a difficulty.
        group_labels: what groups that are text are called, (num_groups,); group g is `group_labels[g]`.
        num_classes: how many classes the calibrated predictions had; None for numbers.
        num_targets: how many numbers a row they were about; None for classes.
    """

    score: Score[R]
    scores: Tensor = field(repr=False)
    groups: Tensor | None = field(default=None, repr=False)
    weights: Tensor | None = field(default=None, repr=False)
    uses_difficulty: bool = False
    group_labels: tuple[str, ...] | None = field(default=None, repr=False)
    num_classes: int | None = None
    num_targets: int | None = None

    @property
    def effective_sample_size(self) -> float:
        """How many equally weighted calibration rows are worth as much as these; their number without weights."""
        return float(len(self.scores) if self.weights is None else effective_sample_size(self.weights))

    def predict(
        self,
        predicted: Distribution,
        coverage: float = 0.9,
        *,
        groups: ArrayLike | None = None,
        weights: ArrayLike | None = None,
        difficulty: ArrayLike | None = None,
        seed: int | None = None,
    ) -> R:
        """The regions of the given coverage. Coverage 0 gives nothing, coverage 1 everything.

        What calibration was given, prediction must be given, and nothing else.

        Args:
            predicted: the predictions, one a row.
            coverage: the probability with which a region is to hold its target, in [0, 1].
            groups: the group of each row, (rows,); a group that calibration did not see gets everything.
            weights: the weight of each row, (rows,), in the unit of the calibration weights.
            difficulty: the difficulty of each row, (rows,).
            seed: of the uniform numbers of randomised scores.

        Raises:
            ValueError: coverage outside [0, 1]; groups, weights or difficulty missing or superfluous.
            ShapeError: another number of classes or targets than in calibration.
            NotSupportedError: the score does not apply to this kind of prediction.
        """
        coverage = check_coverage(coverage)
        check_rows(predicted)
        check_target_size(predicted, self.num_classes, self.num_targets)
        check_agreement("groups", groups is not None, self.groups is not None)
        check_agreement("weights", weights is not None, self.weights is not None)
        check_agreement("difficulty", difficulty is not None, self.uses_difficulty)
        rows, device = num_rows(predicted), reference(predicted).device
        thresholds = thresholds_of_rows(
            self.scores.to(device),
            coverage,
            rows,
            calibration_groups=None if self.groups is None else self.groups.to(device),
            groups=None if groups is None else row_groups(groups, rows, device, labels=self.group_labels),
            calibration_weights=None if self.weights is None else self.weights.to(device),
            weights=None if weights is None else row_weights(weights, rows, device),
        )
        if difficulty is not None:
            thresholds = scaled_thresholds(thresholds, row_difficulty(difficulty, rows, device))
        u = row_uniforms(rows, seed, "predict", device) if self.score.uses_uniforms else None
        return self.score.region(predicted, thresholds, u)
