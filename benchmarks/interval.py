"""The 90 % interval of 10,000 rows under a mixture of 200 Gaussians."""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.distributions import Normal

from benchmarks.harness import Benchmark, Fact, Peer
from credibly.distributions.cumulative import cdf
from credibly.distributions.mixture import MixturePredictive
from credibly.metrics.intervals import central_interval

NUM_ROWS, NUM_DRAWS, COVERAGE = 10_000, 200, 0.9
MOST_EVALUATIONS, ACCURACY = 12, 1e-8
NUM_BISECTIONS = 60
GROUP = 500  # rows whose evaluations are counted together

_evaluations = [0]


class CountedNormal(Normal):
    """A Gaussian that counts how many values of its cdf are computed."""


@cdf.register(CountedNormal)
def _(d: CountedNormal, value: Tensor) -> Tensor:
    probs = cdf.formula(Normal(d.loc, d.scale, validate_args=False), value)
    _evaluations[0] += probs.numel()
    return probs


def parts() -> Iterator[Benchmark | Fact]:
    """Both ends of every row, to 1e-8."""
    generator = torch.Generator().manual_seed(0)
    loc = torch.randn(NUM_DRAWS, NUM_ROWS, generator=generator, dtype=torch.float64)
    scale = 0.3 + torch.rand(NUM_DRAWS, NUM_ROWS, generator=generator, dtype=torch.float64)

    def ours() -> tuple[Tensor, Tensor]:
        return central_interval(MixturePredictive(Normal(loc, scale, validate_args=False)), COVERAGE)

    def bisection() -> tuple[Tensor, Tensor]:
        tail = (1 - COVERAGE) / 2
        return _bisected(loc, scale, tail), _bisected(loc, scale, 1 - tail)

    def check(value: tuple[Tensor, Tensor], others: dict[str, tuple[Tensor, Tensor]]) -> None:
        for other in others.values():
            worst = max(float((a - b).abs().max()) for a, b in zip(value, other, strict=True))
            assert worst < ACCURACY, f"the intervals differ by {worst}"

    yield Fact(
        name="interval: evaluations of the mixture's cdf per bound",
        promise=f"<= {MOST_EVALUATIONS} in every {GROUP} rows",
        holds=lambda: 0 < most_evaluations(loc, scale) <= MOST_EVALUATIONS,
    )
    yield Benchmark(
        name="interval",
        ours=ours,
        peers=(Peer(label=f"{NUM_BISECTIONS} bisections", run=bisection),),
        check=check,
        rounds=3,
    )


def most_evaluations(loc: Tensor, scale: Tensor) -> float:
    """Evaluations of the cdf per row and bound, in the group of rows that takes the most."""
    groups = zip(loc.split(GROUP, 1), scale.split(GROUP, 1), strict=True)
    return max(_evaluations_per_bound(*group) for group in groups)


def _evaluations_per_bound(loc: Tensor, scale: Tensor) -> float:
    _evaluations[0] = 0
    central_interval(MixturePredictive(CountedNormal(loc, scale, validate_args=False)), COVERAGE)
    return _evaluations[0] / (2 * loc.numel())


def _bisected(loc: Tensor, scale: Tensor, level: float) -> Tensor:
    """A root of F - level in every row, by halving the range of the components' quantiles."""
    each = Normal(loc, scale, validate_args=False)
    quantiles = each.icdf(torch.tensor(level, dtype=loc.dtype))
    low, high = quantiles.amin(0), quantiles.amax(0)
    for _ in range(NUM_BISECTIONS):
        middle = (low + high) / 2
        below = each.cdf(middle).mean(0) < level
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return (low + high) / 2
