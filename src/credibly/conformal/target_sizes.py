"""What calibration and prediction must have in common: the number of classes, or the number of targets a row.

A threshold of scores among 4 classes says nothing of 7, though it could be compared with their scores.
"""

from torch.distributions import Distribution

from credibly.core.errors import ShapeError
from credibly.distributions.classes import class_log_probs
from credibly.distributions.kinds import kind
from credibly.distributions.rows import select

__all__ = ["check_target_size", "num_classes", "num_targets"]


def num_classes(predicted: Distribution) -> int | None:
    """How many classes there are, 2 for a binary outcome; None for numbers."""
    return class_log_probs(select(predicted, slice(0, 0))).shape[-1] if kind(predicted) == "class" else None


def num_targets(predicted: Distribution) -> int | None:
    """How many numbers a row has; None for classes."""
    return None if kind(predicted) == "class" else predicted.event_shape.numel()


def check_target_size(predicted: Distribution, classes: int | None, targets: int | None) -> None:
    """Raise a ShapeError if the prediction has another number of classes or targets than calibration had.

    Args:
        predicted: the prediction.
        classes: how many classes calibration had; None if not known, or none.
        targets: how many numbers a row, likewise.
    """
    sizes = (("classes", num_classes(predicted), classes), ("targets a row", num_targets(predicted), targets))
    for noun, came, needed in sizes:
        if None not in (came, needed) and came != needed:
            raise ShapeError(f"`predicted` must have the {needed} {noun} of calibration; got {came}")
