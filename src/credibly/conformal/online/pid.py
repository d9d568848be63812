r"""Conformal PID control: a quantile tracker, an integrator of past errors, and a forecast of the scores.

"Conformal PID Control for Time Series Prediction" (Angelopoulos, Candes, Tibshirani, 2023). The threshold is

    q_t  =  tracker_t  +  r_{t-1}(E_t)  +  forecast_t,        E_t = sum of (err_i - a*) over the t - 1 steps before,

where the tracker moves by eta (err - a*), the P term; the forecast of the coming score, the D term, is the user's; and
the I term is the saturation function

    r_t(x)  =  K tan( x log(t) / (C t) ),        infinite, with the sign of x, from pi/2 on.

Once E_t reaches (pi/2) C (t - 1) / log(t - 1) the region is everything, so whatever the scores and the forecasts are,

    | mean err - a* |  <=  (pi/2) C / log T  +  1 / T        for T steps, C of 1 or above and T of 4 or above.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from credibly.conformal.online.base import (
    OnlineMethod,
    Option,
    checked_scores,
    fitting,
    initial_scores,
    miscoverage_of,
    option,
)
from credibly.conformal.online.quantile_tracker import initial_threshold
from credibly.core.checks import as_tensor, check_finite, check_positive
from credibly.core.typing import ArrayLike
from credibly.distributions.shapes import broadcast_shape

__all__ = ["ConformalPID", "ConformalPIDState"]


@dataclass(frozen=True, eq=False, kw_only=True)
class ConformalPIDState:
    """The state of `ConformalPID`.

    Attributes:
        tracker: the quantile tracker's part of the threshold, (*shape), float64.
        num_missed: how many scores were above their thresholds, (*shape), int64.
        num_updates: how many scores have come.
        forecast: the forecast of the coming score, broadcasts with the others; 0 where none was given.
    """

    tracker: Tensor
    num_missed: Tensor
    forecast: Tensor
    num_updates: int = 0


@dataclass(frozen=True, eq=False, kw_only=True)
class ConformalPID(OnlineMethod[ConformalPIDState]):
    """Proportional, integral and derivative control of the coverage.

    Args:
        step_size: eta of the tracker, 0 or above, in the unit of the scores; a number or a tensor.
        gain: K of the integrator, 0 or above, in the unit of the scores, about their size; 0 leaves the tracker alone.
        coverage: the long-run coverage, in [0, 1]; a number or a tensor.
        saturation: C of the integrator, above 0; smaller holds the errors in a narrower band. The paper takes
            (2 / pi) (ceil(log(T) d) - 1 / log T) for a deviation of at most d after T steps.
    """

    step_size: Option
    gain: Option
    coverage: Option = 0.9
    saturation: float = 1.0

    def __post_init__(self) -> None:
        _ = self._numbers  # checked here, at the start
        check_positive("saturation", self.saturation)

    def init(self, scores: ArrayLike = (), *, num_series: int | None = None) -> ConformalPIDState:
        """The state before the first step, no errors yet; see `OnlineMethod.init` and `initial_threshold`."""
        start = initial_threshold(initial_scores(scores, num_series), self.coverage)
        shape = broadcast_shape(start.shape, *(each.shape for each in self._numbers))
        tracker = start.expand(shape).clone()
        count = torch.zeros_like(tracker, dtype=torch.int64)
        return ConformalPIDState(tracker=tracker, num_missed=count, forecast=tracker.new_zeros(()))

    def with_forecast(self, state: ConformalPIDState, forecast: ArrayLike) -> ConformalPIDState:
        """The state with a forecast of the coming score; it holds for one step.

        With it, the initial scores should be errors of such forecasts.

        Args:
            state: the state.
            forecast: broadcasts to the state's shape; finite.

        Raises:
            ShapeError: `forecast` does not broadcast.
            NotFiniteError: NaN or infinite forecasts.
        """
        given = check_finite("forecast", as_tensor(forecast, device=state.tracker.device)).detach().to(torch.float64)
        return replace(state, forecast=fitting("forecast", given, state.tracker.shape))

    def threshold(self, state: ConformalPIDState) -> Tensor:
        """Tracker, integrator and forecast together; see `OnlineMethod.threshold`."""
        return state.forecast + (state.tracker + self._integral(state))

    def update(self, state: ConformalPIDState, scores: ArrayLike) -> ConformalPIDState:
        """Count the error and move the tracker; the forecast is used up. See `OnlineMethod.update`."""
        given = fitting("scores", checked_scores(scores), state.tracker.shape)
        missed = given > self.threshold(state)
        target, step, _ = (each.to(given.device) for each in self._numbers)
        return ConformalPIDState(
            tracker=state.tracker + step * (missed.to(torch.float64) - target),
            num_missed=state.num_missed + missed,
            forecast=state.tracker.new_zeros(()),
            num_updates=state.num_updates + 1,
        )

    def _integral(self, state: ConformalPIDState) -> Tensor:
        """The saturated sum of errors; 0 before the second step, and for a gain of 0."""
        if state.num_updates < 2:
            return torch.zeros_like(state.tracker)
        target, _, gain = (each.to(state.tracker.device) for each in self._numbers)
        excess = state.num_missed - state.num_updates * target
        angle = excess * math.log(state.num_updates) / (self.saturation * state.num_updates)
        saturated = torch.where(angle.abs() < math.pi / 2, angle.tan(), angle.sign() * torch.inf)
        return torch.where(gain > 0, gain * saturated, 0.0)

    @cached_property
    def _numbers(self) -> tuple[Tensor, Tensor, Tensor]:
        return miscoverage_of(self.coverage), option("step_size", self.step_size), option("gain", self.gain)
