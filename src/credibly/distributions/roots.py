"""Quantiles where there is no formula: solve for a zero by bracketing.

For real numbers the iteration is Newton's, on a function that a caller makes as straight as it can: ndtri(F(x)) -
ndtri(q) rather than F(x) - q, because on this scale a Gaussian F is a straight line and others are nearly so, out
into the tails. Each step that would leave the bracket, or that makes too little progress, is replaced by a bisection,
so that it always converges. For counts it is bisection over whole numbers.
"""

import math
from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

from credibly.distributions.shapes import broadcast
from credibly.distributions.special import ndtri

__all__ = ["ContinuousFunction", "solve_continuous", "solve_counts", "solve_increasing"]

ContinuousFunction: TypeAlias = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Gives a function and its derivative at x."""

MAX_STEPS = 200


def solve_continuous(
    function: ContinuousFunction,
    q: Tensor,
    lower: Tensor,
    upper: Tensor,
    start: Tensor,
) -> Tensor:
    """The x in [lower, upper] with F(x) = q, element by element.

    Args:
        function: F and its density, increasing, called with all elements at once.
        q: levels strictly inside (0, 1).
        lower: finite lower ends, F(lower) <= q.
        upper: finite upper ends, F(upper) >= q.
        start: first guesses; they are moved into the bracket.
    """
    target = ndtri(q)

    def straightened(x: Tensor) -> tuple[Tensor, Tensor]:
        value, density = function(x)
        z = ndtri(value)
        return torch.where(value == q, 0.0, z - target), density * math.sqrt(2 * math.pi) * torch.exp(z * z / 2)

    return solve_increasing(straightened, lower, upper, start)


def solve_increasing(function: ContinuousFunction, lower: Tensor, upper: Tensor, start: Tensor) -> Tensor:
    """The zero in [lower, upper] of a function, element by element.

    Args:
        function: g and its derivative, called with all elements at once. The sign of g goes from negative to positive
            once; where g is flat at 0, the zero is the smallest x.
        lower: finite lower ends, g(lower) <= 0.
        upper: finite upper ends, g(upper) >= 0.
        start: first guesses; they are moved into the bracket.

    Returns:
        The zeros. A step is the last when it is below the square root of the precision, relative to the
        size of x or the first bracket, whichever is smaller; Newton's error after it is its square.
    """
    width = (upper - lower).clamp(min=0)
    x = torch.where(torch.isfinite(start), start, (lower + upper) / 2).clamp(lower, upper)
    before_last, last, stretch = width, width, torch.ones_like(width)
    done = width == 0
    for _ in range(MAX_STEPS):
        if bool(done.all()):
            break
        gap, slope = function(x)
        hit = (gap == 0) & (slope > 0)
        lower, upper = torch.where(gap < 0, x, lower), torch.where(gap < 0, upper, x)
        newton = -gap / slope
        stretch = torch.where(newton.abs() <= before_last / 2, 1.0, 2 * stretch)
        before_last, last = last, newton.abs()
        step, kept = _inside(x, newton * stretch, lower, upper)
        x_next = torch.where(done | hit, x, x + step)
        done = done | hit | _is_last(x, step, kept & (stretch == 1), width)
        x = x_next
    return x


def _inside(x: Tensor, step: Tensor, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    """The step, or a bisection instead of one that leaves the bracket, and where it was kept."""
    kept = torch.isfinite(step) & (x + step >= lower) & (x + step <= upper)
    return torch.where(kept, step, (lower + upper) / 2 - x), kept


def _is_last(x: Tensor, step: Tensor, newton: Tensor, width: Tensor) -> Tensor:
    precision = torch.finfo(x.dtype).eps
    size = x.abs() + 1e-3 * width
    return step.abs() <= torch.where(newton, math.sqrt(precision), 2 * precision) * size


def solve_counts(cdf: Callable[[Tensor], Tensor], q: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """The smallest whole number k in [lower, upper] with F(k) >= q, element by element.

    Args:
        cdf: F, called with all elements at once.
        q: levels.
        lower: whole numbers; the answer is not below.
        upper: whole numbers with F(upper) >= q.
    """
    low, high = broadcast(lower, upper)
    while bool((low < high).any()):
        middle = torch.floor(low + (high - low) / 2)
        enough = cdf(middle) >= q
        before = low, high
        low = torch.where(enough, low, torch.minimum(middle + 1, high))
        high = torch.where(enough, middle, high)
        if torch.equal(low, before[0]) and torch.equal(high, before[1]):
            break  # beyond 2^53 whole numbers have gaps, and the last one cannot be halved
    return low
