"""torchmetrics beside us: calibration errors of events and classes, CRPS of draws, ROC."""

from collections.abc import Iterator

import torch
from torch import Tensor
from torchmetrics.classification import BinaryCalibrationError
from torchmetrics.functional.classification import (
    binary_auroc,
    binary_average_precision,
    binary_calibration_error,
    multiclass_calibration_error,
)
from torchmetrics.functional.regression import continuous_ranked_probability_score

from benchmarks.peers.rows import Row, classes, events
from credibly import distributions, metrics
from credibly.metrics.bins import Norm

__all__ = ["rows"]

MANY = 20_000_000


def rows() -> Iterator[Row]:
    """What differs, then what agrees."""
    yield _event([0.95, 1.0], [1, 0], 10)
    yield _event([0.25, 0.5], [0, 1], 2)
    yield _guessed_logits()
    yield _many()
    yield _event([1.0, 1.0, 1.0, 1.0, 0.0], [0, 0, 1, 1, 1], 2)
    for norm in ("l1", "l2", "max"):
        yield _event([0.25, 0.25, 0.55, 0.75, 0.75], [0, 0, 1, 1, 1], 2, norm)
    probs, outcomes = events(10_000)
    theirs = binary_calibration_error(probs, outcomes)
    yield Row("10,000 events", float(theirs), float(metrics.event_ece(distributions.from_probs(probs), outcomes)))
    yield _top_label()
    yield from _others()


def _event(probs: list[float], outcomes: list[int], num_bins: int, norm: Norm = "l1") -> Row:
    given, came = torch.tensor(probs, dtype=torch.float64), torch.tensor(outcomes)
    theirs = binary_calibration_error(given, came, n_bins=num_bins, norm=norm)
    ours = metrics.event_ece(distributions.from_probs(given), came, num_bins=num_bins, norm=norm)
    return Row(f"{norm} error of p = {probs}, y = {outcomes}, {num_bins} bins", float(theirs), float(ours))


def _guessed_logits() -> Row:
    """Logits of which some batches lie in [0, 1]."""
    logits, outcomes = torch.tensor([-1.0, 0.0, 1.0]), torch.tensor([1, 0, 1])
    metric = BinaryCalibrationError(n_bins=10)
    stream = metrics.EventECE(10).stream()
    for logit, came in zip(logits.split(1), outcomes.split(1), strict=True):
        metric.update(logit, came)
        stream.update(distributions.from_logits(logit), came)
    at_once = float(binary_calibration_error(logits, outcomes, n_bins=10))
    ours = float(metrics.event_ece(distributions.from_logits(logits), outcomes, num_bins=10))
    return Row(
        "logits (-1, 0, 1), one at a time and at once",
        (float(metric.compute()), at_once),
        (float(stream.compute()), ours),
    )


def _many() -> Row:
    """More forecasts in one bin than float32 can count; three of four came true, so the error is 0."""
    probs, outcomes = torch.full((MANY,), 0.75), (torch.arange(MANY) % 4 != 0).long()
    theirs = binary_calibration_error(probs, outcomes, n_bins=10, validate_args=False)
    ours = metrics.event_ece(distributions.from_probs(probs), outcomes, num_bins=10)
    return Row(f"{MANY:,} float32 forecasts of 0.75, true error 0", float(theirs), float(ours))


def _top_label() -> Row:
    probs, targets = classes(10_000)
    theirs = multiclass_calibration_error(probs, targets, num_classes=10)
    return Row(
        "top label, 10,000 rows",
        float(theirs),
        float(metrics.top_label_ece(distributions.from_probs(probs), targets)),
    )


def _others() -> Iterator[Row]:
    generator = torch.Generator().manual_seed(0)
    draws, came = (torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((50, 200), (200,)))
    theirs: Tensor = continuous_ranked_probability_score(draws.T.contiguous(), came)
    yield Row("CRPS of 50 draws, 200 rows", float(theirs), float(metrics.crps(distributions.from_draws(draws), came)))
    inside, outside = torch.rand(400, generator=generator).mul(8).round() / 8, torch.rand(200, generator=generator)
    scores, labels = torch.cat([inside, outside]), torch.tensor([0] * 400 + [1] * 200)
    yield Row("AUROC, with ties", float(binary_auroc(scores, labels)), float(metrics.auroc(inside, outside)))
    yield Row(
        "average precision", float(binary_average_precision(scores, labels)), float(metrics.aupr(inside, outside))
    )
