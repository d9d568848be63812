r"""APS, adaptive prediction sets: the probability that has to be added up until the class is reached.

"Classification with Valid and Adaptive Coverage" (Romano, Sesia, Candes, 2020). With the class
probabilities p of a row and u in [0, 1], one for all classes of the row,

    score(y) = sum of p_k over p_k > p_y   +   u * sum of p_k over p_k = p_y,

the mass above the class and a fraction u of the mass tied with it, its own included. The randomised form
draws u uniformly; the deterministic form, u = 1, is conservative. A class of probability 0 scores 2, above
all others, so a one-hot row does not give a full set.

Probabilities are rounded to multiples of 2^-52. Sums of such numbers up to 2 are exact in float64, in any
order, so the score of one class (a masked sum) and the region (a sort and a running sum) agree to the
last bit.
"""

from dataclasses import dataclass

from torch import Tensor

from credibly.conformal.ranked_score import RankedScore, least_probability, on_grid
from credibly.conformal.standing import Standing

__all__ = ["APS"]


@dataclass(frozen=True, kw_only=True)
class APS(RankedScore):
    """Adaptive prediction sets.

    Args:
        randomized: whether each row draws its own u, which makes the coverage exact; else u = 1 for all rows,
            in calibration and prediction alike.
    """

    randomized: bool = True

    def values(self, probs: Tensor) -> Tensor:
        """The probabilities, rounded so that their sums are exact."""
        return on_grid(probs)

    def least_value(self, thresholds: Tensor, num_classes: int) -> Tensor:
        """No class is in a set of less mass than lies above it."""
        return least_probability(thresholds, num_classes)

    def formula(self, place: Standing, u: Tensor) -> Tensor:
        """The mass above plus u times the mass tied."""
        return place.mass_reached(u)

    def impossible(self, num_classes: int) -> float:
        """2, while all others score 1 at most."""
        return 2.0
