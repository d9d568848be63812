r"""Venn-Abers predictors: two probabilities, of which one is calibrated whatever the forecasts are.

"Venn-Abers Predictors" (Vovk, Petej, 2014). The isotonic regression of held-out outcomes on scores is made twice with
the new object among them: with a miss it gives p0, with a hit p1, p0 < p1. If the rows are exchangeable, the one of the
two that belongs to what comes is perfectly calibrated, for any number of rows. As one probability they become
p1 / (1 - p0 + p1), which minimises the worst regret in log loss.

All values of p0 and p1 come from the lower convex hull of the cumulative sum diagram in linear time ("Large-scale
probabilistic predictors with and without guarantees of validity", Vovk, Petej, Fedorova, 2015, algorithms 1 and 2):
as the new object moves up through the scores, the point to the left of it moves along the diagram, and the hull is
mended at its left end. p0 is p1 of the mirrored problem. Scores are log odds; only their order counts.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.distributions import Distribution

from credibly.calibration.base import Recalibration, Recalibrator
from credibly.calibration.events import event_forecasts, event_outcomes, from_event_log_odds
from credibly.calibration.piecewise import padded
from credibly.calibration.report import FitReport, checked_targets, mean_nll
from credibly.core.typing import ArrayLike

__all__ = ["VennAbers", "VennAbersClasses"]

Point = tuple[float, float]


@dataclass(frozen=True, eq=False)
class VennAbersClasses(Recalibration):
    """The probability of every event becomes p1 / (1 - p0 + p1); several classes are renormalised.

    Attributes:
        scores: log odds of the fit that differ, of each map, increasing, (maps, n), padded with inf.
        p0: with a miss added below all scores and at each of them, (maps, n + 1).
        p1: with a hit added at each score and above all of them, (maps, n + 1).
        report: how the fit went.
    """

    scores: Tensor = field(repr=False)
    p0: Tensor = field(repr=False)
    p1: Tensor = field(repr=False)
    report: FitReport

    def __call__(self, predicted: Distribution) -> Distribution:
        """The recalibrated forecasts, a plain Bernoulli or Categorical in float64.

        Raises:
            NotSupportedError: `predicted` is not a distribution over classes.
            ShapeError: another number of classes than that of the fit.
        """
        p0, p1 = self._pair(event_forecasts(predicted, len(self.scores)).log_odds)
        return from_event_log_odds(predicted, torch.log(p1) - torch.log1p(-p0))

    def pair(self, predicted: Distribution) -> tuple[Tensor, Tensor]:
        """Both probabilities of every event: the interval between them tells how little the fit's rows say there.

        Returns:
            p0 and p1, each (rows, *event_shape) after a fit to a binary outcome, else (rows, classes), one against the
            rest and not renormalised.

        Raises:
            NotSupportedError, ShapeError: see the call.
        """
        pair = self._pair(event_forecasts(predicted, len(self.scores)).log_odds)
        shape = predicted.batch_shape + predicted.event_shape
        p0, p1 = (each.reshape(shape) if len(each) == 1 else each.t().reshape(*shape, len(each)) for each in pair)
        return p0, p1

    def _pair(self, odds: Tensor) -> tuple[Tensor, Tensor]:
        scores, p0, p1 = (table.to(odds.device) for table in (self.scores, self.p0, self.p1))
        at_or_above = torch.searchsorted(scores, odds.contiguous())
        at_or_below = torch.searchsorted(scores, odds.contiguous(), right=True)
        return p0.gather(-1, at_or_below), p1.gather(-1, at_or_above)


@dataclass(frozen=True)
class VennAbers(Recalibrator):
    """Inductive Venn-Abers prediction: of the event for a binary outcome, else one against the rest.

    It never gives 0 or 1, needs no tuning, and is defined for separable data and for one class only.
    """

    def fit(self, predicted: Distribution, targets: ArrayLike) -> VennAbersClasses:
        """Both probabilities at every score of the rows given.

        Args:
            predicted: a distribution over classes; a mixture counts as its mean probabilities.
            targets: the observed classes, (rows, *event_shape).

        Raises:
            NotSupportedError: `predicted` is not a distribution over classes.
            NotFiniteError: NaN probabilities.
        """
        targets = checked_targets("VennAbers", predicted, targets)
        with torch.no_grad():
            odds, outcomes = event_forecasts(predicted).log_odds, event_outcomes(predicted, targets)
            tables = [_both(scores, hits) for scores, hits in zip(odds, outcomes, strict=True)]
            scores, p0, p1 = zip(*tables, strict=True)
            fitted = VennAbersClasses(padded(scores, float("inf")), padded(p0), padded(p1), FitReport(None, None))
            report = FitReport(mean_nll(predicted, targets), mean_nll(fitted(predicted), targets))
            return VennAbersClasses(fitted.scores, fitted.p0, fitted.p1, report)


def _both(scores: Tensor, hits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Distinct scores, p0 below all and at each, p1 at each and above all."""
    distinct, index, counts = torch.unique(scores, return_inverse=True, return_counts=True)
    totals = torch.bincount(index, weights=hits, minlength=len(distinct))
    weights = counts.to(totals.dtype)
    p1 = _with_a_hit(totals.tolist(), weights.tolist())
    p0 = [1 - p for p in reversed(_with_a_hit((weights - totals).flip(0).tolist(), weights.flip(0).tolist()))]
    return distinct, scores.new_tensor([0.0, *p0]), scores.new_tensor([*p1, 1.0])


def _with_a_hit(totals: list[float], weights: list[float]) -> list[float]:
    """The isotonic regression's value at each score when a hit is added there."""
    points: list[Point] = [(-1.0, -1.0), (0.0, 0.0)]
    for weight, total in zip(weights, totals, strict=True):
        x, y = points[-1]
        points.append((x + weight, y + total))
    hull: list[Point] = []
    for point in points:
        _push(hull, point)
    hull.reverse()  # the left end is on top
    values = []
    for i in range(len(totals)):
        top, following = hull[-1], hull[-2]
        values.append((following[1] - top[1]) / (following[0] - top[0]))
        left, at, right = points[i], points[i + 1], points[i + 2]
        moved = (left[0] + right[0] - at[0], left[1] + right[1] - at[1])
        points[i + 1] = moved
        if _turn(top, following, moved) >= 0:  # on the line or above it
            continue
        hull.pop()
        while len(hull) > 1 and _turn(moved, hull[-1], hull[-2]) <= 0:
            hull.pop()
        hull.append(moved)
    return values


def _push(hull: list[Point], point: Point) -> None:
    """Extend a lower convex hull to the right."""
    while len(hull) > 1 and _turn(hull[-2], hull[-1], point) <= 0:
        hull.pop()
    hull.append(point)


def _turn(a: Point, b: Point, c: Point) -> float:
    """Above 0 where a, b, c turn left; exact, for the coordinates are whole numbers."""
    return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])
