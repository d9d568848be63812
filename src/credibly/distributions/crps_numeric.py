"""CRPS from its definition, for whatever has a cdf and quantiles.

The integral of (F(x) - 1{y <= x})^2 is cut at the target and at a few quantiles. Over real numbers
x = median + scale * sinh(u), so that heavy tails take few panels in u. Each panel is integrated by a pair of nested
rules, Gauss's of 7 and Kronrod's of 15 points; where the two disagree the panel is halved, so that kinks and jumps of
F are closed in upon (Robert Piessens, Elise de Doncker-Kapenga, Christoph Ueberhuber, David Kahaner, "QUADPACK",
1983). Over counts the integral is a sum. Panels of 15 counts are summed term by term; longer ones by a rule that is
exact for polynomials, from 15 counts among them, and halved likewise.

Where a density costs far less than F, as in mixtures over many draws of Beta or Student's t distributions, F is asked
for at the ends of a panel alone; between them it is the integral of the polynomial through the densities at the 15
points, and what that misses of F at the far end counts as error.

Both work in float64 until the coarser rules are within a relative 1e-7 (1e-9 for counts), and leave out tails of
probability 1e-10 (1e-12), whose square is what they would add. The results carry no gradients.
"""

import functools
import warnings
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution

from credibly.core.errors import ConvergenceWarning
from credibly.distributions.cumulative import cdf, icdf
from credibly.distributions.kinds import kind
from credibly.distributions.operations import Operation
from credibly.distributions.rows import select, to

__all__ = ["cheap_density", "numeric_crps", "outline"]

REAL_TOLERANCE, COUNT_TOLERANCE = 1e-7, 1e-9
MAX_ROUNDS = 50
CHUNK = 2**19  # values of F at a time
NUM_NODES = 15

REAL_LEVELS = (1e-10, 0.01, 0.5, 0.99, 1 - 1e-10)
COUNT_TAIL = 1e-12
COUNT_PANELS = 4  # on either side of the target
MAX_DOUBLINGS = 52
LONG_PANEL = 12  # doublings from which on a sum is its integral, to more digits than are asked for

KRONROD_NODES = (
    *(0.0, 0.207784955007898467600689403773245, 0.405845151377397166906606412076961),
    *(0.586087235467691130294144691258933, 0.741531185599394439863864773280788),
    *(0.864864423359769072789712788640926, 0.949107912342758524526189684047851),
    0.991455371120812639206854697526329,
)
KRONROD_WEIGHTS = (
    *(0.209482141084727828012999174891714, 0.204432940075298892414161999234649),
    *(0.190350578064785409913256402421014, 0.169004726639267902826583426598550),
    *(0.140653259715525918745189590510238, 0.104790010322250183839876322541518),
    *(0.063092092629978553290700663189204, 0.022935322010529224963732008058970),
)
GAUSS_WEIGHTS = (
    *(0.417959183673469387755102040816327, 0.0, 0.381830050505118944950369775488975, 0.0),
    *(0.279705391489276667901467771423780, 0.0, 0.129484966168869693270611432679082, 0.0),
)

Rule: TypeAlias = Callable[[Distribution, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""Takes the distribution, a frame, the starts and the sizes of panels; gives their integrals and errors.

The frame, (numbers, *batch, *event), begins with the target, in the coordinates of the panels.
"""


@Operation
def outline(d: Distribution, levels: Tensor) -> Tensor:
    """Quantiles at levels (levels, *batch, *event), or cheaper points near them that leave no more in the tails."""
    return icdf.formula(d, levels)


@Operation
def cheap_density(d: Distribution, x: Tensor) -> Tensor | None:  # noqa: ARG001
    """The density at a grid of points (..., *batch, *event) where it costs far less than F; otherwise None."""
    return None


def numeric_crps(d: Distribution, y: Tensor) -> Tensor:
    """The CRPS of every element by quadrature or summation: shape batch_shape + event_shape.

    Args:
        d: a distribution of real numbers or counts with entries for cdf and icdf.
        y: targets as `match_targets` returns them; they broadcast against batch_shape + event_shape.

    Raises:
        NotSupportedError: the cdf or the quantiles are not known.
    """
    shape = d.batch_shape + d.event_shape
    axis = len(d.batch_shape) - 1
    integrate = _sum if kind(d) == "count" else _integral
    with torch.no_grad():
        precise = to(d, dtype=torch.float64)
        targets = y.detach().double().expand(shape)
        size = max(1, CHUNK // (8 * NUM_NODES * max(1, shape.numel() // max(1, shape[axis]))))
        if size >= shape[axis]:
            return integrate(precise, targets).to(y.dtype)
        parts = []
        for first in range(0, shape[axis], size):
            some = targets.narrow(axis, first, min(size, shape[axis] - first))
            parts.append(integrate(select(precise, slice(first, first + size)), some))
        return torch.cat(parts, axis).to(y.dtype)


def _quantiles(
    quantile: Callable[[Distribution, Tensor], Tensor], d: Distribution, levels: tuple[float, ...], y: Tensor
) -> Tensor:
    """(levels, *batch, *event), the target where a quantile is not a finite number."""
    grid = y.new_tensor(levels).reshape(-1, *(1,) * y.dim()).expand(-1, *y.shape)
    values = quantile(d, grid)
    return torch.where(torch.isfinite(values), values, y)


def _integral(d: Distribution, y: Tensor) -> Tensor:
    quantiles = _quantiles(outline.formula, d, REAL_LEVELS, y)
    middle, scale = quantiles[len(quantiles) // 2], _scale(quantiles)
    target = torch.asinh((y - middle) / scale)
    edges = torch.cat([torch.asinh((quantiles - middle) / scale), target.unsqueeze(0)]).sort(dim=0).values
    frame = torch.stack([target, middle, scale])
    return _refined(d, frame, (edges[:-1], edges.diff(dim=0)), _kronrod, REAL_TOLERANCE)


def _scale(quantiles: Tensor) -> Tensor:
    """Roughly a standard deviation; of a distribution without spread, 1."""
    inner, outer = quantiles[-2] - quantiles[1], quantiles[-1] - quantiles[0]
    return torch.where(inner > 0, inner / 4, torch.where(outer > 0, outer, 1.0))


def _sum(d: Distribution, y: Tensor) -> Tensor:
    """Beyond its outer quantiles F is 0 or 1, and a target there adds its distance."""
    low, high = _quantiles(icdf.formula, d, (COUNT_TAIL, 1 - COUNT_TAIL), y)
    middle = torch.minimum(torch.maximum(y, low), high)
    order = torch.arange(COUNT_PANELS, dtype=y.dtype, device=y.device).reshape(-1, *(1,) * y.dim())
    below, above = _panel_size(middle - low), _panel_size(high + 1 - middle)
    start = torch.cat([middle - (order + 1) * below, middle + order * above])
    size = torch.cat([below.expand(order.shape[:1] + y.shape), above.expand(order.shape[:1] + y.shape)])
    return (y - middle).abs() + _refined(d, middle.unsqueeze(0), (start, size), _summation, COUNT_TOLERANCE)


def _panel_size(span: Tensor) -> Tensor:
    """15, 30, 60, ...: the first for which the panels cover the span."""
    doublings = torch.ceil(torch.log2(span / (NUM_NODES * COUNT_PANELS))).clamp(0, MAX_DOUBLINGS)
    return NUM_NODES * torch.exp2(doublings)


def _refined(
    d: Distribution,
    frame: Tensor,
    panels: tuple[Tensor, Tensor],  # starts and sizes, each (panels, *batch, *event)
    rule: Rule,
    tolerance: float,
) -> Tensor:
    """The sum over panels, of which the worst are halved, in rows that are not accurate yet."""
    axis = len(d.batch_shape)  # of the rows, behind the panels
    table: tuple[Tensor, ...] = (*panels, *rule(d, frame, *panels))
    result = table[2].sum(0)
    rows = torch.arange(result.shape[axis - 1], device=result.device)
    for _ in range(MAX_ROUNDS):
        late = _late_rows(table, axis, tolerance)
        if not len(late):
            return result
        rows, d, frame = rows[late], select(d, late), frame.index_select(axis, late)
        table = _halved(d, frame, tuple(t.index_select(axis, late) for t in table), rule)
        result = result.index_copy(axis - 1, rows, table[2].sum(0))
    if len(_late_rows(table, axis, tolerance)):
        warnings.warn(
            f"the CRPS of {len(rows)} rows may be off by more than a relative {tolerance:g}",
            ConvergenceWarning,
            stacklevel=2,
        )
    return result


def _late_rows(table: tuple[Tensor, ...], axis: int, tolerance: float) -> Tensor:
    _, _, value, error = table
    late = (error.sum(0) > tolerance * value.sum(0)).unsqueeze(0)
    return late.movedim(axis, 0).flatten(1).any(1).nonzero().squeeze(1)


def _halved(d: Distribution, frame: Tensor, table: tuple[Tensor, ...], rule: Rule) -> tuple[Tensor, ...]:
    """The same panels, the worst replaced by their halves. One without an error keeps all in its first half."""
    start, size, _, error = table
    worst = error.topk(min(max(4, len(error) // 8), len(error)), dim=0).indices
    first, whole = start.gather(0, worst), size.gather(0, worst)
    left = torch.where(error.gather(0, worst) > 0, whole / 2, whole)
    starts, sizes = torch.cat([first, first + left]), torch.cat([left, whole - left])
    halves = (starts, sizes, *rule(d, frame, starts, sizes))
    lefts, rights = zip(*(t.chunk(2) for t in halves), strict=True)
    return tuple(torch.cat([t.scatter(0, worst, a), b]) for t, a, b in zip(table, lefts, rights, strict=True))


def _on_nodes(function: Callable[[Distribution, Tensor], Tensor], d: Distribution, nodes: Tensor) -> Tensor:
    """A function of a grid at nodes (nodes, panels, *batch, *event), in float64."""
    return function(d, nodes.flatten(0, 1)).double().reshape(nodes.shape)


def _kronrod(d: Distribution, frame: Tensor, start: Tensor, size: Tensor) -> tuple[Tensor, Tensor]:
    nodes, weights = (torch.from_numpy(table).to(start.device) for table in _kronrod_table())
    target, origin, scale = frame
    half = size / 2
    middle = start + half
    u = middle + half * nodes.reshape(-1, *(1,) * start.dim())
    stretch = scale * torch.cosh(u) * half
    ends = origin + scale * torch.sinh(torch.stack([start, start + size]))
    values, missed = _distribution_function(d, origin + scale * torch.sinh(u), stretch, ends)
    fine, coarse = torch.tensordot(weights, (values - (middle >= target).double()).square() * stretch, 1)
    return fine, (fine - coarse).abs() + 2 * missed * ends.diff(dim=0).squeeze(0)


def _distribution_function(d: Distribution, x: Tensor, stretch: Tensor, ends: Tensor) -> tuple[Tensor, Tensor]:
    """F at nodes (nodes, panels, *batch, *event), and how far off it may be in each panel."""
    density = cheap_density.formula(d, x.flatten(0, 1))
    if density is None:
        return _on_nodes(cdf.formula, d, x), torch.zeros_like(ends[0])
    slope = torch.where(torch.isfinite(density), density, 0.0).double().reshape(x.shape) * stretch
    left, right = _at_ends(d, ends)
    within = torch.tensordot(torch.from_numpy(_running_integrals()).to(x.device), slope, 1)
    return left + within[:-1], (left + within[-1] - right).abs()


def _at_ends(d: Distribution, ends: Tensor) -> tuple[Tensor, Tensor]:
    """F at both ends (2, panels, *batch, *event); once where a panel begins at the end of the one before."""
    start, end = ends
    if not torch.allclose(start[1:], end[:-1], rtol=1e-12, atol=0):
        left, right = _on_nodes(cdf.formula, d, ends)
        return left, right
    values = cdf.formula(d, torch.cat([start, end[-1:]])).double()
    return values[:-1], values[1:]


@functools.cache
def _running_integrals() -> "np.ndarray":
    """From -1 to every node, and to 1, of the polynomial through the values at the nodes: (16, 15)."""
    nodes, _ = _kronrod_table()
    legendre = np.polynomial.legendre
    integrals = [legendre.legint(row, lbnd=-1) for row in np.eye(NUM_NODES)]
    upto = np.stack([legendre.legval(np.append(nodes, 1.0), row) for row in integrals], -1)
    return np.linalg.solve(legendre.legvander(nodes, NUM_NODES - 1).T, upto.T).T


@functools.cache
def _kronrod_table() -> tuple["np.ndarray", "np.ndarray"]:
    """Nodes on [-1, 1], (15,), and the weights of Kronrod's and Gauss's rule, (2, 15)."""

    def mirrored(values: tuple[float, ...], sign: int) -> list[float]:
        return [sign * v for v in reversed(values[1:])] + list(values)

    weights = np.array([mirrored(KRONROD_WEIGHTS, 1), mirrored(GAUSS_WEIGHTS, 1)])
    return np.array(mirrored(KRONROD_NODES, -1)), weights


def _summation(d: Distribution, frame: Tensor, start: Tensor, size: Tensor) -> tuple[Tensor, Tensor]:
    nodes, weights = (torch.from_numpy(table).to(start.device) for table in _summation_table())
    doublings = torch.log2(size.clamp(min=NUM_NODES) / NUM_NODES).round().long()
    above = (start + size / 2 >= frame[0]).double()
    values = (_on_nodes(cdf.formula, d, start + nodes[doublings].movedim(-1, 0)) - above).square()
    fine, coarse = torch.einsum("n...,...rn->r...", values, weights[doublings]) * (size > 0)
    return fine, (fine - coarse).abs()


@functools.cache
def _summation_table() -> tuple["np.ndarray", "np.ndarray"]:
    """For 15 * 2^j counts: the nodes among them, (j, 15), and the weights of all and of every other, (j, 2, 15)."""
    rules = [_summation_rule(NUM_NODES * 2**j, exact=j < LONG_PANEL) for j in range(MAX_DOUBLINGS + 1)]
    weights = np.stack([w for _, w in rules])
    weights[0] = 1.0  # every count is a node
    return np.stack([n for n, _ in rules]), weights


def _summation_rule(count: int, *, exact: bool) -> tuple["np.ndarray", "np.ndarray"]:
    """Nodes among 0, ..., count - 1 crowded at both ends, and weights that sum polynomials without error."""
    half = NUM_NODES // 2
    ideal = np.round((count - 1) * (1 - np.cos(np.pi * np.arange(half) / (NUM_NODES - 1))) / 2)
    lower = np.maximum.accumulate(ideal - np.arange(half)) + np.arange(half)
    nodes = np.concatenate([lower, [count // 2], count - 1 - lower[::-1]])

    def basis(x: "np.ndarray", degree: int) -> "np.ndarray":
        return np.polynomial.legendre.legvander((2 * x + 1 - count) / count, degree)

    weights = np.zeros((2, NUM_NODES))
    for row, step in ((0, 1), (1, 2)):
        chosen = nodes[::step]
        degree = len(chosen) - 1
        moments = basis(np.arange(count), degree).sum(0) if exact else count * np.eye(degree + 1)[0]
        weights[row, ::step] = np.linalg.solve(basis(chosen, degree).T, moments)
    return nodes, weights
