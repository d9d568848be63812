r"""The smooth reliability curve: observed frequency against confidence, without bins.

With residuals r_i = y_i - c_i and the reflected Gaussian kernel K_s of `smooth_ece`,

    density    d(t) = (1 / n) sum_i K_s(t, c_i)
    frequency  m(t) = t + sum_i K_s(t, c_i) r_i / sum_i K_s(t, c_i)

at the bandwidth s that is the smooth calibration error itself ("Smooth ECE: Principled Reliability Diagrams via Kernel
Smoothing", Blasiok, Nakkiran, 2023). Residuals are smoothed, not outcomes, so that calibrated forecasts lie on the
diagonal on average, whatever the bandwidth, and the gap of the curve, weighted by the density, is the smooth
calibration error:

    smECE = int_0^1 |m(t) - t| d(t) dt.

The band at each point is the percentile interval of curves of rows drawn with replacement, at the same bandwidth. It
holds for that point by itself, and says nothing where all rows nearby came out alike: there it has no width.

The curve ends two bandwidths beyond the outermost forecasts, and breaks off in gaps wider than four: however many
forecasts there are, what the kernel's tail says farther away is not what was observed.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributions import Distribution

from credibly.core.checks import check_count
from credibly.core.randomness import Stream, base_seed
from credibly.core.typing import ArrayLike
from credibly.metrics.bin_resampling import resampled_counts
from credibly.metrics.coverage_law import check_confidence
from credibly.metrics.smooth_ece import SmoothECE, smoothed

__all__ = ["SmoothCurve", "smooth_curve"]

_STEPS = 2**8, 2**11  # fewest and most steps between the points of a curve
_STEPS_PER_BANDWIDTH = 4
_CHUNK_NUMBERS = 2**20
_REACH = 2.0  # bandwidths to the nearest forecast
_FEWEST = math.exp(-(_REACH**2) / 2)  # the kernel of one forecast so far away, in units of its height


@dataclass(frozen=True, eq=False)
class SmoothCurve:
    """The curve at equally spaced confidences. It is NaN farther than two bandwidths from every forecast.

    Attributes:
        confidence: from 0 to 1, (num_points,), float64.
        frequency: the smoothed observed frequency there, in [0, 1].
        lower: the lower end of the band at each point.
        upper: the upper end.
        density: of the confidences; its integral is 1.
        error: the smooth calibration error, a float64 scalar.
        bandwidth: of the kernel: the error, or four steps between points where that is larger.
        coverage: of the band.
        num_forecasts: how many forecasts were smoothed.
    """

    confidence: Tensor
    frequency: Tensor
    lower: Tensor
    upper: Tensor
    density: Tensor
    error: Tensor
    bandwidth: Tensor
    coverage: float
    num_forecasts: int

    def __repr__(self) -> str:
        return (
            f"SmoothCurve({self.num_forecasts} forecasts at {len(self.confidence)} points, "
            f"smooth calibration error {float(self.error):.4g}, bandwidth {float(self.bandwidth):.3g})"
        )


def smooth_curve(
    predicted: Distribution,
    targets: ArrayLike,
    *,
    coverage: float = 0.95,
    num_replicates: int = 500,
    seed: int | None = None,
) -> SmoothCurve:
    """The smooth reliability curve of an event, or of the top label of a choice among classes.

    Args:
        predicted: a distribution over classes; confidences and hits alone enter as `from_probs(confidences), hits`.
        targets: what came.
        coverage: of the band, point by point.
        num_replicates: how many data sets are resampled.
        seed: of the resampling.

    Raises:
        ShapeError: there are no rows.
        NotFiniteError: `predicted` holds NaN.
        NotSupportedError: several labels a row, which are not independent; a prediction that is not over classes.
    """
    check_confidence(coverage)
    check_count("num_replicates", num_replicates)
    metric = SmoothECE()
    state = metric.resampling_state(predicted, targets)
    error = metric.checked(state)
    steps = min(max(_STEPS[0], 2 ** math.ceil(math.log2(_STEPS_PER_BANDWIDTH / max(float(error), 1e-9)))), _STEPS[1])
    bandwidth = error.clamp(min=_STEPS_PER_BANDWIDTH / steps)
    points = torch.arange(steps + 1, dtype=torch.float64, device=error.device) / steps
    confidence, hits = state["confidence"], state["hits"]
    fine = len(state["residuals"]) - 1
    counts = torch.bincount((confidence * fine).round().to(torch.int64), minlength=fine + 1).to(torch.float64)
    density = smoothed(counts, bandwidth)[:: fine // steps]
    residuals = smoothed(state["residuals"], bandwidth)[:: fine // steps]
    generator = Stream(base_seed(seed), "bootstrap", error.device).generator()
    ratios = _resampled(confidence, hits, steps, bandwidth, num_replicates, generator)
    ends = torch.nanquantile(ratios, ratios.new_tensor([(1 - coverage) / 2, (1 + coverage) / 2]), dim=0)
    known = _nearest(points, confidence) <= _REACH * bandwidth
    curve, lower, upper = (
        torch.where(known, points + ratio, math.nan).clamp(0, 1)
        for ratio in (residuals / density, *torch.where(ends.isnan(), residuals / density, ends))
    )
    return SmoothCurve(
        points, curve, lower, upper, density.clamp(min=0) / len(hits), error, bandwidth, coverage, len(hits)
    )


def _nearest(points: Tensor, confidence: Tensor) -> Tensor:
    """The distance of each point to the nearest forecast."""
    ordered = confidence.sort().values
    right = torch.searchsorted(ordered, points)
    sides = (ordered[(right - 1).clamp(min=0)], ordered[right.clamp(max=len(ordered) - 1)])
    return torch.minimum(*((points - side).abs() for side in sides))


def _height(bandwidth: Tensor) -> Tensor:
    """One over the largest value of the kernel."""
    return bandwidth * math.sqrt(2 * math.pi)


def _resampled(
    confidence: Tensor,  # (forecasts,)
    hits: Tensor,  # (forecasts,), 0.0 or 1.0
    steps: int,
    bandwidth: Tensor,
    num_replicates: int,
    generator: torch.Generator,
) -> Tensor:
    """Smoothed residuals by smoothed counts, (num_replicates, steps + 1); NaN where a replicate has no rows nearby.

    Rows count at their nearest point, with the mean confidence there.
    """
    nearest = (confidence * steps).round().to(torch.int64)
    cells = torch.bincount(2 * nearest + hits.to(torch.int64), minlength=2 * (steps + 1))
    means = torch.bincount(nearest, weights=confidence, minlength=steps + 1) / cells.view(-1, 2).sum(-1).clamp(min=1)
    some = cells.nonzero().squeeze(1)
    parts = []
    for start in range(0, num_replicates, chunk := max(1, _CHUNK_NUMBERS // steps)):
        size = min(chunk, num_replicates - start)
        drawn = cells.new_zeros((size, len(cells)), dtype=torch.float64)
        drawn[:, some] = resampled_counts(cells[some], size, generator)
        outcomes = drawn.view(size, -1, 2)
        total = outcomes.sum(-1)
        density = smoothed(total, bandwidth.expand(size))
        ratio = smoothed(outcomes[..., 1] - total * means, bandwidth.expand(size)) / density
        parts.append(torch.where(density * _height(bandwidth) >= _FEWEST, ratio, math.nan))
    return torch.cat(parts)
