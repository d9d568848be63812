"""Ten members of 10-64-64-1 on diabetes, 20 epochs in batches of 32: together or one after another."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from benchmarks.data import diabetes, perceptron
from benchmarks.harness import Benchmark, Peer
from benchmarks.loops import gaussian_loss, initialised, train_by_index
from credibly import Model, inference, likelihoods

NUM_MEMBERS, NUM_EPOCHS, BATCH_SIZE, LEARNING_RATE = 10, 20, 32, 1e-3


def parts() -> Iterator[Benchmark]:
    """The regression ensemble against loops over its members."""
    torch.manual_seed(0)
    x, y = diabetes()
    net = perceptron()
    model = Model(net, likelihoods.Gaussian(scale=1.0))
    recipe = inference.Ensemble(
        of=inference.MLE(num_epochs=NUM_EPOCHS, batch_size=BATCH_SIZE, learning_rate=LEARNING_RATE),
        num_members=NUM_MEMBERS,
    )

    def ours() -> Tensor:
        return recipe.fit(model, (x, y), seed=0).outputs(x)

    def loop(fused: bool | None) -> Tensor:
        make_optimizer = partial(torch.optim.Adam, lr=LEARNING_RATE, fused=fused)
        members = [
            train_by_index(
                initialised(net),
                x,
                y,
                loss=gaussian_loss,
                make_optimizer=make_optimizer,
                num_epochs=NUM_EPOCHS,
                batch_size=BATCH_SIZE,
            )
            for _ in range(NUM_MEMBERS)
        ]
        with torch.no_grad():
            return torch.stack([member(x) for member in members])

    def check(outputs: Tensor, others: dict[str, Tensor]) -> None:
        """All ways fit the rows equally well, and no two members are alike."""
        for other in others.values():
            assert outputs.shape == other.shape == (NUM_MEMBERS, *y.shape)
            losses = [gaussian_loss(each, y.expand_as(each)).item() for each in (outputs, other)]
            assert abs(losses[0] - losses[1]) < 0.05, f"the training losses differ: {losses}"
        assert outputs.std(0).min() > 0

    yield Benchmark(
        name="ensemble",
        ours=ours,
        peers=(
            Peer(label="loop over members, fused Adam", run=partial(loop, True), at_least=2.5),
            Peer(label="loop over members, default Adam", run=partial(loop, None), at_least=4),
        ),
        check=check,
    )
