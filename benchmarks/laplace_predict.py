"""The covariance of the 10 outputs of a 64-128-128-10 network under a Kronecker posterior over all weights: 597 rows.

The peer writes out the Jacobian of every row, (10, 26,122) numbers, and multiplies it with the covariance. The floor is
the products that the projection on the eigenbases needs, by hand for this one network.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from laplace import Laplace as LaplaceTorch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.data import digits
from benchmarks.harness import Benchmark, Fact, Peer
from credibly import Model, inference, likelihoods, priors
from credibly.core.linalg import Kronecker
from credibly.posteriors import LinearizedPosterior

NUM_TRAIN, NUM_CLASSES = 1200, 10
AGREEMENT = 1e-4


def network() -> nn.Sequential:
    """Three layers, with weights of their own initialisation."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, NUM_CLASSES))


def problem(dtype: torch.dtype) -> tuple[nn.Sequential, Tensor, Tensor, Tensor]:
    """A network trained for a while, its training rows, and the 597 rows to predict."""
    x, y = digits()
    x = x.flatten(1)
    train = inference.MAP(num_epochs=20).fit(
        Model(network(), likelihoods.Categorical(NUM_CLASSES)), (x[:NUM_TRAIN], y[:NUM_TRAIN]), seed=0
    )
    net = train.to_model().net.to(dtype)
    assert isinstance(net, nn.Sequential)
    return net, x[:NUM_TRAIN].to(dtype), y[:NUM_TRAIN], x[NUM_TRAIN:].to(dtype)


def posterior(net: nn.Module, x: Tensor, y: Tensor) -> LinearizedPosterior:
    """Ours."""
    model = Model(net, likelihoods.Categorical(NUM_CLASSES), priors.Normal())
    found = inference.Laplace().fit(model, (x, y), start="current", seed=0)
    assert isinstance(found, LinearizedPosterior)
    return found


def peer(net: nn.Module, x: Tensor, y: Tensor) -> Any:
    """laplace-torch's, with the same prior."""
    found: Any = LaplaceTorch(net, "classification", subset_of_weights="all", hessian_structure="kron")
    found.fit(DataLoader(TensorDataset(x, y), batch_size=NUM_TRAIN))
    return found


def covariances_of(found: Any, x: Tensor) -> Tensor:
    """The peer's, as its predictions use them."""
    covariances: Tensor = found._glm_predictive_distribution(x)[1]
    return covariances.detach()


def floor(net: nn.Sequential, found: LinearizedPosterior, x: Tensor) -> Tensor:
    """Forwards, backwards and the projections, with nothing else."""
    blocks: Any = found.covariance.of  # type: ignore[attr-defined]
    inputs, gradients = [x], [torch.eye(NUM_CLASSES, dtype=x.dtype).expand(len(x), -1, -1)]
    layers: list[Any] = [net[0], net[2], net[4]]
    with torch.no_grad():
        for layer in layers[:-1]:
            inputs.append(layer(inputs[-1]).relu())
        for layer, after in zip(reversed(layers[1:]), reversed(inputs[1:]), strict=True):
            gradients.insert(0, (gradients[0] @ layer.weight) * (after > 0).unsqueeze(1))
        total = torch.zeros(len(x), NUM_CLASSES, NUM_CLASSES, dtype=x.dtype)
        for a, g, weight, bias in zip(inputs, gradients, blocks.blocks[::2], blocks.blocks[1::2], strict=True):
            total += _projected(g, a, weight) + _projected(g, torch.ones_like(a[:, :1]), bias)
    return total


def _projected(g: Tensor, a: Tensor, block: Kronecker) -> Tensor:
    assert block.left is not None
    own = g @ block.left
    seen = a if block.right is None else a @ block.right
    weights = seen.square() @ (1 / block.values).mT
    return (own * weights.unsqueeze(1)) @ own.mT


def parts() -> Iterator[Benchmark | Fact]:
    """The time, and that both do the same."""
    net, x, y, rows = problem(torch.float32)
    ours, theirs = posterior(net, x, y), peer(net, x, y)

    def check(covariances: Tensor, others: dict[str, Any]) -> None:
        """In single precision, to 1 per cent of the largest entry."""
        for other in others.values():
            assert covariances.shape == other.shape == (len(rows), NUM_CLASSES, NUM_CLASSES)
            assert (covariances - other).abs().max() < 1e-2 * other.abs().max()

    yield Benchmark(
        name="laplace_predict, 597 rows",
        ours=partial(ours.output_covariance, rows),
        peers=(Peer(label="laplace-torch 0.3", run=partial(covariances_of, theirs, rows), at_least=300),),
        floor=partial(floor, net, ours, rows),
        check=check,
        rounds=3,
    )
    yield Fact(
        name="laplace_predict, agreement in double precision",
        promise=f"every entry within {AGREEMENT} of laplace-torch's, relative to the largest",
        holds=_agree,
    )


def _agree() -> bool:
    net, x, y, rows = problem(torch.float64)
    ours = posterior(net, x, y).output_covariance(rows[:20])
    theirs = covariances_of(peer(net, x, y), rows[:20])
    return bool((ours - theirs).abs().max() < AGREEMENT * theirs.abs().max())
