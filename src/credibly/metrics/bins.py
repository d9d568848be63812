r"""The bin table behind every reliability diagram and binned calibration error.

A table splits confidences in [0, 1] into bins that are closed on the right, 0 itself lying in the first. For
bin b with n_b of the n forecasts it holds the mean confidence c_b and the observed frequency f_b, and

    l1 = sum_b (n_b / n) |c_b - f_b|,   l2 = sqrt(sum_b (n_b / n) (c_b - f_b)^2),   max = max_b |c_b - f_b|

where the maximum is over bins that are not empty ("Obtaining Well Calibrated Probabilities Using Bayesian
Binning", Pakdaman Naeini, Cooper, Hauskrecht, 2015). The confidence of a bin is the mean of its members, not its
centre. The square of l2 is too large on average, by the variance of the frequencies; the debiased l2 takes an
unbiased estimate of that off ("Verified Uncertainty Calibration", Kumar, Liang, Ma, 2019):

    l2_debiased^2 = sum_b (n_b / n) ((c_b - f_b)^2 - f_b (1 - f_b) / (n_b - 1)),   at least 0,

where bins of a single forecast count 0.

A cell of a table is a bin together with an outcome. Sums over the forecasts of each cell add up over shards.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from credibly.core.checks import check_count
from credibly.core.errors import ShapeError

__all__ = [
    "BinTable",
    "Norm",
    "cell_sums",
    "check_norm",
    "equal_width_bins",
    "equal_width_edges",
    "gap_size",
    "table_of",
]

Norm = Literal["l1", "l2", "max", "l2_debiased"]

_NORMS = ("l1", "l2", "max", "l2_debiased")
_GRID = 2.0**40  # 0.1 + 0.2 and 0.3 are one confidence: edges are compared to 12 digits


@dataclass(frozen=True, eq=False)
class BinTable:
    """Confidences and outcomes, bin by bin. An empty bin has count 0 and holds 0 in its other columns.

    The table of several classes has one row a class: every attribute then has a leading axis (classes, ...).

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

    def __repr__(self) -> str:
        tables = f"{len(self.counts)} tables of " if self.counts.dim() > 1 else ""
        error, total = float(self.error().mean()), int(self.counts.sum())
        return f"BinTable({tables}{self.counts.shape[-1]} bins, {total} forecasts; l1 error {error:.4g})"

    def error(self, norm: Norm = "l1") -> Tensor:
        """The calibration error, a float64 scalar (or one a class): mean, root mean square or largest gap."""
        check_norm(norm)
        size = gap_size(self.confidence - self.frequency, self.frequency, self.counts.to(torch.float64), norm)
        return size.clamp(min=0).sqrt() if norm == "l2_debiased" else size


def check_norm(norm: Norm) -> Norm:
    """The norm itself, or a ValueError."""
    if norm not in _NORMS:
        raise ValueError(f'`norm` must be "l1", "l2", "max" or "l2_debiased"; got {norm!r}')
    return norm


def gap_size(
    gaps: Tensor,  # (..., num_bins)
    frequency: Tensor,  # (..., num_bins)
    counts: Tensor,  # (..., num_bins), floating, 0 where a bin is empty
    norm: Norm,
) -> Tensor:
    """The size of the gaps in a norm; of the debiased l2 the square, which may be negative."""
    if norm == "max":
        return torch.where(counts > 0, gaps.abs(), 0.0).amax(-1)
    weights = counts / counts.sum(-1, keepdim=True)
    if norm == "l1":
        return (weights * gaps.abs()).sum(-1)
    if norm == "l2":
        return (weights * gaps.square()).sum(-1).sqrt()
    noise = frequency * (1 - frequency) / (counts - 1).clamp(min=1)
    return (weights * torch.where(counts > 1, gaps.square() - noise, 0.0)).sum(-1)


def equal_width_edges(num_bins: int, device: torch.device | None = None) -> Tensor:
    """The edges j / num_bins, (num_bins + 1,), float64."""
    check_count("num_bins", num_bins)
    return torch.arange(num_bins + 1, dtype=torch.float64, device=device) / num_bins


def equal_width_bins(confidence: Tensor, num_bins: int) -> Tensor:
    """The bin of each confidence in [0, 1], closed on the right, 0 in the first: int64, of the same shape.

    Confidences are compared with edges after both are rounded to multiples of 2^-40: half a multiple less than the
    rounded confidence is never an edge, and every operation below is exact, so that the bin is its whole part.
    """
    scaled = confidence.mul(_GRID).round_().sub_(0.5).mul_(num_bins / _GRID)
    return scaled.to(torch.int64).clamp_(0, num_bins - 1)


def cell_sums(
    confidence: Tensor,  # (forecasts,), float64
    hits: Tensor,  # (forecasts,), bool
    bins: Tensor,  # (forecasts,), int64
    num_bins: int,
) -> tuple[Tensor, Tensor]:
    """Number of forecasts (int64) and sum of confidences (float64) in each cell: both (num_bins, 2).

    The second axis is the outcome: missed, hit.
    """
    cells = torch.add(hits, bins, alpha=2)
    counts = torch.bincount(cells, minlength=2 * num_bins)
    sums = torch.bincount(cells, weights=confidence, minlength=2 * num_bins)
    return counts.view(num_bins, 2), sums.view(num_bins, 2)


def table_of(
    edges: Tensor,  # (*tables, num_bins + 1)
    counts: Tensor,  # (*tables, num_bins, 2)
    sums: Tensor,  # (*tables, num_bins, 2)
) -> BinTable:
    """The table of the sums over cells.

    Raises:
        ShapeError: there are no forecasts.
    """
    total = counts.sum(-1)
    if not bool(total.sum(-1).all()):
        raise ShapeError("a calibration error needs at least one row; `predicted` and `targets` are empty")
    divisor = total.clamp(min=1).to(torch.float64)
    return BinTable(edges, total, sums.sum(-1) / divisor, counts[..., 1] / divisor)
