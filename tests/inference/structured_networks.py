"""Networks over structured inputs and targets, with a tiny task each: what every method must cope with unchanged."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from credibly import Data, likelihoods

WORDS, LENGTH, NODES = 12, 7, 40


class TextClassifier(nn.Module):
    """A Transformer encoder over padded sequences; the padded positions are neither attended to nor averaged."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.encode = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.read = nn.Linear(8, 3)

    def forward(self, tokens: Tensor, padding: Tensor) -> Tensor:
        """Tokens and flags (rows, length) to logits (rows, 3)."""
        h = self.encode(self.embed(tokens), src_key_padding_mask=padding)
        kept = (~padding).unsqueeze(-1).to(h)
        return self.read((h * kept).sum(1) / kept.sum(1))


class Segmenter(nn.Module):
    """A convolution network that gives (rows, classes, height, width), under a name."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.Dropout2d(0.1), nn.Conv2d(6, 3, 1)
        )

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        """Images (rows, 1, height, width) to logits by class and pixel."""
        return {"logits": self.body(images)}


class GraphConvolution(nn.Module):
    """Two graph convolutions (Kipf, Welling 2017). The graph belongs to the network: a row is a node, given by index.

    So rows can be taken, shuffled and left out like any others, while every node sees its neighbours.
    """

    def __init__(self, features: Tensor, adjacency: Tensor) -> None:
        super().__init__()
        looped = adjacency + torch.eye(len(adjacency))
        scale = looped.sum(1).rsqrt()
        self.register_buffer("features", features)
        self.register_buffer("adjacency", scale[:, None] * looped * scale)
        self.first, self.second = nn.Linear(features.shape[1], 8), nn.Linear(8, 2)

    def forward(self, nodes: Tensor) -> Tensor:
        """Indices (rows,) to logits (rows, 2)."""
        h = F.dropout(F.relu(self.adjacency @ self.first(self.features)), 0.1, self.training)
        return (self.adjacency @ self.second(h))[nodes]


class Reading(NamedTuple):
    """What a network may return: not one tensor."""

    hidden: Tensor
    logits: Tensor


class Recurrent(nn.Module):
    """One output per step of a sequence, and a tuple as what is returned."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.drop, self.read = nn.GRU(2, 6, batch_first=True), nn.Dropout(0.1), nn.Linear(6, 1)

    def forward(self, series: Tensor, level: Tensor) -> Reading:
        """Series (rows, steps, 2) and levels (rows,) to one number per step."""
        hidden, _ = self.body(series)
        return Reading(hidden, self.read(self.drop(hidden)) + level[:, None, None])


@dataclass(frozen=True)
class Task:
    """A network, its likelihood and data with something to learn."""

    net: Callable[[], nn.Module]
    likelihood: Callable[[], likelihoods.Likelihood]
    data: Data
    options: dict[str, Any] = field(default_factory=dict)


def _text() -> Task:
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(1, WORDS, (60, LENGTH), generator=generator)
    lengths = torch.randint(2, LENGTH + 1, (60,), generator=generator)
    padding = torch.arange(LENGTH) >= lengths[:, None]
    tokens = tokens.masked_fill(padding, 0)
    return Task(
        TextClassifier,
        lambda: likelihoods.Categorical(3),
        Data({"tokens": tokens, "padding": padding}, tokens[:, 0] % 3),
    )


def _images() -> Task:
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(40, 1, 5, 6, generator=generator)
    labels = (images[:, 0] > 0.5).long() + (images[:, 0] > -0.5).long()
    seen = torch.rand(40, 5, 6, generator=generator) > 0.3
    return Task(
        Segmenter,
        lambda: likelihoods.PerElement(likelihoods.Categorical(3), num_axes=2, axis=1),
        Data(images, labels.masked_fill(~seen, 0), mask=seen),
        {"output": "logits"},
    )


def _graph() -> Task:
    generator = torch.Generator().manual_seed(2)
    group = torch.arange(NODES) % 2
    same = group[:, None] == group
    linked = (torch.rand(NODES, NODES, generator=generator) < torch.where(same, 0.3, 0.03)).triu(1)
    adjacency = (linked | linked.T).float()
    features = torch.randn(NODES, 4, generator=generator) + 0.5 * group[:, None]
    return Task(
        lambda: GraphConvolution(features, adjacency),
        lambda: likelihoods.Categorical(2),
        Data(torch.arange(NODES), group, mask=torch.arange(NODES) < 30),
    )


def _series() -> Task:
    generator = torch.Generator().manual_seed(3)
    series, level = torch.randn(50, 6, 2, generator=generator), torch.randn(50, generator=generator)
    targets = series[..., 0] + level[:, None] + 0.1 * torch.randn(50, 6, generator=generator)
    seen = torch.arange(6) < torch.randint(2, 7, (50,), generator=generator)[:, None]
    return Task(
        Recurrent,
        lambda: likelihoods.PerElement(likelihoods.Gaussian()),
        Data((series, level), torch.where(seen, targets, torch.nan), mask=seen),
        {"output": "logits"},
    )


TASKS = {"transformer": _text, "segmentation": _images, "graph_convolution": _graph, "recurrent": _series}
