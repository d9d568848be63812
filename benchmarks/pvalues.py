"""Conformal p-values of 50,000 x 100 scores against 50,000 calibration scores.

The peer compares every score with all calibration scores in a loop, and would take minutes. It is timed on 1 % of the
rows: every row costs it the same, so that all rows would take 100 times as long, and the printed ratio times 100 is the
ratio for equal work.
"""

from collections.abc import Iterator

import numpy as np
import torch
from crepes.base import p_values_batch

from benchmarks.harness import Benchmark, Peer
from credibly import conformal

NUM_ROWS, NUM_CLASSES, NUM_CALIBRATION = 50_000, 100, 50_000
PART = 100  # the peer gets one row in so many
AT_LEAST = 50


def parts() -> Iterator[Benchmark]:
    """Plain and smoothed p-values; promised ratios are those of 1 % of the peer's work to all of ours."""
    generator = torch.Generator().manual_seed(0)
    calibration = torch.rand(NUM_CALIBRATION, generator=generator, dtype=torch.float64)
    scores = torch.rand(NUM_ROWS, NUM_CLASSES, generator=generator, dtype=torch.float64)
    few = scores[::PART].numpy()

    def plain() -> torch.Tensor:
        return conformal.conformal_p_values(scores, calibration)

    def smoothed() -> torch.Tensor:
        return conformal.smoothed_p_values(scores, calibration, seed=0)

    def peer(smoothing: bool) -> np.ndarray:
        return p_values_batch(calibration.numpy(), few, smoothing=smoothing, seed=0)

    def same(ours: torch.Tensor, others: dict[str, np.ndarray]) -> None:
        for theirs in others.values():
            assert np.array_equal(ours[::PART].numpy(), theirs), "the p-values differ"

    def close(ours: torch.Tensor, others: dict[str, np.ndarray]) -> None:
        """Without ties, other random numbers move a smoothed p-value by less than 1 / (n + 1)."""
        for theirs in others.values():
            assert np.abs(ours[::PART].numpy() - theirs).max() <= 1 / (NUM_CALIBRATION + 1), "the p-values differ"

    label = f"crepes 0.9.1, on 1/{PART} of the rows"
    yield Benchmark(
        name="pvalues",
        ours=plain,
        peers=(Peer(label=label, run=lambda: peer(False), at_least=AT_LEAST / PART),),
        check=same,
        rounds=3,
    )
    yield Benchmark(
        name="pvalues, smoothed",
        ours=smoothed,
        peers=(Peer(label=label, run=lambda: peer(True), at_least=AT_LEAST / PART),),
        check=close,
        rounds=3,
    )
