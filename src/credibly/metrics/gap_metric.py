"""Metrics that are the length of a vector of gaps, each 0 where predictions are calibrated.

A length cannot be negative, so noise makes it too large, the more so the better the calibration: percentiles of
replicates never reach 0 and miss a calibrated truth always. The interval comes from the gaps themselves instead. If the
estimated gaps g^ lie within r of the true g with the confidence asked for, then by the triangle inequality

    |g^| - r <= |g| <= |g^| + r,

whatever g is; r is the quantile of |g* - g^| over resampled data, whose law is that of |g^ - g| for large samples. The
interval covers at its rate or above, also at 0.
"""

from abc import abstractmethod

import torch
from torch import Tensor

from credibly.core.errors import ShapeError
from credibly.metrics.base import Estimate, Metric, State

__all__ = ["GapMetric", "resampled_means"]

_CHUNK_NUMBERS = 2**22


class GapMetric(Metric):
    """A length of gaps: a norm of them, or an increasing function of a norm."""

    @abstractmethod
    def gaps(self, state: State) -> Tensor:
        """The gaps, (k,), float64."""

    @abstractmethod
    def resampled_gaps(self, state: State, num_replicates: int, generator: torch.Generator) -> Tensor:
        """The gaps of resampled rows, (num_replicates, k), from the state that `bootstrap` was given."""

    @abstractmethod
    def norm(self, gaps: Tensor) -> Tensor:
        """A norm over the last axis: (*batch, k) to (*batch,)."""

    def of_norm(self, norm: Tensor) -> Tensor:
        """The metric from the norm, an increasing function; by default the norm itself."""
        return norm

    def value(self, state: State) -> Tensor:
        """The length of the gaps."""
        return self.of_norm(self.norm(self.gaps(state)))

    def replicates(self, state: State, num_replicates: int, generator: torch.Generator) -> Tensor:
        """The length of the gaps of resampled rows."""
        return self.of_norm(self.norm(self.resampled_gaps(state, num_replicates, generator)))

    def estimate(self, state: State, coverage: float, num_replicates: int, generator: torch.Generator) -> Estimate:
        """The value with an interval that covers also where the predictions are calibrated."""
        value = self.checked(state)
        gaps = self.gaps(state)
        resampled = self.resampled_gaps(state, num_replicates, generator)
        norm, radius = self.norm(gaps), self.norm(resampled - gaps).quantile(coverage)
        return Estimate(
            value=value,
            lower=self.of_norm((norm - radius).clamp(min=0)),
            upper=self.of_norm(norm + radius),
            coverage=coverage,
            replicates=self.of_norm(self.norm(resampled)),
        )


def resampled_means(
    rows: Tensor,  # (rows, k), float64
    num_replicates: int,
    generator: torch.Generator,
) -> Tensor:
    """The means of rows drawn with replacement, (num_replicates, k): products with how often each row was drawn."""
    num_rows = len(rows)
    if not num_rows:
        raise ShapeError("resampling needs at least one row; got none")
    parts = []
    some = max(1, _CHUNK_NUMBERS // num_rows)
    for start in range(0, num_replicates, some):
        shape = (min(some, num_replicates - start), num_rows)
        drawn = torch.randint(num_rows, shape, generator=generator, device=rows.device)
        times = torch.zeros(shape, dtype=rows.dtype, device=rows.device)
        times.scatter_add_(1, drawn, torch.ones((), dtype=rows.dtype, device=rows.device).expand(shape))
        parts.append(times @ rows / num_rows)
    return torch.cat(parts)
