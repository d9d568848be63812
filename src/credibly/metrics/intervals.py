"""Prediction intervals and sets: how often they hold the truth, and how large they are.

The central interval of coverage c runs from the (1 - c)/2 to the (1 + c)/2 quantile, both ends included.
"""

import torch
from torch import Tensor
from torch.distributions import Distribution

from credibly.core.checks import as_tensor, check_coverage
from credibly.core.errors import ShapeError
from credibly.core.typing import ArrayLike
from credibly.distributions import functions
from credibly.distributions.targets import match_targets

__all__ = ["central_interval", "coverage", "size", "width"]


def central_interval(predicted: Distribution, coverage: float) -> tuple[Tensor, Tensor]:
    """Lower and upper ends of the central interval of every row and output."""
    tail = (1 - check_coverage(coverage)) / 2
    return functions.icdf(predicted, tail), functions.icdf(predicted, 1 - tail)


def coverage(predicted: Distribution, targets: ArrayLike, coverage: float) -> Tensor:
    """The fraction of targets (rows and outputs) inside their central interval, a float64 scalar."""
    lower, upper = central_interval(predicted, coverage)
    targets = match_targets(predicted, targets)
    inside: Tensor = (lower <= targets) & (targets <= upper)
    return _mean(inside, "coverage")


def width(predicted: Distribution, coverage: float) -> Tensor:
    """The mean width of the central intervals, over rows and outputs, a float64 scalar."""
    lower, upper = central_interval(predicted, coverage)
    return _mean(upper - lower, "width")


def size(members: ArrayLike) -> Tensor:
    """The mean number of classes in prediction sets, given as (rows, classes) booleans: a float64 scalar."""
    table = as_tensor(members)
    if table.dim() != 2 or table.dtype != torch.bool:
        raise ShapeError(
            f"`members` must be booleans of shape (rows, classes); got {table.dtype} of shape {tuple(table.shape)}"
        )
    return _mean(table.sum(-1), "size")


def _mean(values: Tensor, name: str) -> Tensor:
    if not values.numel():
        raise ShapeError(f"{name} needs at least one row; got none")
    return values.to(torch.float64).mean()
