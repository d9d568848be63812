r"""The quantile tracker: the threshold itself moves with the errors, online gradient descent on the pinball loss.

"Conformal PID Control for Time Series Prediction" (Angelopoulos, Candes, Tibshirani, 2023). With err_t = 1 where the
score was above its threshold,

    q_{t+1}  =  q_t + eta_t (err_t - a*),        a* = 1 - coverage,    eta_t = step_size * t^(-decay).

For scores in [0, b], a start in [0, b] and a constant step size, for every sequence of T scores

    | mean err - a* |  <=  (b + eta) / (T eta),

and for steps that decay ("Online Conformal Prediction with Decaying Step Sizes", Angelopoulos, Barber, Bates, 2024)
with eta_1 above and eta_T below the line. Nothing needs to be sorted or kept; the step size is in the unit of the
scores.
"""

from dataclasses import dataclass
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
from credibly.conformal.online.score_window import ScoreWindow
from credibly.core.checks import check_nonnegative
from credibly.core.typing import ArrayLike
from credibly.distributions.shapes import broadcast_shape

__all__ = ["QuantileTracker", "QuantileTrackerState", "initial_threshold"]


@dataclass(frozen=True, eq=False, kw_only=True)
class QuantileTrackerState:
    """The state of `QuantileTracker`.

    Attributes:
        threshold: of the coming step, (*shape), float64.
        num_updates: how many scores have come.
    """

    threshold: Tensor
    num_updates: int = 0


@dataclass(frozen=True, eq=False, kw_only=True)
class QuantileTracker(OnlineMethod[QuantileTrackerState]):
    """A threshold that goes up after a miss and down after a hit.

    Args:
        step_size: eta, 0 or above, in the unit of the scores; a tenth of their range is common. A number or a tensor.
        coverage: the long-run coverage, in [0, 1]; a number or a tensor.
        decay: the power of time by which steps shrink, 0 or above; 0 keeps following shifts, and between 1/2 and 1 the
            threshold also settles down where the scores are exchangeable.
    """

    step_size: Option
    coverage: Option = 0.9
    decay: float = 0.0

    def __post_init__(self) -> None:
        _ = self._numbers  # checked here, at the start
        check_nonnegative("decay", self.decay)

    def init(self, scores: ArrayLike = (), *, num_series: int | None = None) -> QuantileTrackerState:
        """The state before the first step, at `initial_threshold`; see `OnlineMethod.init`."""
        start = initial_threshold(initial_scores(scores, num_series), self.coverage)
        step = self._numbers[1]
        return QuantileTrackerState(threshold=start.expand(broadcast_shape(start.shape, step.shape)).clone())

    def threshold(self, state: QuantileTrackerState) -> Tensor:
        """The threshold of the coming step; see `OnlineMethod.threshold`."""
        return state.threshold

    def update(self, state: QuantileTrackerState, scores: ArrayLike) -> QuantileTrackerState:
        """Move the threshold by the error; see `OnlineMethod.update`."""
        given = fitting("scores", checked_scores(scores), state.threshold.shape)
        count = state.num_updates + 1
        target, step = (each.to(given.device) for each in self._numbers)
        missed = (given > state.threshold).to(torch.float64)
        return QuantileTrackerState(
            threshold=state.threshold + step * count**-self.decay * (missed - target), num_updates=count
        )

    @cached_property
    def _numbers(self) -> tuple[Tensor, Tensor]:
        return miscoverage_of(self.coverage), option("step_size", self.step_size)


def initial_threshold(scores: ArrayLike, coverage: Option) -> Tensor:
    """A finite start: the conformal threshold of the scores, within the range of the finite ones, and 0 without any.

    Args:
        scores: (*series, n).
        coverage: broadcasts with the series.

    Returns:
        One number a series and level, float64.
    """
    window = ScoreWindow.of(scores, None)
    levels = miscoverage_of(coverage).to(window.recent.device)
    found = window.thresholds(levels.unsqueeze(-1)).squeeze(-1)
    finite = window.ordered.isfinite()
    if not window.ordered.shape[-1]:
        return torch.zeros_like(found)
    lowest, largest = window.ordered[..., 0], window.ordered.masked_fill(~finite, -torch.inf).amax(-1)
    return torch.where(finite.any(-1), found.clamp(lowest, largest), 0.0)
