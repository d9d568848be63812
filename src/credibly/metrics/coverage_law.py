r"""The exact law of the coverage that split conformal prediction shows on a test set.

With n calibration scores, all distinct, the threshold is the k-th smallest, k = ceil((n + 1) c). Given the
calibration set, the probability of covering a new point is Beta(k, n + 1 - k) distributed, so the number of
covered points among m test points is Beta-binomial ("Conditional Validity of Inductive Conformal Predictors",
Vovk, 2012):

    P(X = j) = C(m, j) B(k + j, n + 1 - k + m - j) / B(k, n + 1 - k).
"""

import math

import torch
from torch import Tensor

from credibly.core.checks import check_coverage, exact_level

__all__ = ["coverage_interval", "rank"]


def rank(num_scores: int, coverage: float) -> int:
    """The rank k = ceil((n + 1) * coverage) of the conformal threshold, in exact rational arithmetic.

    It runs from 0 (coverage 0: below every score) to n + 1 (above every score). Floating point gets some
    wrong: for n = 24 and coverage 0.28 it is 7, while `ceil(25 * 0.28)` is 8 in floats.
    """
    return math.ceil((num_scores + 1) * exact_level(check_coverage(coverage)))


def coverage_interval(
    num_calibration: int, num_test: int, coverage: float, confidence: float = 0.98
) -> tuple[float, float]:
    """The central interval in which the empirical coverage of split conformal prediction lies.

    Args:
        num_calibration: number of calibration rows.
        num_test: number of test rows.
        coverage: the coverage asked for.
        confidence: probability of the interval, at least; at most half of the rest lies on either side.

    Returns:
        The lowest and the highest empirical coverage inside the interval, both multiples of 1 / num_test.
    """
    for name, number in (("num_calibration", num_calibration), ("num_test", num_test)):
        if number < 1:
            raise ValueError(f"`{name}` must be at least 1; got {number}")
    if not 0 < confidence < 1:
        raise ValueError(f"`confidence` must lie between 0 and 1; got {confidence}")
    k = rank(num_calibration, coverage)
    if k <= 0 or k > num_calibration:  # nothing, or everything, is covered
        return float(k > 0), float(k > 0)
    log_mass = _beta_binomial_log_mass(num_test, k, num_calibration + 1 - k)
    mass = log_mass.exp()
    tail = (1 - confidence) / 2
    below = int((mass.cumsum(0) < tail).sum())
    above = int((mass.flip(0).cumsum(0) < tail).sum())
    return below / num_test, (num_test - above) / num_test


def _beta_binomial_log_mass(m: int, a: int, b: int) -> Tensor:
    """Log probabilities of 0, ..., m successes."""
    j = torch.arange(m + 1, dtype=torch.float64)
    choose = -torch.lgamma(j + 1) - torch.lgamma(m - j + 1)
    beta = torch.lgamma(a + j) + torch.lgamma(b + m - j)
    return torch.log_softmax(choose + beta, 0)
