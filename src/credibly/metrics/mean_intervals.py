r"""Intervals of means over rows, of one prediction and of the difference between two on the same rows.

A mean of numbers is studentised. A share, and any mean of rows that take two values, has the exact interval of Clopper
and Pearson. A function h of means of rows r_i errs as the mean of h'(r) (r_i - r) does ("The Jackknife, the Bootstrap
and Other Resampling Plans", Efron, 1982), so that the difference of two functions has the interval of the differences
of these, row by row, about the difference seen: what moves both predictions alike cancels.

Differences of rows that score 0 or 1 are -1, 0 or 1, and few are not 0. With random weights of the rows, uniform on the
simplex, and one row more that is -1 for the lower end and 1 for the upper, the percentiles of the weighted means are an
interval that holds also where no row differs; for two values it is that of Clopper and Pearson ("Three Test Statistics
for a Nonparametric One-Sided Hypothesis on the Mean of a Nonnegative Variable", Gaffke, 2005).
"""

from collections.abc import Callable

import torch
from torch import Tensor

from credibly.metrics.coverage_law import clopper_pearson
from credibly.metrics.resampling import (
    dirichlet_weights,
    grouping,
    has_spread,
    percentiles,
    resampled_moments,
    studentised,
)

__all__ = ["are_shares", "bounded_difference", "influence", "mean_interval", "share_interval", "two_valued"]

_CHUNK_NUMBERS = 2**22


def are_shares(rows: Tensor) -> bool:
    """Whether every row scores 0 or 1."""
    return rows.dim() == 1 and bool(((rows == 0) | (rows == 1)).all())


def mean_interval(
    rows: Tensor, num_replicates: int, coverage: float, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """The interval of the mean of rows (rows,), finite: studentised, or exact where they take two values."""
    if not has_spread(rows):
        return two_valued(rows, coverage)
    means, deviations = resampled_moments(rows, num_replicates, generator).unbind(-1)
    return studentised(rows, means, deviations, coverage)


def two_valued(rows: Tensor, coverage: float) -> tuple[Tensor, Tensor]:
    """The exact interval of the mean of rows (rows,) that are all `low` or `high`; a point where all are equal."""
    low, high = rows.aminmax()
    if low == high:
        return low, low
    lower, upper = share_interval((rows == high).to(rows.dtype), coverage)
    return low + (high - low) * lower, low + (high - low) * upper


def share_interval(rows: Tensor, coverage: float) -> tuple[Tensor, Tensor]:
    """The exact interval of a share, of rows (rows,) that are 0 or 1."""
    if coverage == 0:
        return rows.mean(), rows.mean()
    return clopper_pearson(rows.sum().round().long(), torch.tensor(len(rows), device=rows.device), coverage)


def influence(rows: Tensor, of_means: Callable[[Tensor], Tensor]) -> Tensor:
    """What each row, (rows,) or (rows, k), adds to the error of the function of the means, (rows,)."""
    with torch.enable_grad():
        means = rows.mean(0).requires_grad_()
        (slope,) = torch.autograd.grad(of_means(means), means)
    away = (rows - means.detach()) * slope
    return away if away.dim() == 1 else away.sum(-1)


def bounded_difference(
    rows: Tensor, num_replicates: int, coverage: float, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """The interval of the mean of rows (rows,) that lie between -1 and 1."""
    if grouping(len(rows), generator) is not None:
        return mean_interval(rows, num_replicates, coverage, generator)
    some = max(1, _CHUNK_NUMBERS // (len(rows) + 1))
    parts = []
    for start in range(0, num_replicates, some):
        weights = dirichlet_weights(len(rows) + 1, min(some, num_replicates - start), generator)
        parts.append(torch.stack([weights[:, :-1] @ rows, weights[:, -1]]))
    means, more = torch.cat(parts, 1)
    return percentiles(means - more, coverage)[0], percentiles(means + more, coverage)[1]
