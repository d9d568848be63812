"""The temperature of 50,000 forecasts over 1000 classes, to a given slope of the likelihood."""

from collections.abc import Iterator

import torch

from benchmarks.harness import Benchmark, Fact, Peer
from credibly import calibration, distributions

NUM_ROWS, NUM_CLASSES = 50_000, 1000
TOLERANCE = 1e-7  # of the slope of the mean negative log likelihood in log T
MOST_PASSES = 10


def _slope(logits: torch.Tensor, targets: torch.Tensor, temperature: float) -> float:
    """The slope in log T, in float64, by blocks."""
    total = 0.0
    for block, came in zip(logits.split(2000), targets.split(2000), strict=True):
        wide = block.double()
        expected = ((wide / temperature).softmax(-1) * wide).sum(-1)
        total += float((wide.gather(-1, came.unsqueeze(-1)).squeeze(-1) - expected).sum())
    return total / len(logits) / temperature


def parts() -> Iterator[Benchmark | Fact]:
    """From logits to the temperature, by us and by torch's L-BFGS with a strong Wolfe line search over log T.

    The peer has its logits in float64, made before it is timed: in float32 its line search stalls before the slope is
    as small as asked for, which at this size left T wrong by 4e-4. Ours reads the float32 logits.
    """
    generator = torch.Generator().manual_seed(0)
    true = 1.5 * torch.randn(NUM_ROWS, NUM_CLASSES, generator=generator)
    targets = torch.multinomial(true.softmax(-1), 1, generator=generator).squeeze(1)
    logits = 2.5 * true
    del true
    wide = logits.double()
    predicted = distributions.from_logits(logits)
    recipe = calibration.TemperatureScaling(tolerance=TOLERANCE)

    def ours() -> float:
        return recipe.fit(predicted, targets).temperature

    def peer() -> float:
        log_temperature = torch.zeros((), dtype=torch.float64, requires_grad=True)
        optimizer = torch.optim.LBFGS(
            [log_temperature],
            lr=1.0,
            max_iter=100,
            tolerance_grad=TOLERANCE,
            tolerance_change=0.0,
            line_search_fn="strong_wolfe",
        )

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(wide / log_temperature.exp(), targets)
            loss.backward()
            return loss

        optimizer.step(closure)
        return float(log_temperature.detach().exp())

    def check(temperature: float, others: dict[str, float]) -> None:
        """Both reached the same slope."""
        for found in (temperature, *others.values()):
            slope = _slope(logits, targets, found)
            assert abs(slope) <= 2 * TOLERANCE, f"T = {found} leaves a slope of {slope:.1e}"

    yield Benchmark(
        name="temperature",
        ours=ours,
        peers=(Peer(label="torch LBFGS, strong Wolfe", run=peer, at_least=3.0),),
        check=check,
        rounds=3,
    )
    yield Fact(
        name="temperature passes",
        promise=f"passes <= {MOST_PASSES}",
        holds=lambda: calibration.TemperatureScaling().fit(predicted, targets).report.num_passes <= MOST_PASSES,
    )
