"""An epoch of MLE on 353 rows of 10 in batches of 32: what the training loop costs beyond the training."""

from collections.abc import Iterator
from copy import deepcopy
from functools import partial

import torch
from torch import Tensor

from benchmarks.data import diabetes, perceptron
from benchmarks.harness import Benchmark, Peer
from benchmarks.loops import gaussian_loss, train_by_index, train_by_loader
from credibly import Model, inference, likelihoods

NUM_EPOCHS, BATCH_SIZE, LEARNING_RATE = 20, 32, 1e-3


def parts() -> Iterator[Benchmark]:
    """The training loop against a bare loop, and against the same loop over a DataLoader; times per epoch."""
    torch.manual_seed(0)
    x, y = diabetes()
    net = perceptron()
    model = Model(net, likelihoods.Gaussian(scale=1.0))
    recipe = inference.MLE(num_epochs=NUM_EPOCHS, batch_size=BATCH_SIZE, learning_rate=LEARNING_RATE)
    options = {
        "loss": gaussian_loss,
        "make_optimizer": partial(torch.optim.Adam, lr=LEARNING_RATE, fused=True),
        "num_epochs": NUM_EPOCHS,
        "batch_size": BATCH_SIZE,
    }

    def ours() -> Tensor:
        return recipe.fit(model, (x, y), seed=0).outputs(x)[0]

    def by_index() -> Tensor:
        return _outputs(train_by_index(deepcopy(net), x, y, **options), x)

    def by_loader() -> Tensor:
        return _outputs(train_by_loader(deepcopy(net), x, y, **options), x)

    def check(outputs: Tensor, others: dict[str, Tensor]) -> None:
        """All ways fit the rows equally well."""
        for other in others.values():
            losses = [gaussian_loss(each, y).item() for each in (outputs, other)]
            assert abs(losses[0] - losses[1]) < 0.05, f"the training losses differ: {losses}"

    yield Benchmark(
        name="fit_overhead",
        ours=ours,
        peers=(Peer(label="the same loop over a DataLoader", run=by_loader, at_least=1.3),),
        floor=by_index,
        at_most=1.25,
        check=check,
        rounds=15,
        warmups=2,
        units=NUM_EPOCHS,
    )


def _outputs(net: torch.nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        return net(x)
