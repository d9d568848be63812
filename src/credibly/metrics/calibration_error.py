"""Binned calibration errors of class predictions, by name: of the top label, and of a binary event.

Top label (Guo, Pleiss, Sun, Weinberger, "On Calibration of Modern Neural Networks", 2017): the confidence is
the largest class probability, and a row comes true when its most probable class is the observed one. Event:
the confidence is the probability of the event itself, from 0 to 1, and a row comes true when the event does.
The two differ for binary targets: a forecast of 0.1 is a top-label confidence of 0.9.
"""

from torch import Tensor
from torch.distributions import Distribution

from credibly.core.typing import ArrayLike
from credibly.distributions.class_rows import is_binary
from credibly.distributions.targets import match_targets
from credibly.distributions.top_label import event_probs, top_label_blocks
from credibly.metrics.bins import BinTable, Norm, equal_width_table

__all__ = ["ece", "event_bins", "event_ece", "top_label_bins", "top_label_ece"]


def top_label_bins(predicted: Distribution, targets: ArrayLike, *, num_bins: int = 15) -> BinTable:
    """The bin table of the most probable class; several labels of one row count as several forecasts.

    Args:
        predicted: a distribution over classes.
        targets: the observed classes, (rows,).
        num_bins: number of bins of equal width.

    Raises:
        NotSupportedError: if `predicted` is not a distribution over classes.
    """
    matched = match_targets(predicted, targets)
    blocks = top_label_blocks(predicted, matched)
    return equal_width_table(((top.flatten(), hits.flatten()) for top, hits in blocks), num_bins)


def event_bins(predicted: Distribution, targets: ArrayLike, *, num_bins: int = 15) -> BinTable:
    """The bin table of the probability of a binary event; several labels of one row are flattened.

    Args:
        predicted: a distribution over two classes, of which class 1 is the event.
        targets: 0 or 1, (rows,) or (rows, num_labels).
        num_bins: number of bins of equal width.

    Raises:
        NotSupportedError: if `predicted` is not a distribution over two classes.
    """
    confidence = event_probs(predicted)
    targets = match_targets(predicted, targets)
    return equal_width_table([(confidence.flatten(), (targets == 1).flatten())], num_bins)


def top_label_ece(predicted: Distribution, targets: ArrayLike, *, num_bins: int = 15, norm: Norm = "l1") -> Tensor:
    """The top-label calibration error, a float64 scalar; see `top_label_bins`."""
    return top_label_bins(predicted, targets, num_bins=num_bins).error(norm)


def event_ece(predicted: Distribution, targets: ArrayLike, *, num_bins: int = 15, norm: Norm = "l1") -> Tensor:
    """The calibration error of a binary event, a float64 scalar; see `event_bins`."""
    return event_bins(predicted, targets, num_bins=num_bins).error(norm)


def ece(predicted: Distribution, targets: ArrayLike, *, num_bins: int = 15, norm: Norm = "l1") -> Tensor:
    """The expected calibration error, a float64 scalar, of the kind that fits the prediction.

    For a binary outcome (a Bernoulli, or a mixture of them) this is `event_ece`; for a choice among classes
    (a Categorical, or a mixture of them, also with two classes) it is `top_label_ece`.
    """
    binned = event_bins if is_binary(predicted) else top_label_bins
    return binned(predicted, targets, num_bins=num_bins).error(norm)
