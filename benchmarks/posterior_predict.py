"""100 draws from a Gaussian over the weights of 64-128-128-10, drawing the weights included, on few and on many rows.

A user who holds a mean and a covariance draws the weights of one network after another and calls the network at each.
The same random numbers cost the same on either side, and so do the products of the network: the floor is those two
and nothing else.
"""

import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.func import functional_call

from benchmarks.harness import Benchmark, Fact, Peer, bytes_of_program
from credibly import Model, likelihoods
from credibly.core.linalg import Blocks, Diagonal, Inverse, Kronecker
from credibly.posteriors import GaussianPosterior, Info

NUM_DRAWS, WIDTHS, PRECISION = 100, (64, 128, 128, 10), 100.0
MOST_MEGABYTES = 96  # beyond the results: weights, random numbers and activations of one chunk

Draw = Callable[[], dict[str, Tensor]]


def parts() -> Iterator[Benchmark | Fact]:
    """Two structures, each on few and on many rows; and the memory of the latter."""
    for structure in ("diagonal", "kronecker"):
        yield _benchmark(structure, num_rows=100, at_least=3, rounds=21)
        yield _benchmark(structure, num_rows=10_000, at_least=0.95, rounds=9)
    yield Fact(
        name="posterior_predict, memory of 100 draws on 10,000 rows",
        promise=f"at most {MOST_MEGABYTES} MiB above the results",
        holds=lambda: _megabytes_in_new_process() <= MOST_MEGABYTES,
    )


def network() -> nn.Sequential:
    """64-128-128-10 with ReLU."""
    layers: list[nn.Module] = []
    for width_in, width_out in pairwise(WIDTHS):
        layers += [nn.Linear(width_in, width_out), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def posterior(net: nn.Module, structure: str) -> GaussianPosterior:
    """A Gaussian around the network's weights: variances alone, or an inverse Kronecker product for each matrix."""
    weights = {f"net.{name}": weight for name, weight in net.named_parameters()}
    blocks = tuple(_precision(weight, structure) for weight in weights.values())
    whole = Diagonal(torch.cat([block.diagonal() for block in blocks])) if structure == "diagonal" else Blocks(blocks)
    model = Model(net, likelihoods.Categorical(WIDTHS[-1]))
    return GaussianPosterior(model, Info("benchmark", 0), names=tuple(weights), covariance=Inverse(whole))


def _precision(weight: Tensor, structure: str) -> Diagonal | Kronecker:
    prior = torch.full((weight.numel(),), PRECISION)
    if structure == "diagonal" or weight.dim() == 1:
        return Diagonal(prior * (1 + torch.rand(weight.numel())))
    left, right = (torch.randn(size, size) for size in weight.shape)
    return Kronecker.of_factors(left @ left.T / len(left), right @ right.T / len(right)).plus_diagonal(prior)


def _by_hand(net: nn.Module, law: GaussianPosterior, structure: str) -> Draw:
    """What draws one set of weights, tensor by tensor, as a careful user writes it: all that can be is prepared."""
    assert isinstance(law.covariance, Inverse)
    mean = {name: weight.detach() for name, weight in net.named_parameters()}
    if structure == "diagonal":
        pieces = torch.split(law.covariance.of.inverse_diagonal().sqrt(), [weight.numel() for weight in mean.values()])
        scales = {name: part.reshape(mean[name].shape) for name, part in zip(mean, pieces, strict=True)}
        return lambda: {name: mean[name] + scales[name] * torch.randn(scales[name].shape) for name in mean}
    assert isinstance(law.covariance.of, Blocks)
    roots = {name: _root(block) for name, block in zip(mean, law.covariance.of.blocks, strict=True)}
    return lambda: {name: mean[name] + roots[name](torch.randn(mean[name].shape)) for name in mean}


def _root(block: object) -> Callable[[Tensor], Tensor]:
    if isinstance(block, Diagonal):
        scale = block.values.rsqrt()
        return lambda noise: noise * scale
    assert isinstance(block, Kronecker)
    scales, left, right = block.values.rsqrt(), block.left, block.right
    assert left is not None
    assert right is not None
    right = right.T.contiguous()
    return lambda noise: left @ (noise * scales) @ right


def _benchmark(structure: str, *, num_rows: int, at_least: float, rounds: int) -> Benchmark:
    torch.manual_seed(0)
    net, x = network(), torch.randn(num_rows, WIDTHS[0])
    law = posterior(net, structure)
    draw = _by_hand(net, law, structure)
    num_weights = law.covariance.size

    def ours() -> Tensor:
        return law.outputs(x, num_draws=NUM_DRAWS, seed=0)

    def loop() -> Tensor:
        with torch.no_grad():
            return torch.stack([functional_call(net, draw(), (x,)) for _ in range(NUM_DRAWS)])

    def floor() -> Tensor:
        """Random numbers as weights, and the products."""
        with torch.no_grad():
            if num_rows > 1000:
                return torch.stack([_products(x, torch.randn(1, num_weights))[0] for _ in range(NUM_DRAWS)])
            return _products(x, torch.randn(NUM_DRAWS, num_weights))

    def check(outputs: Tensor, others: dict[str, Tensor]) -> None:
        """Same shape, same mean and spread over the draws, averaged over all rows."""
        looped = others["loop of functional calls"]
        assert outputs.shape == looped.shape == (NUM_DRAWS, num_rows, WIDTHS[-1])
        spread, expected = outputs.std(0).mean(), looped.std(0).mean()
        assert abs(spread / expected - 1) < 0.2, f"the spreads differ: {spread} and {expected}"
        assert abs(outputs.mean() - looped.mean()) < 0.5 * expected

    return Benchmark(
        name=f"posterior_predict, {structure}, {num_rows} rows",
        ours=ours,
        peers=(Peer(label="loop of functional calls", run=loop, at_least=at_least),),
        floor=floor,
        check=check,
        rounds=rounds,
        warmups=2,
    )


def _products(x: Tensor, weights: Tensor) -> Tensor:
    """The network's products and nothing else, (draws, rows, outputs), at flat vectors (draws, d)."""
    start, hidden = 0, x.expand(len(weights), *x.shape)
    for width_in, width_out in pairwise(WIDTHS):
        matrix = weights[:, start : start + width_in * width_out].reshape(-1, width_in, width_out)
        start += (width_in + 1) * width_out
        hidden = torch.bmm(hidden, matrix)
    return hidden


def _megabytes_in_new_process() -> float:
    command = [sys.executable, "-c", "from benchmarks.posterior_predict import main; main()"]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    """Print by how much the peak of memory rises, less the results, in MiB."""
    net, x = network(), torch.randn(10_000, WIDTHS[0])
    law = posterior(net, "kronecker")
    law.outputs(x[:2], num_draws=2, seed=0)
    before = bytes_of_program("VmRSS")
    outputs = law.outputs(x, num_draws=NUM_DRAWS, seed=0)
    print((bytes_of_program("VmHWM") - before - outputs.nbytes) / 2**20)


if __name__ == "__main__":
    main()
