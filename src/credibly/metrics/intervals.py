"""Prediction intervals and sets: how often they hold the truth, and how large they are.

The central interval of coverage c runs from the (1 - c)/2 to the (1 + c)/2 quantile, both ends included.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributions import Distribution

from credibly.core.checks import as_tensor, check_coverage
from credibly.core.errors import NotFiniteError, ShapeError
from credibly.core.typing import ArrayLike
from credibly.distributions import functions
from credibly.distributions.outcomes import check_order
from credibly.distributions.targets import check_rows, match_targets
from credibly.metrics.row_metrics import MeanMetric

__all__ = ["Coverage", "Width", "central_interval", "contained", "coverage", "size", "width"]


def central_interval(predicted: Distribution, coverage: float) -> tuple[Tensor, Tensor]:
    """Lower and upper ends of the central interval of every row and output.

    Raises:
        NotSupportedError: classes without an order; a distribution without quantiles.
        ShapeError: another number of batch axes than one, the rows.
        NotFiniteError: an end is NaN. Infinite ends are fine.
    """
    check_order(predicted, "a central interval")
    check_rows(predicted)
    tail = (1 - check_coverage(coverage)) / 2
    lower, upper = functions.icdf(predicted, tail), functions.icdf(predicted, 1 - tail)
    num_bad = int((lower.isnan() | upper.isnan()).sum())
    if num_bad:
        raise NotFiniteError(f"`predicted` must have quantiles; {num_bad} of {lower.numel()} intervals end in NaN")
    return lower, upper


def contained(predicted: Distribution, targets: ArrayLike, coverage: float) -> Tensor:
    """Whether the central interval of every row and output holds its target: booleans, (rows, *event_shape)."""
    lower, upper = central_interval(predicted, coverage)
    targets = match_targets(predicted, targets)
    inside: Tensor = (lower <= targets) & (targets <= upper)
    return inside


def coverage(predicted: Distribution, targets: ArrayLike, coverage: float) -> Tensor:
    """The fraction of targets (rows and outputs) inside their central interval, a float64 scalar."""
    return _mean(contained(predicted, targets, coverage), "coverage")


def width(predicted: Distribution, coverage: float) -> Tensor:
    """The mean width of the central intervals, over rows and outputs, a float64 scalar.

    It needs no targets; the recipe `Width` takes them, as every recipe does, and only checks them.
    """
    return _mean(_widths(predicted, coverage), "width")


def _widths(predicted: Distribution, coverage: float) -> Tensor:
    """Width of every interval; one whose ends coincide, be it at infinity, has none."""
    lower, upper = central_interval(predicted, coverage)
    return torch.where(lower == upper, 0.0, upper - lower)


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


def _by_row(values: Tensor) -> Tensor:
    """The mean over the elements of each row, (rows,), float64."""
    return values.reshape(len(values), values.shape[1:].numel()).to(torch.float64).mean(-1)


@dataclass(frozen=True)
class Coverage(MeanMetric):
    """The fraction of targets inside their central interval, as a recipe.

    Where every row is held or not (one output), the interval of `bootstrap` is the exact one of Clopper and Pearson.

    Args:
        coverage: of the intervals.
    """

    coverage: float = 0.9

    def __post_init__(self) -> None:
        check_coverage(self.coverage)

    def rows(self, predicted: Distribution, targets: ArrayLike) -> Tensor:
        """The fraction of each row's outputs that are held."""
        return _by_row(contained(predicted, targets, self.coverage))


@dataclass(frozen=True)
class Width(MeanMetric):
    """The mean width of central intervals, as a recipe. It takes targets, and only checks them.

    Args:
        coverage: of the intervals.
    """

    coverage: float = 0.9

    def __post_init__(self) -> None:
        check_coverage(self.coverage)

    def rows(self, predicted: Distribution, targets: ArrayLike) -> Tensor:
        """The mean width of each row's intervals."""
        match_targets(predicted, targets)
        return _by_row(_widths(predicted, self.coverage))
