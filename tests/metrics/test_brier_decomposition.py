"""The parts of the Brier score: they add up exactly, and equal a slow reference."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from metric_data import make
from torch.distributions import Bernoulli, Categorical, Normal

from credibly import metrics
from credibly.core.errors import NotSupportedError
from credibly.metrics.brier_decomposition import brier_decomposition


def total(parts):
    calibration_and_sharpness = parts.reliability - parts.resolution + parts.uncertainty
    return calibration_and_sharpness + parts.within_bin_variance - parts.within_bin_covariance


def reference(p, y, num_bins):
    """Murphy's parts and the two of Stephenson, Coelho and Jolliffe, bin by bin."""
    bins = np.clip(np.ceil(p * num_bins), 1, num_bins)
    parts = np.zeros(5)
    for b in range(1, num_bins + 1):
        inside = bins == b
        if inside.any():
            forecast, came = p[inside], y[inside]
            parts += (
                inside.sum()
                / len(p)
                * np.array(
                    [
                        (forecast.mean() - came.mean()) ** 2,
                        (came.mean() - y.mean()) ** 2,
                        0,
                        forecast.var(),
                        2 * np.mean((came - came.mean()) * (forecast - forecast.mean())),
                    ]
                )
            )
    parts[2] = y.mean() * (1 - y.mean())
    return parts


@given(st.lists(st.tuples(st.integers(0, 64), st.booleans()), min_size=1, max_size=30), st.integers(1, 12))
def test_parts_of_an_event_equal_the_reference_and_add_up(rows, num_bins):
    p = np.array([c for c, _ in rows]) / 64
    y = np.array([hit for _, hit in rows], dtype=float)
    predicted = Bernoulli(probs=torch.tensor(p))
    parts = brier_decomposition(predicted, torch.tensor(y), num_bins=num_bins)
    assert torch.stack(parts[:5]).numpy() == pytest.approx(reference(p, y, num_bins), abs=1e-12)
    assert total(parts).item() == pytest.approx(parts.brier.item(), abs=1e-12)
    assert parts.brier.item() == pytest.approx(metrics.brier(predicted, torch.tensor(y)).item(), abs=1e-12)


def test_golden_values():
    """Two bins of one forecast each: Murphy's three parts alone."""
    predicted = Bernoulli(probs=torch.tensor([0.2, 0.2, 0.2, 0.8, 0.8], dtype=torch.float64))
    parts = brier_decomposition(predicted, [0, 0, 1, 1, 1], num_bins=2)
    assert parts.reliability.item() == pytest.approx(0.6 * (0.2 - 1 / 3) ** 2 + 0.4 * 0.2**2)
    assert parts.resolution.item() == pytest.approx(0.6 * (1 / 3 - 0.6) ** 2 + 0.4 * 0.4**2)
    assert parts.uncertainty.item() == pytest.approx(0.24)
    assert parts.within_bin_variance.item() == pytest.approx(0, abs=1e-15)
    assert parts.within_bin_covariance.item() == pytest.approx(0, abs=1e-15)


def test_classes_are_events_added_up(dtype):
    predicted, targets = make("classes", 300, dtype=dtype)
    parts = brier_decomposition(predicted, targets, num_bins=10)
    events = [brier_decomposition(Bernoulli(probs=predicted.probs[:, k]), targets == k, num_bins=10) for k in range(4)]
    for name in parts._fields:
        together = sum(getattr(event, name) for event in events)
        assert getattr(parts, name).item() == pytest.approx(together.item(), abs=1e-6)
    assert parts.brier.item() == pytest.approx(metrics.brier(predicted, targets).item(), abs=1e-6)
    assert total(parts).item() == pytest.approx(parts.brier.item(), abs=1e-9)


def test_reliability_is_the_square_of_the_l2_error():
    predicted, targets = make("events", 300)
    parts = brier_decomposition(predicted, targets)
    assert parts.reliability.item() == pytest.approx(metrics.event_ece(predicted, targets, norm="l2").item() ** 2)


def test_every_replicate_adds_up():
    predicted, targets = make("classes", 100)
    estimate = metrics.BrierDecomposition().bootstrap(predicted, targets, num_replicates=50, seed=0)
    parts = metrics.BrierParts(*estimate.replicates.unbind(-1))
    assert torch.allclose(total(parts), parts.brier, atol=1e-12)
    brier = metrics.Brier().bootstrap(predicted, targets, num_replicates=2000, seed=0)
    assert (estimate.replicates[:, 5].std() / brier.replicates.std()).item() == pytest.approx(1, abs=0.5)


def test_refusals():
    with pytest.raises(NotSupportedError, match="Normal"):
        brier_decomposition(Normal(torch.zeros(1), torch.ones(1)), [0.0])
    with pytest.raises(ValueError, match="num_bins"):
        brier_decomposition(Categorical(logits=torch.zeros(1, 2)), [0], num_bins=0)
