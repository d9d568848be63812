"""Quantiles where there is no formula: solve F(x) = q by bracketing.

For continuous F the iteration is Newton's, applied to ndtri(F(x)) = ndtri(q) rather than to F(x) = q: on this
scale a Gaussian F is a straight line and others are nearly so, out into the tails. Each step that would leave
the bracket, or that makes too little progress, is replaced by a bisection, so that it always converges. For
counts it is bisection over whole numbers.
"""

import math
from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

from credibly.distributions.shapes import broadcast
from credibly.distributions.special import ndtri

__all__ = ["ContinuousFunction", "solve_continuous", "solve_counts"]

ContinuousFunction: TypeAlias = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Gives F(x) and its derivative, the density, at x."""

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

    Returns:
        The roots. A step is the last when it is below the square root of the precision, relative to the
        size of x or the first bracket, whichever is smaller; Newton's error after it is its square.
    """
    target = ndtri(q)
    width = (upper - lower).clamp(min=0)
    x = torch.where(torch.isfinite(start), start, (lower + upper) / 2).clamp(lower, upper)
    before_last, last = width, width
    done = width == 0
    for _ in range(MAX_STEPS):
        if bool(done.all()):
            break
        value, density = function(x)
        lower, upper = torch.where(value < q, x, lower), torch.where(value < q, upper, x)
        step, newton = _next_step(x, value, density, target, lower, upper, before_last)
        before_last, last = last, step.abs()
        hit = (value == q) & (density > 0)
        x_next = torch.where(done | hit, x, x + step)
        done = done | hit | _is_last(x, step, newton, width)
        x = x_next
    return x


def _next_step(
    x: Tensor,
    value: Tensor,
    density: Tensor,
    target: Tensor,
    lower: Tensor,
    upper: Tensor,
    before_last: Tensor,
) -> tuple[Tensor, Tensor]:
    """The step to take, and where it is Newton's: inside the bracket, at most half the last step but one."""
    z = ndtri(value)
    slope = density * math.sqrt(2 * math.pi) * torch.exp(z * z / 2)
    step = (target - z) / slope
    inside = torch.isfinite(step) & (x + step >= lower) & (x + step <= upper)
    newton = inside & (step.abs() <= before_last / 2)
    return torch.where(newton, step, (lower + upper) / 2 - x), newton


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
        middle = torch.floor((low + high) / 2)
        enough = cdf(middle) >= q
        low, high = (
            torch.where(enough, low, torch.minimum(middle + 1, high)),
            torch.where(enough, middle, high),
        )
    return low
