"""200 draws of a 10-64-64-1 network with dropout 0.1, its dropout in modules or called as a function."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.data import perceptron
from benchmarks.harness import Benchmark, Peer
from credibly import Model, inference, likelihoods

NUM_DRAWS, DROPOUT = 200, 0.1


class FunctionalDropout(nn.Module):
    """The same network, with dropout that no search over modules finds."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(10, 64), nn.Linear(64, 64), nn.Linear(64, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Shape (rows, 10) to (rows, 1)."""
        x = F.dropout(F.relu(self.first(x)), DROPOUT, training=self.training)
        x = F.dropout(F.relu(self.second(x)), DROPOUT, training=self.training)
        return self.last(x)


def parts() -> Iterator[Benchmark]:
    """Two networks, each on many and on few rows."""
    for kind, make in (("modules", lambda: perceptron(DROPOUT)), ("functional", FunctionalDropout)):
        yield _benchmark(kind, make, num_rows=10_000, at_least=5, at_most=1.2, rounds=5)
        yield _benchmark(kind, make, num_rows=89, at_least=4, at_most=None, rounds=21)


def _benchmark(
    kind: str,
    make: Callable[[], nn.Module],
    *,
    num_rows: int,
    at_least: float,
    at_most: float | None,
    rounds: int,
) -> Benchmark:
    torch.manual_seed(0)
    net, x = make(), torch.randn(num_rows, 10)
    data = (x[:89], torch.randn(89, 1))
    model = Model(net, likelihoods.Gaussian(scale=1.0))
    posterior = inference.MCDropout().fit(model, data, start="current", seed=0)

    def ours() -> Tensor:
        return posterior.outputs(x, num_draws=NUM_DRAWS, seed=0)

    def passes(training: bool) -> Tensor:
        """The usual recipe: switch to training mode, run the network again and again, stack."""
        net.train(training)
        with torch.no_grad():
            return torch.stack([net(x) for _ in range(NUM_DRAWS)])

    def check(outputs: Tensor, others: dict[str, Tensor]) -> None:
        """Same shape, same mean and spread over the draws, averaged over all rows."""
        stacked = others["stacked train-mode passes"]
        assert outputs.shape == stacked.shape == (NUM_DRAWS, num_rows, 1)
        spread, expected = outputs.std(0).mean(), stacked.std(0).mean()
        assert abs(spread / expected - 1) < 0.2, f"the spreads differ: {spread} and {expected}"
        assert abs(outputs.mean() - stacked.mean()) < 0.5 * expected

    return Benchmark(
        name=f"mc_dropout, {kind}, {num_rows} rows",
        ours=ours,
        peers=(Peer(label="stacked train-mode passes", run=lambda: passes(True), at_least=at_least),),
        floor=lambda: passes(False),
        at_most=at_most,
        check=check,
        rounds=rounds,
        warmups=2,
    )
