"""Rows drawn with replacement, and the intervals that the values of such draws give.

Percentiles of the replicates are the plainest interval. Means of skewed scores, such as log scores and squared errors,
are studentised: their error goes with their size ("The Jackknife, the Bootstrap and Other Resampling Plans", Efron,
1982).
"""

from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["has_spread", "over_resamples", "percentiles", "resampled_moments", "studentised"]

_CHUNK_NUMBERS = 2**24  # resampled numbers held at once


def percentiles(replicates: Tensor, coverage: float) -> tuple[Tensor, Tensor]:
    """The central interval of replicates on axis 0: order statistics, never a point between an end and -inf."""
    ordered = replicates.sort(0).values
    below = min(int((1 - coverage) / 2 * len(ordered)), (len(ordered) - 1) // 2)
    return ordered[below], ordered[len(ordered) - 1 - below]


def has_spread(rows: Tensor) -> bool:
    """Whether rows are numbers that vary beyond two values, so that a standard error means something."""
    if rows.dim() > 1 or len(rows) < 3:
        return False
    low, high = rows.aminmax()
    return bool((low.isfinite() & high.isfinite()) & ((rows > low) & (rows < high)).any())


def resampled_moments(rows: Tensor, num_replicates: int, generator: torch.Generator) -> Tensor:
    """Mean and standard deviation of rows drawn with replacement, (num_replicates, 2)."""

    def moments(index: Tensor) -> Tensor:
        drawn = rows[index]
        return torch.stack([drawn.mean(1), drawn.std(1, correction=0)], -1)

    return over_resamples(len(rows), num_replicates, generator, moments)


def studentised(rows: Tensor, means: Tensor, deviations: Tensor, coverage: float) -> tuple[Tensor, Tensor]:
    """The interval of the mean by the bootstrap of Student's t, within the range of the rows."""
    mean, deviation = rows.mean(), rows.std(correction=0)
    errors = (means - mean) / deviations
    lowest, highest = percentiles(torch.where(errors.isnan(), 0.0, errors), coverage)
    low, high = rows.aminmax()
    return (mean - highest * deviation).clamp(low, high), (mean - lowest * deviation).clamp(low, high)


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
