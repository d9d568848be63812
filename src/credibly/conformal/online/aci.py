r"""ACI, adaptive conformal inference: the level itself moves with the errors.

"Adaptive Conformal Inference Under Distribution Shift" (Gibbs, Candes, 2021). The threshold is the conformal one of the
scores seen, at a miscoverage a_t that follows the errors err_t, 1 where the score was above its threshold:

    a_{t+1}  =  a_t + gamma (a* - err_t),        a* = 1 - coverage.

It is never clipped: at a_t <= 0 the region is everything and at a_t >= 1 it is nothing, so a_t stays within
[-gamma, 1 + gamma], and for every sequence of T scores, whatever its law,

    | mean err - a* |  <=  (max(a_1, 1 - a_1) + gamma) / (T gamma).
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from credibly.conformal.online.base import OnlineMethod, Option, checked_scores, initial_scores, miscoverage_of, option
from credibly.conformal.online.score_window import ScoreWindow, check_window
from credibly.core.typing import ArrayLike
from credibly.distributions.shapes import broadcast_shape

__all__ = ["ACI", "ACIState"]


@dataclass(frozen=True, eq=False, kw_only=True)
class ACIState:
    """The state of `ACI`.

    Attributes:
        miscoverage: the level a_t of the coming step, any real number, (*shape), float64.
        scores: the scores that it is applied to.
    """

    miscoverage: Tensor
    scores: ScoreWindow


@dataclass(frozen=True, eq=False, kw_only=True)
class ACI(OnlineMethod[ACIState]):
    """Adaptive conformal inference.

    Args:
        coverage: the long-run coverage, in [0, 1]; a number or a tensor.
        step_size: gamma, 0 or above; large follows shifts fast and moves a lot. A number or a tensor.
        window: how many of the latest scores are kept, the initial ones among them; None keeps all.
    """

    coverage: Option = 0.9
    step_size: Option = 0.01
    window: int | None = None

    def __post_init__(self) -> None:
        _ = self._numbers  # checked here, at the start
        check_window(self.window)

    def init(self, scores: ArrayLike = (), *, num_series: int | None = None) -> ACIState:
        """The state before the first step, a_1 = 1 - coverage; see `OnlineMethod.init`."""
        window = ScoreWindow.of(initial_scores(scores, num_series), self.window)
        target, step = self._options(window.recent)
        shape = broadcast_shape(window.shape, target.shape, step.shape)
        return ACIState(miscoverage=target.expand(shape).clone(), scores=window)

    def threshold(self, state: ACIState) -> Tensor:
        """The conformal threshold of the scores seen at the current level; see `OnlineMethod.threshold`."""
        return state.scores.thresholds(state.miscoverage.unsqueeze(-1)).squeeze(-1)

    def update(self, state: ACIState, scores: ArrayLike) -> ACIState:
        """Move the level by the error and keep the score; see `OnlineMethod.update`."""
        given = checked_scores(scores)
        kept = state.scores.push(given, self.window)
        target, step = self._options(given)
        missed = (given > self.threshold(state)).to(torch.float64)
        return ACIState(miscoverage=state.miscoverage + step * (target - missed), scores=kept)

    def _options(self, like: Tensor) -> tuple[Tensor, Tensor]:
        target, step = self._numbers
        return target.to(like.device), step.to(like.device)

    @cached_property
    def _numbers(self) -> tuple[Tensor, Tensor]:
        return miscoverage_of(self.coverage), option("step_size", self.step_size)
