r"""Intervals for the size of calibration gaps by inverting tests along paths of gaps.

The estimated size of the gaps g_b of a table is too large on average, most of all where the truth is 0, and it has no
derivative there: percentiles of a bootstrap miss the truth nearly always for calibrated forecasts, and no fixed
correction is right for small and large gaps alike (on the difficulty: "Inference on Directionally Differentiable
Functions", Fang, Santos, 2019). So the interval holds those sizes that a test does not refuse. For a direction d, let
the gaps be t d with t >= 0. Bin b then holds forecasts that come true with probability f_b(t) = c_b - t d_b, and its
gap is seen with variance

    (f_b(t) (1 - f_b(t)) - var_b) / n_b

where var_b is the variance of the confidences inside the bin. The size seen under t is simulated with the same random
numbers for every t; t is refused when the size that was observed lies among its lowest or highest (1 - coverage) / 2.
At t = 0 forecasts are calibrated, and this is the consistency test of "Increasing the Reliability of Reliability
Diagrams" (Broecker, Smith, 2007). Data that happen to look better than calibrated ones mostly do would refuse every t,
and leave a point: for the upper end the size observed counts at least as much as the median of calibrated data
("Power-Constrained Limits", Cowan, Cranmer, Gross, Vitells, 2011).

How much noise adds to the size depends on how the gaps are spread over bins, which is known badly. Three directions are
gone through, and the interval holds what any of them holds: the gaps as estimated, all of one size, and the gaps less
one standard error (a few large ones). For the largest gap, even gaps are the worst case and one large gap the best; for
l1 it is the other way round.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from credibly.metrics.bins import Norm, gap_size

__all__ = [
    "Noise",
    "dependent_noise",
    "gap_interval",
    "independent_noise",
    "invert",
    "outcome_variance",
    "path_directions",
    "path_interval",
]

_STEPS = 14  # bisection: the end of a path is found to 2^-14 of its length, far below its Monte Carlo error
_FARTHEST = 8.0  # the length of a path, in multiples of the estimated gaps plus one standard error


@dataclass(frozen=True, eq=False)
class Noise:
    """Random numbers for the gaps of a table, the same along the whole path.

    Attributes:
        counts: resampled numbers of forecasts in each bin, (num_replicates, *batch, num_bins), float64.
        normals: the noise of each gap in units of its standard error, of the same shape.
        inflation: by how much forecasts of one row that depend on each other widen the standard error; broadcasts.
    """

    counts: Tensor
    normals: Tensor
    inflation: Tensor


def independent_noise(counts: Tensor, generator: torch.Generator) -> Noise:
    """Noise that knows nothing of other bins; counts are those of resampled tables."""
    normals = torch.randn(counts.shape, generator=generator, dtype=counts.dtype, device=counts.device)
    return Noise(counts, normals, torch.ones_like(counts[0]))


def dependent_noise(
    counts: Tensor,  # (num_replicates, *batch, num_bins): of resampled tables
    errors: Tensor,  # likewise: by how much resampled bins miss the estimate
    variance: Tensor,  # (*batch, num_bins): what `errors` would have for a bin of one forecast, were all independent
    generator: torch.Generator,
) -> Noise:
    """The noise of resampled rows, which are drawn with all their forecasts; independent where rows show none."""
    units = errors * counts.sqrt()
    scale = (units.square().sum(0) / (counts > 0).sum(0).clamp(min=1)).sqrt()
    known = (scale > 0) & (variance > 0)
    independent = independent_noise(counts, generator)
    normals = torch.where(known, units / torch.where(known, scale, 1.0), independent.normals)
    return Noise(counts, normals, torch.where(known, scale / torch.where(known, variance, 1.0).sqrt(), 1.0))


def gap_interval(
    counts: Tensor,  # (*batch, tables, num_bins), int64
    confidence: Tensor,  # (*batch, tables, num_bins)
    frequency: Tensor,  # (*batch, tables, num_bins)
    spread: Tensor,  # (*batch, tables, num_bins): variance of the confidences inside a bin
    norm: Norm,
    noise: Noise,
    coverage: float,
) -> tuple[Tensor, Tensor]:
    """The interval for the mean over tables of the size of their gaps; both ends of shape (*batch,)."""
    mass = counts.to(torch.float64)
    gaps = confidence - frequency
    target_norm: Norm = "l2" if norm == "l2_debiased" else norm

    def size(gaps: Tensor, weights: Tensor, norm: Norm) -> Tensor:
        squares_or_sizes = gap_size(gaps, confidence - gaps, weights, norm)
        return squares_or_sizes.mean(-1)

    observed = size(gaps, mass, norm)
    error = (outcome_variance(confidence, spread) / mass.clamp(min=1)).sqrt()
    directions = torch.stack(path_directions(gaps, error, counts > 0))
    reach = size(gaps.abs() + error, mass, target_norm)
    scale = reach / size(directions, mass, target_norm).clamp(min=1e-300)
    steps = directions * scale[..., None, None]

    def expected(t: Tensor) -> Tensor:
        return confidence - (confidence - t[..., None, None] * steps).clamp(0, 1)

    some, normals = noise.counts[:, None, None], noise.normals[:, None, None]

    def seen(t: Tensor) -> Tensor:
        mean = expected(t)
        errors = (outcome_variance(confidence - mean, spread) / some.clamp(min=1)).sqrt() * noise.inflation
        return size(mean + normals * errors, some, norm)

    return path_interval(seen, lambda t: size(expected(t), mass, target_norm), observed.expand(scale.shape), coverage)


def path_interval(
    seen: Callable[[Tensor], Tensor],  # as in `invert`, with the paths on axis 0 of the batch
    size: Callable[[Tensor], Tensor],  # t (2, paths, *batch) to the sizes there
    observed: Tensor,  # (paths, *batch)
    coverage: float,
) -> tuple[Tensor, Tensor]:
    """The sizes that are not refused on any path; both ends of shape (*batch,)."""
    low, high = size(invert(seen, observed, coverage))
    return low.amin(0), high.amax(0)


def outcome_variance(frequency: Tensor, spread: Tensor) -> Tensor:
    """Of an outcome, given confidences that vary inside the bin."""
    return (frequency * (1 - frequency) - spread).clamp(min=0)


def path_directions(gaps: Tensor, error: Tensor, occupied: Tensor) -> list[Tensor]:
    """The directions: as estimated, all of one size, and less one standard error. Signs are the estimated ones.

    Gaps of 0 in every bin have no direction; they are taken to lie one standard error above.
    """
    known = (gaps != 0).flatten(-2).any(-1)[..., None, None]
    gaps = torch.where(known, gaps, error)
    even = torch.where(occupied, gaps.sign(), 0.0)
    large = gaps.sign() * (gaps.abs() - error).clamp(min=0)
    return [gaps, even, torch.where((large != 0).flatten(-2).any(-1)[..., None, None], large, gaps)]


def invert(
    seen: Callable[
        [Tensor], Tensor
    ],  # t (2, *batch) to the sizes that resampled data show, (num_replicates, 2, *batch)
    observed: Tensor,  # (*batch,)
    coverage: float,
) -> Tensor:
    """The smallest and the largest t >= 0 under which the observed size is not extreme, (2, *batch), by bisection.

    The largest is that of the median size at t = 0 where less was observed.
    """
    tail = (1 - coverage) / 2
    low = observed.new_zeros(2, *observed.shape)
    at_least = torch.maximum(observed, seen(low)[:, 1].median(0).values)

    def beyond(t: Tensor) -> Tensor:
        """Whether t shows sizes as large as observed often enough; whether it shows sizes as small too rarely."""
        sizes = seen(t)
        as_large, as_small = sizes[:, 0] >= observed, sizes[:, 1] <= at_least
        return torch.stack([as_large.double().mean(0) >= tail, as_small.double().mean(0) < tail])

    high = torch.full_like(low, _FARTHEST)
    at_start = beyond(low)
    for _ in range(_STEPS):
        middle = (low + high) / 2
        there = beyond(middle)
        low, high = torch.where(there, low, middle), torch.where(there, middle, high)
    return torch.where(at_start, 0.0, high)
