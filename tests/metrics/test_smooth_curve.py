"""The smooth reliability curve against its definition, its tie to the smooth calibration error, and its band."""

import math

import numpy as np
import pytest
import torch

from credibly.core.errors import NotSupportedError, ShapeError
from credibly.distributions.entry import from_probs
from credibly.metrics.smooth_curve import smooth_curve
from credibly.metrics.smooth_ece import smooth_ece


def forecasts(rows: int, power: float, seed: int = 0, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, ...]:
    """Confidences, uniform, and events that happen with their `power`-th power as probability."""
    generator = torch.Generator().manual_seed(seed)
    confidence, u = torch.rand(2, rows, generator=generator, dtype=torch.float64)
    return confidence.to(dtype), (u < confidence**power).long()


def reflected_kernel(t: np.ndarray, c: np.ndarray, s: float) -> np.ndarray:
    """The Gaussian kernel with its images in the mirrors at 0 and 1, (points, forecasts)."""
    images = [sign * c + 2 * shift for shift in range(-4, 5) for sign in (1, -1)]
    return sum(np.exp(-0.5 * ((t[:, None] - image) / s) ** 2) for image in images) / (s * math.sqrt(2 * math.pi))


def test_equals_its_definition(dtype: torch.dtype, device: torch.device) -> None:
    confidence, hits = forecasts(80, 2.0, dtype=dtype)
    curve = smooth_curve(from_probs(confidence.to(device)), hits.to(device), num_replicates=5, seed=0)
    assert curve.frequency.device.type == device.type
    t, c, y = curve.confidence.cpu().numpy(), confidence.double().numpy(), hits.numpy()
    kernel = reflected_kernel(t, c, float(curve.bandwidth))
    expected = (t + (kernel * (y - c)).sum(1) / kernel.sum(1)).clip(0, 1)
    np.testing.assert_allclose(curve.density.cpu(), kernel.mean(1), atol=1e-5)
    np.testing.assert_allclose(curve.frequency.cpu(), expected, atol=1e-5)
    assert curve.num_forecasts == 80


def test_gap_weighted_by_density_is_the_smooth_calibration_error() -> None:
    confidence, hits = forecasts(3000, 1.3)
    shown = (confidence > 0.2) & (confidence < 0.8)  # there the curve stays inside [0, 1]
    predicted, hits = from_probs(confidence[shown]), hits[shown]
    curve = smooth_curve(predicted, hits, num_replicates=5, seed=0)
    inner = ~curve.frequency.isnan()
    gap = torch.where(inner, (curve.frequency - curve.confidence).abs() * curve.density, 0.0)
    assert curve.error == smooth_ece(predicted, hits)
    assert curve.bandwidth == curve.error
    torch.testing.assert_close(torch.trapezoid(gap, curve.confidence), curve.error, rtol=2e-3, atol=0.0)
    assert float(torch.trapezoid(curve.density, curve.confidence)) == pytest.approx(1, abs=1e-6)


def test_band_covers_calibrated_forecasts_and_finds_others() -> None:
    """At one point, over 80 data sets: 95 % less 4 standard errors, a failure rate below 1e-4."""
    held, found = 0, 0
    for seed in range(80):
        confidence, hits = forecasts(200, 1.0, seed)
        curve = smooth_curve(from_probs(confidence), hits, num_replicates=100, seed=seed)
        middle = len(curve.confidence) // 2
        held += bool(curve.lower[middle] <= 0.5 <= curve.upper[middle])
        if seed < 5:
            confidence, hits = forecasts(2000, 3.0, seed)
            curve = smooth_curve(from_probs(confidence), hits, num_replicates=100, seed=seed)
            found += bool(curve.upper[len(curve.confidence) // 2] < 0.5)
    # percentiles of 100 replicates, of a bootstrap of some 30 rows in reach, fall about two in a hundred short
    assert held / 80 >= 0.93 - 4 * math.sqrt(0.93 * 0.07 / 80)
    assert found == 5


def test_band_agrees_with_rows_drawn_with_replacement() -> None:
    confidence, hits = forecasts(150, 1.5)
    curve = smooth_curve(from_probs(confidence), hits, num_replicates=2000, coverage=0.8, seed=0)
    point = len(curve.confidence) // 2
    kernel = reflected_kernel(curve.confidence[point : point + 1].numpy(), confidence.numpy(), float(curve.bandwidth))[
        0
    ]
    residuals = (hits - confidence).numpy()
    drawn = np.random.default_rng(0).integers(150, size=(2000, 150))
    ratios = 0.5 + (kernel[drawn] * residuals[drawn]).sum(1) / kernel[drawn].sum(1)
    low, high = np.quantile(ratios, [0.1, 0.9])
    error = 4 * ratios.std() * math.sqrt(2 * 0.1 * 0.9 / 2000) / 0.1755  # of a difference of two normal 10 % quantiles
    assert abs(float(curve.lower[point]) - low) < error
    assert abs(float(curve.upper[point]) - high) < error


def test_is_unknown_far_from_every_forecast() -> None:
    confidence = torch.cat([torch.full((500,), 0.2), torch.full((500,), 0.9)]).double()
    hits = torch.cat([torch.arange(500) % 5 == 0, torch.arange(500) % 10 > 0]).long()
    curve = smooth_curve(from_probs(confidence), hits, num_replicates=10, seed=0)
    known = ~curve.frequency.isnan()
    distance = torch.minimum((curve.confidence - 0.2).abs(), (curve.confidence - 0.9).abs())
    assert torch.equal(known, distance <= 2 * curve.bandwidth)
    assert bool((curve.lower.isnan() == ~known).all())
    assert bool((curve.upper.isnan() == ~known).all())


def test_many_forecasts_do_not_reach_farther_than_few() -> None:
    """Far from a hundred thousand forecasts the tails of their kernels add up to many rows, none of them near."""
    confidence, hits = forecasts(100_000, 1.6)
    high = confidence > 0.5
    curve = smooth_curve(from_probs(confidence[high]), hits[high], num_replicates=3, seed=0)
    assert 0.05 < curve.bandwidth < 0.2
    reached = curve.confidence >= confidence[high].min() - 2 * curve.bandwidth
    assert torch.equal(~curve.frequency.isnan(), reached)
    assert not bool(reached.all())


@pytest.mark.parametrize(
    ("probs", "hits"), [([0.3], [1]), ([0.0, 1.0], [0, 1]), ([0.0, 1.0], [1, 0]), ([0.5] * 4, [0, 1, 0, 1])]
)
def test_edge_cases_give_curves_inside_their_bands(probs: list[float], hits: list[int]) -> None:
    curve = smooth_curve(from_probs(torch.tensor(probs, dtype=torch.float64)), torch.tensor(hits), seed=0)
    known = ~curve.frequency.isnan()
    assert bool(known.any())
    assert bool(((curve.frequency >= 0) & (curve.frequency <= 1))[known].all())
    assert bool((curve.lower <= curve.upper)[known].all())
    assert bool((curve.density >= 0).all())


def test_equal_seeds_give_equal_bands() -> None:
    confidence, hits = forecasts(50, 1.0)
    one, two, other = (smooth_curve(from_probs(confidence), hits, num_replicates=20, seed=seed) for seed in (1, 1, 2))
    torch.testing.assert_close(one.lower, two.lower, rtol=0, atol=0, equal_nan=True)
    assert not torch.equal(one.lower.nan_to_num(), other.lower.nan_to_num())
    state = torch.get_rng_state()
    smooth_curve(from_probs(confidence), hits, num_replicates=5, seed=3)
    assert torch.equal(state, torch.get_rng_state())


def test_refuses_what_it_cannot_smooth() -> None:
    with pytest.raises(ShapeError, match="at least one row"):
        smooth_curve(from_probs(torch.empty(0, dtype=torch.float64)), torch.empty(0, dtype=torch.int64))
    labels = torch.distributions.Independent(torch.distributions.Bernoulli(torch.full((4, 2), 0.5)), 1)
    with pytest.raises(NotSupportedError, match="several labels"):
        smooth_curve(labels, torch.zeros(4, 2))
    confidence, hits = forecasts(4, 1.0)
    with pytest.raises(ValueError, match="`confidence` must lie between 0 and 1; got 1"):
        smooth_curve(from_probs(confidence), hits, coverage=1.0)
    with pytest.raises(ValueError, match="`num_replicates` must be a whole number"):
        smooth_curve(from_probs(confidence), hits, num_replicates=0)
