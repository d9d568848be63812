r"""The bin table behind every reliability diagram and binned calibration error.

A table splits confidences in [0, 1] into bins that are closed on the right, 0 itself lying in the first. For
bin b with n_b of the n forecasts it holds the mean confidence c_b and the observed frequency f_b, and

    l1 = sum_b (n_b / n) |c_b - f_b|,   l2 = sqrt(sum_b (n_b / n) (c_b - f_b)^2),   max = max_b |c_b - f_b|

where the maximum is over bins that are not empty ("Obtaining Well Calibrated Probabilities Using Bayesian
Binning", Pakdaman Naeini, Cooper, Hauskrecht, 2015; l2: "Verified Uncertainty Calibration", Kumar, Liang, Ma,
2019). The confidence of a bin is the mean of its members, not its centre.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from credibly.core.checks import check_finite
from credibly.core.errors import ShapeError

__all__ = ["BinTable", "Norm", "bin_sums", "equal_width_bins", "equal_width_edges", "equal_width_table"]

Norm = Literal["l1", "l2", "max"]

_GRID = 2.0**40  # 0.1 + 0.2 and 0.3 are one confidence: edges are compared to 12 digits


@dataclass(frozen=True, eq=False)
class BinTable:
    """Confidences and outcomes, bin by bin. An empty bin has count 0 and holds 0 in its other columns.

    Attributes:
        edges: increasing bin edges, (num_bins + 1,), float64.
        counts: number of forecasts in each bin, (num_bins,), int64.
        confidence: mean confidence of each bin, (num_bins,), float64.
        frequency: fraction of each bin's forecasts that came true, (num_bins,), float64.
    """

    edges: Tensor
    counts: Tensor
    confidence: Tensor
    frequency: Tensor

    def error(self, norm: Norm = "l1") -> Tensor:
        """The calibration error, a float64 scalar: weighted mean, root mean square or largest gap."""
        gaps = (self.confidence - self.frequency).abs()
        weights = self.counts / self.counts.sum().to(torch.float64)
        if norm == "l1":
            return (weights * gaps).sum()
        if norm == "l2":
            return (weights * gaps.square()).sum().sqrt()
        if norm == "max":
            return gaps.max()
        raise ValueError(f'`norm` must be "l1", "l2" or "max"; got {norm!r}')


def equal_width_edges(num_bins: int, device: torch.device | None = None) -> Tensor:
    """The edges j / num_bins, (num_bins + 1,), float64."""
    if num_bins < 1:
        raise ValueError(f"`num_bins` must be at least 1; got {num_bins}")
    return torch.arange(num_bins + 1, dtype=torch.float64, device=device) / num_bins


def equal_width_bins(confidence: Tensor, num_bins: int) -> Tensor:
    """The bin of each confidence in [0, 1], closed on the right, 0 in the first: int64, of the same shape.

    Confidences are compared with edges after both are rounded to multiples of 2^-40: half a multiple less than the
    rounded confidence is never an edge, and every operation below is exact, so that the bin is its whole part.
    """
    scaled = confidence.mul(_GRID).round_().sub_(0.5).mul_(num_bins / _GRID)
    return scaled.to(torch.int64).clamp_(0, num_bins - 1)


def bin_sums(
    confidence: Tensor,  # (rows,), float64
    hits: Tensor,  # (rows,), bool
    bins: Tensor,  # (rows,), int64
    num_bins: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Per bin: number of rows (int64), number of hits (int64), sum of confidences (float64).

    All three add up over shards of the data.
    """
    cells = torch.add(hits, bins, alpha=2)
    outcomes = torch.bincount(cells, minlength=2 * num_bins).view(num_bins, 2)
    sums = torch.bincount(cells, weights=confidence, minlength=2 * num_bins).view(num_bins, 2)
    return outcomes.sum(-1), outcomes[:, 1], sums.sum(-1)


def equal_width_table(blocks: Iterable[tuple[Tensor, Tensor]], num_bins: int) -> BinTable:
    """The table of confidences, (rows,), float64, and of whether each came true, (rows,), bool, block by block."""
    edges = equal_width_edges(num_bins)
    parts = []
    for confidence, hits in blocks:
        if not len(confidence):
            continue
        if not bool(confidence.sum().isfinite()):
            check_finite("predicted", confidence)
        parts.append(bin_sums(confidence, hits, equal_width_bins(confidence, num_bins), num_bins))
    if not parts:
        raise ShapeError("a calibration error needs at least one row; `predicted` and `targets` are empty")
    counts, num_hits, sums = (torch.stack(column).sum(0) for column in zip(*parts, strict=True))
    divisor = counts.clamp(min=1).to(torch.float64)
    return BinTable(edges.to(counts.device), counts, sums / divisor, num_hits / divisor)
