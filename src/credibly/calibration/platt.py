r"""Platt scaling: a logistic curve of the log odds.

"Probabilistic Outputs for Support Vector Machines and Comparisons to Regularized Likelihood Methods" (Platt, 1999):
log odds s become a s + b, with a and b of maximal likelihood for smoothed targets: (N+ + 1)/(N+ + 2) where the event
came, 1/(N- + 2) where it did not. The smoothing keeps the maximum finite, also for separable data and for one class
only. Newton's method with a line search, on centred and scaled log odds, so that rescaling them changes nothing (Lin,
Lin, Weng, "A Note on Platt's Probabilistic Outputs for Support Vector Machines", 2007).
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.distributions import Distribution

from credibly.calibration.base import Recalibration, Recalibrator
from credibly.calibration.events import event_forecasts, event_outcomes, from_event_log_odds
from credibly.calibration.logistic import fit_logistic
from credibly.calibration.report import FitReport, checked_targets, mean_nll, warn_unless
from credibly.core.checks import check_count, check_positive
from credibly.core.typing import ArrayLike

__all__ = ["PlattScaledClasses", "PlattScaling"]


@dataclass(frozen=True, eq=False)
class PlattScaledClasses(Recalibration):
    """Log odds s of every event become slope * s + intercept; several classes are renormalised.

    Attributes:
        slope: one a map, (1,) or (classes,), float64.
        intercept: likewise.
        report: how the fit went.
    """

    slope: Tensor = field(repr=False)
    intercept: Tensor = field(repr=False)
    report: FitReport

    def __call__(self, predicted: Distribution) -> Distribution:
        """The recalibrated forecasts, a plain Bernoulli or Categorical in float64.

        Raises:
            NotSupportedError: `predicted` is not a distribution over classes.
            ShapeError: another number of classes than that of the fit.
        """
        odds = event_forecasts(predicted, len(self.slope)).log_odds
        slope, intercept = (each.to(odds.device).unsqueeze(-1) for each in (self.slope, self.intercept))
        return from_event_log_odds(predicted, slope * odds + intercept)


@dataclass(frozen=True, kw_only=True)
class PlattScaling(Recalibrator):
    """A slope and an intercept for the log odds: of the event for a binary outcome, else one against the rest.

    Args:
        tolerance: the gradient norm of the mean loss, in slope (of log odds scaled to size 1) and intercept.
        max_iterations: most Newton steps.
    """

    tolerance: float = 1e-10
    max_iterations: int = 100

    def __post_init__(self) -> None:
        check_positive("tolerance", self.tolerance)
        check_count("max_iterations", self.max_iterations)

    def fit(self, predicted: Distribution, targets: ArrayLike) -> PlattScaledClasses:
        """The curve of every event.

        Args:
            predicted: a distribution over classes; a mixture counts as its mean probabilities.
            targets: the observed classes, (rows, *event_shape).

        Raises:
            NotSupportedError: `predicted` is not a distribution over classes.
            NotFiniteError: NaN probabilities.

        Warns:
            ConvergenceWarning: the gradient norm is above the tolerance.
        """
        targets = checked_targets("PlattScaling", predicted, targets)
        with torch.no_grad():
            odds = event_forecasts(predicted).log_odds
            centre = odds.mean(-1, keepdim=True)
            size = (odds - centre).abs().amax(-1, keepdim=True)
            size = torch.where(size > 0, size, 1.0)
            features = torch.stack([(odds - centre) / size, torch.ones_like(odds)], -1)
            goals = _smoothed(event_outcomes(predicted, targets))
            found = fit_logistic(features, goals, tolerance=self.tolerance, max_iterations=self.max_iterations)
            slope = found.weights[:, :1] / size
            intercept = found.weights[:, 1:] - slope * centre
            after = from_event_log_odds(predicted, slope * odds + intercept)
            norm = float(found.gradient_norm.amax())
            converged = norm <= self.tolerance
            warn_unless(converged, "PlattScaling", f"gradient norm {norm:.2e}; `tolerance` is {self.tolerance:g}")
            before = mean_nll(predicted, targets)
            report = FitReport(before, mean_nll(after, targets), norm, found.num_iterations, converged)
            return PlattScaledClasses(slope.squeeze(-1), intercept.squeeze(-1), report)


def _smoothed(outcomes: Tensor) -> Tensor:
    """Platt's targets."""
    hits = outcomes.sum(-1, keepdim=True)
    misses = outcomes.shape[-1] - hits
    return torch.where(outcomes > 0, (hits + 1) / (hits + 2), 1 / (misses + 2))
