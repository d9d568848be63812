"""Residuals: the distance between a number and its predicted mean, as it is or in units of a scale."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributions import Distribution

from credibly.conformal.interval_score import IntervalScore, divided, multiplied, stretched, without_nan
from credibly.conformal.intervals import sum_up
from credibly.core.checks import check_positive
from credibly.core.errors import NotSupportedError, ShapeError
from credibly.distributions.moments import mean, variance

__all__ = ["AbsoluteResidual", "StandardizedResidual", "moment"]

_ADVICE = "use CQR, which reads quantiles"


@dataclass(frozen=True)
class AbsoluteResidual(IntervalScore):
    """Score |y - mean|; the region is [mean - q, mean + q].

    "Distribution-Free Predictive Inference for Regression" (Lei, G'Sell, Rinaldo, Tibshirani, Wasserman,
    2018). All rows get the same width unless a difficulty is given. Scores and intervals are float64,
    whatever the dtype of the prediction, and rounded outwards and inwards respectively, so that they agree
    exactly.
    """

    def anchors(self, predicted: Distribution) -> tuple[Tensor, ...]:
        """The mean."""
        return (without_nan("mean", moment(mean, predicted, _ADVICE), predicted),)

    def of_values(self, anchors: tuple[Tensor, ...], values: Tensor) -> Tensor:
        """The distances from the mean."""
        return _distance(anchors[0], values)

    def ends(self, anchors: tuple[Tensor, ...], limits: Tensor) -> tuple[Tensor, Tensor]:
        """As far below and above the mean as the limit says."""
        return stretched(anchors[0], anchors[0], limits)


@dataclass(frozen=True)
class StandardizedResidual(IntervalScore):
    """Score |y - mean| / scale; the region is [mean - q scale, mean + q scale].

    "Normalized Nonconformity Measures for Regression Conformal Prediction" (Papadopoulos, Gammerman, Vovk, 2008) with
    the prediction's own spread for the difficulty. A scale of 0 is a region of one point, unless the threshold is
    infinite.

    Args:
        scale: None is the predicted standard deviation of every row; numbers, one an output, hold for all rows.
    """

    scale: float | tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        for each in self._numbers:
            check_positive("scale", each)

    @property
    def _numbers(self) -> tuple[float, ...]:
        if self.scale is None:
            return ()
        return tuple(self.scale) if isinstance(self.scale, Sequence) else (self.scale,)

    def anchors(self, predicted: Distribution) -> tuple[Tensor, ...]:
        """The mean and the scale.

        Raises:
            ShapeError: `scale` has not one number for every output.
        """
        centre = without_nan("mean", moment(mean, predicted, _ADVICE), predicted)
        if self.scale is None:
            return centre, without_nan("variance", moment(variance, predicted, _ADVICE), predicted).sqrt()
        given = self._numbers
        if centre[:1].numel() not in (0, len(given)):
            raise ShapeError(f"`scale` must have {centre[0].numel()} numbers, one an output; got {len(given)}")
        scale = torch.tensor(given, dtype=torch.float64, device=centre.device)
        return centre, scale.reshape(predicted.event_shape).expand(centre.shape)

    def of_values(self, anchors: tuple[Tensor, ...], values: Tensor) -> Tensor:
        """The distances from the mean in units of the scale."""
        centre, scale = anchors
        return divided(_distance(centre, values), scale)

    def ends(self, anchors: tuple[Tensor, ...], limits: Tensor) -> tuple[Tensor, Tensor]:
        """As many scales below and above the mean as the limit says."""
        centre, scale = anchors
        return stretched(centre, centre, multiplied(limits, scale))


def moment(of: Callable[[Distribution], Tensor], predicted: Distribution, advice: str) -> Tensor:
    """A moment of the prediction, or a NotSupportedError that says what to use in its place."""
    try:
        return of(predicted)
    except NotSupportedError as error:
        raise NotSupportedError(f"{error}; {advice}") from error


def _distance(centre: Tensor, values: Tensor) -> Tensor:
    return torch.maximum(sum_up(values, -centre), sum_up(centre, -values))
