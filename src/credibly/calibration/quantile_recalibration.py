r"""Quantile recalibration: the distribution function of forecasts corrected by that of their own PIT.

"Accurate Uncertainties for Deep Learning Using Calibrated Regression" (Kuleshov, Fenner, Ermon, 2018). If u_i =
F_i(y_i) are the probability integral transforms of held-out outcomes and R is their distribution function, then
R(F(y)) is calibrated. R is the empirical one: k / (n + 1) at the k-th smallest u, linear in between, from (0, 0) to
(1, 1); or, with `num_knots`, linear between so many of its quantiles, for a density that is not all noise. Where F
jumps u is randomised.

The result has the density R'(F(y)) f(y), the mass R(F(y)) - R(F(y-)) of a count, and the quantiles F^-1(R^-1(q)).
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.distributions import Distribution

from credibly.calibration.base import Recalibration, Recalibrator
from credibly.calibration.piecewise import interpolate, padded
from credibly.calibration.recalibrated import RecalibratedPredictive
from credibly.calibration.report import FitReport, checked_targets, report_of
from credibly.core.checks import check_count
from credibly.core.errors import NotSupportedError
from credibly.core.typing import ArrayLike
from credibly.distributions.kinds import kind
from credibly.metrics.pit import pit

__all__ = ["QuantileRecalibration", "RecalibratedQuantiles"]


@dataclass(frozen=True, eq=False)
class RecalibratedQuantiles(Recalibration):
    """F becomes R(F).

    Attributes:
        levels: levels of F at the knots, one curve for every output, (outputs, knots), float64, from 0 to 1.
        recalibrated: R there.
        report: how the fit went.
    """

    levels: Tensor = field(repr=False)
    recalibrated: Tensor = field(repr=False)
    report: FitReport

    def __call__(self, predicted: Distribution) -> RecalibratedPredictive:
        """The recalibrated forecasts.

        Raises:
            ShapeError: `predicted` has another number of outputs.
            NotSupportedError: classes.
        """
        return RecalibratedPredictive(predicted, self.levels, self.recalibrated)


@dataclass(frozen=True, kw_only=True)
class QuantileRecalibration(Recalibrator):
    """The distribution function of the PIT, for real numbers and counts; each output has its own.

    Args:
        num_knots: linear pieces of R, of equally many outcomes each; None is one between any two outcomes.
        seed: of the random numbers where F jumps.
    """

    num_knots: int | None = None
    seed: int | None = 0

    def __post_init__(self) -> None:
        if self.num_knots is not None:
            check_count("num_knots", self.num_knots)

    def fit(self, predicted: Distribution, targets: ArrayLike) -> RecalibratedQuantiles:
        """The distribution function of the PIT of these rows; exact.

        Args:
            predicted: a distribution of real numbers or counts with a cdf.
            targets: what came, (rows, *event_shape).

        Raises:
            NotSupportedError: classes, or a distribution without a cdf.
        """
        if kind(predicted) == "class":
            raise NotSupportedError(
                "QuantileRecalibration is for numbers and counts; recalibrate classes with TemperatureScaling"
            )
        targets = checked_targets("QuantileRecalibration", predicted, targets)
        with torch.no_grad():
            values = pit(predicted, targets, seed=self.seed).reshape(len(targets), -1).t()
            curves = [self._curve(each) for each in values]
            levels, recalibrated = (padded(column) for column in zip(*curves, strict=True))
            after = RecalibratedPredictive(predicted, levels, recalibrated)
            return RecalibratedQuantiles(levels, recalibrated, report_of(predicted, after, targets))

    def _curve(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Knots of R for one output, both coordinates strictly increasing from 0 to 1."""
        ordered, counts = torch.unique(values, return_counts=True)
        ranks = counts.cumsum(0).to(values.dtype) / (len(values) + 1)
        inner = (ordered > 0) & (ordered < 1)
        ends = values.new_tensor([0.0, 1.0])
        levels = torch.cat([ends[:1], ordered[inner], ends[1:]])
        recalibrated = torch.cat([ends[:1], ranks[inner], ends[1:]])
        if self.num_knots is None or self.num_knots >= len(levels) - 1:
            return levels, recalibrated
        grid = torch.arange(self.num_knots + 1, dtype=values.dtype, device=values.device) / self.num_knots
        return interpolate(recalibrated.unsqueeze(0), levels.unsqueeze(0), grid.unsqueeze(0))[0], grid
