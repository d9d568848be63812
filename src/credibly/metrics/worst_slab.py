"""The worst slab: where, between two parallel planes in the space of the inputs, coverage is least.

For a direction v the slab {x: a <= v'x <= b} with at least a share delta of the rows and the least coverage is a run of
rows in the order of v'x. With hits c and a guess r of the least coverage, such a run has sum(c - r) < 0 unless r is
right: Dinkelbach's iteration ("On Nonlinear Fractional Programming", 1967) moves r to the coverage of the run with the
least sum, found by one pass of cumulated sums, and ends after a few steps at the exact minimum.

The least over many directions is too small by selection. As in Romano, Sesia, Candès ("Classification with Valid and
Adaptive Coverage", 2020) the slab is therefore searched on one part of the rows and judged on the other, where its
coverage has an exact interval. A search on few rows or few directions may miss a worse slab: what is found bounds the
worst slab's coverage from above.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from credibly.core.checks import as_tensor, check_count, check_coverage, check_finite, check_same_rows
from credibly.core.errors import ShapeError
from credibly.core.randomness import Stream, base_seed
from credibly.core.typing import ArrayLike
from credibly.metrics.coverage_law import clopper_pearson
from credibly.metrics.coverage_report import check_contained

__all__ = ["WorstSlab", "worst_slab_coverage"]

_CHUNK_NUMBERS = 2**22
_MAX_STEPS = 100


@dataclass(frozen=True, eq=False)
class WorstSlab:
    """A slab of the inputs in which coverage was least on the rows of the search, judged on the others.

    Attributes:
        direction: v, of length 1, (num_features,).
        bounds: a and b.
        coverage: asked for.
        observed: coverage of the rows inside the slab among those that took no part in the search.
        num_rows: how many rows that is.
        lower: lower end of the exact interval for the true coverage inside the slab.
        upper: upper end.
        confidence: of this interval.
        searched: coverage inside the slab on the rows of the search: too small by selection.
    """

    direction: Tensor
    bounds: tuple[float, float]
    coverage: float
    observed: float
    num_rows: int
    lower: float
    upper: float
    confidence: float
    searched: float


def worst_slab_coverage(
    contained: ArrayLike,
    inputs: ArrayLike,
    coverage: float,
    *,
    mass: float = 0.1,
    num_directions: int = 1000,
    search_share: float = 0.25,
    confidence: float = 0.95,
    seed: int | None = None,
) -> WorstSlab:
    """Search the slab of least coverage on some rows and judge it on the others.

    Args:
        contained: whether each row's region held its target, (rows,) booleans.
        inputs: (rows,) or (rows, num_features), in comparable units: standardise them first.
        coverage: the coverage asked for.
        mass: least share of the rows of the search inside a slab.
        num_directions: random directions, uniform on the sphere.
        search_share: share of the rows, drawn at random, that the search may see.
        confidence: of the interval.
        seed: of the split and the directions.

    Raises:
        ShapeError: the shapes do not fit, or too few rows to split.
        NotFiniteError: inputs that are NaN or infinite.
        ValueError: a share outside (0, 1), or no judged row inside the slab that was found.
    """
    held, points = check_contained(contained), _points(inputs)
    check_same_rows("inputs", len(points), "contained", len(held))
    coverage = check_coverage(coverage)
    for name, share in (("mass", mass), ("search_share", search_share)):
        if not 0 < share < 1:
            raise ValueError(f"`{name}` must lie between 0 and 1; got {share}")
    num_searched = round(search_share * len(held))
    if not 1 <= num_searched < len(held):
        raise ShapeError(f"`contained` must have rows for the search and others to judge; got {len(held)} rows")
    stream = Stream(base_seed(seed), "slabs", points.device)
    order = torch.randperm(len(held), generator=stream.generator(0), device=points.device)
    first, rest = order[:num_searched], order[num_searched:]
    held = held.to(points.device)
    directions = _directions(check_count("num_directions", num_directions), points, stream.generator(1))
    searched, direction, low, high = _search(held[first], points[first], directions, mass)
    along = points[rest] @ direction
    inside = held[rest][(along >= low) & (along <= high)]
    if not len(inside):
        raise ValueError("no judged row lies inside the worst slab; more rows or a larger `mass` are needed")
    lower, upper = clopper_pearson(inside.sum(), torch.tensor(len(inside), device=inside.device), confidence)
    return WorstSlab(
        direction=direction,
        bounds=(float(low), float(high)),
        coverage=coverage,
        observed=float(inside.double().mean()),
        num_rows=len(inside),
        lower=float(lower),
        upper=float(upper),
        confidence=confidence,
        searched=float(searched),
    )


def _points(inputs: ArrayLike) -> Tensor:
    points = check_finite("inputs", as_tensor(inputs).double())
    points = points.unsqueeze(-1) if points.dim() == 1 else points
    if points.dim() != 2 or not points.shape[-1]:
        raise ShapeError(f"`inputs` must have shape (rows,) or (rows, num_features); got {tuple(points.shape)}")
    return points


def _directions(count: int, points: Tensor, generator: torch.Generator) -> Tensor:
    """Uniform on the sphere, (count, num_features); on the line there is one."""
    size = points.shape[-1]
    if size == 1:
        return torch.ones(1, 1, dtype=torch.float64, device=points.device)
    normal = torch.randn(count, size, generator=generator, dtype=torch.float64, device=points.device)
    return torch.nn.functional.normalize(normal, dim=-1)


def _search(held: Tensor, points: Tensor, directions: Tensor, mass: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The least coverage with its direction and bounds, over all directions; of equals the first."""
    rows = len(held)
    shortest = max(1, -int(-mass * rows // 1))
    some = max(1, _CHUNK_NUMBERS // rows)
    best = torch.full((), torch.inf, dtype=torch.float64, device=held.device)
    found = (best, directions[0], best, best)
    for part in torch.split(directions, some):
        along, order = (part @ points.T).sort(dim=-1)
        values, starts, ends = least_mean_runs(held[order], along, shortest)
        index = int(values.argmin())
        if bool(values[index] < found[0]):
            found = (values[index], part[index], along[index, starts[index]], along[index, ends[index]])
    return found


def least_mean_runs(
    hits: Tensor,  # (batch, rows), bool, in the order of the keys
    keys: Tensor,  # (batch, rows), sorted
    shortest: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """The run of at least `shortest` rows with the least mean, first and last row included.

    Rows with equal keys are in a run together or not at all.

    Returns:
        The mean, (batch,), float64, and the indices of its first and last rows, (batch,).
    """
    batch, rows = hits.shape
    zero = torch.zeros(batch, 1, dtype=torch.float64, device=hits.device)
    sums = torch.cat([zero, hits.double().cumsum(-1)], -1)  # of the rows before
    changes = keys[:, 1:] > keys[:, :-1]
    edge = torch.ones(batch, 1, dtype=torch.bool, device=hits.device)
    cuts = torch.cat([edge, changes, edge], -1)  # where a run may begin or end
    count = torch.arange(rows + 1, dtype=torch.float64, device=hits.device)
    mean = sums[:, -1] / rows
    starts, ends = torch.zeros(batch, dtype=torch.long, device=hits.device), torch.full((batch,), rows).to(hits.device)
    for _ in range(_MAX_STEPS):
        excess = sums - mean.unsqueeze(-1) * count
        before, place = torch.where(cuts, excess, -torch.inf)[:, : rows + 1 - shortest].cummax(-1)
        gain = torch.where(cuts[:, shortest:], excess[:, shortest:], torch.inf) - before
        end = gain.argmin(-1, keepdim=True)
        start, end = place.gather(-1, end).squeeze(-1), end.squeeze(-1) + shortest
        each = torch.arange(batch, device=hits.device)
        new = (sums[each, end] - sums[each, start]) / (end - start)
        better = new < mean
        if not bool(better.any()):
            break
        mean = torch.where(better, new, mean)
        starts, ends = torch.where(better, start, starts), torch.where(better, end, ends)
    return mean, starts, ends - 1
