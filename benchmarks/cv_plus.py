"""CV+: 100,000 test rows against 100,000 residuals in 10 folds, whose table of sums would take 80 GB."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.harness import Benchmark, Fact, Peer
from credibly.conformal.jackknife import CVPlus, PlusPredictor

NUM_ROWS, NUM_FOLDS, COVERAGE = 100_000, 10, 0.9
SMALL = 5_000  # of which the table still fits
MEMORY_GIB = 2.0

_MEASURE = """
import resource
from benchmarks.cv_plus import COVERAGE, NUM_ROWS, example
predictor, members = example(NUM_ROWS)
region = predictor.predict(members, COVERAGE)
assert bool(region.width.isfinite().all())
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)
"""


def example(rows: int) -> tuple[PlusPredictor, Tensor]:
    """Calibrated residuals of so many rows, and predictions for as many new rows."""
    generator = torch.Generator().manual_seed(0)
    left_out = torch.randn(rows, generator=generator, dtype=torch.float64)
    targets = left_out + torch.randn(rows, generator=generator, dtype=torch.float64)
    members = torch.randn(rows, generator=generator, dtype=torch.float64)
    spread = 0.1 * torch.randn(NUM_FOLDS, rows, generator=generator, dtype=torch.float64)
    return CVPlus().calibrate(left_out, targets, torch.arange(rows) % NUM_FOLDS), members + spread


def parts() -> Iterator[Benchmark | Fact]:
    """The memory of a whole process, and the time against the table on a smaller size."""
    yield Fact(name="cv_plus_memory", promise=f"under {MEMORY_GIB} GiB, torch included", holds=_small_enough)
    predictor, members = example(SMALL)

    def ours() -> Tensor:
        return predictor.predict(members, COVERAGE).upper

    def table() -> Tensor:
        k = -(-(SMALL + 1) * 9 // 10)
        by_row = [members[predictor.folds].T[some] for some in torch.arange(SMALL).split(500)]
        ends = [
            ((each + predictor.scores).kthvalue(k).values, (each - predictor.scores).kthvalue(SMALL + 1 - k).values)
            for each in by_row
        ]
        return torch.cat([upper for upper, _ in ends])

    def check(upper: Tensor, others: dict[str, Tensor]) -> None:
        """The same ends but for the rounding of one sum."""
        for other in others.values():
            assert torch.allclose(upper, other, atol=1e-12), "the intervals differ"

    yield Benchmark(
        name="cv_plus",
        ours=ours,
        peers=(Peer(label="the table of all sums", run=table, at_least=3),),
        check=check,
        rounds=3,
    )
    large, new = example(NUM_ROWS)
    yield Benchmark(name="cv_plus_100k", ours=lambda: large.predict(new, COVERAGE), rounds=1)


def _small_enough() -> bool:
    root = Path(__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", _MEASURE], cwd=root, capture_output=True, text=True, check=True)
    return float(done.stdout) < MEMORY_GIB
