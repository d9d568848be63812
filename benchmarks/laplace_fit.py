"""The curvature of a 64-128-128-10 network over 1200 digits: the fit of Laplace's method after training.

laplace-torch wants torchvision by its dependencies, not by its code: it is installed with `--no-deps`, and so is what
computes curvatures for it (`requirements-no-deps.txt`). Its time depends on the loader that it is given: the promises
are against one of 64 rows, and it is measured in the batches in which it is fastest as well, all rows at once for
Kronecker factors and few for the diagonal, for which it holds the gradients of every row by every class (1200 at once
take more than 20 GB). The floor is the same arithmetic by hand for this one network.
"""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from laplace import Laplace as PeerLaplace
from laplace.curvature import BackPackGGN, CurvlinopsGGN
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.data import digits
from benchmarks.harness import Benchmark, Fact, Peer
from credibly import Model, inference, likelihoods
from credibly.core.linalg.base import PositiveDefinite
from credibly.curvature import GGN, Diagonal, Kronecker, Structure, curvature
from credibly.inference.problem import prepare

NUM_ROWS = 1200
STRUCTURES: dict[str, Structure] = {"diag": Diagonal(), "kron": Kronecker()}
PROMISED = {"diag": 200, "kron": 5}
LOADER_BATCH = 64
FASTEST_BATCH = {"diag": 16, "kron": NUM_ROWS}
FASTEST_ON_BACKPACK = {"diag": 100, "kron": NUM_ROWS}


def parts() -> Iterator[Benchmark | Fact]:
    """Both structures in single precision, and their agreement in double precision."""
    for structure in STRUCTURES:
        yield _benchmark(structure)
    for structure in STRUCTURES:
        yield Fact(
            name=f"laplace_fit, {structure}, agreement",
            promise="equals laplace-torch to 1e-4 in double precision",
            holds=lambda structure=structure: _agrees(structure),
        )


def classifier() -> tuple[nn.Sequential, Tensor, Tensor]:
    """A network that was trained a little, images and classes."""
    torch.manual_seed(0)
    x, y = digits()
    x, y = x[:NUM_ROWS].flatten(1), y[:NUM_ROWS]
    net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    for _ in range(100):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
    return net, x, y


def _benchmark(structure: str) -> Benchmark:
    net, x, y = classifier()
    model = Model(net, likelihoods.Categorical(10))
    recipe = inference.Laplace(structure=STRUCTURES[structure])
    own, hooked = copy.deepcopy(net), copy.deepcopy(net)  # BackPACK leaves hooks on what it has seen
    best, on_backpack = FASTEST_BATCH[structure], FASTEST_ON_BACKPACK[structure]

    return Benchmark(
        name=f"laplace_fit, {structure}, {NUM_ROWS} rows",
        ours=lambda: recipe.fit(model, (x, y), start="current", seed=0),
        peers=(
            Peer(
                label=f"laplace-torch, {LOADER_BATCH} rows at a time",
                run=lambda: _peer(structure, own, x, y, CurvlinopsGGN, LOADER_BATCH),
                at_least=PROMISED[structure],
            ),
            Peer(
                label=f"laplace-torch, {best} rows at a time",
                run=lambda: _peer(structure, own, x, y, CurvlinopsGGN, best),
            ),
            Peer(
                label=f"laplace-torch on BackPACK, {on_backpack} rows at a time",
                run=lambda: _peer(structure, hooked, x, y, BackPackGGN, on_backpack),
            ),
        ),
        floor=lambda: _floor(structure, net, x),
        rounds=3 if structure == "diag" else 7,
    )


def _floor(structure: str, net: nn.Sequential, x: Tensor) -> list[Tensor]:
    """One pass forwards, 10 directions backwards and the products of both, by hand for this network."""
    layers: list[Any] = [net[0], net[2], net[4]]
    with torch.no_grad():
        inputs = [x]
        for layer in layers[:-1]:
            inputs.append(layer(inputs[-1]).relu())
        p = layers[-1](inputs[-1]).softmax(-1)
        gradients = [torch.diag_embed(p.sqrt()) - p.sqrt().unsqueeze(2) * p.unsqueeze(1)]
        for layer, after in zip(reversed(layers[1:]), reversed(inputs[1:]), strict=True):
            gradients.insert(0, (gradients[0] @ layer.weight) * (after > 0).unsqueeze(1))
        pairs = list(zip(gradients, inputs, strict=True))
        if structure == "diag":
            return [g.square().sum(1).mT @ a.square() for g, a in pairs]
        factors = [part for g, a in pairs for part in (g.flatten(0, 1), a)]
        return [torch.linalg.eigh(part.mT @ part)[1] for part in factors]


def _peer(
    structure: str, net: nn.Module, x: Tensor, y: Tensor, backend: Callable[..., Any], batch_size: int = LOADER_BATCH
) -> Any:
    posterior = PeerLaplace(
        net, "classification", subset_of_weights="all", hessian_structure=structure, backend=backend
    )
    posterior.fit(DataLoader(TensorDataset(x, y), batch_size=batch_size))
    return posterior


def _agrees(structure: str) -> bool:
    net, x, y = classifier()
    net, x = net.double(), x.double()
    model = Model(net, likelihoods.Categorical(10))
    names = [f"net.{name}" for name, _ in net.named_parameters()]
    source = prepare(model, (x, y), start="current").source
    ours = curvature(model, source, names, STRUCTURES[structure], GGN())
    backend = BackPackGGN if structure == "diag" else CurvlinopsGGN
    theirs = _peer(structure, copy.deepcopy(net), x, y, backend).H
    probes = torch.randn(5, ours.size, dtype=torch.float64)
    return _close(ours, probes, probes * theirs if structure == "diag" else theirs.bmm(probes, exponent=1))


def _close(ours: PositiveDefinite, probes: Tensor, expected: Tensor) -> bool:
    difference = (ours.matmul(probes) - expected).norm() / expected.norm()
    return bool(difference < 1e-4)
