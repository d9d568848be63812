r"""Ensemble temperature scaling: one temperature inside the members of a mixture, before they are averaged.

With the log probabilities l_mk of member m, b = 1/T and weights w_m the prediction is

    p_k = sum_m w_m exp(b l_mk) / sum_j exp(b l_mj),

"Uncertainty Quantification and Deep Ensembles" (Rahaman, Thiery, 2021) compare this with tempering the average. The
members stay, so that disagreement can still be told from doubt. With the members' responsibilities r_m for the outcome,
g_m = l_my - E_m[l] and v_m = Var_m[l] under the tempered probabilities, the log likelihood of a row has the
derivatives sum r g and sum r (g^2 - v) - (sum r g)^2 in b. It is not concave: a grid in log T finds the best valley and
a bracketed Newton iteration its floor.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Distribution, Independent

from credibly.calibration.base import Recalibration, Recalibrator
from credibly.calibration.report import checked_targets, warn_unless
from credibly.calibration.temperature import TemperatureReport
from credibly.calibration.tempering import TemperedPass
from credibly.core.checks import check_positive
from credibly.core.errors import NotFiniteError
from credibly.core.typing import ArrayLike
from credibly.distributions.class_rows import is_binary
from credibly.distributions.classes import class_draw_log_probs
from credibly.distributions.mixture import MixturePredictive
from credibly.distributions.rows import num_rows, select

__all__ = ["EnsembleTemperatureScaling", "TemperedMembers"]

_GRID = 25  # temperatures that are tried first
_ROUNDING = 1e-15  # of a mean log likelihood
_BLOCK = 2**18  # log probabilities that are read at once


@dataclass(frozen=True, eq=False)
class TemperedMembers(Recalibration):
    """The class probabilities of every member raised to the power 1 / temperature; the members stay.

    The result is a MixturePredictive over Categorical or Bernoulli members, in float64.
    """

    temperature: float
    report: TemperatureReport

    def __call__(self, predicted: Distribution) -> MixturePredictive:
        """The tempered mixture.

        Raises:
            NotSupportedError: `predicted` keeps no draws of class probabilities.
        """
        scaled = class_draw_log_probs(predicted) / self.temperature
        return MixturePredictive(_members(predicted, scaled), _log_weights(predicted))


def _members(predicted: Distribution, log_probs: Tensor) -> Distribution:
    if not is_binary(predicted):
        return Categorical(logits=log_probs, validate_args=False)
    binary = Bernoulli(logits=log_probs[..., 1] - log_probs[..., 0], validate_args=False)
    labels = len(predicted.event_shape)
    return Independent(binary, labels, validate_args=False) if labels else binary


def _log_weights(predicted: Distribution) -> Tensor | None:
    weights = getattr(predicted, "log_weights", None)
    return torch.log_softmax(weights.double(), 0) if isinstance(weights, Tensor) else None


@dataclass(frozen=True, kw_only=True)
class EnsembleTemperatureScaling(Recalibrator):
    """One temperature for all members and classes, of maximal likelihood of the averaged prediction.

    Args:
        min_temperature: the lower bound.
        max_temperature: the upper bound.
        tolerance: the slope of the mean negative log likelihood in log T at which the search stops.
        max_passes: most passes over the rows after the first 25.
    """

    min_temperature: float = 1e-2
    max_temperature: float = 1e2
    tolerance: float = 1e-8
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

    def fit(self, predicted: Distribution, targets: ArrayLike) -> TemperedMembers:
        """The temperature under which the outcomes are most probable.

        Args:
            predicted: a mixture over draws of class probabilities.
            targets: the observed classes, (rows, *event_shape).

        Raises:
            NotSupportedError: `predicted` keeps no draws of class probabilities.
            NotFiniteError: an outcome had probability 0 under every member; or NaN probabilities.

        Warns:
            ConvergenceWarning: the best temperature lies at a bound, or `max_passes` were made.
        """
        targets = checked_targets("EnsembleTemperatureScaling", predicted, targets)
        with torch.no_grad():
            return self._search(lambda log_power: _pass(predicted, targets, math.exp(log_power)))

    def _search(self, evaluate: Callable[[float], TemperedPass]) -> TemperedMembers:
        low, high = -math.log(self.max_temperature), -math.log(self.min_temperature)
        first = evaluate(0.0)
        grid = [low, *(low + (high - low) * i / (_GRID - 1) for i in range(1, _GRID - 1)), high]
        tried = [(u, evaluate(u)) for u in grid] + [(0.0, first)]
        tried.sort(key=lambda pair: pair[0])
        lowest = min(at.value for _, at in tried)
        best = max(i for i, (_, at) in enumerate(tried) if at.value <= lowest + _ROUNDING)  # no loss at all: the bound
        around = tried[max(best - 1, 0)][0], tried[min(best + 1, len(tried) - 1)][0]
        u, at, passes = self._refine(*tried[best], *around, evaluate)
        slope = abs(at.slope) * math.exp(u)
        at_bound = u in (low, high)
        reason = "at a bound" if at_bound else f"with a slope of {slope:.2e}"
        converged = slope <= self.tolerance and not at_bound
        warn_unless(converged, type(self).__name__, f"the search ended {reason}, T = {math.exp(-u):g}", stacklevel=5)
        report = TemperatureReport(first.value, at.value, slope, len(tried) + passes, at_bound, converged)
        return TemperedMembers(math.exp(-u), report)

    def _refine(
        self, u: float, at: TemperedPass, low: float, high: float, evaluate: Callable[[float], TemperedPass]
    ) -> tuple[float, TemperedPass, int]:
        """Newton's method for a root of the slope between two grid points, bisecting where it leaves the bracket."""
        best = u, at
        passes = 0
        while abs(at.slope) * math.exp(u) > self.tolerance and passes < self.max_passes:
            low, high = (u, high) if at.slope < 0 else (low, u)
            curvature = at.curvature * math.exp(u) + at.slope  # of the value in u, over exp(u)
            following = u - at.slope / curvature if curvature > 0 else math.inf
            following = following if low < following < high else (low + high) / 2
            if following in (low, high):
                break
            u, at, passes = following, evaluate(following), passes + 1
            best = (u, at) if at.value <= best[1].value + _ROUNDING else best
        return (*best, passes)


def _pass(predicted: Distribution, targets: Tensor, power: float) -> TemperedPass:
    """Means over rows at b = power: the value, and its derivatives in b."""
    rows = num_rows(predicted)
    of_a_row = class_draw_log_probs(select(predicted, slice(0, 1))).numel()
    block = max(1, _BLOCK // of_a_row)
    totals = torch.zeros(3, dtype=torch.float64)
    for start in range(0, rows, block):
        where = slice(start, min(start + block, rows))
        totals += _sums(select(predicted, where), targets[where], power).cpu()
    value, slope, curvature = (totals / targets.numel()).tolist()
    return TemperedPass(value, slope, curvature, separable=False)


def _sums(predicted: Distribution, targets: Tensor, power: float) -> Tensor:
    log_probs = class_draw_log_probs(predicted)
    log_norm = torch.logsumexp(power * log_probs, -1, keepdim=True)
    probs = (power * log_probs - log_norm).exp()
    finite = torch.where(log_probs.isneginf(), 0.0, log_probs)
    expected = (probs * finite).sum(-1)
    spread = (probs * (finite - expected.unsqueeze(-1)).square()).sum(-1)
    index = targets.long().expand(log_probs.shape[:-1]).unsqueeze(-1)
    outcome = log_probs.gather(-1, index).squeeze(-1)
    joint = power * outcome - log_norm.squeeze(-1)
    weights = _log_weights(predicted)
    if weights is not None:
        joint = joint + weights.reshape(-1, *(1,) * (joint.dim() - 1))
    value = torch.logsumexp(joint, 0)
    if not bool(value.isfinite().all()):
        raise NotFiniteError("`targets` have probability 0 (or NaN) under every member of `predicted`")
    share = (joint - value).exp()
    gain = torch.where(outcome.isneginf(), 0.0, outcome) - expected
    slope = (share * gain).sum(0)
    curvature = (share * (gain.square() - spread)).sum(0) - slope.square()
    return -torch.stack([value.sum(), slope.sum(), curvature.sum()])
