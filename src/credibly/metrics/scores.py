"""Scores of predictions against what came: means over rows, in the units of the targets.

The log score is proper and larger is better; `nll`, `brier`, `rmse` and `crps` are losses. See "Strictly
Proper Scoring Rules, Prediction, and Estimation" (Gneiting, Raftery, 2007) and, for the Brier score,
"Verification of Forecasts Expressed in Terms of Probability" (Brier, 1950).
"""

from dataclasses import dataclass

from torch import Tensor
from torch.distributions import Distribution

from credibly.core.errors import ShapeError
from credibly.core.typing import ArrayLike
from credibly.distributions import functions
from credibly.distributions.class_rows import check_classes, is_binary
from credibly.distributions.classes import class_log_probs
from credibly.distributions.targets import match_targets
from credibly.distributions.top_label import event_probs, top_label
from credibly.metrics.row_metrics import MeanMetric

__all__ = [
    "CRPS",
    "NLL",
    "RMSE",
    "Accuracy",
    "Brier",
    "LogScore",
    "accuracy",
    "brier",
    "crps",
    "log_score",
    "nll",
    "rmse",
    "row_means",
]


def row_means(values: Tensor) -> Tensor:
    """The mean of each row over its outputs: (rows, *event) to (rows,), float64.

    Raises:
        ShapeError: rows without outputs.
    """
    wide = values.detach().double()
    if wide.dim() == 1:
        return wide
    if 0 in wide.shape[1:]:
        raise ShapeError(f"a mean score needs at least one output a row; got shape {tuple(values.shape)}")
    return wide.flatten(1).mean(1)


@dataclass(frozen=True)
class LogScore(MeanMetric):
    """The mean over rows of the log density or log probability of what came; larger is better."""

    def rows(self, predicted: Distribution, targets: ArrayLike) -> Tensor:
        """The log density of each row."""
        return row_means(functions.log_prob(predicted, targets))


@dataclass(frozen=True)
class NLL(MeanMetric):
    """The mean negative log density or log probability of what came: `LogScore` with its sign turned."""

    def rows(self, predicted: Distribution, targets: ArrayLike) -> Tensor:
        """Minus the log density of each row."""
        return -row_means(functions.log_prob(predicted, targets))


@dataclass(frozen=True)
class Brier(MeanMetric):
    """The mean Brier score of class predictions.

    For a binary outcome (a Bernoulli) it is (p - y)^2, between 0 and 1; for a choice among classes (a
    Categorical, also with two classes) Brier's own sum over classes of (p_k - 1[y = k])^2, between 0 and 2.
    """

    def rows(self, predicted: Distribution, targets: ArrayLike) -> Tensor:
        """The score of each row, the mean of those of its labels."""
        check_classes(predicted)
        if is_binary(predicted):
            error = event_probs(predicted) - match_targets(predicted, targets)
            return row_means(error.square())
        probs = class_log_probs(predicted).exp()
        of_target = probs.gather(-1, match_targets(predicted, targets).unsqueeze(-1)).squeeze(-1)
        return row_means(probs.square().sum(-1) - 2 * of_target + 1)


@dataclass(frozen=True)
class Accuracy(MeanMetric):
    """The fraction of targets that are the most probable class; of equally probable ones the first counts."""

    def rows(self, predicted: Distribution, targets: ArrayLike) -> Tensor:
        """1 where the most probable class came, else 0; the mean over the labels of a row."""
        return row_means(top_label(predicted, match_targets(predicted, targets))[1])


@dataclass(frozen=True)
class RMSE(MeanMetric):
    """The root mean squared error of the predicted mean, over all rows and outputs."""

    def rows(self, predicted: Distribution, targets: ArrayLike) -> Tensor:
        """The squared error of each row, the mean over its outputs."""
        error = functions.mean(predicted) - match_targets(predicted, targets)
        return row_means(error.double().square())

    def of_means(self, means: Tensor) -> Tensor:
        """The root."""
        return means.sqrt()


@dataclass(frozen=True)
class CRPS(MeanMetric):
    """The mean continuous ranked probability score over all rows and outputs."""

    def rows(self, predicted: Distribution, targets: ArrayLike) -> Tensor:
        """The score of each row, the mean over its outputs."""
        return row_means(functions.crps(predicted, targets))


def log_score(predicted: Distribution, targets: ArrayLike) -> Tensor:
    """The mean over rows of the log density or log probability of what came; larger is better."""
    return LogScore()(predicted, targets)


def nll(predicted: Distribution, targets: ArrayLike) -> Tensor:
    """The mean negative log density or log probability of what came: `log_score` with its sign turned."""
    return NLL()(predicted, targets)


def brier(predicted: Distribution, targets: ArrayLike) -> Tensor:
    """The mean Brier score of class predictions, of a binary outcome or a choice among classes; see `Brier`."""
    return Brier()(predicted, targets)


def accuracy(predicted: Distribution, targets: ArrayLike) -> Tensor:
    """The fraction of targets that are the most probable class; of equally probable ones the first counts."""
    return Accuracy()(predicted, targets)


def rmse(predicted: Distribution, targets: ArrayLike) -> Tensor:
    """The root mean squared error of the predicted mean, over all rows and outputs."""
    return RMSE()(predicted, targets)


def crps(predicted: Distribution, targets: ArrayLike) -> Tensor:
    """The mean continuous ranked probability score over all rows and outputs."""
    return CRPS()(predicted, targets)
