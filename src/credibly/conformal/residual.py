"""The absolute residual: the distance between a number and its predicted mean."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributions import Distribution

from credibly.conformal.base import Score
from credibly.conformal.intervals import Intervals, sum_down, sum_up
from credibly.conformal.rows import row_thresholds
from credibly.core.checks import as_tensor
from credibly.core.errors import NotFiniteError, NotSupportedError, ShapeError
from credibly.core.typing import ArrayLike
from credibly.distributions.functions import kind, mean
from credibly.distributions.rows import num_rows
from credibly.distributions.targets import match_targets

__all__ = ["AbsoluteResidual"]


@dataclass(frozen=True)
class AbsoluteResidual(Score[Intervals]):
    """Score |y - mean|; the region is [mean - q, mean + q].

    "Distribution-Free Predictive Inference for Regression" (Lei, G'Sell, Rinaldo, Tibshirani, Wasserman,
    2018). All rows get the same width unless a difficulty is given. Scores and intervals are float64,
    whatever the dtype of the prediction, and rounded outwards and inwards respectively, so that they agree
    exactly.
    """

    def score(self, predicted: Distribution, targets: ArrayLike, u: Tensor | None = None) -> Tensor:
        """The distance of every row's target from the mean, (rows,); see `Score.score`.

        Raises:
            NotSupportedError: `predicted` is about classes, or about several outputs a row.
        """
        centre = self._centre(predicted)
        values = match_targets(predicted, as_tensor(targets)).reshape(centre.shape).to(torch.float64)
        return torch.maximum(sum_up(values, -centre), sum_up(centre, -values))

    def region(
        self,
        predicted: Distribution,
        thresholds: ArrayLike,
        u: Tensor | None = None,
    ) -> Intervals:
        """The interval around each mean; see `Score.region`.

        Raises:
            NotSupportedError: `predicted` is about classes, or about several outputs a row.
        """
        centre = self._centre(predicted)
        limits = row_thresholds(thresholds, len(centre), centre.device)
        if limits.dim() == 2 and limits.shape[-1] != 1:
            raise ShapeError(f"`thresholds` must be one number a row; got {tuple(limits.shape)}")
        limits = limits.squeeze(-1).expand(centre.shape) if limits.dim() else limits.expand(centre.shape)
        whole = limits == torch.inf
        lower = sum_up(centre, -limits).masked_fill(whole, -torch.inf)
        upper = sum_down(centre, limits).masked_fill(whole, torch.inf)
        return Intervals.between(lower, upper)

    def _centre(self, predicted: Distribution) -> Tensor:
        if kind(predicted) == "class":
            raise NotSupportedError(
                f"AbsoluteResidual needs a number to predict; a {type(predicted).__name__} is about classes: "
                "use LAC or APS"
            )
        if predicted.event_shape not in ((), (1,)):
            raise NotSupportedError(
                "AbsoluteResidual needs one output a row; `predicted` has event_shape "
                f"{tuple(predicted.event_shape)}: take each output by itself"
            )
        centre = mean(predicted).detach().reshape(num_rows(predicted)).to(torch.float64)
        if bool(centre.isnan().any()):
            raise NotFiniteError(f"the mean of `predicted` is NaN in {int(centre.isnan().sum())} rows")
        return centre
