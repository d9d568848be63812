r"""The interval of a binomial probability whose count of hits is itself known only by a law.

For x hits of n the ends of Clopper and Pearson ("The Use of Confidence or Fiducial Limits Illustrated in the Case of
the Binomial", 1934) are quantiles of the laws Beta(x, n - x + 1) and Beta(x + 1, n - x). Where x has the probability
w_x, they are the quantiles of the mixtures of these laws.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

__all__ = ["binomial_mass", "lower_end", "upper_end"]

Array = NDArray[Any]

_STEPS = 60  # bisection, to 2^-60
_NEGLIGIBLE = 1e-14


def binomial_mass(num_trials: int, probability: float) -> Array:
    """The probabilities of 0, ..., num_trials hits."""
    hits = np.arange(num_trials + 1)
    choose = special.gammaln(num_trials + 1) - special.gammaln(hits + 1) - special.gammaln(num_trials - hits + 1)
    mass: Array = np.exp(choose + special.xlogy(hits, probability) + special.xlog1py(num_trials - hits, -probability))
    return mass


def lower_end(hits: Array, weights: Array, num_trials: int, tail: float) -> float:
    """The quantile `tail` of the mixture of the laws of lower ends; `hits` happen with the probabilities `weights`."""
    x, w = _distinct(hits, weights)
    some = x > 0

    def below(p: float) -> float:
        return float(w[~some].sum() + w[some] @ special.betainc(x[some], num_trials - x[some] + 1, p))

    return _quantile(below, tail)


def upper_end(hits: Array, weights: Array, num_trials: int, tail: float) -> float:
    """The quantile 1 - `tail` of the mixture of the laws of upper ends."""
    return 1 - lower_end(num_trials - hits, weights, num_trials, tail)


def _distinct(hits: Array, weights: Array) -> tuple[Array, Array]:
    kept = weights > _NEGLIGIBLE
    x, place = np.unique(hits[kept], return_inverse=True)
    return x, np.bincount(place, weights=weights[kept])


def _quantile(below: Callable[[float], float], tail: float) -> float:
    """The p at which `below`, which increases from its value at 0 to 1, is `tail`."""
    low, high = 0.0, 1.0
    if below(0.0) >= tail:
        return 0.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if below(middle) >= tail else (middle, high)
    return high
