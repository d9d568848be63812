r"""Smooth calibration error: kernel smoothing in place of bins, at the bandwidth that fits itself.

With residuals r_i = y_i - c_i and the Gaussian kernel K_s of standard deviation s, reflected at 0 and 1,

    smECE_s = int_0^1 |(1 / n) sum_i K_s(t, c_i) r_i| dt,

which falls as s grows; the smooth calibration error is the s at which smECE_s = s. It is continuous in the forecasts
and consistent ("Smooth ECE: Principled Reliability Diagrams via Kernel Smoothing", Blasiok, Nakkiran, 2023).

The reflected kernel is the heat kernel of the unit interval: in cosines it is diagonal,

    K_s(t, c) = 1 + 2 sum_k exp(-(pi k s)^2 / 2) cos(pi k t) cos(pi k c),

so that smoothing is a Fourier transform of the residuals on a grid. A residual is shared between the two grid points
around its confidence in proportion to nearness, which keeps mass and mean and errs by about (h / s)^2 / 8 for a step h
of 2^-15. The residuals on the grid add up over shards and take the same memory for any number of rows.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributions import Distribution

from credibly.core.checks import check_finite
from credibly.core.errors import NotSupportedError, ShapeError
from credibly.core.typing import ArrayLike
from credibly.distributions.operations import check_distribution
from credibly.metrics.base import Estimate, Metric, State
from credibly.metrics.bin_resampling import resampled_counts
from credibly.metrics.calibration_error import natural_forecasts
from credibly.metrics.gap_intervals import invert, path_directions

__all__ = ["SmoothECE", "fixed_point", "smooth_ece", "smoothed"]

_GRID = 2**15
_COARSE = 2**6, 2**10  # fewest and most steps of the grid for resampling
_STEPS_PER_BANDWIDTH = 4
_TOLERANCE, _RESAMPLED_TOLERANCE = 1e-14, 1e-6
_MOST_STEPS = 60


@dataclass(frozen=True)
class SmoothECE(Metric):
    """The smooth calibration error: of the event for a binary outcome, of the top label for a choice among classes.

    Its interval inverts tests along paths of gaps, as those of binned errors do, with gaps that are functions of the
    confidence, estimated by the same kernel.
    """

    def state(self, predicted: Distribution, targets: ArrayLike) -> State:
        """The number of forecasts, and the residuals on the grid, (2^15 + 1,)."""
        parts = [(len(c), _on_grid(c, y - c, _GRID)) for c, y in _forecasts(predicted, targets)]
        residuals = torch.stack([grid for _, grid in parts]).sum(0)
        return {"count": torch.tensor(sum(size for size, _ in parts), device=residuals.device), "residuals": residuals}

    def merged(self, one: State, other: State) -> State:
        """The sums of both."""
        return {name: one[name] + other[name] for name in one}

    def value(self, state: State) -> Tensor:
        """The bandwidth that fits itself."""
        if not state["count"]:
            raise ShapeError("SmoothECE needs at least one row; `predicted` and `targets` are empty")
        return fixed_point(state["residuals"] / state["count"])

    def resampling_state(self, predicted: Distribution, targets: ArrayLike) -> State:
        """The forecasts.

        Raises:
            NotSupportedError: several labels a row, which are not independent.
        """
        check_distribution(predicted)
        if predicted.event_shape.numel() > 1:
            raise NotSupportedError(
                "the interval of SmoothECE takes forecasts to be independent, which several labels of one row are not; "
                "use EventECE, which resamples whole rows"
            )
        confidence, hits = (torch.cat(column) for column in zip(*_forecasts(predicted, targets), strict=True))
        residuals = _on_grid(confidence, hits - confidence, _GRID)
        return {
            "count": torch.tensor(len(hits), device=hits.device),
            "residuals": residuals,
            "confidence": confidence,
            "hits": hits,
        }

    def estimate(self, state: State, coverage: float, num_replicates: int, generator: torch.Generator) -> Estimate:
        """The value with an interval from tests along paths of gaps, and the values of resampled rows."""
        value = self.checked(state)
        grid = _Grid.of(state["confidence"], state["hits"], float(value))
        lower, upper = grid.interval(coverage, num_replicates, generator)
        return Estimate(value, lower, upper, coverage, grid.replicates(num_replicates, generator))

    def replicates(self, state: State, num_replicates: int, generator: torch.Generator) -> Tensor:
        """The metric of rows drawn with replacement."""
        grid = _Grid.of(state["confidence"], state["hits"], float(self.checked(state)))
        return grid.replicates(num_replicates, generator)


def smooth_ece(predicted: Distribution, targets: ArrayLike) -> Tensor:
    """The smooth calibration error, a float64 scalar; see `SmoothECE`."""
    return SmoothECE()(predicted, targets)


def smoothed(
    masses: Tensor,  # (*batch, steps + 1): at 0, 1 / steps, ..., 1
    bandwidth: Tensor,  # (*batch,)
) -> Tensor:
    """The density of the masses under the reflected kernel at the same points, (*batch, steps + 1)."""
    return _damped(_spectrum(masses), bandwidth)


def _spectrum(masses: Tensor) -> Tensor:
    """The Fourier transform of the masses and their reflection; at 0 and 1 the two fall together."""
    even = torch.cat([masses, masses[..., 1:-1].flip(-1)], -1)
    even[..., 0] *= 2
    even[..., masses.shape[-1] - 1] *= 2
    spectrum: Tensor = torch.fft.rfft(even)
    return spectrum


def _damped(spectrum: Tensor, bandwidth: Tensor) -> Tensor:
    steps = spectrum.shape[-1] - 1
    frequency = torch.arange(steps + 1, dtype=bandwidth.dtype, device=bandwidth.device)
    damping = torch.exp(-0.5 * (math.pi * frequency * bandwidth.unsqueeze(-1)).square())
    waves: Tensor = torch.fft.irfft(spectrum * damping, n=2 * steps)
    density: Tensor = steps * waves[..., : steps + 1]
    return density


def fixed_point(
    residuals: Tensor,  # (*batch, steps + 1), divided by the number of rows
    tolerance: float = _TOLERANCE,
) -> Tensor:
    """The s at which the smoothed residuals have size s, (*batch,), by the Illinois variant of regula falsi."""
    spectrum = _spectrum(residuals)
    low = torch.zeros_like(residuals[..., 0])
    high = torch.ones_like(low)
    above, below = (_area(_damped(spectrum, s)) - s for s in (low, high))
    before = torch.zeros_like(low)
    for _ in range(_MOST_STEPS):
        s = (low * below - high * above) / (below - above)
        excess = _area(_damped(spectrum, s)) - s
        if bool((excess.abs() <= tolerance).all()):
            break
        right, again = excess > 0, excess.sign() == before
        kept_above, kept_below = (torch.where(again, end / 2, end) for end in (above, below))
        above, below = torch.where(right, excess, kept_above), torch.where(right, kept_below, excess)
        low, high, before = torch.where(right, s, low), torch.where(right, high, s), excess.sign()
    return torch.where(residuals.any(-1), s, 0.0)


def _area(curve: Tensor) -> Tensor:
    """The integral of the absolute value over [0, 1], by the trapezoidal rule."""
    sizes = curve.abs()
    area: Tensor = (sizes.sum(-1) - (sizes[..., 0] + sizes[..., -1]) / 2) / (curve.shape[-1] - 1)
    return area


def _forecasts(predicted: Distribution, targets: ArrayLike) -> Iterator[tuple[Tensor, Tensor]]:
    """Confidences and outcomes of single forecasts, both float64, block by block."""
    for confidence, hits in natural_forecasts(predicted, targets):
        check_finite("predicted", confidence)
        yield confidence.flatten().clamp(0, 1), hits.flatten().to(torch.float64)


def _on_grid(confidence: Tensor, values: Tensor, steps: int) -> Tensor:
    """Values at confidences, shared between neighbouring grid points: (steps + 1,)."""
    places = confidence * steps
    left = places.to(torch.int64).clamp(max=steps - 1)
    to_right = values * (places - left)
    grid = torch.bincount(left, weights=values - to_right, minlength=steps + 1)
    return grid + torch.bincount(left + 1, weights=to_right, minlength=steps + 1)


@dataclass(frozen=True, eq=False)
class _Grid:
    """The data on a coarse grid, for resampling.

    Attributes:
        counts: forecasts nearest to each grid point that missed and that hit, (steps + 1, 2), int64.
        confidence: their mean confidence, (steps + 1,).
        bandwidth: the smooth calibration error of the data, or one step where that is smaller.
    """

    counts: Tensor
    confidence: Tensor
    bandwidth: Tensor

    @classmethod
    def of(cls, confidence: Tensor, hits: Tensor, value: float) -> "_Grid":
        fewest, most = _COARSE
        steps = min(max(fewest, 2 ** math.ceil(math.log2(_STEPS_PER_BANDWIDTH / max(value, 1e-9)))), most)
        nearest = (confidence * steps).round().to(torch.int64)
        cells = torch.bincount(2 * nearest + hits.to(torch.int64), minlength=2 * (steps + 1)).view(-1, 2)
        sums = torch.bincount(nearest, weights=confidence, minlength=steps + 1)
        centre = torch.arange(steps + 1, dtype=torch.float64, device=sums.device) / steps
        total = cells.sum(-1)
        mean = torch.where(total > 0, sums / total.clamp(min=1), centre)
        return cls(cells, mean, sums.new_tensor(max(value, 1 / steps)))

    def replicates(self, num_replicates: int, generator: torch.Generator) -> Tensor:
        """The metric of rows drawn with replacement, (num_replicates,)."""
        counts = resampled_counts(self.counts.flatten(), num_replicates, generator).view(num_replicates, -1, 2)
        residuals = counts[..., 1] - counts.sum(-1) * self.confidence
        return fixed_point(residuals / self.counts.sum(), _RESAMPLED_TOLERANCE)

    def interval(self, coverage: float, num_replicates: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """The interval. The error of simulated data is below the observed s exactly where their smECE_s is."""
        total = self.counts.sum()
        share = self.counts.sum(-1) / total
        noise = torch.randn(
            (2, num_replicates, len(share)), generator=generator, dtype=torch.float64, device=share.device
        )
        label_noise = noise[0] * (share / total).sqrt()
        count_noise = noise[1] * (share / total).sqrt()
        count_noise = count_noise - share * count_noise.sum(-1, keepdim=True)
        ends = []
        for direction in self._directions(share, label_noise):

            def gaps(t: Tensor, direction: Tensor = direction) -> Tensor:
                return (self.confidence - t.unsqueeze(-1) * direction).clamp(0, 1) - self.confidence

            def seen(t: Tensor, gaps: Callable[[Tensor], Tensor] = gaps) -> Tensor:
                gap = gaps(t)
                frequency = self.confidence + gap
                labels = label_noise.unsqueeze(1) * (frequency * (1 - frequency)).sqrt()
                return _area(smoothed((share + count_noise).unsqueeze(1) * gap + labels, self.bandwidth))

            ends.append(fixed_point(share * gaps(invert(seen, self.bandwidth, coverage))))
        lower, upper = torch.stack(ends, -1)
        return lower.amin(), upper.amax()

    def _directions(self, share: Tensor, label_noise: Tensor) -> list[Tensor]:
        """Gaps as functions of the confidence, confidence less frequency, scaled to one standard error more."""
        total = self.counts.sum()
        density = smoothed(share, self.bandwidth).clamp(min=1e-9)
        residuals = share * self.confidence - self.counts[:, 1] / total
        gaps = smoothed(residuals, self.bandwidth) / density
        calibrated = label_noise * (self.confidence * (1 - self.confidence)).clamp(min=0).sqrt()
        error = smoothed(calibrated, self.bandwidth).square().mean(0).sqrt() / density
        reach = (share * (gaps.abs() + error)).sum()
        one_sign = torch.where(share > 0, gaps.new_ones(()).copysign(residuals.sum()), 0.0)
        directions = [*(d[0] for d in path_directions(gaps[None], error[None], share[None] > 0)), one_sign]
        return [d * (reach / (share * d.abs()).sum().clamp(min=1e-300)) for d in directions]
