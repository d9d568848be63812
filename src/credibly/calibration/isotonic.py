r"""Isotonic regression of what came on what was forecast: the best non-decreasing curve.

"Transforming Classifier Scores into Accurate Multiclass Probability Estimates" (Zadrozny, Elkan, 2002). The curve
minimises the squared error, and the log loss too, among all non-decreasing ones; between the forecasts of the fit it is
linear, beyond them constant. It has flat parts, which make forecasts equal that were not, and may give 0 and 1, for
which a miss has an infinite log loss.

Centred isotonic regression (Oron, Flournoy, "Centered Isotonic Regression: Point and Interval Estimation for
Dose-Response Studies", 2017) puts each flat part's value at the mean of its points and is linear in between: it
increases strictly within its range except where it is 0 or 1, and keeps the order of forecasts there.
"""

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor
from torch.distributions import Distribution

from credibly.calibration.base import Recalibration, Recalibrator
from credibly.calibration.events import event_forecasts, event_outcomes, from_event_log_odds
from credibly.calibration.piecewise import interpolate, padded
from credibly.calibration.pooling import Blocks, pooled
from credibly.calibration.report import FitReport, checked_targets, mean_nll
from credibly.core.typing import ArrayLike

__all__ = ["CenteredIsotonic", "Isotonic", "MonotoneClasses"]


@dataclass(frozen=True, eq=False)
class MonotoneClasses(Recalibration):
    """The probability of every event goes through a piecewise linear curve; several classes are renormalised.

    Attributes:
        forecasts: probabilities at the knots of each curve, not decreasing, (maps, knots), float64.
        probs: the recalibrated probabilities there.
        report: how the fit went.
    """

    forecasts: Tensor = field(repr=False)
    probs: Tensor = field(repr=False)
    report: FitReport

    def __call__(self, predicted: Distribution) -> Distribution:
        """The recalibrated forecasts, a plain Bernoulli or Categorical in float64.

        Raises:
            NotSupportedError: `predicted` is not a distribution over classes.
            ShapeError: another number of classes than that of the fit.
        """
        points = event_forecasts(predicted, len(self.probs)).probs
        knots, values = self.forecasts.to(points.device), self.probs.to(points.device)
        return from_event_log_odds(predicted, torch.logit(interpolate(knots, values, points)))


class _MonotoneCurve(Recalibrator):
    """What both kinds share: one curve for the event of a binary outcome, else one against the rest."""

    _pool_equal: ClassVar[bool]

    def fit(self, predicted: Distribution, targets: ArrayLike) -> MonotoneClasses:
        """The curve of every event; exact, and defined for separable data and for one class only.

        Args:
            predicted: a distribution over classes; a mixture counts as its mean probabilities.
            targets: the observed classes, (rows, *event_shape).

        Raises:
            NotSupportedError: `predicted` is not a distribution over classes.
            NotFiniteError: NaN probabilities.
        """
        targets = checked_targets(type(self).__name__, predicted, targets)
        with torch.no_grad():
            points, outcomes = event_forecasts(predicted).probs, event_outcomes(predicted, targets)
            blocks = pooled(points, outcomes, pool_equal=self._pool_equal)
            curves = [self._knots(blocks.of(curve)) for curve in range(len(points))]
            knots, values = (padded(column) for column in zip(*curves, strict=True))
            after = from_event_log_odds(predicted, torch.logit(interpolate(knots, values, points)))
            return MonotoneClasses(knots, values, FitReport(mean_nll(predicted, targets), mean_nll(after, targets)))

    @abstractmethod
    def _knots(self, blocks: Blocks) -> tuple[Tensor, Tensor]:
        """Forecasts and probabilities at the knots of one curve."""


@dataclass(frozen=True)
class Isotonic(_MonotoneCurve):
    """Isotonic regression, linear between the forecasts of the fit, as scikit-learn's."""

    _pool_equal: ClassVar[bool] = False

    def _knots(self, blocks: Blocks) -> tuple[Tensor, Tensor]:
        return _both_ends(blocks, torch.ones_like(blocks.value, dtype=torch.bool))


@dataclass(frozen=True)
class CenteredIsotonic(_MonotoneCurve):
    """Centred isotonic regression: the value of a block at the mean of its forecasts; blocks of 0 and 1 stay flat."""

    _pool_equal: ClassVar[bool] = True

    def _knots(self, blocks: Blocks) -> tuple[Tensor, Tensor]:
        return _both_ends(blocks, (blocks.total == 0) | (blocks.total == blocks.size))


def _both_ends(blocks: Blocks, flat: Tensor) -> tuple[Tensor, Tensor]:
    """Blocks that are flat have a knot at either end, others one in the middle."""
    middle = (blocks.point_sum / blocks.size).clamp(min=blocks.first, max=blocks.last)
    first, last = torch.where(flat, blocks.first, middle), torch.where(flat, blocks.last, middle)
    keep = torch.stack([torch.ones_like(flat), last > first], -1).reshape(-1)
    knots = torch.stack([first, last], -1).reshape(-1)
    return knots[keep], blocks.value.repeat_interleave(2)[keep]
