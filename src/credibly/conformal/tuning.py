"""Choosing among scores by the sets they give, on rows that are used for nothing else.

Whatever is chosen, sets calibrated afterwards on other rows keep their coverage. Chosen on the calibration rows
themselves they would not: their scores and those of new rows would no longer be exchangeable.
"""

from collections.abc import Sequence
from typing import Literal, TypeAlias, TypeVar, get_args

from torch.distributions import Distribution

from credibly.conformal.class_score import ClassScore
from credibly.conformal.sets import PredictionSets
from credibly.core.randomness import base_seed
from credibly.core.typing import ArrayLike
from credibly.metrics.conditional_coverage import size_stratified_coverage

__all__ = ["Aim", "best_score", "check_aim"]

Aim: TypeAlias = Literal["size", "adaptiveness"]
"""What sets should be: small on average, or right about their coverage at every size."""

C = TypeVar("C", bound=ClassScore)


def check_aim(aim: str) -> None:
    """Raise a ValueError unless it is one of the aims."""
    if aim not in get_args(Aim):
        raise ValueError(f"`aim` must be one of {get_args(Aim)}; got {aim!r}")


def best_score(
    candidates: Sequence[C],
    predicted: Distribution,
    targets: ArrayLike,
    coverage: float,
    *,
    aim: Aim,
    seed: int | None,
) -> C:
    """The candidate with the best sets, the first of equals. Each is calibrated and judged on all rows.

    Args:
        candidates: at least one.
        predicted: predictions for rows outside the training and the calibration set.
        targets: their classes, (rows,).
        coverage: the coverage that will be asked for.
        aim: what the sets should be.
        seed: of the uniform numbers, the same ones for every candidate.

    Raises:
        ValueError: no candidates; an aim that there is not; coverage outside [0, 1].
    """
    check_aim(aim)
    if not candidates:
        raise ValueError("at least one value to try is needed; got none")
    seed = base_seed(seed)
    losses = []
    for candidate in candidates:
        sets = candidate.calibrate(predicted, targets, seed=seed).predict(predicted, coverage, seed=seed)
        losses.append(_loss(sets, targets, coverage, aim))
    return candidates[losses.index(min(losses))]


def _loss(sets: PredictionSets, targets: ArrayLike, coverage: float, aim: Aim) -> float:
    if aim == "size":
        return float(sets.size.double().mean())
    return float(size_stratified_coverage(sets.contains(targets), sets.size, coverage).violation)
