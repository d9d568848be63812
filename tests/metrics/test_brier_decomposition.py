"""The parts of the Brier score: they add up exactly, and equal a slow reference."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from metric_data import make
from scipy import stats
from torch.distributions import Bernoulli, Categorical, Independent, Normal

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


@pytest.mark.parametrize("power", [1.0, 2.0])
def test_every_interval_covers_at_its_rate(power):
    """150 data sets of 100 rows: at most 4.5 standard errors below the nominal rate, 3e-6 by chance."""
    metric, generator = metrics.BrierDecomposition(5), torch.Generator().manual_seed(4)
    p = (torch.arange(2**16, dtype=torch.float64) + 0.5) / 2**16
    f, bins = p**power, (5 * p).long()
    columns = (torch.ones_like(p), p, f, p.square(), p * f)
    truth = metric.value({"sums": torch.stack([torch.bincount(bins, column, 5) for column in columns])})
    truth[0] = truth[0] if power > 1 else 0.0
    covered = torch.zeros(6)
    for seed in range(150):
        p = torch.rand(100, generator=generator, dtype=torch.float64)
        hits = torch.rand(100, generator=generator, dtype=torch.float64) < p**power
        estimate = metric.bootstrap(Bernoulli(probs=p), hits, num_replicates=100, seed=seed)
        covered += ((estimate.lower <= truth) & (truth <= estimate.upper)) / 150
    assert bool((covered > 0.95 - 4.5 * (0.95 * 0.05 / 150) ** 0.5).all()), covered


def test_the_interval_of_the_uncertainty_is_the_image_of_an_exact_one():
    for hits in (0, 7, 20, 22):
        y = torch.arange(40) < hits
        estimate = metrics.BrierDecomposition().bootstrap(Bernoulli(probs=torch.full((40,), 0.5)), y, seed=0)
        rate = stats.binomtest(hits, 40).proportion_ci(0.95, "exact")
        inside = rate.low <= 0.5 <= rate.high
        ends = sorted([rate.low * (1 - rate.low), rate.high * (1 - rate.high)])
        assert estimate.lower[2].item() == pytest.approx(ends[0])
        assert estimate.upper[2].item() == pytest.approx(0.25 if inside else ends[1])


def test_equal_frequencies_of_classes_lie_inside_the_interval_of_the_uncertainty():
    """The estimate is at most 1 - 1 / 3, which is the truth, and never above it."""
    targets = torch.arange(90) % 3
    estimate = metrics.BrierDecomposition().bootstrap(Categorical(logits=torch.zeros(90, 3)), targets, seed=0)
    assert estimate.upper[2].item() == pytest.approx(2 / 3)
    assert 0.6 < estimate.lower[2] < 2 / 3


@pytest.mark.parametrize("kind", ["classes", "events"])
def test_labels_that_repeat_each_other_say_no_more_than_one(kind):
    predicted, targets = make(kind, 150)
    metric = metrics.BrierDecomposition(5)
    once = metric.bootstrap(predicted, targets, num_replicates=2000, seed=0)
    base = Categorical if kind == "classes" else Bernoulli
    several = Independent(base(probs=predicted.probs.unsqueeze(1).expand(-1, 4, *predicted.probs.shape[1:])), 1)
    repeated = metric.bootstrap(several, targets.unsqueeze(1).expand(-1, 4), num_replicates=2000, seed=1)
    assert torch.allclose(once.value, repeated.value, atol=1e-9)
    ratio = (repeated.upper - repeated.lower) / (once.upper - once.lower)
    assert bool(((ratio > 0.75) & (ratio < 1.35)).all()), ratio


def test_refusals():
    with pytest.raises(NotSupportedError, match="Normal"):
        brier_decomposition(Normal(torch.zeros(1), torch.ones(1)), [0.0])
    with pytest.raises(ValueError, match="num_bins"):
        brier_decomposition(Categorical(logits=torch.zeros(1, 2)), [0], num_bins=0)
