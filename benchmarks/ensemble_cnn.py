"""Ten members of a small convolutional network with BatchNorm and Dropout on digits."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor, nn

from benchmarks.data import digits
from benchmarks.harness import Benchmark, Peer
from benchmarks.loops import categorical_loss, initialised, train_by_index
from credibly import Model, inference, likelihoods

NUM_MEMBERS, NUM_EPOCHS, BATCH_SIZE, LEARNING_RATE = 10, 2, 32, 3e-3


def network() -> nn.Sequential:
    """Two convolutions with BatchNorm, pooling, dropout and a linear layer on 8 x 8 images."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.25),
        nn.Linear(16 * 4 * 4, 10),
    )


def parts() -> Iterator[Benchmark]:
    """The classification ensemble against a loop over its members."""
    torch.manual_seed(0)
    x, y = digits()
    net = network()
    model = Model(net, likelihoods.Categorical(num_classes=10))
    recipe = inference.Ensemble(
        of=inference.MLE(num_epochs=NUM_EPOCHS, batch_size=BATCH_SIZE, learning_rate=LEARNING_RATE),
        num_members=NUM_MEMBERS,
    )

    def ours() -> Tensor:
        return recipe.fit(model, (x, y), seed=0).outputs(x)

    def loop() -> Tensor:
        members = [
            train_by_index(
                initialised(net),
                x,
                y,
                loss=categorical_loss,
                make_optimizer=partial(torch.optim.Adam, lr=LEARNING_RATE, fused=True),
                num_epochs=NUM_EPOCHS,
                batch_size=BATCH_SIZE,
            )
            for _ in range(NUM_MEMBERS)
        ]
        with torch.no_grad():
            return torch.stack([member(x) for member in members])

    def check(outputs: Tensor, others: dict[str, Tensor]) -> None:
        """All ways learn the digits equally well."""
        for other in others.values():
            accuracies = [(each.argmax(-1) == y).float().mean().item() for each in (outputs, other)]
            assert min(accuracies) > 0.9, f"the members did not learn: {accuracies}"
            assert abs(accuracies[0] - accuracies[1]) < 0.02, f"the accuracies differ: {accuracies}"

    yield Benchmark(
        name="ensemble_cnn",
        ours=ours,
        peers=(Peer(label="loop over members, fused Adam", run=loop, at_least=1.3),),
        check=check,
        rounds=3,
    )
