r"""The exact laws of the coverage seen on test rows, and the exact interval for the coverage behind it.

Intervals that hold each new target with probability c hold a Binomial(m, c) number of m. The interval of Clopper and
Pearson ("The Use of Confidence or Fiducial Limits Illustrated in the Case of the Binomial", 1934) turns that round:
whatever c is, it holds c with the stated confidence at least.

Split conformal prediction has a coverage that is itself drawn. With n calibration scores, all distinct, the threshold
is the k-th smallest, k = ceil((n + 1) c). Given the calibration set, the probability of covering a new point is
Beta(k, n + 1 - k) distributed, so the number of covered points among m test points is Beta-binomial ("Conditional
Validity of Inductive Conformal Predictors", Vovk, 2012):

    P(X = j) = C(m, j) B(k + j, n + 1 - k + m - j) / B(k, n + 1 - k).
"""

import math

import torch
from scipy import special
from torch import Tensor

from credibly.core.checks import as_tensor, check_count, check_coverage, exact_level
from credibly.core.errors import ShapeError
from credibly.core.typing import ArrayLike

__all__ = ["check_confidence", "clopper_pearson", "coverage_interval", "coverage_tails", "rank"]


def rank(num_scores: int, coverage: float) -> int:
    """The rank k = ceil((n + 1) * coverage) of the conformal threshold, in exact rational arithmetic.

    It runs from 0 (coverage 0: below every score) to n + 1 (above every score). Floating point gets some
    wrong: for n = 24 and coverage 0.28 it is 7, while `ceil(25 * 0.28)` is 8 in floats.

    Raises:
        ValueError: `num_scores` is no whole number of 0 or more; coverage outside [0, 1].
    """
    count = check_count("num_scores", num_scores, least=0)
    return math.ceil((count + 1) * exact_level(check_coverage(coverage)))


def coverage_interval(
    num_calibration: int | None, num_test: int, coverage: float, confidence: float = 0.98
) -> tuple[float, float]:
    """The central interval in which the coverage seen on test rows lies.

    Args:
        num_calibration: number of calibration rows of split conformal prediction; None where every new target is
            held with the probability `coverage` itself.
        num_test: number of test rows.
        coverage: the coverage asked for.
        confidence: probability of the interval, at least; at most half of the rest lies on either side.

    Returns:
        The lowest and the highest empirical coverage inside the interval, both multiples of 1 / num_test.
    """
    check_confidence(confidence)
    mass = _log_mass(num_calibration, num_test, coverage).exp()
    tail = (1 - confidence) / 2
    below = int((mass.cumsum(0) < tail).sum())
    above = int((mass.flip(0).cumsum(0) < tail).sum())
    return below / num_test, (num_test - above) / num_test


def coverage_tails(
    num_contained: int, num_test: int, coverage: float, num_calibration: int | None = None
) -> tuple[float, float]:
    """The probabilities of holding at most, and at least, so many of the test targets.

    Args:
        num_contained: how many were held.
        num_test: of how many.
        coverage: the coverage asked for.
        num_calibration: as in `coverage_interval`.
    """
    mass = _log_mass(num_calibration, num_test, coverage).exp()
    return min(float(mass[: num_contained + 1].sum()), 1.0), min(float(mass[num_contained:].sum()), 1.0)


def clopper_pearson(hits: ArrayLike, counts: ArrayLike, confidence: float = 0.95) -> tuple[Tensor, Tensor]:
    """The exact interval for each of a number of probabilities.

    Args:
        hits: how often each event happened; whole numbers of any shape.
        counts: of how many independent trials, of the same shape; none give the interval from 0 to 1.
        confidence: probability with which each interval holds its probability, at least.

    Returns:
        Lower and upper ends, float64, on the device of `hits`.

    Raises:
        ShapeError: the shapes differ.
        ValueError: more hits than trials.
    """
    check_confidence(confidence)
    x, n = as_tensor(hits), as_tensor(counts)
    if x.shape != n.shape:
        raise ShapeError(f"`hits` and `counts` must have one shape; got {tuple(x.shape)} and {tuple(n.shape)}")
    if not bool(((x >= 0) & (x <= n)).all()):
        raise ValueError("`hits` must lie between 0 and `counts`")
    tail = (1 - confidence) / 2
    k, m = x.cpu().double().numpy(), n.cpu().double().numpy()
    lower = torch.as_tensor(special.betaincinv(k.clip(min=1), m - k + 1, tail), dtype=torch.float64)
    upper = torch.as_tensor(special.betaincinv(k + 1, (m - k).clip(min=1), 1 - tail), dtype=torch.float64)
    return torch.where(x > 0, lower.to(x.device), 0.0), torch.where(x < n, upper.to(x.device), 1.0)


def check_confidence(confidence: float) -> float:
    """The level itself, or a ValueError unless it lies strictly between 0 and 1."""
    if not 0 < confidence < 1:
        raise ValueError(f"`confidence` must lie between 0 and 1; got {confidence}")
    return confidence


def _log_mass(num_calibration: int | None, num_test: int, coverage: float) -> Tensor:
    """Log probabilities that 0, ..., num_test of the test targets are held."""
    check_count("num_test", num_test)
    j = torch.arange(num_test + 1, dtype=torch.float64)
    choose = -torch.lgamma(j + 1) - torch.lgamma(num_test - j + 1)
    level: float = check_coverage(coverage)
    if num_calibration is not None:
        k = rank(check_count("num_calibration", num_calibration), coverage)
        if 0 < k <= num_calibration:
            drawn = torch.lgamma(k + j) + torch.lgamma(num_calibration + 1 - k + num_test - j)
            return torch.log_softmax(choose + drawn, 0)
        level = float(k > 0)  # nothing, or everything, is held
    probability = torch.tensor(float(level), dtype=torch.float64)
    outcomes = torch.xlogy(j, probability) + torch.special.xlog1py(num_test - j, -probability)
    return torch.log_softmax(choose + outcomes, 0)
