"""Rows drawn with replacement, and the intervals that the values of such draws give.

Percentiles of the replicates are the plainest interval. Means of skewed scores, such as log scores and squared errors,
are studentised: their error goes with their size ("The Jackknife, the Bootstrap and Other Resampling Plans", Efron,
1982).
"""

from collections.abc import Callable
from math import ceil

import torch
from torch import Tensor

from credibly.core.checks import check_count, check_coverage, exact_level

__all__ = [
    "NUM_GROUPS",
    "check_replicates",
    "dirichlet_weights",
    "grouped_sums",
    "grouping",
    "has_spread",
    "over_resamples",
    "percentiles",
    "resampled_means",
    "resampled_moments",
    "studentised",
]

_CHUNK_NUMBERS = 2**24  # resampled numbers held at once
_MANY_ROWS = 2**15  # above, groups of rows are resampled
NUM_GROUPS = 2**13
"""Into how many groups many rows are joined."""


def check_replicates(num_replicates: int, coverage: float) -> None:
    """Raise a ValueError unless some replicates lie beyond each end of the interval."""
    check_count("num_replicates", num_replicates)
    share = 1 - exact_level(check_coverage(coverage))
    if not share:
        raise ValueError(f"`coverage` of an interval by resampling must be below 1; got {coverage}")
    needed = ceil(2 / share)
    if num_replicates < needed:
        raise ValueError(
            f"`num_replicates` must be at least {needed} for an interval of coverage {coverage}, "
            f"so that one replicate lies beyond each end; got {num_replicates}"
        )


def percentiles(replicates: Tensor, coverage: float) -> tuple[Tensor, Tensor]:
    """The central interval of replicates on axis 0: order statistics, never a point between an end and -inf.

    Of R replicates the lower end is the one of rank (R + 1) (1 - coverage) / 2: a value of the same law lies below it
    with just that probability over R + 1.
    """
    ordered = replicates.sort(0).values
    rank = int((1 - exact_level(coverage)) / 2 * (len(ordered) + 1))
    below = min(max(rank - 1, 0), (len(ordered) - 1) // 2)
    return ordered[below], ordered[len(ordered) - 1 - below]


def has_spread(rows: Tensor) -> bool:
    """Whether rows are numbers that vary beyond two values, so that a standard error means something."""
    if rows.dim() > 1 or len(rows) < 3:
        return False
    low, high = rows.aminmax()
    return bool((low.isfinite() & high.isfinite()) & ((rows > low) & (rows < high)).any())


def grouping(num_rows: int, generator: torch.Generator) -> Tensor | None:
    """The group of each row, at random so that sorted rows are as good as others; None where there are few rows."""
    if num_rows <= _MANY_ROWS:
        return None
    return torch.randperm(num_rows, generator=generator, device=generator.device) % NUM_GROUPS


def grouped_sums(rows: Tensor, group: Tensor) -> Tensor:
    """The sums of the rows of each group, (NUM_GROUPS, *row)."""
    return rows.new_zeros(NUM_GROUPS, *rows.shape[1:]).index_add_(0, group, rows)


def resampled_means(rows: Tensor, num_replicates: int, generator: torch.Generator) -> Tensor:
    """The mean of rows (rows, k) drawn with replacement, (num_replicates, k).

    Of more than 2^15 rows, the sums of random groups are drawn: they have the variance and the skewness of sums of
    rows, up to the relative Monte Carlo error sqrt(2 / NUM_GROUPS) of a variance of so many numbers.
    """
    group = grouping(len(rows), generator)
    if group is None:
        width = rows[0].numel() if len(rows) else 1
        return over_resamples(
            len(rows), num_replicates, generator, lambda index: rows[index].mean(1), numbers_per_row=width
        )
    ones = rows.new_ones(len(rows), 1)
    sums = grouped_sums(torch.cat([rows, ones], -1), group)

    def mean(index: Tensor) -> Tensor:
        drawn = sums[index].sum(1)
        return drawn[:, :-1] / drawn[:, -1:]

    return over_resamples(NUM_GROUPS, num_replicates, generator, mean, numbers_per_row=sums.shape[1])


def resampled_moments(rows: Tensor, num_replicates: int, generator: torch.Generator) -> Tensor:
    """Mean and standard deviation of rows (rows,) drawn with replacement, (num_replicates, 2)."""
    centre = rows.mean()
    away = rows - centre
    means = resampled_means(torch.stack([away, away.square()], -1), num_replicates, generator)
    variance = (means[:, 1] - means[:, 0].square()).clamp(min=0)
    return torch.stack([centre + means[:, 0], variance.sqrt()], -1)


def studentised(rows: Tensor, means: Tensor, deviations: Tensor, coverage: float) -> tuple[Tensor, Tensor]:
    """The interval of the mean by the bootstrap of Student's t, within the range of the rows."""
    mean, deviation = rows.mean(), rows.std(correction=0)
    errors = (means - mean) / deviations
    lowest, highest = percentiles(torch.where(errors.isnan(), 0.0, errors), coverage)
    low, high = rows.aminmax()
    return (mean - highest * deviation).clamp(low, high), (mean - lowest * deviation).clamp(low, high)


def dirichlet_weights(num_rows: int, num_replicates: int, generator: torch.Generator) -> Tensor:
    """Random weights of rows, (num_replicates, num_rows), float64, which add up to 1: uniform on the simplex."""
    shape = (num_replicates, num_rows)
    waits = torch.empty(shape, dtype=torch.float64, device=generator.device).exponential_(generator=generator)
    return waits / waits.sum(-1, keepdim=True)


def over_resamples(
    num_rows: int,
    num_replicates: int,
    generator: torch.Generator,
    value: Callable[[Tensor], Tensor],
    *,
    numbers_per_row: int = 1,
) -> Tensor:
    """The value at indices (some replicates, num_rows) drawn with replacement, for all replicates.

    Args:
        num_rows: how many rows there are.
        num_replicates: how many values are wanted, along axis 0 of the result.
        generator: of the indices, on the rows' device.
        value: of indices.
        numbers_per_row: what `value` holds of each row; it sizes the chunks.
    """
    some = max(1, _CHUNK_NUMBERS // max(num_rows * numbers_per_row, 1))
    parts = []
    for start in range(0, num_replicates, some):
        shape = (min(some, num_replicates - start), num_rows)
        parts.append(value(torch.randint(num_rows, shape, generator=generator, device=generator.device)))
    return torch.cat(parts)
