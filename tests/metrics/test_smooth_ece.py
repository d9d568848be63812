"""The smooth calibration error against direct quadrature with the reflected kernel, and its interval."""

import numpy as np
import pytest
import torch
from metric_data import make
from scipy.optimize import brentq
from torch.distributions import Bernoulli, Categorical

from credibly import metrics
from credibly.metrics.smooth_ece import fixed_point, smooth_ece, smoothed


def reflected_kernel(points, centres, bandwidth):
    """The Gaussian kernel and its images beyond 0 and 1, term by term."""
    images = [sign * centres + 2 * shift for shift in range(-4, 5) for sign in (1, -1)]
    return sum(np.exp(-0.5 * ((points[:, None] - image) / bandwidth) ** 2) for image in images) / (
        bandwidth * np.sqrt(2 * np.pi)
    )


def reference(p, hits):
    """The fixed point, by quadrature on 4001 points and a root finder."""
    points = np.linspace(0, 1, 4001)

    def excess(bandwidth):
        curve = reflected_kernel(points, p, bandwidth) @ (hits - p) / len(p)
        return np.trapezoid(np.abs(curve), points) - bandwidth

    return brentq(excess, 1e-3, 1, xtol=1e-12)


@pytest.mark.parametrize("num_rows", [1, 2, 7, 60, 150])
def test_equals_direct_quadrature(num_rows, dtype):
    generator = torch.Generator().manual_seed(num_rows)
    p = torch.rand(num_rows, generator=generator, dtype=dtype)
    hits = torch.rand(num_rows, generator=generator, dtype=dtype) < p.square()
    value = smooth_ece(Bernoulli(probs=p), hits).item()
    assert value == pytest.approx(reference(p.double().numpy(), hits.numpy()), abs=2e-7)


def test_golden_value():
    """relplot 1.0.3 (of the authors), reflected kernel, 20,000 points: smECE at bandwidth 0.0493149 is 0.0493142.

    The forecasts lie away from 0 and 1: it leaves out half of the mass that its grid holds there, and differs by up to
    2 % where that is much. Its own search for the fixed point stops after ten bisections.
    """
    i = np.arange(300.0)
    p = 0.5 + 0.25 * np.sin(3 * i)
    hits = (np.sin(7 * i * i) + 1) / 2 < p + 0.15 * np.cos(9 * p)
    value = smooth_ece(Bernoulli(probs=torch.tensor(p)), torch.tensor(hits)).item()
    assert value == pytest.approx(0.0493142, abs=2e-6)


def test_confidences_at_the_ends_and_one_sided_data():
    half = Bernoulli(probs=torch.full((1000,), 0.5, dtype=torch.float64))
    hits = torch.arange(1000) % 10 < 8  # every residual is 0.3 or more: all mass on one side, none cancels
    assert smooth_ece(half, hits).item() == pytest.approx(0.3, abs=1e-9)
    ends = Bernoulli(probs=torch.tensor([0.0, 0.0, 1.0, 1.0], dtype=torch.float64))
    assert smooth_ece(ends, [0, 0, 1, 1]).item() == 0
    expected = reference(np.array([0.0, 0.0, 1.0, 1.0]), np.array([1.0, 0, 1, 0]))
    assert smooth_ece(ends, [1, 0, 1, 0]).item() == pytest.approx(expected, abs=1e-6)


def test_smoothing_keeps_mass_and_equals_the_kernel():
    masses = torch.zeros(257, dtype=torch.float64)
    masses[[0, 100, 256]] = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
    density = smoothed(masses, torch.tensor(0.07, dtype=torch.float64))
    points = np.linspace(0, 1, 257)
    expected = reflected_kernel(points, np.array([0.0, 100 / 256, 1.0]), 0.07) @ [0.2, 0.5, 0.3]
    assert np.allclose(density.numpy(), expected, atol=1e-12)
    assert np.trapezoid(density.numpy(), points) == pytest.approx(1, abs=1e-9)


def test_fixed_points_of_many_are_those_of_each():
    residuals = torch.randn(5, 65, dtype=torch.float64) / 65
    residuals[2] = 0
    together = fixed_point(residuals)
    assert together[2] == 0
    assert torch.allclose(together, torch.stack([fixed_point(row) for row in residuals]), atol=1e-12)


def test_it_is_of_the_top_label_for_a_choice():
    predicted, targets = make("classes", 300)
    confidence, label = predicted.probs.max(-1)
    event = smooth_ece(Bernoulli(probs=confidence), label == targets)
    assert smooth_ece(predicted, targets).item() == pytest.approx(event.item(), abs=1e-9)
    two = Categorical(probs=torch.tensor([[0.1, 0.9]], dtype=torch.float64))
    assert smooth_ece(two, [1]).item() == pytest.approx(0.1, abs=1e-9)


@pytest.mark.parametrize("law", ["calibrated", "squared"])
def test_the_interval_holds_the_truth(law):
    """30 data sets, coverage 0.9: fewer than 20 hits have a probability of 9e-5 a law."""
    generator = torch.Generator().manual_seed(1)
    grid = torch.linspace(0, 1, 2049, dtype=torch.float64)
    weights = torch.ones_like(grid).index_fill(0, torch.tensor([0, 2048]), 0.5) / 2048
    truth = 0.0 if law == "calibrated" else fixed_point(weights * (grid.square() - grid)).item()
    held = 0
    for seed in range(30):
        p = torch.rand(300, generator=generator, dtype=torch.float64)
        hits = torch.rand(300, generator=generator) < (p if law == "calibrated" else p.square())
        estimate = metrics.SmoothECE().bootstrap(Bernoulli(probs=p), hits, coverage=0.9, num_replicates=60, seed=seed)
        held += int(estimate.lower <= truth <= estimate.upper)
    assert held >= 20


def test_replicates_agree_with_resampled_rows():
    """Means within 5 standard errors, besides the coarse grid's own error."""
    predicted, hits = make("events", 500, seed=3)
    replicates = metrics.SmoothECE().bootstrap(predicted, hits, num_replicates=400, seed=0).replicates
    generator = torch.Generator().manual_seed(5)
    rows = torch.stack(
        [
            smooth_ece(Bernoulli(probs=predicted.probs[index]), hits[index])
            for index in torch.randint(500, (60, 500), generator=generator)
        ]
    )
    error = (rows.var() / 60 + replicates.var() / 400).sqrt()
    assert abs(rows.mean() - replicates.mean()) < 5 * error
