r"""Exact ranks and thresholds: the one kernel under every conformal method.

The threshold of n scores at coverage c is the k-th smallest, k = ceil((n + 1) c), selected by its integer
rank; it is +infinity for k > n and -infinity for k = 0 ("Algorithmic Learning in a Random World", Vovk,
Gammerman, Shafer, 2005). With weights w_i, and w on the test point, it is the smallest score q with

    sum of w_i over s_i <= q   >=   c (sum_i w_i + w),

the test point's mass lying at +infinity ("Conformal Prediction Under Covariate Shift", Tibshirani, Barber,
Candes, Ramdas, 2019). A float level means the rational number that it was written for. Ranks are whole
numbers; weights are summed in float64, and in rational arithmetic wherever rounding could decide.
"""

import math
from bisect import bisect_left
from fractions import Fraction
from itertools import accumulate

import torch
from torch import Tensor

from credibly.core.checks import as_tensor, check_coverage, check_finite, exact_level
from credibly.core.errors import NotFiniteError, ShapeError
from credibly.core.typing import ArrayLike
from credibly.metrics.coverage_law import rank

__all__ = [
    "group_thresholds",
    "kth_score",
    "kth_weighted_score",
    "rank",
    "ranks",
    "threshold",
    "weighted_threshold",
]


def ranks(
    num_scores: Tensor,  # any shape, whole numbers
    coverage: float,
) -> Tensor:
    """`rank` for many numbers of scores at once, int64; exact up to 9e12 scores.

    Raises:
        ValueError: coverage outside [0, 1].
    """
    level = exact_level(check_coverage(coverage))
    above = (num_scores.to(torch.int64) + 1) * level.numerator
    return -(-above // level.denominator)


def threshold(
    sorted_scores: ArrayLike,  # (..., n), increasing
    coverage: float,
) -> Tensor:
    """The conformal threshold over the last axis, shape (...).

    Raises:
        ShapeError: a single number.
        NotFiniteError: NaN scores.
        ValueError: scores that are not increasing; coverage outside [0, 1].
    """
    return kth_score(_checked_scores(sorted_scores), coverage)


def kth_score(
    sorted_scores: Tensor,  # (..., n), increasing, floating
    coverage: float,
) -> Tensor:
    """`threshold` of scores that are known to be in order."""
    num_scores = sorted_scores.shape[-1]
    k = rank(num_scores, coverage)
    if 0 < k <= num_scores:
        return sorted_scores[..., k - 1]
    return sorted_scores.new_full(sorted_scores.shape[:-1], math.inf if k > 0 else -math.inf)


def _checked_scores(sorted_scores: ArrayLike) -> Tensor:
    scores = as_tensor(sorted_scores)
    scores = scores if scores.is_floating_point() else scores.to(torch.float64)
    if not scores.dim():
        raise ShapeError("`sorted_scores` must have shape (..., n); got a single number")
    if bool(scores.isnan().any()):
        raise NotFiniteError(
            f"`sorted_scores` must not be NaN; {int(scores.isnan().sum())} of {scores.numel()} values are"
        )
    if bool((scores[..., 1:] < scores[..., :-1]).any()):
        raise ValueError("`sorted_scores` must increase along the last axis; sort them first")
    return scores


def group_thresholds(
    sorted_scores: Tensor,  # (n,), increasing
    groups: Tensor,  # (n,), int64, from 0 to num_groups - 1
    num_groups: int,
    coverage: float,
) -> Tensor:
    """The conformal threshold of every group, (num_groups,); +infinity for a group without scores.

    Raises:
        ValueError: coverage outside [0, 1].
    """
    counts = torch.bincount(groups, minlength=num_groups)
    k = ranks(counts, coverage)
    ends = sorted_scores.new_tensor([-math.inf, math.inf])
    by_group = torch.cat([sorted_scores[groups.argsort(stable=True)], ends])
    place = counts.cumsum(0) - counts + k - 1
    place = torch.where(k > counts, len(sorted_scores) + 1, torch.where(k > 0, place, len(sorted_scores)))
    return by_group[place]


def weighted_threshold(
    sorted_scores: ArrayLike,  # (n,), increasing
    weights: ArrayLike,  # (n,), in the order of the scores
    test_weights: ArrayLike,  # (batch,)
    coverage: float,
) -> Tensor:
    """The weighted conformal threshold of every test point, shape (batch,). Equal weights give `threshold`.

    Raises:
        ShapeError: not one weight a score.
        NotFiniteError: NaN scores; NaN or infinite weights.
        ValueError: scores that are not increasing; weights below 0; coverage outside [0, 1].
    """
    scores = _checked_scores(sorted_scores)
    own, tests = (
        _checked_weights(name, given, scores) for name, given in (("weights", weights), ("test_weights", test_weights))
    )
    if own.dim() != 1 or own.shape != scores.shape:
        raise ShapeError(
            f"`sorted_scores` and `weights` must both have shape (n,); got {tuple(scores.shape)} and {tuple(own.shape)}"
        )
    return kth_weighted_score(scores, own, tests, coverage)


def kth_weighted_score(
    sorted_scores: Tensor,  # (n,), increasing, floating
    weights: Tensor,  # (n,), 0 or above
    test_weights: Tensor,  # (batch,), 0 or above
    coverage: float,
) -> Tensor:
    """`weighted_threshold` of scores and weights that are known to be in order."""
    level = exact_level(check_coverage(coverage))
    if level in (0, 1) or not len(weights):
        return sorted_scores.new_full(test_weights.shape, math.inf if level else -math.inf)
    unit = weights.amax() if bool((weights > 0).any()) else weights.new_ones(())
    mass = (weights / unit).cumsum(0)
    total = mass[-1] + test_weights / unit
    left, right = mass * level.denominator, total * level.numerator
    index = torch.searchsorted(left, right)
    # what rounding can have moved either side by: half a unit in the last place per quotient, sum and product
    slack = 4 * (len(weights) + 4) * torch.finfo(mass.dtype).eps * level.denominator * total
    doubtful = torch.searchsorted(left, right - slack) != torch.searchsorted(left, right + slack, right=True)
    doubtful &= total > 0
    if bool(doubtful.any()):
        index[doubtful] = _exact_places(weights, test_weights[doubtful], level)
    extended = torch.cat([sorted_scores, sorted_scores.new_full((1,), math.inf)])
    return extended[torch.where(total > 0, index, len(sorted_scores))]


def _checked_weights(name: str, weights: ArrayLike, like: Tensor) -> Tensor:
    given = check_finite(name, as_tensor(weights, device=like.device)).to(torch.float64)
    if bool((given < 0).any()):
        raise ValueError(f"`{name}` must be 0 or above; got {given.min().item():g}")
    return given


def _exact_places(weights: Tensor, test_weights: Tensor, level: Fraction) -> Tensor:
    """The place of the first score whose mass suffices, by rational arithmetic, (batch,); n if none does."""
    distinct, which = torch.unique(test_weights, return_inverse=True)
    given, tests = weights.tolist(), distinct.tolist()
    unit = max((value.as_integer_ratio()[1] for value in (*given, *tests)), default=1)
    mass = list(accumulate(_whole(value, unit) for value in given))
    needed = [level * (mass[-1] + _whole(value, unit)) for value in tests]
    places = [bisect_left(mass, least) for least in needed]
    return torch.tensor(places, device=weights.device)[which]


def _whole(value: float, unit: int) -> int:
    numerator, denominator = value.as_integer_ratio()
    return numerator * (unit // denominator)
