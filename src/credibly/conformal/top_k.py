"""Top-k sets: the score is the rank of the class, so that all sets have the same size.

The baseline of "Uncertainty Sets for Image Classifiers using Conformal Prediction" (Angelopoulos, Bates, Malik, Jordan,
2021). Of classes with equal probabilities, a larger ones and m equals, the score is a + u m with u in [0, 1], one for
all classes of the row; the deterministic form, u = 1, is the last rank of equals.
"""

from dataclasses import dataclass

from torch import Tensor

from credibly.conformal.ranked_score import RankedScore
from credibly.conformal.standing import Standing

__all__ = ["TopK"]


@dataclass(frozen=True, kw_only=True)
class TopK(RankedScore):
    """The k most probable classes, with the smallest k that has the coverage.

    Args:
        randomized: False, every row gets the same number of classes (unless some are equally probable), which covers
            more than asked for, ranks being few; True, rows get k or k - 1 at random, and the coverage is exact.
    """

    randomized: bool = False

    def formula(self, place: Standing, u: Tensor) -> Tensor:
        """The rank."""
        return place.rank_reached(u)
