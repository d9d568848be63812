"""The scores of quantiles, intervals, draws and ordered classes as metrics: streamed and with an interval.

What each row scores is defined where the functions are: `quantile_scores`, `energy` and `ranked_probability`.
"""

from dataclasses import dataclass

from torch import Tensor
from torch.distributions import Distribution

from credibly.core.typing import ArrayLike
from credibly.metrics.energy import energy_score_rows
from credibly.metrics.quantile_scores import interval_score_rows, pinball_rows, weighted_interval_score_rows
from credibly.metrics.ranked_probability import ranked_probability_rows
from credibly.metrics.row_metrics import MeanMetric
from credibly.metrics.scores import row_means

__all__ = ["EnergyScore", "IntervalScore", "Pinball", "RankedProbabilityScore", "WeightedIntervalScore"]


@dataclass(frozen=True)
class RankedProbabilityScore(MeanMetric):
    """The mean ranked probability score of classes in order; see `ranked_probability_score`."""

    def rows(self, predicted: Distribution, targets: ArrayLike) -> Tensor:
        """The score of each row."""
        return row_means(ranked_probability_rows(predicted, targets))


@dataclass(frozen=True)
class Pinball(MeanMetric):
    """The mean pinball loss over rows, outputs and levels; see `pinball`.

    Args:
        levels: of the quantiles, strictly between 0 and 1.
    """

    levels: tuple[float, ...]

    def rows(self, predicted: Distribution, targets: ArrayLike) -> Tensor:
        """The loss of each row, the mean over levels and outputs."""
        return row_means(pinball_rows(predicted, targets, self.levels))


@dataclass(frozen=True)
class IntervalScore(MeanMetric):
    """The mean interval score of the central interval; see `interval_score`.

    Args:
        coverage: of the interval.
    """

    coverage: float = 0.9

    def rows(self, predicted: Distribution, targets: ArrayLike) -> Tensor:
        """The score of each row, the mean over outputs."""
        return row_means(interval_score_rows(predicted, targets, self.coverage))


@dataclass(frozen=True)
class WeightedIntervalScore(MeanMetric):
    """The mean weighted interval score of the median and central intervals; see `weighted_interval_score`.

    Args:
        coverages: of the intervals.
    """

    coverages: tuple[float, ...] = (0.5, 0.8, 0.95)

    def rows(self, predicted: Distribution, targets: ArrayLike) -> Tensor:
        """The score of each row, the mean over outputs."""
        return row_means(weighted_interval_score_rows(predicted, targets, self.coverages))


@dataclass(frozen=True)
class EnergyScore(MeanMetric):
    """The mean energy score; see `energy_score`.

    Args:
        num_draws: how many draws are made of a prediction that holds none. Draws are made anew for every batch of a
            stream, so that a stream equals the whole data only where the prediction's own draws are used.
        fair: without the bias of few draws.
        seed: of the draws.
    """

    num_draws: int | None = None
    fair: bool = False
    seed: int | None = None

    def rows(self, predicted: Distribution, targets: ArrayLike) -> Tensor:
        """The score of each row."""
        return row_means(
            energy_score_rows(predicted, targets, num_draws=self.num_draws, fair=self.fair, seed=self.seed)
        )
