"""What all binned calibration errors share: a state of sums over cells, its table, and an interval.

With bins of equal width the state is the number of forecasts and the sum of confidences in each cell (bin and outcome):
it does not grow with the rows. Bins of equal mass depend on all rows, and their state keeps them.
"""

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import torch
from torch import Tensor
from torch.distributions import Distribution

from credibly.core.checks import check_count, check_finite
from credibly.core.typing import ArrayLike
from credibly.metrics.base import Estimate, Metric, State
from credibly.metrics.bin_resampling import Cells, cells_of, resampled_cells, resampled_rows
from credibly.metrics.bins import (
    BinTable,
    Norm,
    cell_sums,
    check_norm,
    equal_width_bins,
    equal_width_edges,
    table_of,
)
from credibly.metrics.equal_mass import edge_bins, equal_mass_edges
from credibly.metrics.gap_intervals import (
    Noise,
    dependent_noise,
    gap_interval,
    independent_noise,
    outcome_variance,
)

__all__ = ["BinnedCalibration", "Forecasts"]

Forecasts: TypeAlias = tuple[Tensor, Tensor]
"""Confidences, float64, and whether they came true, bool: both (rows, forecasts of a row)."""


@dataclass(frozen=True)
class BinnedCalibration(Metric):
    """A calibration error read off a bin table, or the mean over several tables."""

    num_bins: int = 15
    norm: Norm = "l1"
    equal_mass: bool = False

    table_per_column: ClassVar[bool] = False
    """Whether each forecast of a row has a table of its own, as classes have."""

    def __post_init__(self) -> None:
        check_count("num_bins", self.num_bins)
        check_norm(self.norm)

    @abstractmethod
    def forecasts(self, predicted: Distribution, targets: ArrayLike) -> Iterator[Forecasts]:
        """The forecasts and whether they came true, a block of rows at a time."""

    def table(self, predicted: Distribution, targets: ArrayLike) -> BinTable:
        """The bin table; with several tables each attribute has a leading axis."""
        table = self._table(self.state(predicted, targets))
        return table if self.table_per_column else BinTable(*(column[0] for column in vars(table).values()))

    def state(self, predicted: Distribution, targets: ArrayLike) -> State:
        """Counts and sums of confidences, both (tables, num_bins, 2); or all forecasts, where bins depend on them."""
        if self.equal_mass:
            return self._rows(predicted, targets)
        parts = [self._sums(confidence, hits) for confidence, hits in self._checked_forecasts(predicted, targets)]
        counts, sums = (torch.stack(column).sum(0) for column in zip(*parts, strict=True))
        return {"counts": counts, "sums": sums}

    def merged(self, one: State, other: State) -> State:
        """The sums of both, or the rows of both."""
        join = (lambda a, b: torch.cat([a, b])) if self.equal_mass else torch.add
        return {name: join(one[name], other[name]) for name in one}

    def value(self, state: State) -> Tensor:
        """The error of the table; the mean of the errors of several."""
        return self._table(state).error(self.norm).mean()

    def resampling_state(self, predicted: Distribution, targets: ArrayLike) -> State:
        """The forecasts themselves."""
        return self._rows(predicted, targets)

    def estimate(self, state: State, coverage: float, num_replicates: int, generator: torch.Generator) -> Estimate:
        """The error with an interval from tests along paths of gaps, and the errors of resampled tables."""
        table, bins = self._table_and_bins(state)
        cells = self._cells(state, bins, table.edges)
        clustered = state["hits"].shape[1] > 1
        if clustered:
            counts, sums = self._resampled_rows(state, bins, num_replicates, generator)
        else:
            counts, sums = resampled_cells(cells, num_replicates, generator)
        replicates = _tables(table.edges, counts, sums)
        noise = (
            _clustered_noise(table, replicates, cells, generator)
            if clustered
            else independent_noise(replicates.counts, generator)
        )
        columns = (table.counts, table.confidence, table.frequency, cells.spread())
        lower, upper = gap_interval(*columns, self.norm, noise, coverage)
        value = table.error(self.norm).mean()
        return Estimate(value, lower, upper, coverage, replicates.error(self.norm).mean(-1))

    def replicates(self, state: State, num_replicates: int, generator: torch.Generator) -> Tensor:
        """The errors of resampled tables."""
        return self.estimate(state, 0.95, num_replicates, generator).replicates

    def _checked_forecasts(self, predicted: Distribution, targets: ArrayLike) -> Iterator[Forecasts]:
        for confidence, hits in self.forecasts(predicted, targets):
            if not bool(confidence.sum().isfinite()):
                check_finite("predicted", confidence)
            yield confidence, hits

    def _rows(self, predicted: Distribution, targets: ArrayLike) -> State:
        confidence, hits = zip(*self._checked_forecasts(predicted, targets), strict=True)
        return {"confidence": torch.cat(confidence), "hits": torch.cat(hits)}

    def _sums(self, confidence: Tensor, hits: Tensor) -> tuple[Tensor, Tensor]:
        bins = equal_width_bins(confidence, self.num_bins)
        tables = self._num_tables(hits)
        counts, sums = cell_sums(
            confidence.flatten(), hits.flatten(), self._in_tables(bins).flatten(), tables * self.num_bins
        )
        return counts.view(tables, self.num_bins, 2), sums.view(tables, self.num_bins, 2)

    def _num_tables(self, forecasts: Tensor) -> int:
        return forecasts.shape[1] if self.table_per_column else 1

    def _in_tables(self, bins: Tensor) -> Tensor:
        """Bins numbered through all tables."""
        if not self.table_per_column:
            return bins
        return bins + torch.arange(bins.shape[1], device=bins.device) * self.num_bins

    def _table(self, state: State) -> BinTable:
        if "hits" in state:
            return self._table_and_bins(state)[0]
        edges = equal_width_edges(self.num_bins, state["counts"].device)
        return table_of(edges.expand(len(state["counts"]), -1), state["counts"], state["sums"])

    def _table_and_bins(self, state: State) -> tuple[BinTable, Tensor]:
        """The table of rows, and the bin of each forecast, (rows, forecasts), numbered through all tables."""
        confidence, hits = state["confidence"], state["hits"]
        tables = self._num_tables(hits)
        if self.equal_mass:
            columns = confidence.t() if self.table_per_column else confidence.reshape(1, -1)
            edges = equal_mass_edges(columns, self.num_bins)
            bins = edge_bins(columns, edges)
            bins = bins.t() if self.table_per_column else bins.view(confidence.shape)
        else:
            edges = equal_width_edges(self.num_bins, confidence.device).expand(tables, -1)
            bins = equal_width_bins(confidence, self.num_bins)
        bins = self._in_tables(bins)
        counts, sums = cell_sums(confidence.flatten(), hits.flatten(), bins.flatten(), tables * self.num_bins)
        shape = (tables, self.num_bins, 2)
        return table_of(edges, counts.view(shape), sums.view(shape)), bins

    def _cells(self, state: State, bins: Tensor, edges: Tensor) -> Cells:
        centres = (edges[..., 1:] + edges[..., :-1]).flatten() / 2
        confidence, hits = state["confidence"].flatten(), state["hits"].flatten()
        distance = confidence - centres[bins.flatten()]
        counts, squares = cell_sums(distance.square_(), hits, bins.flatten(), len(centres))
        sums = cell_sums(confidence, hits, bins.flatten(), len(centres))[1]
        shape = (-1, self.num_bins, 2)
        return Cells(*(t.view(shape) for t in cells_of(counts, sums, squares, centres.unsqueeze(-1))))

    def _resampled_rows(
        self, state: State, bins: Tensor, num_replicates: int, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        hits = state["hits"]
        num_cells = self._num_tables(hits) * self.num_bins * 2
        both = resampled_rows(2 * bins + hits, state["confidence"], num_cells, num_replicates, generator)
        counts, sums = (t.view(num_replicates, -1, self.num_bins, 2) for t in both)
        return counts, sums


def _tables(edges: Tensor, counts: Tensor, sums: Tensor) -> BinTable:
    """The tables of resampled cells."""
    total = counts.sum(-1)
    divisor = total.clamp(min=1)
    return BinTable(edges, total, sums.sum(-1) / divisor, counts[..., 1] / divisor)


def _clustered_noise(table: BinTable, replicates: BinTable, cells: Cells, generator: torch.Generator) -> Noise:
    """The noise of the gaps of resampled rows."""
    errors = replicates.confidence - replicates.frequency - (table.confidence - table.frequency)
    variance = outcome_variance(table.frequency, cells.spread())
    return dependent_noise(replicates.counts, errors, variance, generator)
