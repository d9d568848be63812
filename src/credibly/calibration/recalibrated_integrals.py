r"""Integrals of R(F(y)) for a piecewise linear R: the CRPS, the mean and the variance.

With G = R(F) and any number c

    CRPS = int (G(x) - 1{y <= x})^2 dx,
    mean = c + int_c^inf (1 - G) dx - int_-inf^c G dx,
    E (Y - c)^2 = 2 int_c^inf (x - c)(1 - G) dx + 2 int_-inf^c (c - x) G dx.

Between the quantiles of F at two knots G is a linear function of F, and smooth if F is: Gauss's rule serves each piece.
Pieces end as well where either tail of F has fallen by a factor of 10, on to 1e-40 of the outer knots. All is done in
the coordinate asinh((x - centre) / width), in which tails that fall off as powers are exponential. Moments of counts
are sums over the counts, and those of draws, and their CRPS, sums over the draws.
"""

import math
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution

from credibly.calibration.piecewise import interpolate_tails
from credibly.calibration.tails import TINY, Tails, distance, level, tails_at
from credibly.calibration.upper_quantiles import quantile_at
from credibly.core.errors import NotSupportedError
from credibly.distributions.empirical import Empirical
from credibly.distributions.kinds import kind, reference
from credibly.distributions.moments import mean, variance
from credibly.distributions.operations import Operation
from credibly.distributions.quantiles import QuantileForecast
from credibly.distributions.rows import select, to

__all__ = ["recalibrated_crps", "recalibrated_moments"]

Curve: TypeAlias = tuple[Tails, Tails]
"""The knots of R, each (outputs, knots): levels of F and what becomes of them."""

Integrand: TypeAlias = Callable[[Tensor, Tails, Tensor], Tensor]
"""Takes points, both tails of G there, and whether the piece lies above the number at which integrals are split.

Gives one or several functions, (functions, ends, rows, *event_shape)."""

_DECADES = 40
_MANY_KNOTS = 64
_CHUNK = 2**20  # evaluations of F at once
_COUNTS = 1024  # counts that are summed at once
_MOST_COUNTS = 2**22


def recalibrated_crps(base: Distribution, curve: Curve, y: Tensor) -> Tensor:
    """The CRPS of real numbers, of every element of y (rows, *event_shape), in its dtype."""
    return _by_rows(base, y, lambda some, targets: _crps.formula(some, curve, targets)).to(y.dtype)


def recalibrated_moments(base: Distribution, curve: Curve) -> tuple[Tensor, Tensor]:
    """Mean and variance of every element, in the dtype of the base's.

    Raises:
        NotSupportedError: a quantile forecast, or counts that spread over more than 2^22.
    """
    middle = quantile_at.formula(to(base, dtype=torch.float64), _median(base, curve))
    found = _by_rows(base, middle, lambda some, centre: torch.stack(_moments.formula(some, curve, centre), -1))
    first, second = (
        _where_finite(moment, base, value).to(reference(base).dtype)
        for moment, value in zip((mean, variance), found.unbind(-1), strict=True)
    )
    return first, second


def _where_finite(moment: Operation[[], Tensor], base: Distribution, value: Tensor) -> Tensor:
    """The value where the base's own moment is finite, or not stated; else that."""
    try:
        given = moment(base).detach().double()
    except NotSupportedError:
        return value
    return torch.where(given.isfinite(), value, given)


def _median(base: Distribution, curve: Curve) -> Tails:
    half = torch.full_like(curve[0].lower[:, :1], 0.5)
    tails = interpolate_tails(curve[1], curve[0], Tails(half, half))
    shape = base.batch_shape + base.event_shape
    return Tails(*(tail.squeeze(-1).reshape(base.event_shape).expand(shape) for tail in tails))


def _by_rows(base: Distribution, values: Tensor, function: Callable[[Distribution, Tensor], Tensor]) -> Tensor:
    """A function of a base in float64 and a value for every row, in groups of rows that share the memory."""
    with torch.no_grad():
        precise, values = to(base, dtype=torch.float64), values.detach().double()
        size = max(1, _CHUNK // (2**13 * max(1, values.shape[1:].numel())))
        groups = [slice(first, first + size) for first in range(0, max(len(values), 1), size)]
        return torch.cat([function(select(precise, some), values[some]) for some in groups])


# -- pieces of a smooth F ------------------------------------------------------------------------------------------


@Operation
def _crps(base: Distribution, curve: Curve, y: Tensor) -> Tensor:
    def squares(x: Tensor, tails: Tails, above: Tensor) -> Tensor:  # noqa: ARG001
        return torch.where(above, tails.upper, tails.lower).square().unsqueeze(0)

    return _integral(base, curve, y, squares).squeeze(0)


@Operation
def _moments(base: Distribution, curve: Curve, centre: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance about a number near the median, (rows, *event_shape)."""
    if kind(base) == "count":
        return _sums_of_counts(base, curve, centre)

    def both(x: Tensor, tails: Tails, above: Tensor) -> Tensor:
        tail = torch.where(above, tails.upper, tails.lower)
        return torch.stack([torch.where(above, tail, -tail), 2 * (x - centre).abs() * tail])

    shift, squares = _integral(base, curve, centre, both)
    return centre + shift, squares - shift.square()


@_moments.register(QuantileForecast)
def _(base: QuantileForecast, curve: Curve, centre: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ARG001
    raise NotSupportedError(
        "mean and variance are not available for a recalibrated QuantileForecast: its tails are not known; use icdf"
    )


def _integral(base: Distribution, curve: Curve, split: Tensor, integrand: Integrand) -> Tensor:
    """The integrals over all pieces, one of which ends at `split`: (functions, rows, *event_shape)."""
    grid = _levels(curve[0])
    outputs, count = split.shape[1:], len(grid.lower)
    spread = Tails(*(tail.reshape(count, 1, *outputs).expand(count, *split.shape) for tail in grid))
    ends = quantile_at.formula(base, spread)
    ends = torch.where(ends.isfinite(), ends, split)  # what lies at infinity is left out
    centre, width = _frame(ends)
    ends = torch.asinh((torch.cat([ends, split.unsqueeze(0)]) - centre) / width).sort(dim=0).values
    half, middle = ends.diff(dim=0) / 2, (ends[1:] + ends[:-1]) / 2
    above = middle >= torch.asinh((split - centre) / width)
    total = torch.zeros_like(split)
    for node, weight in zip(*np.polynomial.legendre.leggauss(_num_nodes(curve)), strict=True):
        u = middle + half * float(node)
        x = centre + width * torch.sinh(u)
        value = integrand(x, _corrected(curve, tails_at(base, x)), above)
        total = total + float(weight) * (value * torch.cosh(u) * half).sum(1) * width
    return total


def _num_nodes(curve: Curve) -> int:
    return 4 if curve[0].lower.shape[-1] > _MANY_KNOTS else 12


def _corrected(curve: Curve, tails: Tails) -> Tails:
    """R of levels (..., *event_shape)."""
    flat = Tails(*(tail.reshape(-1, len(curve[0].lower)).t() for tail in tails))
    return Tails(*(tail.t().reshape(tails.lower.shape) for tail in interpolate_tails(*curve, flat)))


def _levels(knots: Tails) -> Tails:
    """Where pieces end, in levels of F, (ends, outputs)."""
    outer = [torch.where(tail > 0, tail, 0.5).amin(-1).clamp(max=0.5) for tail in knots]
    floors = Tails(*((tail * 10.0**-_DECADES).clamp(min=TINY) for tail in outer))
    falls = [_decades(floor) for floor in floors]
    inner = Tails(*(torch.maximum(tail.t(), floor) for tail, floor in zip(knots, floors, strict=True)))
    return Tails(
        torch.cat([falls[0], inner.lower, 1 - falls[1]]),
        torch.cat([1 - falls[0], inner.upper, falls[1]]),
    )


def _decades(floor: Tensor) -> Tensor:
    """0.5, 0.05, ... down to the floor of each output, (decades, outputs)."""
    count = math.ceil(-math.log10(2 * float(floor.amin()))) + 1
    steps = 0.5 * 10.0 ** -torch.arange(count, dtype=torch.float64, device=floor.device).unsqueeze(-1)
    return torch.maximum(steps, floor)


def _frame(ends: Tensor) -> tuple[Tensor, Tensor]:
    """The median of the ends, and about a standard deviation, 1 where there is no spread."""
    ends = ends.sort(dim=0).values
    quarter = len(ends) // 4
    spread = ends[-quarter - 1] - ends[quarter]
    spread = torch.where(spread > 0, spread, ends[-1] - ends[0])
    return ends[len(ends) // 2], torch.where(spread > 0, spread / 2, 1.0)


# -- sums ----------------------------------------------------------------------------------------------------------


def _sums_of_counts(base: Distribution, curve: Curve, centre: Tensor) -> tuple[Tensor, Tensor]:
    """Sums of both tails away from the centre, a whole number, up to where they end."""
    grid, shape = _levels(curve[0]), centre.shape
    lowest, highest = (_extreme(grid, tail) for tail in grid)
    low, high = (
        quantile_at.formula(base, Tails(*(tail.reshape(shape[1:]).expand(shape) for tail in at)))
        for at in (lowest, highest)
    )
    reach = torch.maximum(centre - low, high - centre).nan_to_num(0.0, posinf=math.inf)
    width = float(reach.amax()) if reach.numel() else 0.0
    if width > _MOST_COUNTS:
        raise NotSupportedError(f"mean and variance are sums over all likely counts, of which a row has {width:.3g}")
    shift, squares = torch.zeros_like(centre), torch.zeros_like(centre)
    block = min(_COUNTS, int(width) + 1)
    for begin in range(0, int(width) + 1, block):
        steps = torch.arange(begin, begin + block, dtype=torch.float64, device=centre.device)
        steps = steps.reshape(-1, *(1,) * centre.dim())
        above = _corrected(curve, tails_at(base, centre + steps)).upper
        below = _corrected(curve, tails_at(base, centre - steps - 1)).lower
        shift = shift + (above - below).sum(0)
        squares = squares + ((2 * steps + 1) * (above + below)).sum(0)
    return centre + shift, squares - shift.square()


def _extreme(levels: Tails, tail: Tensor) -> Tails:
    """The level of each output at which a tail is smallest."""
    index = tail.argmin(0, keepdim=True)
    return Tails(levels.lower.gather(0, index), levels.upper.gather(0, index))


@_moments.register(Empirical)
def _(base: Empirical, curve: Curve, centre: Tensor) -> tuple[Tensor, Tensor]:
    values, masses, _ = _jumps(base, curve)
    offsets = values - centre
    shift = (masses * offsets).sum(0)
    return centre + shift, (masses * (offsets - shift).square()).sum(0)


@_crps.register(Empirical)
def _(base: Empirical, curve: Curve, y: Tensor) -> Tensor:
    """E|X - y| - E|X - X'|/2."""
    values, masses, reached = _jumps(base, curve)
    gaps = values.diff(dim=0) * reached.lower[:-1] * reached.upper[:-1]
    return (masses * (values - y).abs()).sum(0) - gaps.sum(0)


def _jumps(base: Empirical, curve: Curve) -> tuple[Tensor, Tensor, Tails]:
    """The draws in order, (draws, rows, *event_shape), their masses, and G at each."""
    values, table = (each.movedim(-1, 0) for each in base.sorted())
    reached = _corrected(curve, level(table))
    lower = torch.cat([torch.zeros_like(reached.lower[:1]), reached.lower[:-1]])
    upper = torch.cat([torch.ones_like(reached.upper[:1]), reached.upper[:-1]])
    return values, distance(Tails(lower, upper), reached), reached
