r"""Every interval on which a density is above a level, found with a guarantee.

Between neighbouring turning points of its components a mixture is a sum of monotone functions. On such a segment
[a, b] it lies between the sums of the smaller and of the larger of their values at a and b. A segment whose upper bound
is below the level is out, one whose lower bound reaches it is in, one on which all components rise, or all fall, has
one crossing at most; every other one is halved, until its bounds differ by a factor of 1 + 1e-6. So no component that
exceeds the level by more than this factor is missed, however narrow and however far from the others. Crossings are
found to the last floating-point number.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributions import Distribution

from credibly.conformal.float_search import last_true
from credibly.core.errors import NotFiniteError
from credibly.distributions.cumulative import cdf, icdf
from credibly.distributions.density import safe_log_prob
from credibly.distributions.rows import num_rows, select
from credibly.distributions.survival import survival
from credibly.distributions.turning_points import component_log_probs, turning_points

__all__ = ["level_sets", "level_sets_of_counts"]

_TIGHT = 1e-6
_TABLE = 2**22  # elements of a table of components against segments at a time
_DOUBLINGS = 1100  # of all float64 numbers


@dataclass
class _Segments:
    """Segments [a, b] of some rows, with the logarithms of all components at either end, (components, segments)."""

    row: Tensor
    a: Tensor
    b: Tensor
    at_a: Tensor
    at_b: Tensor

    def some(self, which: Tensor) -> "_Segments":
        return _Segments(self.row[which], self.a[which], self.b[which], self.at_a[:, which], self.at_b[:, which])

    def halved(self, d: Distribution) -> "_Segments":
        middle = (self.a + self.b) / 2
        at_middle = _components(select(d, self.row), middle)
        return _Segments(
            torch.cat([self.row, self.row]),
            torch.cat([self.a, middle]),
            torch.cat([middle, self.b]),
            torch.cat([self.at_a, at_middle], 1),
            torch.cat([at_middle, self.at_b], 1),
        )


def level_sets(d: Distribution, log_level: Tensor) -> tuple[Tensor, Tensor]:
    """The intervals on which the log density is at least the level, with ends (rows, pieces), NaN beyond the last.

    Args:
        d: a distribution of real numbers in float64, one a row.
        log_level: (rows,), float64; -inf gives the whole line.

    Raises:
        NotFiniteError: the density of a row is NaN.
    """
    points = turning_points.formula(d).flatten(1).T
    size = max(1, _TABLE // (points.shape[1] + 2) ** 2)
    parts = [
        _pieces_of_rows(select(d, slice(first, first + size)), points[first : first + size], log_level, first)
        for first in range(0, num_rows(d), size)
    ]
    return _padded(parts, log_level)


def level_sets_of_counts(d: Distribution, log_level: Tensor) -> tuple[Tensor, Tensor]:
    """The runs of counts whose log probability is at least the level, with first and last counts (rows, pieces).

    A count of probability p or more has F >= p and P(Y >= k) >= p, so that few counts have to be looked at.

    Args:
        d: a distribution of counts in float64, one a row.
        log_level: (rows,), float64; -inf gives all counts.

    Raises:
        NotFiniteError: the density of a row is NaN.
    """
    _refuse_nan(_log_density(d, torch.zeros_like(log_level)).isnan().flatten())
    whole = torch.isneginf(log_level)
    least = log_level.masked_fill(whole, 0.0).exp().clamp(min=torch.finfo(torch.float64).tiny)
    far = torch.full_like(least, torch.inf)
    first = last_true(lambda y: _flat(cdf.formula(d, _event(d, y))) >= least, far, -torch.ones_like(far))
    last = last_true(
        lambda y: _flat(survival.formula(d, _event(d, y.floor() - 1))) >= least, -torch.ones_like(far), far
    )
    first, last = first.ceil(), last.floor()
    number = torch.where(~whole & (first <= last), last - first + 1, 0.0).to(torch.int64)
    parts = [
        _runs(d, log_level, first, number, rows)
        for rows in torch.split(torch.arange(len(number), device=number.device), _rows_at_a_time(number))
        if len(rows)
    ]
    rows = whole.nonzero().squeeze(-1)
    parts.append((rows, torch.zeros_like(least[rows]), far[rows]))
    return _padded(parts, log_level)


def _rows_at_a_time(number: Tensor) -> list[int]:
    """How many rows make up a block of counts, one row at least."""
    block = (number.cumsum(0) - number) // _TABLE
    sizes: list[int] = torch.unique_consecutive(block, return_counts=True)[1].tolist()
    return sizes or [0]


def _runs(
    d: Distribution, log_level: Tensor, first: Tensor, number: Tensor, rows: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The row, the first and the last count of every run, among `number` counts from `first` on, for some rows."""
    number = number[rows]
    start = number.cumsum(0) - number
    of = rows.repeat_interleave(number)
    place = torch.arange(len(of), device=of.device) - start.repeat_interleave(number)
    counts = first[of] + place
    inside = _log_density(select(d, of), counts).flatten() >= log_level[of]
    before = torch.nn.functional.pad(inside, (1, 0))[:-1] & (place > 0)
    after = torch.nn.functional.pad(inside, (0, 1))[1:] & (place < number.repeat_interleave(number) - 1)
    begins, ends = inside & ~before, inside & ~after
    return of[begins], counts[begins], counts[ends]


def _pieces_of_rows(d: Distribution, points: Tensor, log_level: Tensor, first: int) -> tuple[Tensor, Tensor, Tensor]:
    """The row, the lower and the upper end of every piece, in order."""
    levels = log_level[first : first + len(points)]
    whole = torch.isneginf(levels)
    levels = levels.masked_fill(whole, torch.inf)
    row, lower, upper = _solved(d, _first_segments(d, points, levels), levels)
    lines = whole.nonzero().squeeze(-1)
    far = torch.full_like(lines, torch.inf, dtype=torch.float64)
    row, lower, upper = torch.cat([row, lines]), torch.cat([lower, -far]), torch.cat([upper, far])
    return _merged(row + first, lower, upper)


def _first_segments(d: Distribution, points: Tensor, levels: Tensor) -> _Segments:
    """Between all turning points, the ends of the support, and points beyond which the density is below the level."""
    half = torch.full_like(levels, 0.5)
    low, high = (_flat(icdf.formula(d, _event(d, half * share))) for share in (0.0, 2.0))
    spread = _flat(icdf.formula(d, _event(d, half * 1.5))) - _flat(icdf.formula(d, _event(d, half / 2)))
    spread = torch.where((spread > 0) & spread.isfinite(), spread, 1.0)
    points = points.clamp(low.unsqueeze(-1), high.unsqueeze(-1))
    left = torch.where(low.isfinite(), low, _beyond(d, points.amin(-1), -spread, levels))
    right = torch.where(high.isfinite(), high, _beyond(d, points.amax(-1), spread, levels))
    seeds = torch.cat([left.unsqueeze(-1), points, right.unsqueeze(-1)], -1).sort(-1).values
    logs = component_log_probs.formula(d, _event(d, seeds.T)).flatten(2)
    _refuse_nan(logs.isnan().any(0).any(0) | seeds.isnan().any(-1))
    rows = torch.arange(len(seeds), device=seeds.device).expand(seeds.shape[1] - 1, -1)
    every = _Segments(
        rows.reshape(-1),
        seeds.T[:-1].reshape(-1),
        seeds.T[1:].reshape(-1),
        logs[:, :-1].flatten(1),
        logs[:, 1:].flatten(1),
    )
    return every.some(every.a < every.b)


def _beyond(d: Distribution, start: Tensor, step: Tensor, levels: Tensor) -> Tensor:
    """A point past the outermost turning point where the density is below the level."""
    for _ in range(_DOUBLINGS):
        above = (_log_density(d, start + step) >= levels) & step.isfinite()
        if not bool(above.any()):
            break
        step = torch.where(above, 2 * step, step)
    return start + step


def _solved(d: Distribution, segments: _Segments, levels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The pieces on all segments, unordered."""
    empty = segments.a[:0]
    found = [(segments.row[:0], empty, empty)]
    while len(segments.row):
        level = levels[segments.row]
        top = torch.maximum(segments.at_a, segments.at_b).logsumexp(0)
        bottom = torch.minimum(segments.at_a, segments.at_b).logsumexp(0)
        monotone = (segments.at_a <= segments.at_b).all(0) | (segments.at_a >= segments.at_b).all(0)
        middle = (segments.a + segments.b) / 2
        narrow = (middle <= segments.a) | (middle >= segments.b) | (top - bottom <= _TIGHT)
        known = monotone | narrow | (top < level) | (bottom >= level)
        found.append(_pieces(d, segments.some(known), level[known], (bottom >= level)[known]))
        segments = segments.some(~known).halved(d)
    row, lower, upper = (torch.cat(parts) for parts in zip(*found, strict=True))
    return row, lower, upper


def _pieces(d: Distribution, segments: _Segments, level: Tensor, whole: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What lies inside of segments with one crossing at most."""
    starts = (segments.at_a.logsumexp(0) >= level) | whole
    ends = (segments.at_b.logsumexp(0) >= level) | whole
    lower, upper = segments.a.clone(), segments.b.clone()
    crossing = starts != ends
    if bool(crossing.any()):
        rows, a, b, rises = segments.row[crossing], lower[crossing], upper[crossing], ends[crossing]
        chosen, reached = select(d, rows), level[crossing]
        edge = last_true(
            lambda y: _log_density(chosen, y) >= reached, torch.where(rises, b, a), torch.where(rises, a, b)
        )
        lower[crossing], upper[crossing] = torch.where(rises, edge, a), torch.where(rises, b, edge)
    inside = starts | ends
    return segments.row[inside], lower[inside], upper[inside]


def _merged(row: Tensor, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Pieces in order, with those that touch joined."""
    order = lower.argsort(stable=True)
    order = order[row[order].argsort(stable=True)]
    row, lower, upper = row[order], lower[order], upper[order]
    touches = (row[1:] == row[:-1]) & (lower[1:] <= upper[:-1])
    first = torch.nn.functional.pad(~touches, (1, 0), value=True)[: len(row)]
    last = torch.nn.functional.pad(~touches, (0, 1), value=True)[: len(row)]
    return row[first], lower[first], upper[last]


def _padded(parts: list[tuple[Tensor, Tensor, Tensor]], like: Tensor) -> tuple[Tensor, Tensor]:
    """Pieces of all rows as two tables, (rows, pieces), with NaN beyond a row's last."""
    if not parts:
        return like.new_empty(len(like), 0), like.new_empty(len(like), 0)
    row, lower, upper = (torch.cat(each) for each in zip(*parts, strict=True))
    counts = torch.bincount(row, minlength=len(like))
    order = row.argsort(stable=True)
    row = row[order]
    place = torch.arange(len(row), device=row.device) - (counts.cumsum(0) - counts)[row]
    shape = (len(like), int(counts.max()) if len(like) else 0)
    tables = []
    for ends in (lower, upper):
        table = torch.full(shape, torch.nan, dtype=torch.float64, device=like.device)
        table[row, place] = ends[order]
        tables.append(table)
    return tables[0], tables[1]


def _refuse_nan(is_nan: Tensor) -> None:
    """Raise where the density of rows is NaN, as that of no spread at all is at its own point."""
    if bool(is_nan.any()):
        raise NotFiniteError(f"the density of `predicted` is NaN in {int(is_nan.sum())} rows")


def _event(d: Distribution, y: Tensor) -> Tensor:
    """Numbers (..., rows) in the shape of targets."""
    return y.reshape(y.shape + d.event_shape)


def _flat(values: Tensor) -> Tensor:
    """One number a row, without the event's axis."""
    return values.reshape(-1)


def _components(d: Distribution, y: Tensor) -> Tensor:
    return component_log_probs.formula(d, _event(d, y)).flatten(1)


def _log_density(d: Distribution, y: Tensor) -> Tensor:
    return safe_log_prob.formula(d, _event(d, y))
