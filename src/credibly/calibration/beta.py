r"""Beta calibration: a curve with the shape of a ratio of Beta densities.

"Beta calibration: a well-founded and easily implemented improvement on logistic calibration for binary classifiers"
(Kull, Silva Filho, Flach, 2017): the log odds become

    a log p - b log(1 - p) + c,    a, b >= 0,

of maximal likelihood. a = b = 1, c = 0 is the identity, so that calibrated forecasts can be left alone, which a
logistic curve of p cannot. Where the best a or b is negative, the maximum lies on the border and is found there: the
problem is convex, so the best of the admissible among its four faces is the maximum.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.distributions import Distribution

from credibly.calibration.base import Recalibration, Recalibrator
from credibly.calibration.events import EventForecasts, event_forecasts, event_outcomes, from_event_log_odds
from credibly.calibration.logistic import LogisticFit, fit_logistic
from credibly.calibration.report import FitReport, checked_targets, mean_nll, warn_unless
from credibly.core.checks import check_count, check_positive
from credibly.core.typing import ArrayLike

__all__ = ["BetaCalibratedClasses", "BetaCalibration"]

_FACES = ((1.0, 0.0), (0.0, 1.0), (0.0, 0.0))


@dataclass(frozen=True, eq=False)
class BetaCalibratedClasses(Recalibration):
    """Log odds become a log p - b log(1 - p) + c; several classes are renormalised.

    Attributes:
        a: one a map, (1,) or (classes,), float64, at least 0.
        b: likewise.
        c: likewise, of any sign.
        report: how the fit went.
    """

    a: Tensor = field(repr=False)
    b: Tensor = field(repr=False)
    c: Tensor = field(repr=False)
    report: FitReport

    def __call__(self, predicted: Distribution) -> Distribution:
        """The recalibrated forecasts, a plain Bernoulli or Categorical in float64.

        Raises:
            NotSupportedError: `predicted` is not a distribution over classes.
            ShapeError: another number of classes than that of the fit.
        """
        events = event_forecasts(predicted, len(self.a))
        a, b, c = (each.to(events.happens.device).unsqueeze(-1) for each in (self.a, self.b, self.c))
        return from_event_log_odds(predicted, a * events.happens - b * events.fails + c)


@dataclass(frozen=True, kw_only=True)
class BetaCalibration(Recalibrator):
    """Three parameters: of the event for a binary outcome, else one against the rest.

    The likelihood has no maximum for separable data: the curve then grows steep until the gradient vanishes.

    Args:
        tolerance: the gradient norm of the mean loss, with log p and log(1 - p) scaled to size 1.
        max_iterations: most Newton steps.
    """

    tolerance: float = 1e-10
    max_iterations: int = 100

    def __post_init__(self) -> None:
        check_positive("tolerance", self.tolerance)
        check_count("max_iterations", self.max_iterations)

    def fit(self, predicted: Distribution, targets: ArrayLike) -> BetaCalibratedClasses:
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
        targets = checked_targets("BetaCalibration", predicted, targets)
        with torch.no_grad():
            events = event_forecasts(predicted)
            features, size = _features(events)
            found = self._constrained(features, event_outcomes(predicted, targets))
            a, b = (found.weights[:, :2] / size).unbind(-1)
            c = found.weights[:, 2]
            norm = float(found.gradient_norm.amax())
            converged = norm <= self.tolerance
            warn_unless(converged, "BetaCalibration", f"gradient norm {norm:.2e}; `tolerance` is {self.tolerance:g}")
            odds = a.unsqueeze(-1) * events.happens - b.unsqueeze(-1) * events.fails + c.unsqueeze(-1)
            after = mean_nll(from_event_log_odds(predicted, odds), targets)
            report = FitReport(mean_nll(predicted, targets), after, norm, found.num_iterations, converged)
            return BetaCalibratedClasses(a, b, c, report)

    def _constrained(self, features: Tensor, outcomes: Tensor) -> LogisticFit:
        """The best weights whose first two are not negative."""
        best = self._on_face(features, outcomes, (1.0, 1.0))
        if bool((best.weights[:, :2] >= 0).all()):
            return best
        loss = torch.where((best.weights[:, :2] >= 0).all(-1), best.loss, float("inf"))
        best = best._replace(loss=loss)
        for face in _FACES:
            best = _better(best, self._on_face(features, outcomes, face))
        return best

    def _on_face(self, features: Tensor, outcomes: Tensor, face: tuple[float, float]) -> LogisticFit:
        masked = features * features.new_tensor([*face, 1.0])
        return fit_logistic(masked, outcomes, tolerance=self.tolerance, max_iterations=self.max_iterations)


def _features(events: EventForecasts) -> tuple[Tensor, Tensor]:
    """Log p, -log(1 - p) and 1, the first two scaled to a largest size of 1, with their sizes (maps, 2)."""
    pair = torch.stack([events.happens, -events.fails], -1)
    size = pair.abs().amax(1)
    size = torch.where(size > 0, size, 1.0)
    return torch.cat([pair / size.unsqueeze(1), torch.ones_like(pair[..., :1])], -1), size


def _better(one: LogisticFit, other: LogisticFit) -> LogisticFit:
    """Of each map the fit with the smaller loss, among those without negative weights."""
    admissible = (other.weights[:, :2] >= 0).all(-1) & (other.loss < one.loss)
    return LogisticFit(
        torch.where(admissible.unsqueeze(-1), other.weights, one.weights),
        torch.where(admissible, other.loss, one.loss),
        torch.where(admissible, other.gradient_norm, one.gradient_norm),
        max(one.num_iterations, other.num_iterations),
    )
