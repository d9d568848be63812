"""CRPS of 1,000 draws for each of 1,000 rows."""

from collections.abc import Iterator

import torch
from torch import Tensor

from benchmarks.harness import Benchmark, Peer
from credibly.metrics.energy import crps_ensemble

NUM_DRAWS, NUM_ROWS, CHUNK = 1_000, 1_000, 20


def parts() -> Iterator[Benchmark]:
    """From draws to the mean score, checks of the draws included."""
    generator = torch.Generator().manual_seed(0)
    draws = torch.randn(NUM_DRAWS, NUM_ROWS, generator=generator)
    targets = torch.randn(NUM_ROWS, generator=generator)

    def ours() -> float:
        return float(crps_ensemble(draws, targets))

    def pairwise() -> float:
        return float(torch.cat([_pairwise(x, y) for x, y in _some_rows(draws, targets)]).mean())

    def check(value: float, others: dict[str, float]) -> None:
        """The same number, to the rounding of sums in float32."""
        for other in others.values():
            assert abs(value - other) < 1e-5, f"the scores differ: {value} and {other}"

    yield Benchmark(
        name="crps",
        ours=ours,
        peers=(Peer(label="pairwise differences", run=pairwise, at_least=20),),
        check=check,
        rounds=3,
    )


def _some_rows(draws: Tensor, targets: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """All pairs of all rows at once are 4 GB; a few rows at a time are faster, too."""
    yield from zip(draws.T.split(CHUNK), targets.split(CHUNK), strict=True)


def _pairwise(draws: Tensor, targets: Tensor) -> Tensor:
    far = (draws - targets.unsqueeze(-1)).abs().mean(-1)
    near = (draws.unsqueeze(-1) - draws.unsqueeze(-2)).abs().mean((-1, -2))
    return far - near / 2
