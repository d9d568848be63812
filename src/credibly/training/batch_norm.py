"""Running statistics of BatchNorm that fit weights which training never visited, such as an average of others.

One pass over the training rows in training mode, as in Izmailov et al. 2018: the statistics of the batches are averaged
with the batches' rows as weights. The running ones of training belong to other weights and are forgotten.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from credibly.core.data import Data
from credibly.training.trainee import Trainee

__all__ = ["has_statistics", "refresh_statistics"]


def has_statistics(module: nn.Module) -> bool:
    """Whether any part in training keeps running statistics of what passes through it."""
    return bool(_parts(module))


def refresh_statistics(trainee: Trainee, batches: Iterable[Data]) -> None:
    """Gather them anew, for each member at its weights, in place.

    Args:
        trainee: in training mode; its weights are left alone.
        batches: of training rows.
    """
    rows = 0
    with torch.no_grad():
        for number, batch in enumerate(batches):
            more = batch.targets.shape[trainee.row_axis]
            rows += more
            with _momentum(trainee.core, more / rows):
                trainee.objectives(batch, number)


def _parts(module: nn.Module) -> list[_NormBase]:
    return [p for p in module.modules() if isinstance(p, _NormBase) and p.running_mean is not None and p.training]


@contextmanager
def _momentum(module: nn.Module, share: float) -> Iterator[None]:
    """The weight of the next batch in the running statistics; at 1 all before is forgotten."""
    parts = _parts(module)
    kept = [part.momentum for part in parts]
    for part in parts:
        part.momentum = share
    try:
        yield
    finally:
        for part, momentum in zip(parts, kept, strict=True):
            part.momentum = momentum
