"""A tiny network for every way in which a layer uses its weights, all with three outputs, and the dense answer."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from credibly import Model
from credibly.core.data import Source
from credibly.core.inputs import num_rows, take_rows
from credibly.inference.problem import prepare

ROWS = 4


def images(*sizes: int, channels: int = 2) -> Tensor:
    return torch.randn(ROWS, channels, *sizes, dtype=torch.float64)


def tokens(length: int = 5, words: int = 4) -> Tensor:
    return torch.randint(0, words, (ROWS, length))  # fewer words than positions: every row repeats some


class Flat(nn.Module):
    """The end of a convolution network: three outputs from whatever there is, without weights."""

    def forward(self, x: Tensor) -> Tensor:
        """(rows, ...) to (rows, 3)."""
        flat = x.flatten(1)
        steps = torch.arange(1, 1 + flat.shape[1], dtype=flat.dtype)
        return torch.stack([(flat * (steps * k).sin()).sum(1) for k in (1, 2, 3)], 1)


class Mean(nn.Module):
    """Over positions."""

    def forward(self, x: Tensor) -> Tensor:
        """(rows, T, n) to (rows, n)."""
        return x.mean(1)


class StepsFirst(nn.Module):
    """Layers that see (T, rows, features)."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(2, 4), nn.LayerNorm(4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        """(rows, T, 2) to (rows, 3)."""
        return self.last(self.norm(self.first(x.transpose(0, 1)).tanh())).sin().sum(0)


class Folded(nn.Module):
    """Layers that see every step of every row as a row, as a convolution over frames does."""

    def __init__(self) -> None:
        super().__init__()
        self.frames, self.last = nn.Conv1d(2, 3, 2), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        """(rows, T, 2, 3) to (rows, 3)."""
        return self.last(self.frames(x.flatten(0, 1)).flatten(1).tanh()).unflatten(0, x.shape[:2]).sin().sum(1)


class Tied(nn.Module):
    """One layer called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.last = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        """(rows, 3) to (rows, 3)."""
        return self.last(self.inner(self.inner(x).tanh()).tanh())


def two_names() -> nn.Module:
    """One layer in two places."""
    layer = nn.Linear(3, 3)
    return sequential(layer, nn.Tanh(), layer, nn.Tanh(), nn.Linear(3, 3))


class TiedTable(nn.Module):
    """The table of an embedding is the weight of the last layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.read = nn.Embedding(3, 4), nn.Linear(4, 3)
        self.read.weight = self.embed.weight

    def forward(self, x: Tensor) -> Tensor:
        """Tokens (rows, T) to (rows, 3)."""
        return self.read(self.embed(x).tanh().mean(1))


class Functional(nn.Module):
    """A weight that is used outside of its layer as well, and one that belongs to no layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.scale, self.last = nn.Linear(3, 3), nn.Parameter(torch.rand(3)), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        """(rows, 3) to (rows, 3)."""
        h = self.first(x).tanh() * self.scale
        return self.last(F.linear(h, self.first.weight).tanh())


class Attention(nn.Module):
    """Layers whose weights are read by a fused kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.attend = nn.Linear(2, 4), nn.MultiheadAttention(4, 2, batch_first=True)
        self.last = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        """(rows, T, 2) to (rows, 3)."""
        h = self.first(x)
        return self.last(self.attend(h, h, h)[0].mean(1))


class Recurrent(nn.Module):
    """A layer without a rule for vmap."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.last = nn.GRU(2, 3, batch_first=True), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        """(rows, T, 2) to (rows, 3)."""
        return self.last(self.body(x)[0][:, -1])


class Graph(nn.Module):
    """Nodes by index: every layer sees all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(2, 4), nn.Linear(4, 3)
        generator = torch.Generator().manual_seed(5)
        self.register_buffer("features", torch.randn(ROWS, 2, generator=generator))
        self.register_buffer("links", torch.rand(ROWS, ROWS, generator=generator))

    def forward(self, nodes: Tensor) -> Tensor:
        """Indices (rows,) to (rows, 3)."""
        return (self.links @ self.last((self.links @ self.first(self.features)).tanh()))[nodes]


def settled(norm: nn.Module) -> nn.Module:
    """A normalisation layer with statistics, scales and shifts that are not 0 and 1."""
    with torch.no_grad():
        for tensor in (*norm.parameters(), *(b for b in norm.buffers() if b.is_floating_point())):
            tensor.copy_(torch.rand(tensor.shape) + 0.5)
    return norm


def sequential(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(*layers)


def steps() -> Tensor:
    return torch.randn(ROWS, 5, 2, dtype=torch.float64)


def vectors() -> Tensor:
    return torch.randn(ROWS, 3, dtype=torch.float64)


MLP = lambda: sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 3))  # noqa: E731

BY_RULE = {
    "perceptron": (MLP, vectors),
    "without_bias": (lambda: sequential(nn.Linear(3, 5, bias=False), nn.Tanh(), nn.Linear(5, 3, bias=False)), vectors),
    "in_place": (lambda: sequential(nn.Linear(3, 5), nn.ReLU(inplace=True), nn.Linear(5, 3)), vectors),
    "in_place_steps": (lambda: sequential(nn.Linear(2, 5), nn.ReLU(inplace=True), nn.Linear(5, 3), Mean()), steps),
    "steps": (lambda: sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 3), nn.Tanh(), Mean()), steps),
    "steps_first": (StepsFirst, steps),
    "folded": (Folded, lambda: torch.randn(ROWS, 3, 2, 3, dtype=torch.float64)),
    "tied_calls": (Tied, vectors),
    "two_names": (two_names, vectors),
    "conv1d": (lambda: sequential(nn.Conv1d(2, 4, 3, stride=2, padding=1), nn.Tanh(), nn.Conv1d(4, 2, 2), Flat()),
               lambda: images(9)),
    "conv1d_same": (lambda: sequential(nn.Conv1d(2, 3, 4, padding="same", dilation=2), nn.Tanh(), Flat()),
                    lambda: images(7)),
    "conv1d_valid": (lambda: sequential(nn.Conv1d(2, 3, 4, padding="valid"), nn.Tanh(), Flat()), lambda: images(7)),
    "conv2d": (lambda: sequential(nn.Conv2d(2, 4, (3, 2), (1, 2), (1, 0), (1, 2), groups=2), nn.Tanh(), Flat()),
               lambda: images(4, 5)),
    "conv2d_circular": (lambda: sequential(nn.Conv2d(2, 3, 3, padding=(1, 2), padding_mode="circular"), nn.Tanh(),
                                           Flat()), lambda: images(4, 5)),
    "conv2d_reflect": (lambda: sequential(nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect"), nn.Tanh(), Flat()),
                       lambda: images(4, 5)),
    "conv3d": (lambda: sequential(nn.Conv3d(2, 2, 2, padding=1, padding_mode="replicate"), nn.Tanh(), Flat()),
               lambda: images(2, 3, 2)),
    "transposed1d": (lambda: sequential(nn.ConvTranspose1d(2, 4, 3, 2, 1, 1, groups=2, dilation=2), nn.Tanh(), Flat()),
                     lambda: images(4)),
    "transposed2d": (lambda: sequential(nn.ConvTranspose2d(2, 3, (3, 2), (2, 3), (1, 0), (1, 2)), nn.Tanh(), Flat()),
                     lambda: images(3, 2)),
    "transposed3d": (lambda: sequential(nn.ConvTranspose3d(2, 2, 2, padding=1), nn.Tanh(), Flat()),
                     lambda: images(2, 3, 3)),
    "embedding": (lambda: sequential(nn.Embedding(4, 3), nn.Tanh(), Mean(), nn.Linear(3, 3)), tokens),
    "embedding_padded": (lambda: sequential(nn.Embedding(4, 3, padding_idx=1), nn.Tanh(), Mean()), tokens),
    "batch_norm": (lambda: sequential(nn.Linear(3, 4), settled(nn.BatchNorm1d(4)), nn.Tanh(), nn.Linear(4, 3)),
                   vectors),
    "batch_norm2d": (lambda: sequential(settled(nn.BatchNorm2d(2)), nn.Tanh(), Flat()), lambda: images(3, 2)),
    "group_norm": (lambda: sequential(settled(nn.GroupNorm(2, 4)), nn.Tanh(), Flat()), lambda: images(3, channels=4)),
    "layer_norm": (lambda: sequential(settled(nn.LayerNorm((3, 2))), nn.Tanh(), Flat()), lambda: images(3, 2)),
    "rms_norm": (lambda: sequential(nn.Linear(3, 4), settled(nn.RMSNorm(4)), nn.Tanh(), nn.Linear(4, 3)), vectors),
    "instance_norm": (lambda: sequential(settled(nn.InstanceNorm1d(2, affine=True)), nn.Tanh(), Flat()),
                      lambda: images(4)),
}  # fmt: skip
"""Networks all of whose weights have a rule, and inputs."""

BY_ROW = {
    "attention": (Attention, steps),
    "recurrent": (Recurrent, steps),
    "functional": (Functional, vectors),
    "graph": (Graph, lambda: torch.arange(ROWS)),
    "weight_norm": (
        lambda: sequential(nn.utils.parametrizations.weight_norm(nn.Linear(3, 4)), nn.Linear(4, 3)),
        vectors,
    ),
    "prelu": (lambda: sequential(nn.Linear(3, 4), nn.PReLU(4), nn.Linear(4, 3)), vectors),
}
"""Networks of some of whose weights nothing is known."""

MIXED = {"tied_table": (TiedTable, lambda: tokens(words=3))}

NETWORKS = {**BY_RULE, **BY_ROW, **MIXED}


def make(name: str, likelihood: nn.Module, **options: object) -> tuple[Model, Tensor]:
    """The named network as a model in double precision, and its inputs."""
    torch.manual_seed(7)
    network, inputs = NETWORKS[name]
    return Model(network().double(), likelihood, **options), inputs()


def all_names(model: Model) -> list[str]:
    return [name for name, p in model.core.named_parameters() if p.requires_grad and name.startswith("net.")]


def dense_jacobians(model: Model, inputs: object, names: list[str]) -> Tensor:
    """(rows, C, d), row by row by autograd of the network alone; the inputs are on its side."""
    core = model.core.eval()
    known = dict(core.named_parameters())
    weights = [known[name] for name in names]
    rows = []
    for row in range(num_rows(inputs)):
        own = take_rows(inputs, slice(row, row + 1))
        outputs = core(own, "outputs").flatten()
        each = [torch.autograd.grad(o, weights, retain_graph=True, materialize_grads=True) for o in outputs]
        rows.append(torch.stack([torch.cat([part.flatten() for part in parts]) for parts in each]))
    core.train()
    return torch.stack(rows).detach()


def dense_curvature(jacobians: Tensor, fisher: Tensor) -> Tensor:
    """The sum over rows of J' F J, for (rows, C, d) and (rows, C, C)."""
    return torch.einsum("rci,rcd,rdj->ij", jacobians, fisher, jacobians)


def source_of(model: Model, data: object) -> Source:
    """Data on the network's side, as a fit prepares it."""
    return prepare(model, data, start="current").source


def outputs_of(model: Model, inputs: object) -> Tensor:
    """Of the network in evaluation mode; the inputs are on its side."""
    core = model.core.eval()
    outputs = core(inputs, "outputs").detach()
    core.train()
    return outputs
