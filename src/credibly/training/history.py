"""What training recorded, epoch by epoch."""

from dataclasses import dataclass, field

__all__ = ["History"]


@dataclass(eq=False)
class History:
    """The course of one training run.

    Attributes:
        loss: the mean training loss of each epoch: minus the log joint per row, in the targets' units, for MLE and
            MAP.
        validation_log_prob: the mean log density of the validation rows after each epoch, without the prior; empty
            without validation data.
        learning_rate: at the end of each epoch.
        best_epoch: the epoch, counted from 0, whose weights scored best.
        stopped_early: whether early stopping ended the run.
    """

    loss: list[float] = field(default_factory=list)
    validation_log_prob: list[float] = field(default_factory=list)
    learning_rate: list[float] = field(default_factory=list)
    best_epoch: int = 0
    stopped_early: bool = False
