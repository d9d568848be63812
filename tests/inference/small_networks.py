"""One tiny network of every common kind, with rows to learn from and rows held out: what every method runs on."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from structured_networks import WORDS, GraphConvolution, TextClassifier
from torch import Tensor, nn

from credibly import Model, likelihoods, priors

NUM_TRAIN, NUM_TEST, LENGTH = 96, 60, 6


class Residual(nn.Module):
    """A convolution network with BatchNorm and a connection around two layers (He et al. 2016)."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4))
        self.second = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU())
        self.third = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4))
        self.drop, self.read = nn.Dropout(0.1), nn.Linear(4, 3)

    def forward(self, images: Tensor) -> Tensor:
        """Images (rows, 1, height, width) to logits (rows, 3)."""
        h = torch.relu(self.first(images))
        h = torch.relu(h + self.third(self.second(h)))
        return self.read(self.drop(h.mean((2, 3))))


class LastState(nn.Module):
    """A recurrent layer, read where the sequence ends."""

    def __init__(self, body: nn.RNNBase) -> None:
        super().__init__()
        self.body, self.drop, self.read = body, nn.Dropout(0.1), nn.Linear(body.hidden_size, 3)

    def forward(self, series: Tensor) -> Tensor:
        """Series (rows, steps, features) to logits (rows, 3)."""
        hidden, _ = self.body(series)
        return self.read(self.drop(hidden[:, -1]))


def perceptron() -> nn.Module:
    """Two layers."""
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.1), nn.Linear(8, 1))


def one_layer_twice() -> nn.Module:
    """A layer that has two names."""
    layer = nn.Linear(4, 4)
    return nn.Sequential(layer, nn.Tanh(), nn.Dropout(0.1), layer, nn.Tanh(), nn.Linear(4, 1))


def convolutions() -> nn.Module:
    """Two convolutions, pooled."""
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 4, 3, padding=1),
        nn.ReLU(),
        nn.Dropout(0.1),
        nn.Flatten(),
        nn.Linear(4 * 3 * 3, 3),
    )


@dataclass(frozen=True)
class Case:
    """A network, what it is to predict, and data; the first `NUM_TRAIN` rows are for training.

    Attributes:
        net: makes the network.
        likelihood: makes what it predicts.
        inputs: of all rows, one tensor or several by name.
        targets: of all rows.
    """

    net: Callable[[], nn.Module]
    likelihood: Callable[[], likelihoods.Likelihood]
    inputs: Tensor | dict[str, Tensor]
    targets: Tensor

    def model(self) -> Model:
        """Always the same weights, part of them in evaluation mode."""
        torch.manual_seed(0)
        model = Model(self.net(), self.likelihood(), priors.Normal(0.7))
        next(model.net.children()).eval()
        return model

    def train(self) -> tuple[Tensor | dict[str, Tensor], Tensor]:
        """Rows to learn from."""
        return self._rows(slice(0, NUM_TRAIN))

    def test(self) -> tuple[Tensor | dict[str, Tensor], Tensor]:
        """Rows held out."""
        return self._rows(slice(NUM_TRAIN, None))

    def _rows(self, rows: slice) -> tuple[Tensor | dict[str, Tensor], Tensor]:
        if isinstance(self.inputs, dict):
            return {name: value[rows] for name, value in self.inputs.items()}, self.targets[rows]
        return self.inputs[rows], self.targets[rows]


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _numbers(net: Callable[[], nn.Module]) -> Case:
    g = _generator(0)
    x = torch.randn(NUM_TRAIN + NUM_TEST, 4, generator=g)
    y = x[:, 0] - x[:, 1] + 0.3 * torch.randn(len(x), generator=g)
    return Case(net, lambda: likelihoods.Gaussian(scale=0.4), x, y)


def _images(net: Callable[[], nn.Module], seed: int) -> Case:
    """Noise, a bright horizontal bar, or a bright vertical one."""
    g = _generator(seed)
    images = 0.5 * torch.randn(NUM_TRAIN + NUM_TEST, 1, 6, 6, generator=g)
    labels = torch.arange(len(images)) % 3
    images[labels == 1, :, 2:4] += 1.5
    images[labels == 2, :, :, 2:4] += 1.5
    return Case(net, lambda: likelihoods.Categorical(3), images, labels)


def _series(body: Callable[[], nn.RNNBase], seed: int) -> Case:
    """Steps that fall, stay or rise."""
    g = _generator(seed)
    labels = torch.arange(NUM_TRAIN + NUM_TEST) % 3
    slopes = (labels - 1.0)[:, None] * torch.linspace(-1, 1, LENGTH)
    series = slopes[:, :, None] + 0.3 * torch.randn(len(labels), LENGTH, 2, generator=g)
    return Case(lambda: LastState(body()), lambda: likelihoods.Categorical(3), series, labels)


def _sentences() -> Case:
    """Words of three kinds; the commonest kind is the class."""
    g = _generator(5)
    rows = NUM_TRAIN + NUM_TEST
    labels = torch.arange(rows) % 3
    own = labels[:, None] + 3 * torch.randint(0, WORDS // 3, (rows, LENGTH), generator=g)
    other = torch.randint(0, WORDS, (rows, LENGTH), generator=g)
    tokens = torch.where(torch.rand(rows, LENGTH, generator=g) < 0.75, own, other)
    padding = torch.arange(LENGTH) >= torch.randint(3, LENGTH + 1, (rows, 1), generator=g)
    return Case(TextClassifier, lambda: likelihoods.Categorical(3), {"tokens": tokens, "padding": padding}, labels)


def _nodes() -> Case:
    """Nodes of two groups with few links between them."""
    g = _generator(6)
    nodes = NUM_TRAIN + NUM_TEST
    group = torch.arange(nodes) % 2
    same = group[:, None] == group
    linked = (torch.rand(nodes, nodes, generator=g) < torch.where(same, 0.15, 0.02)).triu(1)
    features = torch.randn(nodes, 4, generator=g) + 0.5 * group[:, None]
    adjacency = (linked | linked.T).float()
    return Case(
        lambda: GraphConvolution(features, adjacency), lambda: likelihoods.Categorical(2), torch.arange(nodes), group
    )


CASES: dict[str, Callable[[], Case]] = {
    "mlp": lambda: _numbers(perceptron),
    "one_layer_twice": lambda: _numbers(one_layer_twice),
    "cnn": lambda: _images(convolutions, 1),
    "resnet": lambda: _images(Residual, 2),
    "lstm": lambda: _series(lambda: nn.LSTM(2, 6, batch_first=True), 3),
    "gru": lambda: _series(lambda: nn.GRU(2, 6, batch_first=True), 4),
    "transformer": _sentences,
    "graph_convolution": _nodes,
}
