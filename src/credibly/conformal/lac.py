"""LAC, the least ambiguous set-valued classifier: the score is one minus the probability of the class.

"Least Ambiguous Set-Valued Classifiers with Bounded Error Levels" (Sadinle, Lei, Wasserman, 2019). Of all
sets with the same coverage these are the smallest on average; they can be empty.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from credibly.conformal.class_score import ClassScore

__all__ = ["LAC"]


@dataclass(frozen=True)
class LAC(ClassScore):
    """Score 1 - p_y, computed as -expm1(log p_y) so that confident rows do not tie at 0."""

    def table(self, log_probs: Tensor, u: Tensor) -> Tensor:
        """One minus the probability of every class, (rows, classes)."""
        return torch.expm1(log_probs).neg_()
