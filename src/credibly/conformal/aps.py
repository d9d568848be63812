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
import torch.nn.functional as F
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
        ordered = probs.sort(-1).values
        up_to = F.pad(ordered.cumsum(-1), (1, 0))  # the mass of the smallest 0, 1, 2, ... classes
        below = up_to.gather(-1, torch.searchsorted(ordered, probs))
        tied = up_to.gather(-1, torch.searchsorted(ordered, probs, right=True)) - below
        return _score(below, tied, u).masked_fill_(log_probs.isneginf(), _IMPOSSIBLE)

    def of_targets(self, log_probs: Tensor, targets: Tensor, u: Tensor) -> Tensor:
        """The scores of one class a row, without a sort."""
        probs = _grid_probs(log_probs)
        own = probs.gather(-1, targets)
        impossible = log_probs.gather(-1, targets).isneginf()
        return _of_probability(probs, own, u).masked_fill_(impossible, _IMPOSSIBLE)

    def members(self, log_probs: Tensor, thresholds: Tensor, u: Tensor) -> Tensor:
        """Whether each class's score is at most its threshold; `thresholds` broadcast to (rows, classes)."""
        if thresholds.shape[-1] != 1:
            return self.table(log_probs, u) <= thresholds
        probs = _grid_probs(log_probs)
        cutoff = _cutoff(probs, thresholds)
        includes = _of_probability(probs, cutoff, u) <= thresholds
        inside = (probs > cutoff) | ((probs == cutoff) & includes)
        return (inside & ~log_probs.isneginf()) | (thresholds >= _IMPOSSIBLE)


def _grid_probs(log_probs: Tensor) -> Tensor:
    return log_probs.exp().mul_(_GRID).round_().div_(_GRID)


def _score(below: Tensor, tied: Tensor, u: Tensor) -> Tensor:
    """The mass above plus u times the mass tied, from the mass below: exactly 1 at the end of a row for u = 1."""
    return (1 - below) - (1 - u) * tied


def _of_probability(probs: Tensor, own: Tensor, u: Tensor) -> Tensor:
    """The score of the classes of one probability a row, `own`, (rows, 1): two masked sums."""
    below = torch.where(probs < own, probs, 0.0).sum(-1, keepdim=True)
    tied = torch.where(probs == own, probs, 0.0).sum(-1, keepdim=True)
    return _score(below, tied, u)


def _cutoff(probs: Tensor, thresholds: Tensor) -> Tensor:
    """The one probability a row that may or may not belong to the set, (rows, 1); 2 if none does.

    A score lies between the mass above a class, 1 - below - tied, and 1 - below. So every class is out whose
    mass above exceeds the threshold, and all larger ones than the first of the others are in.
    """
    ordered = probs.sort(-1).values
    above = 1 - ordered.cumsum(-1)
    first = (above > thresholds).sum(-1, keepdim=True)
    return F.pad(ordered, (0, 1), value=2.0).gather(-1, first)
