r"""The contract of online conformal prediction: a recipe with three pure functions over an immutable state.

At every time step `threshold(state)` says which scores are in the region, then the target comes, and
`update(state, scores)` gives the next state from its score. Nothing is assumed of the data: the guarantees are about
the fraction of steps on which the score was above its threshold, in the long run, whatever the sequence.

Everything broadcasts. Scores have the shape of the series, (num_series,) say; options such as the coverage or the step
size are numbers or tensors, and the state has the shape of all of them together. `init` is told how many series there
are, by scores known beforehand or by a number; `run` sees it from its scores. For series x levels x step sizes give
scores of shape (num_series, 1, 1), coverages (levels, 1) and step sizes (num_steps,).
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

import torch
from torch import Tensor
from torch.distributions import Distribution

from credibly.conformal.base import Score
from credibly.conformal.region import Region
from credibly.core.checks import as_tensor, check_count, check_coverage, exact_level
from credibly.core.errors import NotFiniteError, ShapeError
from credibly.core.typing import ArrayLike
from credibly.distributions.shapes import broadcast_shape

__all__ = [
    "OnlineMethod",
    "OnlineRun",
    "Option",
    "checked_scores",
    "fitting",
    "initial_scores",
    "miscoverage_of",
    "option",
]

Option: TypeAlias = float | Tensor
"""A number, or a tensor of numbers that broadcasts with the scores."""

S = TypeVar("S")
R = TypeVar("R", bound=Region)


@dataclass(frozen=True, eq=False, kw_only=True)
class OnlineRun(Generic[S]):
    """What happened over a stretch of time.

    Attributes:
        thresholds: the threshold of every step, chosen before its score was seen, (steps, *shape), float64.
        missed: whether the score was above it, (steps, *shape), bool.
        state: the state after the last step, from which to go on.
    """

    thresholds: Tensor
    missed: Tensor
    state: S

    @property
    def coverage(self) -> Tensor:
        """The fraction of steps that were covered, (*shape), float64."""
        return 1 - self.missed.to(torch.float64).mean(0)

    def rolling_coverage(self, window: int) -> Tensor:
        """The coverage of every stretch of `window` steps, (steps - window + 1, *shape), float64.

        Raises:
            ValueError: `window` is not between 1 and the number of steps.
        """
        if not 1 <= window <= len(self.missed):
            raise ValueError(f"`window` must lie between 1 and the {len(self.missed)} steps; got {window}")
        count = self.missed.to(torch.int64).cumsum(0)
        count = torch.cat([torch.zeros_like(count[:1]), count])
        return 1 - (count[window:] - count[:-window]).to(torch.float64) / window


class OnlineMethod(ABC, Generic[S]):
    """A rule that moves a threshold with the scores seen. A frozen dataclass of options; it holds no state."""

    @abstractmethod
    def init(self, scores: ArrayLike = (), *, num_series: int | None = None) -> S:
        """The state before the first step.

        Args:
            scores: scores known beforehand, in order of time, (*series, n); none at all by default.
            num_series: how many series there are, where `scores` do not say so: (n,) then begin each of them. None is
                one score a step, of shape (), or the series of `scores`.

        Raises:
            NotFiniteError: NaN or -infinite scores.
            ShapeError: `scores` are about another number of series.
        """

    @abstractmethod
    def threshold(self, state: S) -> Tensor:
        """The threshold of the coming step, (*shape), float64; +infinity is everything and -infinity nothing."""

    @abstractmethod
    def update(self, state: S, scores: ArrayLike) -> S:
        """The state after a step, from the scores that came, which broadcast to the state; the old one is unchanged.

        Raises:
            ShapeError: the scores do not broadcast to the state's shape, which `init` gives.
            NotFiniteError: NaN or -infinite scores.
        """

    def region(self, state: S, score: Score[R], predicted: Distribution, *, u: ArrayLike | None = None) -> R:
        """The region of the coming step: one row of `predicted` a series.

        Args:
            state: of shape (rows,), or () for one threshold for all rows.
            score: the score whose values go to `update`.
            predicted: the forecasts of the step, (rows,).
            u: of randomised scores, one number in [0, 1] a row, drawn anew at every step; give the same to
                `score.score` when the targets have come. None is the deterministic form.
        """
        return score.region(predicted, self.threshold(state), u)

    def run(self, scores: ArrayLike, state: S | None = None) -> OnlineRun[S]:
        """Go through scores that are already known.

        Args:
            scores: (steps, *series).
            state: where to start; None is `init()`.

        Raises:
            ShapeError: no steps, or scores that do not broadcast with the state.
            NotFiniteError: NaN or -infinite scores.
        """
        table = checked_scores(scores)
        if not table.dim() or not len(table):
            raise ShapeError(f"`scores` must have shape (steps, ...) with one step or more; got {tuple(table.shape)}")
        state = self.init(table.new_empty(*table.shape[1:], 0)) if state is None else state
        thresholds, missed = [], []
        for row in table:
            thresholds.append(self.threshold(state))
            missed.append(row > thresholds[-1])
            state = self.update(state, row)
        return OnlineRun(thresholds=torch.stack(thresholds), missed=torch.stack(missed), state=state)


def checked_scores(scores: ArrayLike) -> Tensor:
    """The scores as float64; +infinity is a score like others, NaN and -infinity are refused."""
    given = as_tensor(scores).detach().to(torch.float64)
    bad = given.isnan() | given.isneginf()
    if bool(bad.any()):
        raise NotFiniteError(f"`scores` must be numbers above -infinity; {int(bad.sum())} of {given.numel()} are not")
    return given


def initial_scores(scores: ArrayLike, num_series: int | None) -> Tensor:
    """The scores known beforehand, (*series, n), float64; those without series are repeated for all of them."""
    given = checked_scores(scores)
    if not given.dim():
        raise ShapeError("`scores` must have shape (*series, n); got a single number")
    if num_series is None:
        return given
    count = check_count("num_series", num_series)
    if given.shape[:-1] not in ((), (count,)):
        raise ShapeError(f"`scores` must have shape (n,) or ({count}, n) for {count} series; got {tuple(given.shape)}")
    return given.expand(count, given.shape[-1])


def fitting(name: str, values: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The values, or a ShapeError unless they broadcast to the shape."""
    try:
        fits = broadcast_shape(values.shape, shape) == shape
    except RuntimeError:
        fits = False
    if not fits:
        advice = "; for several series begin with init(num_series=...)" if not shape else ""
        raise ShapeError(f"`{name}` must broadcast to {tuple(shape)}; got {tuple(values.shape)}{advice}")
    return values


def option(name: str, value: Option) -> Tensor:
    """The numbers of an option, float64; they must be finite and 0 or above."""
    tensor = as_tensor(value).to(torch.float64)
    if not bool((tensor.isfinite() & (tensor >= 0)).all()):
        raise ValueError(f"`{name}` must be finite, 0 or above; got {value}")
    return tensor


def miscoverage_of(coverage: Option) -> Tensor:
    """1 - coverage, float64, rounded once from the rational that the coverage was written for."""
    levels = as_tensor(coverage)
    exact = [float(1 - exact_level(check_coverage(level))) for level in levels.reshape(-1)]
    return torch.tensor(exact, dtype=torch.float64, device=levels.device).reshape(levels.shape)
