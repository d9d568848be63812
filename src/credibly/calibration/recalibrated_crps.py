r"""The CRPS of R(F(y)) for a piecewise linear R: the integral of (R(F(x)) - 1{y <= x})^2 between the knots of R.

Between the quantiles of F at two knots R(F(x)) is a linear function of F(x), and smooth if F is: Gauss's rule serves
each piece. Beyond the outer knots the pieces end where F falls by factors of 10. All is done in the coordinate
asinh((x - centre) / width), in which tails that fall off as powers are exponential.
"""

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution

from credibly.calibration.piecewise import interpolate
from credibly.distributions.cumulative import cdf, icdf
from credibly.distributions.rows import select, to

__all__ = ["piecewise_crps"]

_DECADES = 15
_BELOW_ONE = 1 - 2.0**-53
_MANY_PIECES = 64
_CHUNK = 2**20  # evaluations of F at once


def piecewise_crps(
    base: Distribution,
    levels: Tensor,  # (outputs, knots)
    recalibrated: Tensor,  # (outputs, knots)
    y: Tensor,  # (rows, *event_shape)
) -> Tensor:
    """The score of every element, in the shape of `y`."""
    grid = _levels(levels)
    num_nodes = 4 if len(grid) > _MANY_PIECES + 2 * _DECADES else 12
    with torch.no_grad():
        precise, targets = to(base, dtype=torch.float64), y.detach().double()
        size = max(1, _CHUNK // (len(grid) * num_nodes * max(1, y.shape[1:].numel())))
        parts = []
        for first in range(0, max(len(y), 1), size):
            some = slice(first, first + size)
            parts.append(_score(select(precise, some), grid, (levels, recalibrated), targets[some], num_nodes))
        return torch.cat(parts).to(y.dtype)


def _levels(levels: Tensor) -> Tensor:
    """Where pieces end, in levels of F, (pieces + 1, outputs): the inner knots, and decades beyond the outer ones."""
    lowest = torch.where(levels > 0, levels, 1.0).amin(-1)
    highest = torch.where(levels < 1, levels, 0.0).amax(-1)
    lowest, highest = lowest.clamp(max=0.5), highest.clamp(min=0.5)
    decades = 10.0 ** -torch.arange(_DECADES + 1, dtype=torch.float64, device=levels.device).unsqueeze(-1)
    every = torch.cat([lowest * decades, levels.t(), 1 - (1 - highest) * decades])
    return torch.maximum(every, lowest * decades[-1]).clamp(max=_BELOW_ONE).sort(dim=0).values


def _score(base: Distribution, grid: Tensor, curve: tuple[Tensor, Tensor], y: Tensor, num_nodes: int) -> Tensor:
    outputs = y.shape[1:]
    ends = icdf.formula(base, grid.reshape(len(grid), 1, *outputs).expand(len(grid), *y.shape))
    centre, width = _frame(ends)
    target = torch.asinh((y - centre) / width)
    ends = torch.asinh((ends - centre) / width)
    ends = torch.cat([ends, target.unsqueeze(0)]).sort(dim=0).values
    half, middle = ends.diff(dim=0) / 2, (ends[1:] + ends[:-1]) / 2
    total = torch.zeros_like(y)
    for node, weight in zip(*np.polynomial.legendre.leggauss(num_nodes), strict=True):
        u = middle + half * float(node)
        below = cdf.formula(base, centre + width * torch.sinh(u)).double()
        corrected = interpolate(*curve, below.reshape(-1, outputs.numel()).t()).t().reshape(below.shape)
        squares = (corrected - (middle >= target).double()).square()
        total = total + float(weight) * (squares * torch.cosh(u) * half).sum(0) * width
    return total


def _frame(ends: Tensor) -> tuple[Tensor, Tensor]:
    """The median of the ends, and about a standard deviation, 1 where there is no spread."""
    quarter = len(ends) // 4
    spread = ends[-quarter - 1] - ends[quarter]
    spread = torch.where(spread > 0, spread, ends[-1] - ends[0])
    return ends[len(ends) // 2], torch.where(spread > 0, spread / 2, 1.0)
