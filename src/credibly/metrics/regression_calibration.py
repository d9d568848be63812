"""Calibration of predictions of numbers and counts, read from their probability integral transform (PIT).

    one-sided curve   at level p the fraction of targets with PIT <= p: the ECDF of the PIT
    central curve     at level c the fraction inside the central interval of coverage c: the ECDF of |2 PIT - 1|
    histogram         counts of the PIT in bins of equal width

All three are the diagonal, or flat, for the true model. Two numbers sum a curve up, over the m levels
p_j = (j - 1/2) / m (the midpoint rule of an integral over [0, 1]), with o_j the observed fraction at p_j:

    miscalibration area               (1/m) sum_j |o_j - p_j|
    regression calibration error      (1/m) sum_j (o_j - p_j)^2

The second is that of Kuleshov, Fenner, Ermon, "Accurate Uncertainties for Deep Learning Using Calibrated Regression"
(2018), with weights w_j = 1/m. Where F jumps, both take the mean over the u of the randomised PIT rather than one u,
as Czado, Gneiting, Held, "Predictive Model Assessment for Count Data" (2009) do: a target spreads evenly over
[F(y-), F(y)]. So they need no seed, and streams give what the whole data give.
"""

import math
from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributions import Distribution

from credibly.core.checks import as_tensor, check_count
from credibly.core.errors import ShapeError
from credibly.core.typing import ArrayLike
from credibly.distributions.outcomes import check_order
from credibly.metrics.base import State
from credibly.metrics.coverage_law import check_confidence, clopper_pearson, coverage_interval
from credibly.metrics.gap_metric import GapMetric, resampled_means
from credibly.metrics.pit import pit_limits

__all__ = [
    "CalibrationCurve",
    "MiscalibrationArea",
    "PITHistogram",
    "RegressionCalibrationError",
    "central_calibration_curve",
    "one_sided_calibration_curve",
    "pit_histogram",
]

_CHUNK_NUMBERS = 2**22


@dataclass(frozen=True, eq=False)
class CalibrationCurve:
    """Observed against nominal levels.

    Attributes:
        levels: nominal, (num_levels,), float64.
        observed: the fraction of values at or below each level, (num_levels,), float64.
        counts: how many values that is, (num_levels,), int64.
        num_values: of how many.
        lower: lower ends of the exact interval (Clopper and Pearson) of each observed fraction by itself.
        upper: upper ends.
        confidence: of these intervals.
    """

    levels: Tensor
    observed: Tensor
    counts: Tensor
    num_values: int
    lower: Tensor
    upper: Tensor
    confidence: float

    def __repr__(self) -> str:
        gap = float((self.observed - self.levels).abs().max())
        return f"CalibrationCurve({len(self.levels)} levels, {self.num_values} values; largest gap {gap:.4g})"

    def simultaneous(self) -> tuple[Tensor, Tensor]:
        """A band that holds the whole true curve with the confidence, at least: lower and upper ends.

        Its half width is sqrt(ln(2 / (1 - confidence)) / (2 n)) (Massart, "The Tight Constant in the
        Dvoretzky-Kiefer-Wolfowitz Inequality", 1990).
        """
        half = math.sqrt(math.log(2 / (1 - self.confidence)) / (2 * self.num_values))
        return (self.observed - half).clamp(min=0), (self.observed + half).clamp(max=1)


@dataclass(frozen=True, eq=False)
class PITHistogram:
    """Counts of the PIT in bins of equal width, beside what a calibrated prediction would give.

    Attributes:
        edges: j / num_bins, (num_bins + 1,), float64; bins are closed on the right, and 0 is in the first.
        counts: (num_bins,), int64.
        expected: the count of every bin if the PIT is uniform.
        lower: the least count that agrees with that, for each bin by itself.
        upper: the greatest.
        confidence: probability of a count from `lower` to `upper`, at least.
    """

    edges: Tensor
    counts: Tensor
    expected: float
    lower: int
    upper: int
    confidence: float

    def __repr__(self) -> str:
        least, most, total = int(self.counts.min()), int(self.counts.max()), int(self.counts.sum())
        return (
            f"PITHistogram({len(self.counts)} bins, {total} values; counts {least} to {most}, "
            f"{self.lower} to {self.upper} if calibrated)"
        )


def one_sided_calibration_curve(
    pits: ArrayLike, *, levels: ArrayLike | None = None, confidence: float = 0.95
) -> CalibrationCurve:
    """The fraction of PITs at or below each level. Elements of one row are not independent: pass one output.

    Args:
        pits: as `pit` gives them, also for leave-one-out; any shape.
        levels: increasing, in [0, 1]; by default 0.05, 0.1, ..., 0.95.
        confidence: of the intervals.

    Raises:
        ShapeError: no values.
        ValueError: PITs or levels outside [0, 1], or NaN.
    """
    return _curve(_checked("pits", pits), levels, confidence)


def central_calibration_curve(
    pits: ArrayLike, *, levels: ArrayLike | None = None, confidence: float = 0.95
) -> CalibrationCurve:
    """The fraction of targets inside the central interval of each coverage; see `one_sided_calibration_curve`."""
    return _curve((2 * _checked("pits", pits) - 1).abs(), levels, confidence)


def pit_histogram(pits: ArrayLike, *, num_bins: int = 10, confidence: float = 0.95) -> PITHistogram:
    """The histogram of the PIT.

    Args:
        pits: as `pit` gives them, any shape.
        num_bins: of equal width.
        confidence: of the expected range of a count.
    """
    values = _checked("pits", pits)
    edges = torch.arange(check_count("num_bins", num_bins) + 1, dtype=torch.float64, device=values.device) / num_bins
    below = _counts_at(values, edges)
    counts = below.diff()
    counts[0] += below[0]
    shares = coverage_interval(None, len(values), 1 / num_bins, confidence)
    lower, upper = (round(share * len(values)) for share in shares)
    return PITHistogram(edges, counts, len(values) / num_bins, lower, upper, confidence)


def _checked(name: str, values: ArrayLike) -> Tensor:
    """Numbers in [0, 1] as a flat float64 tensor."""
    flat = as_tensor(values).double().flatten().contiguous()
    if not len(flat):
        raise ShapeError(f"`{name}` must hold at least one value; got none")
    if not bool(((flat >= 0) & (flat <= 1)).all()):
        raise ValueError(f"`{name}` must lie in [0, 1]")
    return flat


def _curve(values: Tensor, levels: ArrayLike | None, confidence: float) -> CalibrationCurve:
    check_confidence(confidence)
    grid = _checked("levels", torch.arange(1, 20, dtype=torch.float64) / 20 if levels is None else levels)
    grid = grid.to(values.device)
    if not bool((grid.diff() > 0).all()):
        raise ValueError("`levels` must increase")
    counts = _counts_at(values, grid)
    lower, upper = clopper_pearson(counts, torch.full_like(counts, len(values)), confidence)
    return CalibrationCurve(grid, counts.double() / len(values), counts, len(values), lower, upper, confidence)


def _counts_at(values: Tensor, levels: Tensor) -> Tensor:
    """How many values are at or below each of the increasing levels, int64."""
    first = torch.searchsorted(levels, values)  # the first level that is not below the value
    return torch.bincount(first, minlength=len(levels) + 1)[:-1].cumsum(0)


@dataclass(frozen=True)
class _CurveMetric(GapMetric):
    """A length of the gaps between a curve and the diagonal.

    Args:
        num_levels: at which the curve is compared.
        central: the curve of central intervals in place of the one-sided one.
    """

    num_levels: int = 100
    central: bool = False

    def __post_init__(self) -> None:
        check_count("num_levels", self.num_levels)

    @abstractmethod
    def norm(self, gaps: Tensor) -> Tensor:
        """A norm over levels."""

    def state(self, predicted: Distribution, targets: ArrayLike) -> State:
        """The number of rows, and at each level the sum over rows of the share of their targets at or below it."""
        below, at = _limits_by_row(predicted, targets)
        if bool((below == at).all()):  # no jumps: whole numbers of targets
            held = _counts_at(self._of_pit(at).flatten(), self._levels(at.device))
            return {"count": torch.tensor(len(at), device=at.device), "sum": held.double() / max(at.shape[1], 1)}
        total = torch.zeros(self.num_levels, dtype=torch.float64, device=at.device)
        some = max(1, _CHUNK_NUMBERS // (self.num_levels * at.shape[1]))
        for one, two in zip(torch.split(below, some), torch.split(at, some), strict=True):
            total += self._shares(one, two).sum(0)
        return {"count": torch.tensor(len(at), device=at.device), "sum": total}

    def resampling_state(self, predicted: Distribution, targets: ArrayLike) -> State:
        """The shares of all rows."""
        return {"rows": self._shares(*_limits_by_row(predicted, targets))}

    def merged(self, one: State, other: State) -> State:
        """The sums of both."""
        return {name: one[name] + other[name] for name in one}

    def gaps(self, state: State) -> Tensor:
        """Observed minus nominal level."""
        rows = state.get("rows")
        total, count = (state["sum"], state["count"]) if rows is None else (rows.sum(0), len(rows))
        if not count:
            raise ShapeError(f"{type(self).__name__} needs at least one row; `predicted` and `targets` are empty")
        return total / count - self._levels(total.device)

    def resampled_gaps(self, state: State, num_replicates: int, generator: torch.Generator) -> Tensor:
        """The gaps of rows drawn with replacement."""
        rows = state["rows"]
        return resampled_means(rows, num_replicates, generator) - self._levels(rows.device)

    def _levels(self, device: torch.device) -> Tensor:
        return (torch.arange(self.num_levels, dtype=torch.float64, device=device) + 0.5) / self.num_levels

    def _of_pit(self, values: Tensor) -> Tensor:
        """What is compared with the levels."""
        return (2 * values - 1).abs() if self.central else values

    def _shares(self, below: Tensor, at: Tensor) -> Tensor:
        """The share of each row's targets at or below each level, (rows, num_levels).

        Args:
            below: F(y-), (rows, elements).
            at: F(y), likewise.
        """
        levels = self._levels(at.device).reshape(-1, 1)
        low, high = ((1 - levels) / 2, (1 + levels) / 2) if self.central else (torch.zeros_like(levels), levels)
        below, at = below.unsqueeze(-2), at.unsqueeze(-2)
        jump = at - below
        overlap = (torch.minimum(high, at) - torch.maximum(low, below)).clamp(min=0)
        inside = self._of_pit(at) <= levels
        return torch.where(jump > 0, overlap / torch.where(jump > 0, jump, 1.0), inside.double()).mean(-1)


def _limits_by_row(predicted: Distribution, targets: ArrayLike) -> tuple[Tensor, Tensor]:
    check_order(predicted, "calibration read from the PIT")
    below, at = pit_limits(predicted, targets)
    shape = (len(at), at.shape[1:].numel())
    return below.reshape(shape), at.reshape(shape)


@dataclass(frozen=True)
class MiscalibrationArea(_CurveMetric):
    """The area between a calibration curve and the diagonal: the mean over levels of |observed - nominal|.

    Args:
        num_levels: at which the curve is compared.
        central: the curve of central intervals in place of the one-sided one.
    """

    def norm(self, gaps: Tensor) -> Tensor:
        """The mean absolute gap."""
        return gaps.abs().mean(-1)


@dataclass(frozen=True)
class RegressionCalibrationError(_CurveMetric):
    """The mean over levels of (observed - nominal)^2 (Kuleshov, Fenner, Ermon 2018, with equal weights).

    Args:
        num_levels: at which the curve is compared.
        central: the curve of central intervals in place of the one-sided one.
    """

    def norm(self, gaps: Tensor) -> Tensor:
        """The root mean square gap."""
        return gaps.square().mean(-1).sqrt()

    def of_norm(self, norm: Tensor) -> Tensor:
        """Its square."""
        return norm.square()
