"""The margin score: how much more probable the best of the other classes is.

"Model-Agnostic Nonconformity Functions for Conformal Classification" (Johansson, Linusson, Lofstrom, Bostrom, 2017):
the largest probability of another class minus the probability of the class itself, from -1 to 1. Here 1 is added,

    score(y) = (1 - p_y) + max over k other than y of p_k,

which changes no set, and keeps confident rows from tying at -1: for p_y above one half, 1 - p_y is summed from the
other classes, and has all its digits however small it is.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributions import Distribution

from credibly.conformal.class_score import ClassScore
from credibly.distributions.class_rows import class_mass_blocks

__all__ = ["Margin"]


@dataclass(frozen=True)
class Margin(ClassScore):
    """Score 1 - p_y plus the largest probability of another class, in [0, 2]."""

    def blocks(self, predicted: Distribution) -> Iterator[tuple[slice, Tensor]]:
        """Some rows at a time, with their class probabilities, (rows, classes), float64."""
        return class_mass_blocks(predicted)

    def table(self, probs: Tensor, u: Tensor) -> Tensor:
        """The scores of all classes, (rows, classes)."""
        largest = probs.amax(-1, keepdim=True)
        is_largest = probs == largest
        less = probs.masked_fill(is_largest, 0.0)
        second = torch.where(is_largest.sum(-1, keepdim=True) > 1, largest, less.amax(-1, keepdim=True))
        other = torch.where(is_largest, second, largest)
        # a class as probable as the best other one scores 1 in every row: no rounding may break such ties
        return torch.where(probs > 0.5, less.sum(-1, keepdim=True) + other, 1 + (other - probs))
