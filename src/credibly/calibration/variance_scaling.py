r"""Variance scaling: the spread of every forecast times one factor, its mean left where it is.

"Evaluating and Calibrating Uncertainty Prediction in Regression Tasks" (Levi, Gispan, Giladi, Fetaya, 2022), "Well-
Calibrated Regression Uncertainty in Medical Imaging with Deep Learning" (Laves, Ihler, Fast, Kahrs, Ortmaier, 2020).
With z_i = (y_i - mean_i) / stddev_i the factor is in closed form

    s = sqrt(mean of z_i^2),

the maximum of the likelihood for Gaussian forecasts; for others it makes the mean squared standardised error 1.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributions import Distribution

from credibly.calibration.base import Recalibration, Recalibrator
from credibly.calibration.report import FitReport, checked_targets, report_of, warn_unless
from credibly.core.checks import check_positive
from credibly.core.errors import NotFiniteError, ShapeError
from credibly.core.typing import ArrayLike
from credibly.distributions.affine import affine
from credibly.distributions.moments import mean, variance

__all__ = ["ScaledSpread", "VarianceScaling"]


@dataclass(frozen=True, eq=False)
class ScaledSpread(Recalibration):
    """Y becomes mean + factor * (Y - mean). Families closed under it (Normal, Laplace, ...) stay what they are.

    Attributes:
        factor: one for every output, (*event_shape), float64.
        report: how the fit went.
    """

    factor: Tensor
    report: FitReport

    def __call__(self, predicted: Distribution) -> Distribution:
        """The recalibrated forecasts, in the precision of the given ones.

        Raises:
            NotSupportedError: counts or classes, or a forecast without a mean.
            ShapeError: another number of outputs than that of the fit.
        """
        if predicted.event_shape != self.factor.shape:
            raise ShapeError(
                f"`predicted` must have event_shape {tuple(self.factor.shape)}, like the forecasts that the "
                f"recalibration was fitted to; got {tuple(predicted.event_shape)}"
            )
        return _scaled(predicted, self.factor)


def _scaled(predicted: Distribution, factor: Tensor) -> Distribution:
    centre = mean(predicted)
    factor = factor.to(device=centre.device)
    return affine(predicted, ((1 - factor) * centre.double()).to(centre.dtype), factor.to(centre.dtype))


@dataclass(frozen=True, kw_only=True)
class VarianceScaling(Recalibrator):
    """One factor for all standard deviations, or one for every output.

    Args:
        min_factor: what the factor is if every target is predicted exactly.
    """

    min_factor: float = 1e-6

    def __post_init__(self) -> None:
        check_positive("min_factor", self.min_factor)

    def fit(self, predicted: Distribution, targets: ArrayLike) -> ScaledSpread:
        """The factor, in closed form.

        Args:
            predicted: a distribution of real numbers with a mean and a variance.
            targets: what came, (rows, *event_shape).

        Raises:
            NotSupportedError: counts or classes, or a forecast without a variance.
            NotFiniteError: a variance of 0, NaN or infinity.

        Warns:
            ConvergenceWarning: every target is predicted exactly, so that the factor is `min_factor`.
        """
        targets = checked_targets("VarianceScaling", predicted, targets)
        with torch.no_grad():
            spread = variance(predicted).double()
            if not bool(((spread > 0) & spread.isfinite()).all()):
                raise NotFiniteError("`predicted` must have variances that are finite and above 0")
            error = targets.double() - mean(predicted).double()
            factor = (error.square() / spread).mean(0).sqrt()
            exact = bool((factor < self.min_factor).any())
            warn_unless(not exact, "VarianceScaling", f"the factor ended at its bound {self.min_factor:g}: no errors")
            factor = factor.clamp(min=self.min_factor)
            report = report_of(predicted, _scaled(predicted, factor), targets)
            return ScaledSpread(factor, FitReport(report.nll_before, report.nll_after, converged=not exact))
