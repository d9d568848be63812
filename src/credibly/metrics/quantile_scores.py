"""Scores of quantiles and central intervals: losses in the units of the targets, smaller is better.

For the quantile q at level t, the pinball loss of y is t (y - q) above q and (1 - t)(q - y) below. For the central
interval [l, u] of coverage 1 - a, the interval score is

    (u - l) + (2/a) (l - y)^+ + (2/a) (y - u)^+

(Tilmann Gneiting, Adrian Raftery, "Strictly Proper Scoring Rules, Prediction, and Estimation", 2007). The weighted
interval score of K intervals and the median m is

    (|y - m|/2 + sum_k (a_k/2) IS_k) / (K + 1/2),

which is twice the mean pinball loss over all 2K + 1 levels and tends to the CRPS with many (Johannes Bracher, Evan Ray,
Tilmann Gneiting, Nicholas Reich, "Evaluating epidemic forecasts in an interval format", 2021).

The functions `..._rows` give one float64 number a row, the mean over its outputs; those without give their mean.
"""

from collections.abc import Iterable
from fractions import Fraction

import torch
from torch import Tensor
from torch.distributions import Distribution

from credibly.core.checks import as_tensor, check_coverage, exact_level
from credibly.core.errors import NotSupportedError, ShapeError
from credibly.core.typing import ArrayLike
from credibly.distributions.cumulative import icdf
from credibly.distributions.kinds import kind
from credibly.distributions.targets import check_rows, match_targets
from credibly.metrics.mean_score import mean_score

__all__ = [
    "interval_score",
    "interval_score_rows",
    "pinball",
    "pinball_rows",
    "weighted_interval_score",
    "weighted_interval_score_rows",
]


def pinball(predicted: Distribution, targets: ArrayLike, levels: ArrayLike) -> Tensor:
    """The mean pinball loss over rows, outputs and levels, a float64 scalar; twice it estimates the CRPS.

    Args:
        predicted: a distribution over numbers or counts, with quantiles.
        targets: (rows, *event_shape).
        levels: one level, or (levels,), strictly between 0 and 1.

    Raises:
        ShapeError: no rows, or levels of another shape.
        NotFiniteError: a score is NaN.
        ValueError: a level outside (0, 1), or none.
        NotSupportedError: classes, or a distribution without quantiles.
    """
    return mean_score(pinball_rows(predicted, targets, levels), "pinball")


def pinball_rows(predicted: Distribution, targets: ArrayLike, levels: ArrayLike) -> Tensor:
    """The pinball loss of every row, (rows,), float64: the mean over levels and outputs; see `pinball`."""
    _require_order(predicted, "pinball")
    grid = _levels(levels)
    y = match_targets(predicted, targets).to(torch.float64)
    losses = torch.zeros_like(y)
    for level in grid:
        error = y - _quantile(predicted, level)
        losses = losses + torch.maximum(level * error, (level - 1) * error)
    return _over_outputs(losses / len(grid))


def interval_score(predicted: Distribution, targets: ArrayLike, coverage: float) -> Tensor:
    """The mean interval score of the central interval over rows and outputs, a float64 scalar.

    Args:
        predicted: a distribution over numbers or counts, with quantiles.
        targets: (rows, *event_shape).
        coverage: at least 0, the median twice, and below 1.

    Raises:
        ShapeError: no rows, or targets of another shape.
        NotFiniteError: a score is NaN.
        ValueError: a coverage outside [0, 1).
        NotSupportedError: classes, or a distribution without quantiles.
    """
    return mean_score(interval_score_rows(predicted, targets, coverage), "interval_score")


def interval_score_rows(predicted: Distribution, targets: ArrayLike, coverage: float) -> Tensor:
    """The interval score of every row, (rows,), float64: the mean over outputs; see `interval_score`."""
    _require_order(predicted, "interval_score")
    y = match_targets(predicted, targets).to(torch.float64)
    return _over_outputs(_interval_scores(predicted, y, _below_one(coverage)))


def weighted_interval_score(predicted: Distribution, targets: ArrayLike, coverages: Iterable[float]) -> Tensor:
    """The mean weighted interval score of the median and central intervals over rows and outputs, a float64 scalar.

    Args:
        predicted: a distribution over numbers or counts, with quantiles.
        targets: (rows, *event_shape).
        coverages: of the intervals, different numbers strictly between 0 and 1; none leaves the median alone.

    Raises:
        ShapeError: no rows, or targets of another shape.
        NotFiniteError: a score is NaN.
        ValueError: a coverage outside (0, 1), or twice the same.
        NotSupportedError: classes, or a distribution without quantiles.
    """
    return mean_score(weighted_interval_score_rows(predicted, targets, coverages), "weighted_interval_score")


def weighted_interval_score_rows(predicted: Distribution, targets: ArrayLike, coverages: Iterable[float]) -> Tensor:
    """The weighted interval score of every row, (rows,), float64: the mean over outputs."""
    _require_order(predicted, "weighted_interval_score")
    exact = _distinct(coverages)
    y = match_targets(predicted, targets).to(torch.float64)
    total = (y - _quantile(predicted, 0.5)).abs() / 2
    for coverage in exact:
        total = total + float((1 - coverage) / 2) * _interval_scores(predicted, y, coverage)
    return _over_outputs(total / (len(exact) + 0.5))


def _interval_scores(predicted: Distribution, y: Tensor, coverage: Fraction) -> Tensor:
    lower = _quantile(predicted, float((1 - coverage) / 2))
    upper = _quantile(predicted, float((1 + coverage) / 2))
    penalty = float(2 / (1 - coverage))
    width = torch.where(lower == upper, 0.0, upper - lower)  # ends may meet at infinity
    return width + penalty * ((lower - y).clamp(min=0) + (y - upper).clamp(min=0))


def _quantile(predicted: Distribution, level: float) -> Tensor:
    return icdf(predicted, level).to(torch.float64)


def _require_order(predicted: Distribution, name: str) -> None:
    check_rows(predicted)
    if kind(predicted) == "class":
        came = type(predicted).__name__
        raise NotSupportedError(f"{name} needs numbers or counts; {came} is over classes: use brier")


def _levels(levels: ArrayLike) -> list[float]:
    grid = as_tensor(levels)
    if grid.dim() > 1:
        raise ShapeError(f"`levels` must be one level or have shape (levels,); got {tuple(grid.shape)}")
    values = [float(level) for level in grid.reshape(-1)]
    if not values or not all(0 < level < 1 for level in values):
        raise ValueError(f"`levels` must hold levels strictly between 0 and 1; got {values}")
    return values


def _below_one(coverage: float) -> Fraction:
    if check_coverage(coverage) == 1:
        raise ValueError("`coverage` must be below 1: the interval score of all numbers is infinite; got 1")
    return exact_level(coverage)


def _distinct(coverages: Iterable[float]) -> list[Fraction]:
    given = [float(coverage) for coverage in coverages]
    exact = [exact_level(coverage) for coverage in given if 0 < coverage < 1]
    if len(set(exact)) < len(given) or not all(0 < coverage < 1 for coverage in exact):
        raise ValueError(f"`coverages` must be different numbers strictly between 0 and 1; got {given}")
    return exact


def _over_outputs(values: Tensor) -> Tensor:
    return values.unsqueeze(-1).flatten(1).mean(1)
