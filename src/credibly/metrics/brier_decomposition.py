r"""The Brier score taken apart into what calibration, sharpness and the events themselves contribute.

Over bins b of the forecast p, with n_b of n forecasts, mean forecast p_b, frequency f_b, and frequency f of all,

    reliability  sum_b (n_b / n) (p_b - f_b)^2,   0 when calibrated
    resolution   sum_b (n_b / n) (f_b - f)^2,     how far outcomes differ between bins: larger is better
    uncertainty  f (1 - f)

(Murphy, "A New Vector Partition of the Probability Score", 1973). Where forecasts vary inside a bin, two more parts are
needed for the sum to be exact (Stephenson, Coelho, Jolliffe, "Two Extra Components in the Brier Score Decomposition",
2008):

    within-bin variance    sum_b (1 / n) sum_{i in b} (p_i - p_b)^2
    within-bin covariance  sum_b (2 / n) sum_{i in b} (y_i - f_b) (p_i - p_b)

    Brier = reliability - resolution + uncertainty + within-bin variance - within-bin covariance.

A choice among classes is taken apart class by class, each class as an event, and the parts of all classes are added up;
they make Brier's own sum over classes.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.distributions import Distribution

from credibly.core.checks import check_count, check_finite
from credibly.core.errors import ShapeError
from credibly.core.typing import ArrayLike
from credibly.distributions.class_rows import is_binary
from credibly.distributions.classes import class_log_probs
from credibly.distributions.rows import select
from credibly.metrics.base import Estimate, Metric, State
from credibly.metrics.bin_resampling import resampled_sums
from credibly.metrics.bins import equal_width_bins
from credibly.metrics.brier_intervals import part_intervals, table_of_sums
from credibly.metrics.calibration_error import ClasswiseECE, EventECE

__all__ = ["BrierDecomposition", "BrierParts", "brier_decomposition"]


class BrierParts(NamedTuple):
    """The parts of a Brier score, float64 scalars; the last is the score itself."""

    reliability: Tensor
    resolution: Tensor
    uncertainty: Tensor
    within_bin_variance: Tensor
    within_bin_covariance: Tensor
    brier: Tensor


@dataclass(frozen=True)
class BrierDecomposition(Metric):
    """The parts of the Brier score, a vector in the order of `BrierParts`; so are the ends of its interval.

    Reliability and resolution are too large on average, the more so the fewer forecasts a bin holds. Their intervals
    are for what ever more rows would show in the same bins, and may lie below the values.

    Args:
        num_bins: number of bins of equal width.
    """

    num_bins: int = 15

    parts: ClassVar[tuple[str, ...]] = BrierParts._fields

    def __post_init__(self) -> None:
        check_count("num_bins", self.num_bins)

    def rows(self, predicted: Distribution, targets: ArrayLike) -> Iterator[Tensor]:
        """What each row adds to the sums, block by block: bin, p and y of each class, (rows, forecasts, 3)."""
        kind = EventECE(self.num_bins) if is_binary(predicted) else ClasswiseECE(self.num_bins)
        labels = predicted.event_shape.numel() if kind.table_per_column else 1
        for confidence, hits in kind.forecasts(predicted, targets):
            check_finite("predicted", confidence)
            bins = equal_width_bins(confidence, self.num_bins)
            if kind.table_per_column:
                bins = bins + torch.arange(bins.shape[1], device=bins.device) * self.num_bins
            columns = torch.stack([bins.to(torch.float64), confidence, hits.to(torch.float64)], -1)
            yield columns.reshape(len(columns) // labels, labels * columns.shape[1], 3)

    def state(self, predicted: Distribution, targets: ArrayLike) -> State:
        """Sums over the forecasts in each bin, (5, bins of all classes): of 1, p, y, p^2 and p y."""
        size = self._num_cells(predicted)
        parts = [_sums(rows.unsqueeze(0), size)[0] for rows in self.rows(predicted, targets)]
        return {"sums": torch.stack(parts).sum(0)}

    def merged(self, one: State, other: State) -> State:
        """The sums of both."""
        return {"sums": one["sums"] + other["sums"]}

    def value(self, state: State) -> Tensor:
        """The parts, (6,)."""
        sums = state["sums"] if "rows" not in state else _sums(state["rows"].unsqueeze(0), int(state["size"]))[0]
        if not bool(sums[0].sum()):
            raise ShapeError("BrierDecomposition needs at least one row; `predicted` and `targets` are empty")
        return self._parts(sums)

    def resampling_state(self, predicted: Distribution, targets: ArrayLike) -> State:
        """The rows."""
        rows = torch.cat(list(self.rows(predicted, targets)))
        return {"rows": rows, "size": torch.tensor(self._num_cells(predicted))}

    def estimate(self, state: State, coverage: float, num_replicates: int, generator: torch.Generator) -> Estimate:
        """The parts with an interval for each; see `brier_intervals`."""
        value = self.checked(state)
        sums = self._resampled(state, num_replicates, generator)
        seen = _sums(state["rows"].unsqueeze(0), int(state["size"]))[0]
        table, drawn = (table_of_sums(part.view(*part.shape[:-1], -1, self.num_bins)) for part in (seen, sums))
        intervals = part_intervals(state["rows"], table, drawn, coverage, generator)
        lower, upper = (torch.stack(ends) for ends in zip(*intervals, strict=True))
        return Estimate(value, lower, upper, coverage, self._parts(sums))

    def replicates(self, state: State, num_replicates: int, generator: torch.Generator) -> Tensor:
        """The parts of rows drawn with replacement, (num_replicates, 6)."""
        return self._parts(self._resampled(state, num_replicates, generator))

    def _resampled(self, state: State, num_replicates: int, generator: torch.Generator) -> Tensor:
        """The sums of rows drawn with replacement, (num_replicates, 5, bins of all classes)."""
        bins, p, y = state["rows"].unbind(-1)
        return resampled_sums(bins.long(), _columns(p, y), int(state["size"]), num_replicates, generator)

    def _num_cells(self, predicted: Distribution) -> int:
        return self.num_bins * (
            1 if is_binary(predicted) else class_log_probs(select(predicted, slice(0, 1))).shape[-1]
        )

    def _parts(self, sums: Tensor) -> Tensor:
        """The parts from the sums (*batch, 5, bins of all classes): (*batch, 6)."""
        tables = sums.view(*sums.shape[:-1], -1, self.num_bins)
        size, p, y, squares, products = tables.unbind(-3)
        total = size.sum(-1)
        divisor = size.clamp(min=1)
        mean, frequency = p / divisor, y / divisor
        overall = y.sum(-1) / total
        bins = [
            size * (mean - frequency).square(),
            size * (frequency - overall.unsqueeze(-1)).square(),
            (squares - p * mean).clamp(min=0),
            2 * (products - p * frequency),
            squares - 2 * products + y,
        ]
        reliability, resolution, variance, covariance, brier = (part.sum(-1) / total for part in bins)
        parts = [reliability, resolution, overall * (1 - overall), variance, covariance, brier]
        return torch.stack(parts, -1).sum(-2)


def _sums(rows: Tensor, num_cells: int) -> Tensor:
    """The sums over cells of rows (*batch of one axis, rows, forecasts, 3): (batch, 5, num_cells)."""
    some = len(rows)
    bins, p, y = rows.flatten(1, 2).unbind(-1)
    first = torch.arange(some, device=rows.device).unsqueeze(1) * num_cells
    where = (bins.to(torch.int64) + first).flatten()
    sums = [torch.bincount(where, weights=column.flatten(), minlength=some * num_cells) for column in _columns(p, y)]
    return torch.stack([column.view(some, num_cells) for column in sums], 1)


def _columns(p: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    """What is summed over cells."""
    return torch.ones_like(p), p, y, p.square(), p * y


def brier_decomposition(predicted: Distribution, targets: ArrayLike, *, num_bins: int = 15) -> BrierParts:
    """The parts of the Brier score over bins of equal width; of a choice among classes, summed over classes.

    Args:
        predicted: a distribution over classes.
        targets: what came.
        num_bins: number of bins.

    Raises:
        NotSupportedError: if `predicted` is not a distribution over classes.
    """
    return BrierParts(*BrierDecomposition(num_bins)(predicted, targets))
