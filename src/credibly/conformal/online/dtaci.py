r"""DtACI: adaptive conformal inference that learns its own step size.

"Conformal Inference for Online Prediction with Arbitrary Distribution Shifts" (Gibbs, Candes, 2024). Several copies of
ACI run side by side, one a step size; the level used is their mean under weights p_k = w_k / sum w. When the score
comes, b_t is its conformal p-value, the largest miscoverage that would still have covered it, and a copy at level a
pays the pinball loss

    l(b, a)  =  a* (b - a) - min(0, b - a).

Weights become w_k exp(-eta l(b_t, a_k)), of which the fraction sigma is then shared out equally, so that a copy which
was bad for long can come back. Each copy keeps the deterministic bound of ACI; the mean of them has none of its own.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from credibly.conformal.online.base import OnlineMethod, Option, checked_scores, initial_scores, miscoverage_of
from credibly.conformal.online.score_window import ScoreWindow, check_window
from credibly.core.checks import check_count, check_nonnegative
from credibly.core.typing import ArrayLike
from credibly.distributions.shapes import broadcast_shape

__all__ = ["DtACI", "DtACIState"]


@dataclass(frozen=True, eq=False, kw_only=True)
class DtACIState:
    """The state of `DtACI`.

    Attributes:
        miscoverage: the level of every copy, (*shape, step sizes), float64.
        weights: the weight of every copy, (*shape, step sizes), float64; they sum to 1.
        scores: the scores that the levels are applied to.
    """

    miscoverage: Tensor
    weights: Tensor
    scores: ScoreWindow


@dataclass(frozen=True, eq=False, kw_only=True)
class DtACI(OnlineMethod[DtACIState]):
    """Dynamically tuned adaptive conformal inference.

    Args:
        coverage: the long-run coverage, strictly between 0 and 1; a number or a tensor.
        step_sizes: one a copy.
        horizon: the number I of steps over which the best step size may change; it sets eta and sigma as in the paper,
            eta = sqrt(3 / I) sqrt((log(I K) + 2) / ((1-a)^2 a^3 + a^2 (1-a)^3)), sigma = 1 / (2 I).
        learning_rate: eta, in place of the paper's.
        sharing: sigma, in place of the paper's; in [0, 1].
        window: how many of the latest scores are kept, the initial ones among them; None keeps all.
    """

    coverage: Option = 0.9
    step_sizes: tuple[float, ...] = (0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128)
    horizon: int = 500
    learning_rate: float | None = None
    sharing: float | None = None
    window: int | None = None

    def __post_init__(self) -> None:
        target = self._numbers
        if not bool(((target > 0) & (target < 1)).all()):
            raise ValueError(f"`coverage` must lie strictly between 0 and 1; got {self.coverage}")
        check_count("step_sizes: their number", len(self.step_sizes))
        for step in self.step_sizes:
            check_nonnegative("step_sizes", step)
        check_count("horizon", self.horizon)
        check_nonnegative("learning_rate", self.learning_rate or 0.0)
        if not 0 <= (self.sharing or 0.0) <= 1:
            raise ValueError(f"`sharing` must lie in [0, 1]; got {self.sharing}")
        check_window(self.window)

    def init(self, scores: ArrayLike = (), *, num_series: int | None = None) -> DtACIState:
        """The state before the first step: every copy at 1 - coverage, all weights equal; see `OnlineMethod.init`."""
        window = ScoreWindow.of(initial_scores(scores, num_series), self.window)
        target = self._target(window.recent)
        shape = (*broadcast_shape(window.shape, target.shape), len(self.step_sizes))
        levels = target.unsqueeze(-1).expand(shape).clone()
        return DtACIState(miscoverage=levels, weights=torch.full_like(levels, 1 / len(self.step_sizes)), scores=window)

    def miscoverage(self, state: DtACIState) -> Tensor:
        """The level of the coming step, the weighted mean of the copies', (*shape)."""
        return (state.weights * state.miscoverage).sum(-1) / state.weights.sum(-1)

    def threshold(self, state: DtACIState) -> Tensor:
        """The conformal threshold of the scores seen at the mean level; see `OnlineMethod.threshold`."""
        return state.scores.thresholds(self.miscoverage(state).unsqueeze(-1)).squeeze(-1)

    def update(self, state: DtACIState, scores: ArrayLike) -> DtACIState:
        """Move every copy by its own error, and the weights by the losses; see `OnlineMethod.update`."""
        given = checked_scores(scores)
        kept = state.scores.push(given, self.window)
        target = self._target(given).unsqueeze(-1)
        missed = (given.unsqueeze(-1) > state.scores.thresholds(state.miscoverage)).to(torch.float64)
        steps = torch.tensor(self.step_sizes, dtype=torch.float64, device=given.device)
        return DtACIState(
            miscoverage=state.miscoverage + steps * (target - missed),
            weights=self._reweighted(state, state.scores.p_values(given).unsqueeze(-1), target),
            scores=kept,
        )

    def _reweighted(self, state: DtACIState, p_values: Tensor, target: Tensor) -> Tensor:
        excess = p_values - state.miscoverage
        loss = target * excess - excess.clamp(max=0.0)
        # in logs, where nothing underflows
        weights = torch.softmax(state.weights.log() - self._rate(target) * loss, -1)
        sharing = 1 / (2 * self.horizon) if self.sharing is None else self.sharing
        return (1 - sharing) * weights + sharing / len(self.step_sizes)

    def _rate(self, target: Tensor) -> Tensor:
        if self.learning_rate is not None:
            return torch.full_like(target, self.learning_rate)
        variance = (1 - target) ** 2 * target**3 + target**2 * (1 - target) ** 3
        return torch.sqrt(3 / self.horizon * (math.log(self.horizon * len(self.step_sizes)) + 2) / variance)

    def _target(self, like: Tensor) -> Tensor:
        return self._numbers.to(like.device)

    @cached_property
    def _numbers(self) -> Tensor:
        return miscoverage_of(self.coverage)
