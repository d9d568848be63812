r"""Temperature scaling: class probabilities raised to the power 1/T and normalised.

"On Calibration of Modern Neural Networks" (Guo, Pleiss, Sun, Weinberger, 2017). With the log probabilities
l_k of a row, its outcome y, b = 1/T and a_k = l_k - l_y, the mean negative log likelihood is

    f(b) = mean log sum_k exp(b a_k),    f' = mean E_b[a],    f'' = mean Var_b[a],

where E_b and Var_b are over the tempered probabilities. f is convex in b, so the root of f' is bracketed by
the signs seen so far. Newton's method runs in u = log b, where its step is -f' / (b f''), and falls back on
the bracket's middle. One pass over the rows gives f, f' and f''.

f has no minimum at a positive, finite T in two cases. If every outcome is the most probable class, f falls
for ever as T -> 0 (separable data). If the forecasts are no better than uniform ones, f falls as T ->
infinity. Both end at a bound, with a warning.
"""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.distributions import Distribution

from credibly.calibration.base import Recalibration, Recalibrator
from credibly.calibration.tempering import OddsBlocks, TemperedPass, tempered_pass
from credibly.core.checks import check_positive
from credibly.core.errors import ConvergenceWarning, ShapeError
from credibly.core.typing import ArrayLike
from credibly.distributions.class_rows import class_distribution
from credibly.distributions.classes import class_log_probs
from credibly.distributions.targets import match_targets

__all__ = ["TemperatureReport", "TemperatureScaling", "TemperedClasses"]

_LONGEST_STEP = 2.0  # in log T


@dataclass(frozen=True)
class TemperatureReport:
    """How a temperature was found.

    Attributes:
        nll_before: mean negative log likelihood at T = 1.
        nll_after: the same at the temperature found; never above `nll_before`.
        gradient_norm: absolute slope of the mean negative log likelihood in log T, at the end.
        num_passes: passes over the rows.
        at_bound: whether the temperature is one of the bounds, because there is no minimum between them.
        converged: whether the search ended at a minimum, as well as rounding allows.
    """

    nll_before: float
    nll_after: float
    gradient_norm: float
    num_passes: int
    at_bound: bool
    converged: bool


@dataclass(frozen=True, eq=False)
class TemperedClasses(Recalibration):
    """Class probabilities raised to the power 1 / temperature and normalised; the most probable class stays.

    The result is a plain Categorical, or Bernoulli for a binary outcome, in float64: the precision in which
    marginal class probabilities are computed.
    """

    temperature: float
    report: TemperatureReport

    def __call__(self, predicted: Distribution) -> Distribution:
        """The tempered forecasts.

        Raises:
            NotSupportedError: `predicted` is not a distribution over classes.
        """
        return class_distribution(predicted, class_log_probs(predicted) / self.temperature)


@dataclass(frozen=True, kw_only=True)
class TemperatureScaling(Recalibrator):
    """One temperature for all classes, of maximal likelihood.

    It reads the class probabilities of a distribution, so logits and probabilities cannot be mistaken for
    one another: whoever builds the distribution says which they are.

    Args:
        min_temperature: the lower bound.
        max_temperature: the upper bound.
        tolerance: the slope of the mean negative log likelihood in log T at which the search stops.
        max_passes: most passes over the rows.
    """

    min_temperature: float = 1e-3
    max_temperature: float = 1e6
    tolerance: float = 1e-10
    max_passes: int = 60

    def __post_init__(self) -> None:
        check_positive("min_temperature", self.min_temperature)
        check_positive("max_temperature", self.max_temperature)
        check_positive("tolerance", self.tolerance)
        if not self.min_temperature < 1 < self.max_temperature:
            raise ValueError(
                "`min_temperature` and `max_temperature` must enclose 1; "
                f"got {self.min_temperature} and {self.max_temperature}"
            )
        if self.max_passes < 2:
            raise ValueError(f"`max_passes` must be at least 2; got {self.max_passes}")

    def fit(self, predicted: Distribution, targets: ArrayLike) -> TemperedClasses:
        """The temperature under which the outcomes are most probable; several labels of a row share it.

        Args:
            predicted: a distribution over classes; a mixture counts as its mean probabilities.
            targets: the observed classes, (rows, *event_shape).

        Raises:
            NotFiniteError: an outcome had probability 0, which no temperature changes; or NaN probabilities.
            NotSupportedError: `predicted` is not a distribution over classes.

        Warns:
            ConvergenceWarning: the likelihood has no maximum between the bounds, or `max_passes` were made.
        """
        targets = match_targets(predicted, targets)
        if not targets.numel():
            raise ShapeError("a temperature needs at least one row; `predicted` and `targets` are empty")
        with torch.no_grad():
            odds = OddsBlocks(predicted, targets)
            return self._search(lambda power: tempered_pass(odds, power))

    def _bounds(self) -> dict[float, float]:
        """The bounds of u = log(1/T), each with its temperature."""
        return {-math.log(bound): bound for bound in (self.min_temperature, self.max_temperature)}

    def _search(self, evaluate: Callable[[float], TemperedPass]) -> TemperedClasses:
        low, high = sorted(self._bounds())
        first = at = evaluate(1.0)
        u, tried = 0.0, {0.0}
        if first.separable:  # the slope fades long before the bound is reached
            u = low = high
            at = evaluate(math.exp(u))
        while low < high and abs(at.slope) * math.exp(u) > self.tolerance and len(tried) < self.max_passes:
            low, high = (u, high) if at.slope < 0 else (low, u)
            u = _next(u, at, low, high, tried)
            if u in tried:  # the bracket is as narrow as rounding allows
                break
            tried.add(u)
            at = evaluate(math.exp(u))
        return self._result(u, first, at, len(tried | {u}))

    def _result(self, u: float, first: TemperedPass, at: TemperedPass, num_passes: int) -> TemperedClasses:
        if at.value > first.value:  # by rounding alone
            u, at = 0.0, first
        slope = abs(at.slope) * math.exp(u)
        temperature = self._bounds().get(u, math.exp(-u))
        at_bound = u in self._bounds() and (first.separable or slope > self.tolerance)
        if at_bound:
            reason = "every outcome is the most probable class" if first.separable else "the best lies beyond"
            _warn(f"the temperature ended at its bound {temperature:g}: {reason}")
        stopped = not at_bound and slope > self.tolerance and num_passes >= self.max_passes
        if stopped:
            _warn(f"{num_passes} passes left a slope of {slope:.2e}; `tolerance` is {self.tolerance:g}")
        report = TemperatureReport(first.value, at.value, slope, num_passes, at_bound, not (at_bound or stopped))
        return TemperedClasses(temperature, report)


def _warn(message: str) -> None:
    warnings.warn(f"TemperatureScaling: {message}", ConvergenceWarning, stacklevel=5)


def _next(u: float, at: TemperedPass, low: float, high: float, tried: set[float]) -> float:
    """The next u: Newton's, at most a step away and inside the bracket; else the bracket's middle."""
    curvature = at.curvature * math.exp(u)
    step = -at.slope / curvature if curvature > 0 else math.copysign(math.inf, -at.slope)
    following = u + max(-_LONGEST_STEP, min(_LONGEST_STEP, step))
    following = max(low, min(high, following))
    return (low + high) / 2 if following in tried else following
