"""Expected calibration error of 1,000,000 predictions over 10 classes."""

from collections.abc import Iterator

import torch
from torchmetrics.functional.classification import multiclass_calibration_error

from benchmarks.harness import Benchmark, Peer
from credibly import distributions, metrics

NUM_ROWS, NUM_CLASSES, NUM_BINS = 1_000_000, 10, 15


def parts() -> Iterator[Benchmark]:
    """From a table of probabilities to the number, checks of the table included on both sides."""
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(NUM_ROWS, NUM_CLASSES, generator=generator)
    probs = logits.softmax(-1)
    targets = torch.multinomial((0.7 * logits).softmax(-1), 1, generator=generator).squeeze(1)

    def ours() -> float:
        return float(metrics.ece(distributions.from_probs(probs), targets, num_bins=NUM_BINS))

    def peer() -> float:
        return float(multiclass_calibration_error(probs, targets, num_classes=NUM_CLASSES, n_bins=NUM_BINS, norm="l1"))

    def check(value: float, others: dict[str, float]) -> None:
        """The same number, to the rounding of sums in float32."""
        for other in others.values():
            assert abs(value - other) < 1e-4, f"the errors differ: {value} and {other}"

    yield Benchmark(
        name="ece",
        ours=ours,
        peers=(Peer(label="torchmetrics 1.9", run=peer, at_least=1.5),),
        check=check,
        rounds=15,
        warmups=2,
    )
