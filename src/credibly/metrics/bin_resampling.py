"""Resampled bin tables without resampled rows.

Rows drawn with replacement fall into the cells of a table (bin and outcome) by a multinomial law with the cells' own
frequencies, drawn here as a chain of binomials. Given their number, the confidences in a cell are drawn from the cell's
confidences, and their sum is close to normal, with the mean and variance of the cell. So the cost of a replicate does
not depend on the number of rows. This needs forecasts that are independent of each other: where one row makes several
(several labels, all classes), rows themselves are drawn.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from credibly.metrics.resampling import NUM_GROUPS, grouping, over_resamples

__all__ = ["Cells", "cells_of", "resampled_cells", "resampled_counts", "resampled_rows", "resampled_sums"]


class Cells(NamedTuple):
    """What the forecasts in the cells of a table add up to, each (*batch, num_bins, 2)."""

    counts: Tensor  # number of forecasts
    sums: Tensor  # of the confidences, float64
    variance: Tensor  # of the confidences inside a cell, float64

    def spread(self) -> Tensor:
        """The variance of the confidences inside a bin, (*batch, num_bins)."""
        size = self.counts.sum(-1, keepdim=True).clamp(min=1)
        means = self.sums / self.counts.clamp(min=1)
        centre = self.sums.sum(-1, keepdim=True) / size
        squares: Tensor = self.counts * (self.variance + (means - centre).square())
        return squares.sum(-1) / size.squeeze(-1)


def cells_of(
    counts: Tensor,  # (num_bins, 2)
    sums: Tensor,  # (num_bins, 2), of the confidences
    squares: Tensor,  # (num_bins, 2), of the distances of the confidences from their cell's centre
    centres: Tensor,  # broadcasts to (num_bins, 2)
) -> Cells:
    """The cells from sums that add up over shards."""
    divisor = counts.clamp(min=1)
    variance = squares / divisor - (sums / divisor - centres).square()
    return Cells(counts, sums, torch.where(counts > 0, variance, 0.0).clamp(min=0))


def resampled_counts(counts: Tensor, num_replicates: int, generator: torch.Generator) -> Tensor:
    """Multinomial counts with the frequencies of `counts`, (*batch, cells), float64: replicates lead."""
    mass = counts.to(torch.float64)
    at_least = mass.flip(-1).cumsum(-1).flip(-1)
    shares = mass / at_least.clamp(min=1)
    left = at_least[..., 0].expand(num_replicates, *mass.shape[:-1]).contiguous()
    drawn = []
    for share in shares.unbind(-1):
        taken = torch.binomial(left, share.expand_as(left).contiguous(), generator)
        drawn.append(taken)
        left = left - taken
    return torch.stack(drawn, -1)


def resampled_cells(cells: Cells, num_replicates: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Counts and sums of confidences of resampled rows, both (num_replicates, *batch, num_bins, 2), float64."""
    shape = cells.counts.shape
    counts = resampled_counts(cells.counts.flatten(-2), num_replicates, generator).view(num_replicates, *shape)
    noise = torch.randn(counts.shape, generator=generator, dtype=torch.float64, device=counts.device)
    means = cells.sums / cells.counts.clamp(min=1)
    return counts, counts * means + (counts * cells.variance).sqrt() * noise


def resampled_rows(
    cells: Tensor,  # (rows, forecasts), int64: the cell of every forecast
    confidence: Tensor,  # (rows, forecasts)
    num_cells: int,
    num_replicates: int,
    generator: torch.Generator,
) -> tuple[Tensor, Tensor]:
    """Counts and sums of confidences of rows drawn with replacement, both (num_replicates, num_cells), float64."""
    both = resampled_sums(cells, (torch.ones_like(confidence), confidence), num_cells, num_replicates, generator)
    return both[:, 0], both[:, 1]


def resampled_sums(
    cells: Tensor,  # (rows, forecasts), int64: the cell of every forecast
    columns: tuple[Tensor, ...],  # what is summed, each (rows, forecasts)
    num_cells: int,
    num_replicates: int,
    generator: torch.Generator,
) -> Tensor:
    """Sums over cells of rows drawn with replacement, (num_replicates, columns, num_cells), float64.

    Of many rows, random groups are drawn in place of rows: see `grouping`.
    """
    num_rows, width = cells.shape
    group = grouping(num_rows, generator)
    num_groups = num_rows if group is None else NUM_GROUPS
    rows = torch.arange(num_rows, device=cells.device) if group is None else group
    where = torch.stack([cells.flatten(), rows.repeat_interleave(width)])
    tables = [
        torch.sparse_coo_tensor(where, column.flatten(), (num_cells, num_groups), check_invariants=False).coalesce()
        for column in columns
    ]

    def sums(index: Tensor) -> Tensor:
        some = len(index)
        flat = index * some + torch.arange(some, device=index.device).unsqueeze(1)
        times = torch.bincount(flat.flatten(), minlength=num_groups * some).to(torch.float64).view(num_groups, some)
        return torch.stack([torch.sparse.mm(table, times).t() for table in tables], 1)

    return over_resamples(num_groups, num_replicates, generator, sums)
