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
from credibly.conformal.rows import given_uniforms
from credibly.conformal.unions import ScoredIntervals
from credibly.core.checks import as_tensor
from credibly.core.errors import NotFiniteError, NotSupportedError
from credibly.core.typing import ArrayLike
from credibly.distributions.cumulative import cdf
from credibly.distributions.kinds import kind, reference
from credibly.distributions.pit import cdf_below
from credibly.distributions.rows import num_rows, to
from credibly.distributions.survival import survival
from credibly.distributions.targets import check_rows, match_targets

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

    def score(self, predicted: Distribution, targets: ArrayLike, u: ArrayLike | None = None) -> Tensor:
        """Minus the smaller of the two tails at every row's target, (rows,); see `Score.score`.

        Raises:
            NotSupportedError: `predicted` is about classes or several outputs a row, or its cdf is not known.
            NotFiniteError: a prediction that is NaN.
        """
        precise, own = self._prepared(predicted, u)
        values = match_targets(predicted, as_tensor(targets)).to(torch.float64)
        lower, upper = (tail.reshape(-1) for tail in _tails(precise, values, own))
        scores = -torch.minimum(lower, upper)
        _refuse_nan(scores)
        return scores

    def region(self, predicted: Distribution, thresholds: ArrayLike, u: ArrayLike | None = None) -> ScoredIntervals:
        """The central interval of every row; see `Score.region`.

        Raises:
            NotSupportedError: `predicted` is about classes or several outputs a row, or its cdf is not known.
            NotFiniteError: a prediction that is NaN.
        """
        precise, own = self._prepared(predicted, u)
        _refuse_nan(_tails(precise, torch.zeros_like(own), own)[0])
        limits = one_limit_a_row(thresholds, num_rows(predicted), own.device)
        shape = predicted.batch_shape + predicted.event_shape
        least = (-limits).clamp(-1, 2).reshape(shape)  # the least tail on either side
        far = torch.full(shape, torch.inf, dtype=torch.float64, device=own.device)
        if kind(predicted) == "count":  # between two counts the tails may round apart from theirs
            lower = last_true(lambda y: _tails(precise, y.ceil(), own)[0] >= least, far, -far)
            upper = last_true(lambda y: _tails(precise, y.floor(), own)[1] >= least, -far, far)
        else:
            lower = last_true(lambda y: _tails(precise, y, own)[0] >= least, far, -far)
            upper = last_true(lambda y: _tails(precise, y, own)[1] >= least, -far, far)
        lower, upper = (torch.where(least > 0, found, end) for found, end in ((lower, -far), (upper, far)))
        if kind(predicted) == "count":
            lower, upper = lower.ceil().clamp(min=0), upper.floor()
        return self._decided(predicted, limits, None if u is None else own.reshape(-1), (lower, upper))

    def _decided(
        self, predicted: Distribution, limits: Tensor, u: Tensor | None, ends: tuple[Tensor, Tensor]
    ) -> ScoredIntervals:
        of_counts = kind(predicted) == "count"
        found = Intervals.between(*(end.reshape(-1) for end in ends), of_counts=of_counts)
        return ScoredIntervals(found.lower, found.upper, found.empty, self, predicted, limits, u, of_counts=of_counts)

    def _prepared(self, predicted: Distribution, u: ArrayLike | None) -> tuple[Distribution, Tensor]:
        """The prediction in float64, and u in the shape of its targets."""
        check_rows(predicted)
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
        own = _uniforms(u, predicted)
        try:
            _tails(precise, torch.full_like(own, torch.inf), own)
        except ValueError as error:
            raise NotSupportedError(
                f"PITScore needs a distribution function on the whole line; a {type(predicted).__name__} does not "
                f"have one ({error}): use CQR"
            ) from error
        return precise, own


def _refuse_nan(probabilities: Tensor) -> None:
    if bool(probabilities.isnan().any()):
        raise NotFiniteError(f"the cdf of `predicted` is NaN in {int(probabilities.isnan().sum())} rows")


def _uniforms(u: ArrayLike | None, predicted: Distribution) -> Tensor:
    shape, device = predicted.batch_shape + predicted.event_shape, reference(predicted).device
    if u is None:
        return torch.full(shape, 0.5, dtype=torch.float64, device=device)
    return given_uniforms(u, num_rows(predicted), device).reshape(shape)


def _tails(precise: Distribution, values: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """The PIT and one minus it, each computed from the tail on its own side."""
    below, at = cdf_below.formula(precise, values), cdf.formula(precise, values)
    mass = (at - below).clamp(min=0)
    return torch.minimum(below, at) + u * mass, survival.formula(precise, values) + (1 - u) * mass
