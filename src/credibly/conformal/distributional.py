r"""Distributional conformal prediction: how far from the median a target fell, in probability.

With the predicted distribution function F and the probability integral transform PIT = F(y), the score is
|PIT - 1/2| and its region the central interval [F^-1(1/2 - q), F^-1(1/2 + q)] ("Distributional conformal prediction",
Chernozhukov, Wuthrich, Zhu, 2021). Here it is shifted by a constant,

    score(y) = |PIT - 1/2| - 1/2 = -min(PIT, 1 - PIT),

the same order and the same regions. |PIT - 1/2| of float64 is 1/2 from 8.3 standard deviations on, and the thresholds
of an overconfident forecast would be those of ties; the tail itself keeps its digits down to 1e-300.

Where F jumps (counts, draws, point masses), PIT = F(y-) + u (F(y) - F(y-)). With one uniform u a row the scores are
distinct and the coverage is exact; without, u = 1/2: a set that is the same in every run, whose ties can only raise
the coverage.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributions import Distribution

from credibly.conformal.base import Score
from credibly.conformal.float_search import last_true
from credibly.conformal.interval_score import one_limit_a_row
from credibly.conformal.intervals import Intervals
from credibly.conformal.unions import ScoredIntervals
from credibly.core.checks import as_tensor
from credibly.core.errors import NotFiniteError, NotSupportedError, ShapeError
from credibly.core.typing import ArrayLike
from credibly.distributions.cumulative import cdf
from credibly.distributions.kinds import kind, reference
from credibly.distributions.pit import cdf_below
from credibly.distributions.rows import num_rows, to
from credibly.distributions.survival import survival
from credibly.distributions.targets import match_targets

__all__ = ["PITScore"]


@dataclass(frozen=True, kw_only=True)
class PITScore(Score[ScoredIntervals]):
    """Score -min(PIT, 1 - PIT), which is |PIT - 1/2| - 1/2; the region is the central interval that holds q more.

    Args:
        randomized: whether each row draws its own u where F jumps, which makes the coverage exact; else u = 1/2.
    """

    randomized: bool = False

    @property
    def uses_uniforms(self) -> bool:
        """Whether `score` and `region` read `u`."""
        return self.randomized

    def score(self, predicted: Distribution, targets: ArrayLike, u: Tensor | None = None) -> Tensor:
        """Minus the smaller of the two tails at every row's target, (rows,); see `Score.score`.

        Raises:
            NotSupportedError: `predicted` is about classes or several outputs a row, or its cdf is not known.
            NotFiniteError: a prediction that is NaN.
        """
        precise, own = self._prepared(predicted, u)
        values = match_targets(predicted, as_tensor(targets)).to(torch.float64)
        lower, upper = (tail.reshape(-1) for tail in _tails(precise, values, own))
        scores = -torch.minimum(lower, upper)
        if bool(scores.isnan().any()):
            raise NotFiniteError(f"the cdf of `predicted` is NaN in {int(scores.isnan().sum())} rows")
        return scores

    def region(self, predicted: Distribution, thresholds: ArrayLike, u: Tensor | None = None) -> ScoredIntervals:
        """The central interval of every row; see `Score.region`.

        Raises:
            NotSupportedError: `predicted` is about classes or several outputs a row, or its cdf is not known.
        """
        precise, own = self._prepared(predicted, u)
        limits = one_limit_a_row(thresholds, num_rows(predicted), own.device)
        shape = predicted.batch_shape + predicted.event_shape
        least = (-limits).clamp(-1, 2).reshape(shape)  # the least tail on either side
        far = torch.full(shape, torch.inf, dtype=torch.float64, device=own.device)
        lower = last_true(lambda y: _tails(precise, y, own)[0] >= least, far, -far)
        upper = last_true(lambda y: _tails(precise, y, own)[1] >= least, -far, far)
        lower, upper = (torch.where(least > 0, found, end) for found, end in ((lower, -far), (upper, far)))
        if kind(predicted) == "count":
            lower, upper = lower.ceil().clamp(min=0), upper.floor()
        return _decided(self, predicted, limits, u, lower.reshape(-1), upper.reshape(-1))

    def _prepared(self, predicted: Distribution, u: Tensor | None) -> tuple[Distribution, Tensor]:
        """The prediction in float64, and u in the shape of its targets."""
        if kind(predicted) == "class":
            raise NotSupportedError(
                f"PITScore needs an order of the targets; a {type(predicted).__name__} is about classes: use LAC or APS"
            )
        if predicted.event_shape not in ((), (1,)):
            raise NotSupportedError(
                f"PITScore needs one output a row; `predicted` has event_shape {tuple(predicted.event_shape)}: "
                "take each output by itself"
            )
        precise = to(predicted, dtype=torch.float64)
        return precise, _uniforms(u, predicted)


def _uniforms(u: Tensor | None, predicted: Distribution) -> Tensor:
    shape = predicted.batch_shape + predicted.event_shape
    if u is None:
        return torch.full(shape, 0.5, dtype=torch.float64, device=reference(predicted).device)
    if u.shape != (num_rows(predicted),):
        raise ShapeError(f"`u` must have shape ({num_rows(predicted)},), one number a row; got {tuple(u.shape)}")
    return u.to(reference(predicted).device, torch.float64).reshape(shape)


def _tails(precise: Distribution, values: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """The PIT and one minus it, each computed from the tail on its own side."""
    below, at = cdf_below.formula(precise, values), cdf.formula(precise, values)
    mass = (at - below).clamp(min=0)
    return torch.minimum(below, at) + u * mass, survival.formula(precise, values) + (1 - u) * mass


def _decided(
    score: PITScore, predicted: Distribution, limits: Tensor, u: Tensor | None, lower: Tensor, upper: Tensor
) -> ScoredIntervals:
    ends = Intervals.between(lower, upper)
    return ScoredIntervals(ends.lower, ends.upper, ends.empty, score, predicted, limits, u)
