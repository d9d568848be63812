"""What training recorded, epoch by epoch."""

from collections.abc import Sequence
from dataclasses import dataclass, field

__all__ = ["History", "joined"]


@dataclass(eq=False)
class History:
    """The course of one training run.

    Attributes:
        loss: the mean training loss of each epoch, per row and in the targets' units: minus the log likelihood (MLE),
            log joint (MAP) or evidence lower bound (variational methods), or the `loss=` that was given.
        validation_log_prob: the mean score of the validation rows after each epoch, without the prior: their log
            density, or what `Info.score` says; empty without validation data.
        learning_rate: at the end of each epoch.
        best_epoch: the epoch, counted from 0, whose weights scored best.
        stopped_early: whether early stopping ended the run.
        num_averaged: of how many states of the weights along the run the final ones are the average; 0 where they are
            no average.
    """

    loss: list[float] = field(default_factory=list)
    validation_log_prob: list[float] = field(default_factory=list)
    learning_rate: list[float] = field(default_factory=list)
    best_epoch: int = 0
    stopped_early: bool = False
    num_averaged: int = 0


def joined(histories: Sequence[History]) -> History:
    """Runs that followed each other as one; its final weights, and what is said of them, are those of the last."""
    before = sum(len(history.loss) for history in histories[:-1])
    last = histories[-1]
    return History(
        [value for history in histories for value in history.loss],
        [value for history in histories for value in history.validation_log_prob],
        [value for history in histories for value in history.learning_rate],
        before + last.best_epoch,
        last.stopped_early,
        last.num_averaged,
    )
