r"""SAPS, sorted adaptive prediction sets: of the probabilities only the largest is used, beside the rank.

"Conformal Prediction for Deep Classifier via Label Ranking" (Huang, Xi, Zhang, Yao, Qiu, Wei, 2024). With the rank
o(y) of a class in its row, the row's largest probability p_max, and u in [0, 1], one for all classes of the row,

    score(y) = u * p_max                           for o(y) = 1,
    score(y) = p_max + (o(y) - 2 + u) * lambda     for o(y) > 1.

Both are one function of r = o(y) - 1 + u: r * p_max up to r = 1 and p_max + (r - 1) * lambda from there. Of classes
with equal probabilities, a larger ones and m equals, r = a + u m, which has the law that r would have with the
equals in random order, and does not depend on the order of the classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributions import Distribution

from credibly.conformal.ranked_score import RankedScore
from credibly.conformal.standing import Standing
from credibly.conformal.tuning import Aim, best_score
from credibly.core.checks import check_nonnegative
from credibly.core.typing import ArrayLike

__all__ = ["SAPS"]

_WEIGHTS = (0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6)


@dataclass(frozen=True, kw_only=True)
class SAPS(RankedScore):
    """Sorted adaptive prediction sets.

    Args:
        rank_weight: lambda, the price of every rank after the first, 0 or above.
        randomized: whether each row draws its own u; else u = 1 for all rows.
    """

    rank_weight: float = 0.2
    randomized: bool = True

    def __post_init__(self) -> None:
        check_nonnegative("rank_weight", self.rank_weight)

    @classmethod
    def tuned(
        cls,
        predicted: Distribution,
        targets: ArrayLike,
        coverage: float = 0.9,
        *,
        aim: Aim = "size",
        rank_weights: Sequence[float] = _WEIGHTS,
        randomized: bool = True,
        seed: int | None = None,
    ) -> "SAPS":
        """The lambda of a list that gives the best sets on rows that are used for nothing else.

        Args:
            predicted: predictions for rows outside both the training and the calibration set.
            targets: their classes, (rows,).
            coverage: the coverage that will be asked for.
            aim: as in `RAPS.tuned`.
            rank_weights: the values of lambda to try.
            randomized: an option of the score.
            seed: of the uniform numbers, the same ones for every value of lambda.

        Raises:
            ValueError: coverage outside [0, 1]; no weights; an aim that there is not.
        """
        candidates = [cls(rank_weight=weight, randomized=randomized) for weight in rank_weights]
        return best_score(candidates, predicted, targets, coverage, aim=aim, seed=seed)

    def formula(self, place: Standing, u: Tensor) -> Tensor:
        """The function of the rank reached that the module's text gives."""
        reached, largest = place.rank_reached(u), place.largest
        return torch.where(reached <= 1, reached * largest, largest + (reached - 1) * self.rank_weight)
