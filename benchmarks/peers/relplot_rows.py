"""relplot beside us: smooth calibration error."""

from collections.abc import Iterator

import torch
from relplot.metrics import smECE, smECE_sigma
from torch import Tensor

from benchmarks.peers.rows import Row, events
from credibly import distributions, metrics
from credibly.metrics.smooth_ece import smoothed

__all__ = ["rows"]

STEPS = 2**15


def rows() -> Iterator[Row]:
    """Forecasts at the ends, away from them, and all alike."""
    yield from _at_ends()
    probs, outcomes = events(5000)
    inside = 0.1 + 0.8 * probs
    yield _both("5,000 events, uniform forecasts, calibrated", probs, outcomes)
    generator = torch.Generator().manual_seed(1)
    for power in (1.0, 1.5):
        outcomes = torch.bernoulli(inside**power, generator=generator).long()
        yield _both(f"forecasts in [0.1, 0.9], truth their power {power}", inside, outcomes)
        yield from _at_bandwidths(inside, outcomes)


def _both(what: str, probs: Tensor, outcomes: Tensor) -> Row:
    theirs = float(smECE(probs.numpy(), outcomes.double().numpy()))
    return Row(what, theirs, float(metrics.smooth_ece(distributions.from_probs(probs), outcomes)))


def _at_ends() -> Iterator[Row]:
    for probs, hits in (((1.0,), (80,)), ((0.0, 1.0), (10, 80)), ((0.5,), (70,))):
        given = torch.tensor(probs, dtype=torch.float64).repeat_interleave(100)
        came = torch.cat([(torch.arange(100) < number).long() for number in hits])
        yield _both(f"a hundred forecasts each of {probs}, {hits} came", given, came)


def _at_bandwidths(probs: Tensor, outcomes: Tensor) -> Iterator[Row]:
    """The integral at given bandwidths; ours from the residuals in the grid's nearest points."""
    residuals = torch.zeros(STEPS + 1, dtype=torch.float64)
    places = (probs * STEPS).round().long()
    residuals.index_add_(0, places, (outcomes - probs) / len(probs))
    for bandwidth in (0.01, 0.05):
        theirs = float(smECE_sigma(probs.numpy(), outcomes.double().numpy(), bandwidth))
        curve = smoothed(residuals, torch.tensor(bandwidth, dtype=torch.float64)).abs()
        ours = float((curve.sum() - (curve[0] + curve[-1]) / 2) / STEPS)
        yield Row(f"    at a bandwidth of {bandwidth}", theirs, ours)
