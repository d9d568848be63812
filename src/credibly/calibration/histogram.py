r"""Histogram binning: a forecast becomes the frequency of the event among the forecasts of its bin.

"Obtaining calibrated probability estimates from decision trees and naive Bayesian classifiers" (Zadrozny, Elkan, 2001).
Bins of equal mass make no assumption about the forecasts and have a guarantee for any distribution (Gupta, Ramdas,
"Distribution-free calibration guarantees for histogram binning without sample splitting", 2021).
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.distributions import Distribution

from credibly.calibration.base import Recalibration, Recalibrator
from credibly.calibration.events import event_forecasts, event_outcomes, from_event_log_odds
from credibly.calibration.piecewise import padded
from credibly.calibration.report import FitReport, checked_targets, mean_nll
from credibly.core.checks import check_count
from credibly.core.typing import ArrayLike

__all__ = ["BinnedClasses", "HistogramBinning"]

_ROUNDING = 1e-15  # a probability that was kept as a logarithm is off by a few units in the last place


@dataclass(frozen=True, eq=False)
class BinnedClasses(Recalibration):
    """The probability of every event becomes the frequency in its bin; several classes are renormalised.

    Attributes:
        edges: the upper, included edges of each map's bins but the last, (maps, bins - 1), float64, padded with inf.
        probs: the frequencies, (maps, bins).
        report: how the fit went.
    """

    edges: Tensor = field(repr=False)
    probs: Tensor = field(repr=False)
    report: FitReport

    def __call__(self, predicted: Distribution) -> Distribution:
        """The recalibrated forecasts, a plain Bernoulli or Categorical in float64.

        Raises:
            NotSupportedError: `predicted` is not a distribution over classes.
            ShapeError: another number of classes than that of the fit.
        """
        points = event_forecasts(predicted, len(self.probs)).probs
        return from_event_log_odds(
            predicted, _lookup(self.edges.to(points.device), self.probs.to(points.device), points)
        )


@dataclass(frozen=True, kw_only=True)
class HistogramBinning(Recalibrator):
    """Frequencies in bins: of the event for a binary outcome, else one against the rest.

    A frequency may be 0 or 1, for which a miss has an infinite log loss.

    Args:
        num_bins: bins of each map, at most. Equal forecasts share a bin, and an empty one is joined with the next.
        equal_mass: bins of equally many forecasts; otherwise of equal width, closed on the right.
    """

    num_bins: int = 15
    equal_mass: bool = True

    def __post_init__(self) -> None:
        check_count("num_bins", self.num_bins)

    def fit(self, predicted: Distribution, targets: ArrayLike) -> BinnedClasses:
        """The bins of every event.

        Args:
            predicted: a distribution over classes; a mixture counts as its mean probabilities.
            targets: the observed classes, (rows, *event_shape).

        Raises:
            NotSupportedError: `predicted` is not a distribution over classes.
            NotFiniteError: NaN probabilities.
        """
        targets = checked_targets("HistogramBinning", predicted, targets)
        with torch.no_grad():
            points, outcomes = event_forecasts(predicted).probs, event_outcomes(predicted, targets)
            maps = [self._bins(each, came) for each, came in zip(points, outcomes, strict=True)]
            edges = padded([edge for edge, _ in maps], float("inf"))
            probs = padded([prob for _, prob in maps])
            after = from_event_log_odds(predicted, _lookup(edges, probs, points))
            return BinnedClasses(edges, probs, FitReport(mean_nll(predicted, targets), mean_nll(after, targets)))

    def _bins(self, points: Tensor, outcomes: Tensor) -> tuple[Tensor, Tensor]:
        """Inner edges and frequencies of one map."""
        edges = self._edges(points)
        index = torch.searchsorted(edges, points)
        counts = torch.bincount(index, minlength=len(edges) + 1)
        hits = torch.bincount(index, weights=outcomes, minlength=len(edges) + 1)
        some = counts > 0
        return edges[some[:-1] & (some.flip(0).cumsum(0).flip(0)[1:] > 0)], hits[some] / counts[some]

    def _edges(self, points: Tensor) -> Tensor:
        if not self.equal_mass:
            steps = torch.arange(1, self.num_bins, dtype=points.dtype, device=points.device)
            return steps / self.num_bins * (1 + _ROUNDING)
        ends = torch.arange(1, self.num_bins, device=points.device) * len(points) // self.num_bins
        edges: Tensor = torch.unique(points.sort().values[ends[ends > 0] - 1])
        return edges


def _lookup(edges: Tensor, probs: Tensor, points: Tensor) -> Tensor:
    """Log odds of the bins' frequencies, (maps, forecasts)."""
    index = torch.searchsorted(edges, points) if edges.shape[-1] else torch.zeros_like(points, dtype=torch.int64)
    return torch.logit(probs.gather(-1, index))
