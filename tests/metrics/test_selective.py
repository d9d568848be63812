"""Risk and coverage against a slow reference over all orders of tied rows."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from metric_data import make
from torch.distributions import Normal

from credibly import metrics
from credibly.core.errors import NotFiniteError, ShapeError
from credibly.distributions.entry import from_logits, from_probs
from credibly.metrics.risk_areas import area_of, weighted_area
from credibly.metrics.selective import AURC, EAURC, aurc, e_aurc, largest_prob, risk_coverage, zero_one_loss

GIVEN = {"loss": lambda predicted, targets: targets, "confidence": lambda predicted: predicted.scale}


def given_rows(confidence, losses):
    """A prediction whose confidence is its scale and a target that is its loss."""
    scale = torch.tensor(confidence, dtype=torch.float64)
    return Normal(torch.zeros_like(scale), scale, validate_args=False), torch.tensor(losses, dtype=torch.float64)


def area_of_order(losses):
    return np.mean(np.cumsum(losses) / np.arange(1, len(losses) + 1))


def reference(confidence, losses):
    """The mean area over all orders of the rows that do not put a less confident row first."""
    areas = [
        area_of_order([losses[i] for i in order])
        for order in itertools.permutations(range(len(losses)))
        if all(confidence[a] >= confidence[b] for a, b in itertools.pairwise(order))
    ]
    return np.mean(areas)


@given(st.lists(st.tuples(st.sampled_from([0.1, 0.5, 0.9]), st.sampled_from([0.0, 0.3, 1.0])), min_size=1, max_size=6))
def test_ties_are_averaged_over_all_orders(rows):
    confidence, losses = zip(*rows, strict=True)
    area = aurc(*given_rows(confidence, losses), **GIVEN).item()
    assert area == pytest.approx(reference(confidence, losses), abs=1e-12)
    excess = area - area_of_order(sorted(losses))
    assert e_aurc(*given_rows(confidence, losses), **GIVEN).item() == pytest.approx(max(excess, 0), abs=1e-12)


def test_golden_values():
    rows = given_rows([0.9, 0.8, 0.7, 0.6], [0.0, 1.0, 0.0, 1.0])
    assert aurc(*rows, **GIVEN).item() == pytest.approx((0 + 1 / 2 + 1 / 3 + 1 / 2) / 4)
    assert e_aurc(*rows, **GIVEN).item() == pytest.approx((1 / 2 + 1 / 3 + 1 / 2 - 1 / 3 - 1 / 2) / 4)
    assert aurc(*given_rows([0.5] * 4, [0.0, 1.0, 0.0, 1.0]), **GIVEN).item() == pytest.approx(0.5)
    assert e_aurc(*given_rows([0.9, 0.8, 0.7], [0.0, 0.5, 2.0]), **GIVEN).item() == 0


def test_the_table_is_the_curve():
    table = risk_coverage(*given_rows([0.2, 0.9, 0.5, 0.5], [1.0, 0.0, 1.0, 0.0]), **GIVEN)
    assert table.threshold.tolist() == [0.9, 0.5, 0.2]
    assert table.coverage.tolist() == [0.25, 0.75, 1.0]
    assert table.risk.tolist() == pytest.approx([0, 1 / 3, 1 / 2])


def test_the_default_is_the_error_of_the_most_probable_class():
    predicted, targets = make("classes", 200)
    loss = (predicted.probs.argmax(-1) != targets).double()
    assert torch.equal(zero_one_loss(predicted, targets), loss)
    assert torch.allclose(largest_prob(predicted), predicted.probs.max(-1).values)
    assert risk_coverage(predicted, targets).risk[-1].item() == pytest.approx(loss.mean().item())
    confident = aurc(predicted, targets)
    unsure = aurc(predicted, targets, confidence=lambda d: -largest_prob(d))
    assert confident < loss.mean() < unsure


@pytest.mark.parametrize("metric", [AURC(**GIVEN), EAURC(**GIVEN)], ids=["aurc", "e_aurc"])
def test_replicates_are_the_metric_of_the_rows_drawn(metric):
    generator = torch.Generator().manual_seed(0)
    confidence = torch.rand(30, generator=generator).mul(8).round().tolist()
    pair = given_rows(confidence, torch.rand(30, generator=generator).tolist())
    rows = metric.rows(*pair)
    index = torch.randint(30, (50, 30), generator=generator)
    together = metric.curve(rows)(index)
    apart = torch.stack([metric.of_rows(rows[some]) for some in index])
    assert torch.allclose(together, apart, atol=1e-12)
    estimate = metric.bootstrap(*pair, seed=0)
    assert estimate.lower < estimate.value < estimate.upper


def test_the_area_of_weights_is_that_of_many_copies():
    """Copies tie, and of 4000 of each row the harmonic numbers are logarithms to 1e-4."""
    generator = torch.Generator().manual_seed(1)
    order, losses = torch.rand(12, generator=generator).mul(5).round(), torch.rand(12, generator=generator).double()
    times = torch.randint(1, 4, (12,), generator=generator)
    each = torch.arange(12).repeat_interleave(4000 * times)
    copies = area_of(order[each], losses[each])(torch.arange(len(each))[None])
    distinct, group = order.unique(return_inverse=True)
    weights = (times / times.sum()).double()[None]
    area = weighted_area(weights, losses, group[:-1], group[-1:], len(distinct))
    assert area.item() == pytest.approx(copies.item(), abs=1e-4)


@pytest.mark.parametrize("metric", [AURC(), EAURC()], ids=lambda metric: type(metric).__name__)
def test_no_error_seen_is_no_certainty(metric):
    """Of 50 rows a share of errors of 0.06 shows none with probability 0.045."""
    top = torch.linspace(0.5, 1, 50, dtype=torch.float64)
    predicted = from_probs(torch.stack([top, 1 - top], -1))
    estimate = metric.bootstrap(predicted, torch.zeros(50), seed=0)
    assert estimate.lower == estimate.value == 0
    assert 1 - 0.025 ** (1 / 50) < estimate.upper < 0.15


def test_refusals():
    pair = given_rows([0.5, 0.6], [0.0, 1.0])
    with pytest.raises(ShapeError, match="confidence"):
        aurc(*pair, loss=GIVEN["loss"], confidence=lambda d: d.scale.sum())
    with pytest.raises(ShapeError, match="loss"):
        aurc(*pair, loss=lambda d, y: y[:1], confidence=GIVEN["confidence"])
    with pytest.raises(NotFiniteError, match="confidence"):
        aurc(*pair, loss=GIVEN["loss"], confidence=lambda d: d.scale / 0)
    with pytest.raises(ShapeError, match="at least one row"):
        risk_coverage(from_logits(torch.zeros(0, 3)), torch.zeros(0))
    assert metrics.aurc is aurc
