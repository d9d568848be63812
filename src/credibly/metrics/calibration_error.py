"""Binned calibration errors of class predictions, by name: of the top label, of a binary event, class by class.

Top label (Guo, Pleiss, Sun, Weinberger, "On Calibration of Modern Neural Networks", 2017): the confidence is
the largest class probability, and a row comes true when its most probable class is the observed one. Event:
the confidence is the probability of the event itself, from 0 to 1, and a row comes true when the event does.
The two differ for binary targets: a forecast of 0.1 is a top-label confidence of 0.9. Class-wise: the mean over classes
of the error of the event "it is this class" ("Measuring Calibration in Deep Learning", Nixon, Dusenberry, Jerfel,
Nguyen, Liu, Zhang, Tran, 2019).

Bins have equal width, or (`equal_mass=True`) equally many forecasts. Intervals are for the error that ever more rows
would show in the same bins; see `gap_intervals`.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor
from torch.distributions import Distribution

from credibly.core.typing import ArrayLike
from credibly.distributions.class_rows import class_log_prob_blocks, is_binary
from credibly.distributions.targets import match_targets
from credibly.distributions.top_label import event_probs, top_label_blocks
from credibly.metrics.binned_calibration import BinnedCalibration, Forecasts
from credibly.metrics.bins import BinTable, Norm

__all__ = [
    "ECE",
    "ClasswiseECE",
    "EventECE",
    "TopLabelECE",
    "classwise_bins",
    "classwise_ece",
    "ece",
    "event_bins",
    "event_ece",
    "natural_forecasts",
    "top_label_bins",
    "top_label_ece",
]


@dataclass(frozen=True)
class TopLabelECE(BinnedCalibration):
    """The calibration error of the most probable class; several labels of one row count as several forecasts.

    Args:
        num_bins: number of bins.
        norm: "l1", "l2", "max", or "l2_debiased"; see `bins`.
        equal_mass: bins of equally many forecasts instead of equal width.
    """

    def forecasts(self, predicted: Distribution, targets: ArrayLike) -> Iterator[Forecasts]:
        """The largest probability of each row, block by block."""
        return _top_label_forecasts(predicted, targets)


@dataclass(frozen=True)
class EventECE(BinnedCalibration):
    """The calibration error of the probability of a binary event, or of several labels together.

    Args:
        num_bins: number of bins.
        norm: "l1", "l2", "max", or "l2_debiased"; see `bins`.
        equal_mass: bins of equally many forecasts instead of equal width.
    """

    def forecasts(self, predicted: Distribution, targets: ArrayLike) -> Iterator[Forecasts]:
        """The probability of class 1."""
        return _event_forecasts(predicted, targets)


@dataclass(frozen=True)
class ECE(BinnedCalibration):
    """The calibration error of the kind that fits the prediction.

    For a binary outcome (a Bernoulli, or a mixture of them) this is `EventECE`; for a choice among classes
    (a Categorical, or a mixture of them, also with two classes) it is `TopLabelECE`.

    Args:
        num_bins: number of bins.
        norm: "l1", "l2", "max", or "l2_debiased"; see `bins`.
        equal_mass: bins of equally many forecasts instead of equal width.
    """

    def forecasts(self, predicted: Distribution, targets: ArrayLike) -> Iterator[Forecasts]:
        """The event's probability, or the largest."""
        return natural_forecasts(predicted, targets)


@dataclass(frozen=True)
class ClasswiseECE(BinnedCalibration):
    """The mean over classes of the calibration error of each class, from one table a class.

    Args:
        num_bins: number of bins.
        norm: "l1", "l2", "max", or "l2_debiased"; see `bins`.
        equal_mass: bins of equally many forecasts instead of equal width.
    """

    table_per_column = True

    def forecasts(self, predicted: Distribution, targets: ArrayLike) -> Iterator[Forecasts]:
        """The probability of every class, block by block; several labels of one row follow each other."""
        matched = match_targets(predicted, targets).long()
        for rows, log_probs in class_log_prob_blocks(predicted):
            confidence = log_probs.detach().exp().clamp(max=1)
            num_classes = confidence.shape[-1]
            classes = matched.new_tensor(range(num_classes))
            hits = matched[rows].unsqueeze(-1) == classes
            yield confidence.reshape(-1, num_classes), hits.reshape(-1, num_classes)


def natural_forecasts(predicted: Distribution, targets: ArrayLike) -> Iterator[Forecasts]:
    """The event's probability of a binary outcome, or the largest of a choice among classes."""
    return (_event_forecasts if is_binary(predicted) else _top_label_forecasts)(predicted, targets)


def _top_label_forecasts(predicted: Distribution, targets: ArrayLike) -> Iterator[Forecasts]:
    for confidence, hits in top_label_blocks(predicted, match_targets(predicted, targets)):
        yield _two_axes(confidence), _two_axes(hits)


def _event_forecasts(predicted: Distribution, targets: ArrayLike) -> Iterator[Forecasts]:
    confidence = event_probs(predicted).detach()
    yield _two_axes(confidence), _two_axes(match_targets(predicted, targets) == 1)


def _two_axes(values: Tensor) -> Tensor:
    return values.flatten(1) if values.dim() > 1 else values.unsqueeze(1)


def top_label_bins(
    predicted: Distribution, targets: ArrayLike, *, num_bins: int = 15, equal_mass: bool = False
) -> BinTable:
    """The bin table of the most probable class; several labels of one row count as several forecasts.

    Args:
        predicted: a distribution over classes.
        targets: the observed classes, (rows,).
        num_bins: number of bins.
        equal_mass: bins of equally many forecasts instead of equal width.

    Raises:
        NotSupportedError: if `predicted` is not a distribution over classes.
    """
    return TopLabelECE(num_bins, equal_mass=equal_mass).table(predicted, targets)


def event_bins(
    predicted: Distribution, targets: ArrayLike, *, num_bins: int = 15, equal_mass: bool = False
) -> BinTable:
    """The bin table of the probability of a binary event; several labels of one row are flattened.

    Args:
        predicted: a distribution over two classes, of which class 1 is the event.
        targets: 0 or 1, (rows,) or (rows, num_labels).
        num_bins: number of bins.
        equal_mass: bins of equally many forecasts instead of equal width.

    Raises:
        NotSupportedError: if `predicted` is not a distribution over two classes.
    """
    return EventECE(num_bins, equal_mass=equal_mass).table(predicted, targets)


def classwise_bins(
    predicted: Distribution, targets: ArrayLike, *, num_bins: int = 15, equal_mass: bool = False
) -> BinTable:
    """The bin tables of all classes, each attribute with a leading axis (classes, ...).

    Args:
        predicted: a distribution over classes.
        targets: the observed classes, (rows,).
        num_bins: number of bins.
        equal_mass: bins of equally many forecasts instead of equal width.

    Raises:
        NotSupportedError: if `predicted` is not a distribution over classes.
    """
    return ClasswiseECE(num_bins, equal_mass=equal_mass).table(predicted, targets)


def top_label_ece(
    predicted: Distribution, targets: ArrayLike, *, num_bins: int = 15, norm: Norm = "l1", equal_mass: bool = False
) -> Tensor:
    """The top-label calibration error, a float64 scalar; see `TopLabelECE`."""
    return TopLabelECE(num_bins, norm, equal_mass)(predicted, targets)


def event_ece(
    predicted: Distribution, targets: ArrayLike, *, num_bins: int = 15, norm: Norm = "l1", equal_mass: bool = False
) -> Tensor:
    """The calibration error of a binary event, a float64 scalar; see `EventECE`."""
    return EventECE(num_bins, norm, equal_mass)(predicted, targets)


def classwise_ece(
    predicted: Distribution, targets: ArrayLike, *, num_bins: int = 15, norm: Norm = "l1", equal_mass: bool = False
) -> Tensor:
    """The mean over classes of their calibration errors, a float64 scalar; see `ClasswiseECE`."""
    return ClasswiseECE(num_bins, norm, equal_mass)(predicted, targets)


def ece(
    predicted: Distribution, targets: ArrayLike, *, num_bins: int = 15, norm: Norm = "l1", equal_mass: bool = False
) -> Tensor:
    """The expected calibration error, a float64 scalar, of the kind that fits the prediction; see `ECE`."""
    return ECE(num_bins, norm, equal_mass)(predicted, targets)
