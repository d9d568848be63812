r"""RAPS, regularised adaptive prediction sets: APS with a price on every class beyond the first few.

"Uncertainty Sets for Image Classifiers using Conformal Prediction" (Angelopoulos, Bates, Malik, Jordan, 2021). With
the rank o(y) of a class in its row, 1 for the most probable and the last of equals for ties,

    score(y) = APS score of y   +   lambda * max(o(y) - k_reg, 0).

The price keeps the long tail of noisy small probabilities out of the sets. lambda and k_reg may be chosen to suit
the data, but not on the calibration rows: `RAPS.tuned` takes other ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor
from torch.distributions import Distribution

from credibly.conformal.ranked_score import RankedScore, least_probability, on_grid
from credibly.conformal.ranks import threshold
from credibly.conformal.standing import Standing
from credibly.conformal.top_k import TopK
from credibly.conformal.tuning import Aim, best_score, check_aim
from credibly.core.checks import check_nonnegative
from credibly.core.typing import ArrayLike

__all__ = ["RAPS"]

_PENALTIES: dict[Aim, tuple[float, ...]] = {
    "size": (0.001, 0.01, 0.1, 0.2, 0.5),
    "adaptiveness": (0.00001, 0.0001, 0.0008, 0.001, 0.0015, 0.002),
}
"""The values of lambda that the authors try."""


@dataclass(frozen=True, kw_only=True)
class RAPS(RankedScore):
    """Regularised adaptive prediction sets.

    Args:
        penalty: lambda, the price of every rank beyond `k_reg`, 0 or above; 0 is APS.
        k_reg: how many classes are free, 0 or more.
        randomized: whether each row draws its own u; else u = 1 for all rows.
    """

    penalty: float = 0.01
    k_reg: int = 5
    randomized: bool = True

    def __post_init__(self) -> None:
        check_nonnegative("penalty", self.penalty)
        if self.k_reg != int(self.k_reg) or self.k_reg < 0:
            raise ValueError(f"`k_reg` must be a whole number, 0 or more; got {self.k_reg}")

    @classmethod
    def tuned(
        cls,
        predicted: Distribution,
        targets: ArrayLike,
        coverage: float = 0.9,
        *,
        aim: Aim = "size",
        penalties: Sequence[float] | None = None,
        randomized: bool = True,
        seed: int | None = None,
    ) -> "RAPS":
        """The authors' choice of lambda and k_reg, from rows that are used for nothing else.

        k_reg is the conformal quantile of the ranks of the targets: sets of so many top classes would have the
        coverage. lambda is the one of a list for which the sets of the same rows are best.

        Args:
            predicted: predictions for rows outside both the training and the calibration set: the coverage
                guarantee is lost if they overlap with either.
            targets: their classes, (rows,).
            coverage: the coverage that will be asked for.
            aim: "size", the smallest sets on average; "adaptiveness", the coverage nearest to the one asked for
                among sets of every size (size-stratified coverage violation).
            penalties: the values of lambda to try; the authors' list for this aim without it.
            randomized: an option of the score.
            seed: of the uniform numbers, the same ones for every value of lambda.

        Raises:
            ValueError: coverage outside [0, 1]; no penalties; an aim that there is not.
        """
        check_aim(aim)
        ranks = TopK().score(predicted, targets)
        free = float(threshold(ranks.sort().values, coverage).clamp(min=0, max=float(ranks.max())))
        tried = _PENALTIES[aim] if penalties is None else penalties
        candidates = [cls(penalty=penalty, k_reg=int(free), randomized=randomized) for penalty in tried]
        return best_score(candidates, predicted, targets, coverage, aim=aim, seed=seed)

    def values(self, probs: Tensor) -> Tensor:
        """The probabilities, rounded so that their sums are exact."""
        return on_grid(probs)

    def least_value(self, thresholds: Tensor, num_classes: int) -> Tensor:
        """No class is in a set of less mass than lies above it."""
        return least_probability(thresholds, num_classes)

    def formula(self, place: Standing, u: Tensor) -> Tensor:
        """The APS score plus the price of the rank."""
        beyond = (place.rank_reached(u.new_ones(())) - self.k_reg).clamp(min=0)
        return place.mass_reached(u) + self.penalty * beyond

    def impossible(self, num_classes: int) -> float:
        """2 plus the price of the last rank."""
        return 2.0 + self.penalty * max(num_classes - self.k_reg, 0)
