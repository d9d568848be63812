r"""Exact ranks and thresholds: the one kernel under every conformal method.

The threshold of n scores at coverage c is the k-th smallest, k = ceil((n + 1) c), selected by its integer
rank; it is +infinity for k > n and -infinity for k = 0 ("Algorithmic Learning in a Random World", Vovk,
Gammerman, Shafer, 2005). With weights w_i, and w on the test point, it is the smallest score q with

    sum of w_i over s_i <= q   >=   c (sum_i w_i + w),

the test point's mass lying at +infinity ("Conformal Prediction Under Covariate Shift", Tibshirani, Barber,
Candes, Ramdas, 2019). A float level means the rational number that it was written for.
"""

import math

import torch
from torch import Tensor

from credibly.core.checks import check_coverage, exact_level
from credibly.metrics.coverage_law import rank

__all__ = ["rank", "threshold", "weighted_threshold"]


def threshold(
    sorted_scores: Tensor,  # (..., n), increasing
    coverage: float,
) -> Tensor:
    """The conformal threshold over the last axis, shape (...).

    Raises:
        ValueError: coverage outside [0, 1].
    """
    num_scores = sorted_scores.shape[-1]
    k = rank(num_scores, coverage)
    if 0 < k <= num_scores:
        return sorted_scores[..., k - 1]
    return sorted_scores.new_full(sorted_scores.shape[:-1], math.inf if k > 0 else -math.inf)


def weighted_threshold(
    sorted_scores: Tensor,  # (n,), increasing
    weights: Tensor,  # (n,), in the order of the scores
    test_weights: Tensor,  # (batch,)
    coverage: float,
) -> Tensor:
    """The weighted conformal threshold of every test point, shape (batch,).

    Equal weights give `threshold` exactly: weights are counted in units of the largest, and the level's
    numerator and denominator multiply either side instead of being divided.

    Raises:
        ValueError: coverage outside [0, 1].
    """
    level = exact_level(check_coverage(coverage))
    if level in (0, 1):
        return sorted_scores.new_full(test_weights.shape, math.inf if level else -math.inf)
    unit = weights.amax() if bool((weights > 0).any()) else weights.new_ones(())
    mass = (weights / unit).cumsum(0)
    total = mass[-1] + test_weights / unit
    index = torch.searchsorted(mass * level.denominator, total * level.numerator)
    extended = torch.cat([sorted_scores, sorted_scores.new_full((1,), math.inf)])
    return extended[torch.where(total > 0, index, len(sorted_scores))]
