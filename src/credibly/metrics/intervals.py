"""Central prediction intervals: how often they hold the truth, and how wide they are.

The central interval at level c runs from the (1 - c)/2 to the (1 + c)/2 quantile, both ends included.
"""

import torch
from torch import Tensor
from torch.distributions import Distribution

from credibly.core.errors import ShapeError
from credibly.core.typing import ArrayLike
from credibly.distributions import functions
from credibly.distributions.targets import match_targets

__all__ = ["central_interval", "coverage", "width"]


def central_interval(predicted: Distribution, level: float) -> tuple[Tensor, Tensor]:
    """Lower and upper ends of the central interval of every row and output."""
    if not 0 <= level <= 1:
        raise ValueError(f"`level` must lie in [0, 1]; got {level}")
    tail = (1 - level) / 2
    return functions.icdf(predicted, tail), functions.icdf(predicted, 1 - tail)


def coverage(predicted: Distribution, targets: ArrayLike, level: float) -> Tensor:
    """The fraction of targets (rows and outputs) inside their central interval, a float64 scalar."""
    lower, upper = central_interval(predicted, level)
    targets = match_targets(predicted, targets)
    inside: Tensor = (lower <= targets) & (targets <= upper)
    if not inside.numel():
        raise ShapeError("coverage needs at least one row; `predicted` and `targets` are empty")
    return inside.to(torch.float64).mean()


def width(predicted: Distribution, level: float) -> Tensor:
    """The mean width of the central intervals, over rows and outputs, a float64 scalar."""
    lower, upper = central_interval(predicted, level)
    return (upper - lower).to(torch.float64).mean()
