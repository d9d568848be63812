"""The options of training, shared by every method that trains."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from credibly.core.checks import check_count, check_nonnegative, check_positive
from credibly.training.averaging import Average
from credibly.training.losses import TrainingLoss
from credibly.training.optimizers import fused_adam

__all__ = ["EarlyStopping", "Epoch", "TrainingOptions"]


@dataclass(frozen=True)
class EarlyStopping:
    """Stop when the validation score has not risen for a while, and go back to the best weights.

    Where weights are averaged, the average is what is scored, with BatchNorm statistics of its own; epochs count from
    the first average on, and the best average is final.

    Attributes:
        patience: how many epochs in a row may pass without a better score.
        min_delta: by how much a score must rise to count as better, in log density per row.
    """

    patience: int = 10
    min_delta: float = 0.0

    def __post_init__(self) -> None:
        check_count("patience", self.patience)
        check_nonnegative("min_delta", self.min_delta)


@dataclass(frozen=True, eq=False)
class Epoch:
    """What a callback is told after each epoch.

    Attributes:
        number: counted from 0.
        loss: the mean training loss.
        validation_log_prob: None without validation data.
        model: the model in training; its weights are the current ones.
    """

    number: int
    loss: float
    validation_log_prob: float | None
    model: Any


@dataclass(frozen=True, eq=False, kw_only=True)
class TrainingOptions:
    """How weights are trained.

    Attributes:
        num_epochs: passes over the data.
        batch_size: rows per batch for data in memory; None takes all. A loader brings its own.
        accumulate: how many batches' gradients make one step, as if they were one batch: what large batches need where
            memory is short. BatchNorm still sees each batch alone.
        learning_rate: given to the optimiser as `lr`.
        optimizer: a factory `(params, lr=...) -> Optimizer`: an optimiser class, or a partial of one.
        schedule: a factory `(optimizer, num_steps) -> LRScheduler`, such as `training.cosine`.
        clip_norm: the largest norm of the gradient of the loss per row, over all weights of a member.
        early_stopping: needs validation data.
        average: end in an average of the weights along the run, `SWA()` or `EMA()`, in place of the last ones.
            BatchNorm statistics are gathered anew for it, in a pass over the training data.
        loss: in place of minus the log density: `FocalLoss()`, `LabelSmoothing()` for classes, `BetaNLL()` for
            HeteroscedasticGaussian.
        class_weights: (classes,) factors on the loss of each row, by its class.
        autocast: a lower precision for the network's forward pass: `torch.bfloat16`.
        callbacks: called with an `Epoch` after each one; a true answer stops training.
        stacked: whether members of an ensemble train as one stack where that equals training each alone; for MLE, MAP
            and SWAG, as other methods train them one by one.
    """

    num_epochs: int = 100
    batch_size: int | None = 32
    accumulate: int = 1
    learning_rate: float = 1e-3
    optimizer: Callable[..., Optimizer] = fused_adam
    schedule: Callable[[Optimizer, int], LRScheduler] | None = None
    clip_norm: float | None = None
    early_stopping: EarlyStopping | None = None
    average: Average | None = None
    loss: TrainingLoss | None = None
    class_weights: Tensor | Sequence[float] | None = None
    autocast: torch.dtype | None = None
    callbacks: Sequence[Callable[[Epoch], object]] = ()
    stacked: bool = True

    def __post_init__(self) -> None:
        check_count("num_epochs", self.num_epochs)
        if self.batch_size is not None:
            check_count("batch_size", self.batch_size)
        check_count("accumulate", self.accumulate)
        check_positive("learning_rate", self.learning_rate)
        if self.autocast not in (None, torch.bfloat16):
            raise TypeError(
                f"`autocast` must be torch.bfloat16 or None; got {self.autocast!r}: gradients in float16, whose "
                "range is small, would become 0"
            )
        if self.clip_norm is not None:
            check_positive("clip_norm", self.clip_norm)
        for name in ("optimizer", "schedule", "loss"):
            value = getattr(self, name)
            if value is not None and not callable(value):
                raise TypeError(f"`{name}` must be callable, such as torch.optim.SGD or training.cosine; got {value!r}")
        if not isinstance(self.early_stopping, (EarlyStopping, type(None))):
            raise TypeError(
                f"`early_stopping` must be EarlyStopping(patience=...) or None; got {self.early_stopping!r}"
            )
        if not isinstance(self.average, (Average, type(None))):
            raise TypeError(f"`average` must be SWA(...), EMA(...) or None; got {self.average!r}")
        if callable(self.callbacks):
            raise TypeError("`callbacks` must be a list of callables; got a single one")
        if not all(callable(each) for each in self.callbacks):
            raise TypeError(f"`callbacks` must be a list of callables; got {list(self.callbacks)}")
