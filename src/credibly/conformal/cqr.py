r"""Conformalised quantile regression: predicted quantiles, moved until they hold what they promise.

With the predicted lower and upper quantiles lo <= hi of a row, sorted if they cross,

    CQR            score max(lo - y, y - hi)               region [lo - q, hi + q]
    CQR-r          that, divided by hi - lo                region [lo - q (hi - lo), hi + q (hi - lo)]
    asymmetric     lo - y and y - hi apart, each at        region [lo - q_lo, hi + q_hi]
                   coverage (1 + c)/2

("Conformalized Quantile Regression", Romano, Patterson, Candes, 2019; "A comparison of some conformal quantile
regression methods", Sesia, Candes, 2020.) Thresholds can be negative: quantiles too far apart are pulled together, and
where they then meet the interval is empty, an explicit miss. The asymmetric form holds each side by itself with
probability (1 + c)/2; a side with too few calibration scores for its level is infinite, also where the symmetric form
would not be.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.distributions import Distribution

from credibly.conformal.base import ConformalPredictor
from credibly.conformal.bonferroni import part_coverage
from credibly.conformal.interval_score import IntervalScore, divided, multiplied, stretched, without_nan
from credibly.conformal.intervals import Intervals, sum_up
from credibly.core.typing import ArrayLike
from credibly.distributions.cumulative import icdf

__all__ = ["CQR", "AsymmetricCQR", "OneSidedCQR", "ScaledCQR", "TwoSidedPredictor"]

_LOWEST = -torch.finfo(torch.float64).max  # above -inf, the threshold that holds nothing


@dataclass(frozen=True)
class CQR(IntervalScore):
    """Score max(lo - y, y - hi), negative inside the predicted interval; the region is [lo - q, hi + q].

    Args:
        lower: the level of the lower quantile. A `QuantileForecast` must reach out to it.
        upper: the level of the upper quantile.
    """

    lower: float = 0.05
    upper: float = 0.95

    def __post_init__(self) -> None:
        _check_levels(self.lower, self.upper)

    def anchors(self, predicted: Distribution) -> tuple[Tensor, ...]:
        """The two quantiles, sorted."""
        return _quantiles(predicted, self.lower, self.upper)

    def of_values(self, anchors: tuple[Tensor, ...], values: Tensor) -> Tensor:
        """How far the values lie outside, or minus how far inside."""
        return _outside(anchors, values)

    def ends(self, anchors: tuple[Tensor, ...], limits: Tensor) -> tuple[Tensor, Tensor]:
        """The quantiles, each moved outwards by the limit."""
        return stretched(anchors[0], anchors[1], limits)


@dataclass(frozen=True)
class ScaledCQR(IntervalScore):
    """CQR-r: the score of `CQR` divided by hi - lo, so that wide intervals move by more than narrow ones.

    Where hi = lo, the score is 0 at this point and infinite elsewhere. Where one of them is infinite, it is 0
    everywhere.

    Args:
        lower: the level of the lower quantile.
        upper: the level of the upper quantile.
    """

    lower: float = 0.05
    upper: float = 0.95

    def __post_init__(self) -> None:
        _check_levels(self.lower, self.upper)

    def anchors(self, predicted: Distribution) -> tuple[Tensor, ...]:
        """The two quantiles, sorted."""
        return _quantiles(predicted, self.lower, self.upper)

    def of_values(self, anchors: tuple[Tensor, ...], values: Tensor) -> Tensor:
        """How far the values lie outside, in widths of the predicted interval."""
        return divided(_outside(anchors, values), anchors[1] - anchors[0])

    def ends(self, anchors: tuple[Tensor, ...], limits: Tensor) -> tuple[Tensor, Tensor]:
        """The quantiles, each moved outwards by so many widths."""
        return stretched(anchors[0], anchors[1], multiplied(limits, anchors[1] - anchors[0]))


@dataclass(frozen=True)
class OneSidedCQR(IntervalScore):
    """A bound on one side: score lo - y and region [lo - q, inf), or score y - hi and region (-inf, hi + q].

    Args:
        level: the level of the predicted quantile.
        side: which bound it is.
    """

    level: float = 0.05
    side: Literal["lower", "upper"] = "lower"

    def __post_init__(self) -> None:
        _check_levels(self.level, 1.0)
        if self.side not in ("lower", "upper"):
            raise ValueError(f"`side` must be 'lower' or 'upper'; got {self.side!r}")

    def anchors(self, predicted: Distribution) -> tuple[Tensor, ...]:
        """The quantile."""
        return (without_nan("quantile", icdf(predicted, self.level), predicted),)

    def of_values(self, anchors: tuple[Tensor, ...], values: Tensor) -> Tensor:
        """How far the values lie beyond the quantile."""
        (end,) = anchors
        beyond = sum_up(end, -values) if self.side == "lower" else sum_up(values, -end)
        return beyond.clamp(min=_LOWEST)

    def ends(self, anchors: tuple[Tensor, ...], limits: Tensor) -> tuple[Tensor, Tensor]:
        """The quantile moved outwards by the limit, and infinity."""
        lower, upper = stretched(anchors[0], anchors[0], limits)
        far = torch.full_like(lower, torch.inf)
        if self.side == "lower":
            return lower, torch.where(limits == -torch.inf, upper, far)
        return torch.where(limits == -torch.inf, lower, -far), upper


@dataclass(frozen=True)
class AsymmetricCQR:
    """CQR with a threshold for each side. A recipe like a `Score`, but it has two scores.

    Args:
        lower: the level of the lower quantile.
        upper: the level of the upper quantile.
    """

    lower: float = 0.05
    upper: float = 0.95

    def __post_init__(self) -> None:
        _check_levels(self.lower, self.upper)

    def calibrate(
        self,
        predicted: Distribution,
        targets: ArrayLike,
        *,
        groups: ArrayLike | None = None,
        weights: ArrayLike | None = None,
        difficulty: ArrayLike | None = None,
    ) -> "TwoSidedPredictor":
        """Score held-out rows on both sides; see `Score.calibrate`."""
        sides = (OneSidedCQR(self.lower, "lower"), OneSidedCQR(self.upper, "upper"))
        below, above = (
            side.calibrate(predicted, targets, groups=groups, weights=weights, difficulty=difficulty) for side in sides
        )
        return TwoSidedPredictor(below=below, above=above)


@dataclass(frozen=True, eq=False, kw_only=True)
class TwoSidedPredictor:
    """Calibrated bounds on either side.

    Attributes:
        below: the predictor of lower bounds.
        above: the predictor of upper bounds.
    """

    below: ConformalPredictor[Intervals]
    above: ConformalPredictor[Intervals]

    def predict(
        self,
        predicted: Distribution,
        coverage: float = 0.9,
        *,
        groups: ArrayLike | None = None,
        weights: ArrayLike | None = None,
        difficulty: ArrayLike | None = None,
    ) -> Intervals:
        """The intervals between bounds of coverage (1 + coverage)/2 each; see `ConformalPredictor.predict`."""
        level = part_coverage(coverage, 2)
        below, above = (
            side.predict(predicted, level, groups=groups, weights=weights, difficulty=difficulty)
            for side in (self.below, self.above)
        )
        none = below.empty | above.empty
        lower, upper = below.lower.masked_fill(none, torch.inf), above.upper.masked_fill(none, -torch.inf)
        return Intervals.between(lower, upper, of_counts=below.of_counts)


def _check_levels(lower: float, upper: float) -> None:
    if not 0 < lower < upper <= 1:
        raise ValueError(f"quantile levels must lie inside (0, 1) and increase; got {lower} and {upper}")


def _quantiles(predicted: Distribution, lower: float, upper: float) -> tuple[Tensor, Tensor]:
    low, high = (without_nan("quantile", icdf(predicted, level), predicted) for level in (lower, upper))
    return torch.minimum(low, high), torch.maximum(low, high)


def _outside(anchors: tuple[Tensor, ...], values: Tensor) -> Tensor:
    low, high = anchors
    return torch.maximum(sum_up(low, -values), sum_up(values, -high)).clamp(min=_LOWEST)
