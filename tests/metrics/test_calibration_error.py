"""The bin table and the calibration errors read from it."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributions import Bernoulli, Categorical, Independent, Normal

from credibly.core.errors import NotFiniteError, NotSupportedError, ShapeError
from credibly.distributions.mixture import MixturePredictive
from credibly.metrics.bins import BinTable, equal_width_bins
from credibly.metrics.calibration_error import (
    ECE,
    ClasswiseECE,
    EventECE,
    TopLabelECE,
    classwise_bins,
    classwise_ece,
    ece,
    event_bins,
    event_ece,
    top_label_bins,
    top_label_ece,
)
from credibly.metrics.equal_mass import edge_bins, equal_mass_edges


def bernoulli(probs, dtype=torch.float64):
    return Bernoulli(probs=torch.tensor(probs, dtype=dtype), validate_args=False)


def reference_ece(confidence, hits, num_bins, norm):
    """A slow, obviously right calibration error: rational edges, one bin at a time."""
    gaps, weights = [], []
    for b in range(num_bins):
        low, high = Fraction(b, num_bins), Fraction(b + 1, num_bins)
        inside = [low < Fraction(c) <= high or (b == 0 and c == 0) for c in confidence]
        if any(inside):
            gaps.append(abs(np.mean(confidence[inside]) - np.mean(hits[inside])))
            weights.append(np.mean(inside))
    gaps, weights = np.array(gaps), np.array(weights)
    return {"l1": weights @ gaps, "l2": np.sqrt(weights @ gaps**2), "max": gaps.max()}[norm]


@pytest.mark.parametrize(("norm", "golden"), [("l1", 0.2900), ("l2", 0.2918), ("max", 0.3167)])
def test_golden_event_error(norm, golden):
    predicted = bernoulli([0.25, 0.25, 0.55, 0.75, 0.75])
    assert event_ece(predicted, [0, 0, 1, 1, 1], num_bins=2, norm=norm).item() == pytest.approx(golden, abs=5e-5)


@pytest.mark.parametrize(
    ("probs", "targets", "num_bins", "golden"),
    [([0.95, 1.0], [1, 0], 10, 0.475), ([1.0, 1.0, 1.0, 1.0, 0.0], [0, 0, 1, 1, 1], 2, 0.6)],
)
def test_confidences_of_exactly_zero_and_one_have_a_bin(probs, targets, num_bins, golden, dtype):
    table = event_bins(bernoulli(probs, dtype), targets, num_bins=num_bins)
    assert table.error().item() == pytest.approx(golden, abs=1e-7)
    assert int(table.counts.sum()) == len(probs)
    assert bool(table.confidence.isfinite().all())
    assert bool(table.frequency.isfinite().all())


def test_logits_inside_the_unit_interval_are_logits():
    logits, targets = torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64), torch.tensor([1, 0, 1])
    assert event_ece(Bernoulli(logits=logits), targets, num_bins=10).item() == pytest.approx(0.5, abs=1e-15)
    one_by_one = [event_ece(Bernoulli(logits=logits[i : i + 1]), targets[i : i + 1], num_bins=10) for i in range(3)]
    assert sum(one_by_one).item() / 3 == pytest.approx(0.5, abs=1e-15)


@pytest.mark.parametrize("num_bins", [1, 2, 3, 7, 10, 15, 20, 49, 100])
def test_edges_belong_to_the_bin_on_their_left(num_bins):
    edges = np.arange(num_bins + 1) / num_bins
    expected = np.maximum(np.arange(num_bins + 1) - 1, 0)
    for nudged in (edges, np.nextafter(edges, 0), np.nextafter(edges, 1)):
        assert equal_width_bins(torch.tensor(nudged), num_bins).tolist() == expected.tolist()
    clearly_above = torch.tensor(edges[:-1] + 1e-9)
    assert equal_width_bins(clearly_above, num_bins).tolist() == list(range(num_bins))


@given(
    st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=30),
    st.integers(1, 20),
    st.sampled_from(["l1", "l2", "max"]),
)
def test_event_error_equals_a_slow_reference(rows, num_bins, norm):
    # to multiples of 2^-30, where an edge is either met exactly or missed clearly
    confidence = np.round(np.array([c for c, _ in rows]) * 2**30) / 2**30
    hits = np.array([h for _, h in rows])
    value = event_ece(bernoulli(confidence.tolist()), torch.tensor(hits), num_bins=num_bins, norm=norm)
    assert value.item() == pytest.approx(reference_ece(confidence, hits, num_bins, norm), abs=1e-12)


def test_top_label_error_equals_a_slow_reference(rng):
    logits = torch.randn(500, 4, generator=rng, dtype=torch.float64) * 2
    targets = torch.randint(0, 4, (500,), generator=rng)
    confidence, label = logits.softmax(-1).max(-1)
    for norm in ("l1", "l2", "max"):
        expected = reference_ece(confidence.numpy(), (label == targets).numpy(), 15, norm)
        assert top_label_ece(Categorical(logits=logits), targets, norm=norm).item() == pytest.approx(expected)


@pytest.fixture
def rng():
    return torch.Generator().manual_seed(3)


def test_ece_is_of_the_event_for_a_binary_outcome_and_of_the_top_label_for_a_choice(rng):
    logits = torch.randn(200, generator=rng)
    targets = torch.randint(0, 2, (200,), generator=rng)
    binary = Bernoulli(logits=logits)
    choice = Categorical(logits=torch.stack([torch.zeros(200), logits], -1))
    mixture = MixturePredictive(Bernoulli(logits=torch.stack([logits, -0.5 * logits]), validate_args=False))
    assert ece(binary, targets) == event_ece(binary, targets)
    assert ece(mixture, targets) == event_ece(mixture, targets)
    assert ece(choice, targets) == top_label_ece(choice, targets)
    assert event_ece(choice, targets).item() == pytest.approx(event_ece(binary, targets).item(), abs=1e-6)
    assert top_label_ece(binary, targets).item() == pytest.approx(top_label_ece(choice, targets).item(), abs=1e-6)
    assert abs(event_ece(binary, targets).item() - top_label_ece(binary, targets).item()) > 1e-3


def test_several_labels_are_flattened(rng):
    logits = torch.randn(40, 3, generator=rng, dtype=torch.float64)
    targets = torch.randint(0, 2, (40, 3), generator=rng)
    several = Independent(Bernoulli(logits=logits), 1)
    flat = event_bins(Bernoulli(logits=logits.flatten()), targets.flatten())
    table = event_bins(several, targets)
    assert torch.equal(table.counts, flat.counts)
    assert torch.allclose(table.confidence, flat.confidence)
    assert torch.equal(table.frequency, flat.frequency)


def test_a_mixture_counts_as_its_mean_probabilities(rng):
    logits = torch.randn(5, 300, 3, generator=rng, dtype=torch.float64)
    targets = torch.randint(0, 3, (300,), generator=rng)
    mixture = MixturePredictive(Categorical(logits=logits, validate_args=False))
    mean = Categorical(probs=logits.softmax(-1).mean(0))
    assert top_label_ece(mixture, targets).item() == pytest.approx(top_label_ece(mean, targets).item(), abs=1e-12)


def test_invariance_and_untouched_inputs(rng):
    logits = torch.randn(3000, 6, generator=rng)
    targets = torch.randint(0, 6, (3000,), generator=rng)
    kept = logits.clone(), targets.clone()
    whole = top_label_bins(Categorical(logits=logits), targets)
    order = torch.randperm(3000, generator=rng)
    shuffled = top_label_bins(Categorical(logits=logits[order]), targets[order])
    strided = top_label_bins(Categorical(logits=logits.t().contiguous().t()), targets)
    double = top_label_bins(Categorical(logits=logits.double()), targets)
    parts = [
        top_label_bins(Categorical(logits=z), y) for z, y in zip(logits.split(700), targets.split(700), strict=True)
    ]
    assert torch.equal(sum(part.counts for part in parts), whole.counts)
    for other in (shuffled, strided, double):
        assert torch.equal(other.counts, whole.counts)
        assert torch.equal(other.frequency, whole.frequency)
        assert torch.allclose(other.confidence, whole.confidence, atol=1e-7)
    assert torch.equal(logits, kept[0])
    assert torch.equal(targets, kept[1])


def test_the_fast_path_equals_the_table_of_probabilities(rng):
    logits = (torch.randn(1000, 7, generator=rng) * 20).requires_grad_()
    confidence = top_label_bins(Categorical(logits=logits), torch.zeros(1000)).confidence
    table = Categorical(logits=logits.detach().double()).probs.max(-1).values
    bins = equal_width_bins(table, 15)
    expected = torch.stack([table[bins == b].sum() / max(int((bins == b).sum()), 1) for b in range(15)])
    assert torch.allclose(confidence, expected, atol=1e-6)
    assert not confidence.requires_grad


def test_counts_are_integers_and_sums_float64():
    table = event_bins(bernoulli([0.1, 0.2], torch.float32), [0, 1])
    assert table.counts.dtype == torch.int64
    assert table.confidence.dtype == table.frequency.dtype == table.edges.dtype == torch.float64
    assert table.error().dtype == torch.float64


def test_refusals():
    normal = Normal(torch.zeros(2), torch.ones(2))
    with pytest.raises(NotSupportedError, match="Normal"):
        top_label_ece(normal, [0.0, 1.0])
    with pytest.raises(NotSupportedError, match="3 classes"):
        event_ece(Categorical(logits=torch.zeros(2, 3)), [0, 1])
    with pytest.raises(ShapeError, match="empty"):
        ece(bernoulli([]), [])
    with pytest.raises(ValueError, match="num_bins"):
        ece(bernoulli([0.5]), [1], num_bins=0)
    with pytest.raises(ValueError, match="norm"):
        ece(bernoulli([0.5]), [1], norm="L1")
    with pytest.raises(NotFiniteError, match="predicted"):
        ece(bernoulli([0.5, float("nan")]), [1, 0])


def test_streamed_logits_are_never_taken_for_probabilities():
    logits, targets = torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64), torch.tensor([1, 0, 1])
    stream = ECE(num_bins=10).stream()
    for i in range(3):
        stream.update(Bernoulli(logits=logits[i : i + 1]), targets[i : i + 1])
    assert stream.compute().item() == pytest.approx(0.5, abs=1e-15)


def waves():
    """300 rows over 4 classes, by a formula."""
    i, k = torch.arange(300.0), torch.arange(4.0)
    logits = 2 * torch.sin(3 * i[:, None] + 7 * k * (1 + i[:, None] % 5))
    return Categorical(probs=logits.double().softmax(-1)), ((i * i) % 4).long()


@pytest.mark.parametrize(
    ("norm", "top", "classwise"),
    [("l1", 0.3636649549, 0.2821324823), ("l2", 0.3817707300, 0.3511747843), ("max", 0.5660331249, 0.6477104939)],
)
def test_golden_values_of_torchmetrics(norm, top, classwise):
    """torchmetrics 1.9: multiclass_calibration_error, and the mean of binary_calibration_error over the classes."""
    predicted, targets = waves()
    assert top_label_ece(predicted, targets, num_bins=10, norm=norm).item() == pytest.approx(top, abs=1e-6)
    assert classwise_ece(predicted, targets, num_bins=10, norm=norm).item() == pytest.approx(classwise, abs=1e-6)


def test_classwise_error_is_the_mean_over_events():
    predicted, targets = waves()
    tables = classwise_bins(predicted, targets, num_bins=7)
    assert tables.counts.shape == (4, 7)
    for k in range(4):
        event = event_bins(Bernoulli(probs=predicted.probs[:, k]), targets == k, num_bins=7)
        assert torch.equal(tables.counts[k], event.counts)
        assert torch.allclose(tables.confidence[k], event.confidence, atol=1e-12)
        assert torch.equal(tables.frequency[k], event.frequency)
    for norm in ("l1", "l2", "max", "l2_debiased"):
        assert classwise_ece(predicted, targets, num_bins=7, norm=norm) == tables.error(norm).mean()


def test_a_class_that_never_comes_counts():
    predicted = Categorical(probs=torch.tensor([[0.5, 0.3, 0.2]], dtype=torch.float64).expand(10, 3))
    value = classwise_ece(predicted, torch.arange(10) % 2).item()
    assert value == pytest.approx((0.0 + 0.2 + 0.2) / 3)


def test_debiased_error_by_hand():
    """Bins of 2 and 3 forecasts: 0.4 (0.2^2 - 0.5 * 0.5 / 1) and 0.6 ((1/15)^2 - (2/9) / 2), below 0 together."""
    predicted, targets = bernoulli([0.3, 0.3, 0.6, 0.6, 0.6]), [0, 1, 1, 1, 0]
    assert event_ece(predicted, targets, num_bins=2, norm="l2_debiased").item() == 0
    apart = bernoulli([0.05] * 50 + [0.95] * 50), torch.tensor([0, 1] * 25 + [1, 0] * 25)
    expected = (0.45**2 - 0.25 / 49) ** 0.5
    assert event_ece(*apart, norm="l2_debiased").item() == pytest.approx(expected)
    assert event_ece(bernoulli([0.2]), [1], norm="l2_debiased").item() == 0


def test_the_debiased_square_has_no_bias():
    """Mean over 4000 tables within 5 standard errors of the true square: fails by chance below 1e-6."""
    counts = torch.tensor([5.0, 20.0, 40.0], dtype=torch.float64)
    confidence = torch.tensor([0.2, 0.5, 0.8], dtype=torch.float64)
    real = torch.tensor([0.2, 0.6, 0.7], dtype=torch.float64)
    frequency = torch.binomial(counts.expand(4000, 3), real.expand(4000, 3)) / counts
    table = BinTable(torch.linspace(0, 1, 4), counts.expand(4000, 3), confidence.expand(4000, 3), frequency)
    gaps = confidence - frequency
    noise = frequency * (1 - frequency) / (counts - 1)
    squares = (counts / counts.sum() * (gaps.square() - noise)).sum(-1)
    truth = (counts / counts.sum() * (confidence - real).square()).sum()
    assert abs(squares.mean() - truth) < 5 * squares.std() / 4000**0.5
    assert torch.allclose(table.error("l2_debiased").square(), squares.clamp(min=0))


@given(st.lists(st.integers(0, 12), min_size=1, max_size=40), st.integers(1, 8))
def test_bins_of_equal_mass_hold_their_share(places, num_bins):
    """Edge j is the smallest confidence that j / B of all do not exceed; so no bin holds more than ties force."""
    confidence = torch.tensor(places, dtype=torch.float64) / 12
    edges = equal_mass_edges(confidence, num_bins)
    bins = edge_bins(confidence, edges)
    for j in range(1, num_bins):
        at_most = int((confidence <= edges[j]).sum())
        below = int((confidence < edges[j]).sum())
        assert below * num_bins < j * len(places) <= at_most * num_bins
        assert bool((bins[confidence <= edges[j]] < j).all())
        assert bool((bins[confidence > edges[j]] >= j).all())
    values = {}
    for value, bin_ in zip(places, bins.tolist(), strict=True):
        assert values.setdefault(value, bin_) == bin_


def test_equal_mass_without_ties_splits_evenly():
    p = torch.rand(90, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    hits = torch.arange(90) % 2
    table = event_bins(Bernoulli(probs=p), hits, num_bins=9, equal_mass=True)
    assert table.counts.tolist() == [10] * 9
    assert table.edges.shape == (10,)
    order = p.argsort()
    gaps = (p[order].view(9, 10).mean(1) - hits[order].double().view(9, 10).mean(1)).abs()
    assert EventECE(9, equal_mass=True)(Bernoulli(probs=p), hits).item() == pytest.approx(gaps.mean().item())
    assert TopLabelECE(9, equal_mass=True).table(Bernoulli(probs=p), hits).counts.tolist() == [10] * 9
    assert ClasswiseECE(9, equal_mass=True).table(*waves()).counts.sum(-1).tolist() == [300] * 4
