"""The quantile of a mixture as a zero that Newton's method finds fast, also between far and narrow components.

At x, split the components at their medians. With R the mass below x of those whose median lies above, L the mass above
x of those whose median lies below, and W the weight of the latter, F(x) = W + R(x) - L(x). So F(x) = q is

    R(x) = c + L(x)   for c = q - W of 0 or above,        |c| + R(x) = L(x)   for c below 0.

Both sides are small sums of tails, and on the scale of ndtri nearly straight lines: exactly so for one Gaussian, and in
the gap between two narrow components, where F itself is a flat step. The split moves with x; the zero does not.
"""

import math

import torch
from torch import Tensor

from credibly.distributions.special import ndtri

__all__ = ["mixture_gap", "staircase_level"]

TINY = torch.finfo(torch.float64).tiny
ROUNDING = 4 * torch.finfo(torch.float64).eps
"""F is at the level when it is so up to the rounding of its sum: where F is flat, nothing tells more."""


def mixture_gap(cdfs: Tensor, densities: Tensor, weights: Tensor, q: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    """A function that is 0 where the mixture's F is q, below 0 to the left and above to the right, and its derivative.

    Args:
        cdfs: float64 distribution functions of the components at x, with the components on `axis`.
        densities: their densities, likewise.
        weights: weights of the components, adding up to 1, that broadcast to `cdfs`.
        q: levels inside (0, 1), without the axis.
        axis: of the components.
    """
    below = cdfs > 0.5
    left, right = torch.where(below, weights, 0.0), torch.where(below, 0.0, weights)
    passed, rest = left.sum(axis), right.sum(axis)
    rising, rise = (right * cdfs).sum(axis), (right * densities).sum(axis)
    falling, fall = (left * (1 - cdfs)).sum(axis), torch.where(cdfs < 1, left * densities, 0.0).sum(axis)
    excess = q - passed
    scale = torch.where(excess >= 0, rest, passed)
    first, first_slope = _straight((rising + (-excess).clamp(min=0)) / scale)
    second, second_slope = _straight((falling + excess.clamp(min=0)) / scale)
    reached = (passed + rising - falling - q).abs() <= ROUNDING * q
    slope = (first_slope * rise + second_slope * fall) / scale
    return torch.where(reached, 0.0, first - second), torch.where(reached, (weights * densities).sum(axis), slope)


def _straight(p: Tensor) -> tuple[Tensor, Tensor]:
    """The function ndtri and its derivative below one half; above, its tangent there, so that any number may come."""
    z = ndtri(p.clamp(TINY, 0.5))
    root = math.sqrt(2 * math.pi)
    return z + root * (p - 0.5).clamp(min=0), root * torch.exp(z * z / 2)


def staircase_level(medians: Tensor, weights: Tensor, q: Tensor, axis: int) -> tuple[Tensor, ...]:
    """Which component the level falls into if they do not overlap, and at which of its own levels.

    Args:
        medians: of the components, on `axis`.
        weights: weights that broadcast to `medians`.
        q: levels without the axis.
        axis: of the components, counted from the end.

    Returns:
        The component's index, the level inside (0, 1), and the ends of the region where its median is the nearest,
        all with an axis of size 1.
    """
    order = medians.argsort(axis)
    medians, weights = medians.gather(axis, order), weights.expand(medians.shape).gather(axis, order)
    reached, level, last = weights.cumsum(axis), q.unsqueeze(axis), medians.shape[axis] - 1
    place = (reached < level).sum(axis, keepdim=True).clamp(max=last)
    weight = weights.gather(axis, place).clamp(min=TINY)
    inner = (level - (reached.gather(axis, place) - weight)) / weight
    here = medians.gather(axis, place)
    before, after = (medians.gather(axis, (place + shift).clamp(0, last)) for shift in (-1, 1))
    return (
        order.gather(axis, place),
        inner.clamp(TINY, 1 - torch.finfo(torch.float64).eps),
        torch.where(place > 0, (before + here) / 2, float("-inf")),
        torch.where(place < last, (here + after) / 2, float("inf")),
    )
