r"""APS, adaptive prediction sets: the probability that has to be added up until the class is reached.

"Classification with Valid and Adaptive Coverage" (Romano, Sesia, Candes, 2020). With the class
probabilities p of a row and u in [0, 1], one for all classes of the row,

    score(y) = sum of p_k over p_k > p_y   +   u * sum of p_k over p_k = p_y,

the mass above the class and a fraction u of the mass tied with it, its own included. The randomised form
draws u uniformly; the deterministic form, u = 1, is conservative. A class of probability 0 scores 2, above
all others, so a one-hot row does not give a full set.

Probabilities are rounded to multiples of 2^-52. Sums of such numbers up to 2 are exact in float64, in any
order, so the score of one class (two masked sums) and the region (a sort and a running sum) agree to the
last bit.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from credibly.conformal.class_score import ClassScore

__all__ = ["APS"]

_GRID = 2.0**52
_IMPOSSIBLE = 2.0


@dataclass(frozen=True, kw_only=True)
class APS(ClassScore):
    """Adaptive prediction sets.

    Args:
        randomized: whether each row draws its own u, which makes the coverage exact; else u = 1 for all rows,
            in calibration and prediction alike.
    """

    randomized: bool = True

    @property
    def uses_uniforms(self) -> bool:
        """Whether `score` and `region` read `u`."""
        return self.randomized

    def table(self, log_probs: Tensor, u: Tensor) -> Tensor:
        """The scores of all classes, (rows, classes)."""
        probs = _grid_probs(log_probs)
        ordered, scores = _sorted_scores(probs, u)
        scores = scores.gather(-1, torch.searchsorted(ordered, probs))
        return scores.masked_fill_(log_probs.isneginf(), _IMPOSSIBLE)

    def of_targets(self, log_probs: Tensor, targets: Tensor, u: Tensor) -> Tensor:
        """The scores of one class a row, without a sort."""
        probs = _grid_probs(log_probs)
        own = probs.gather(-1, targets)
        below = torch.where(probs < own, probs, 0.0).sum(-1, keepdim=True)
        tied = torch.where(probs == own, probs, 0.0).sum(-1, keepdim=True)
        impossible = log_probs.gather(-1, targets).isneginf()
        return _score(below, tied, u).masked_fill_(impossible, _IMPOSSIBLE)

    def members(self, log_probs: Tensor, thresholds: Tensor, u: Tensor) -> Tensor:
        """Whether each class's score is at most its threshold, by a cutoff where a row has one threshold."""
        if thresholds.shape[-1] != 1:
            return self.table(log_probs, u) <= thresholds
        probs = _grid_probs(log_probs)
        ordered, scores = _sorted_scores(probs, u)
        cutoff = torch.where(scores <= thresholds, ordered, 2.0).amin(-1, keepdim=True)
        possible = (probs >= cutoff) & ~log_probs.isneginf()
        return possible | (thresholds >= _IMPOSSIBLE)


def _grid_probs(log_probs: Tensor) -> Tensor:
    return log_probs.exp().mul_(_GRID).round_().div_(_GRID)


def _score(below: Tensor, tied: Tensor, u: Tensor) -> Tensor:
    """The mass above plus u times the mass tied, from the mass below: exactly 1 at the end of a row for u = 1."""
    return (1 - below) - (1 - u) * tied


def _sorted_scores(probs: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """The probabilities, increasing, and the score of each; scores fall along the row and ties share one."""
    ordered = probs.sort(-1).values
    running = ordered.cumsum(-1)  # the mass up to each position
    differs = ordered[:, 1:] != ordered[:, :-1]
    edge = differs.new_ones(len(differs), 1)
    first, last = torch.cat([edge, differs], -1), torch.cat([differs, edge], -1)
    below = torch.where(first, running - ordered, 0.0).cummax(-1).values
    up_to = torch.where(last, running, torch.inf).flip(-1).cummin(-1).values.flip(-1)  # the end of the run of ties
    return ordered, _score(below, up_to - below, u)
