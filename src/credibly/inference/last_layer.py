"""The last layer of a network as a network of its own: what the layers before it give is computed once."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from credibly.core.data import Data, Source
from credibly.core.inputs import num_rows, take_rows
from credibly.core.params import evaluating, module_device
from credibly.core.randomness import seeded
from credibly.core.typing import Inputs
from credibly.model import Model

__all__ = ["Head", "head_of"]

_ROWS = 256  # of which the layers before are evaluated at a time


class _Path(nn.Module):
    """A layer under the name that it has in its network."""

    def __init__(self, name: str, layer: nn.Module) -> None:
        super().__init__()
        first, _, rest = name.partition(".")
        self._first = first
        self.add_module(first, _Path(rest, layer) if rest else layer)

    def forward(self, inputs: Tensor) -> Tensor:
        """That of the layer."""
        return self.get_submodule(self._first)(inputs)  # type: ignore[no-any-return]


@dataclass(frozen=True, eq=False)
class Head:
    """The last layer.

    Attributes:
        model: whose network is the layer, with the weights' names and the very weights of the whole.
        body: the whole model, on standardised inputs.
        layer: the name of the layer in the network.
    """

    model: Model
    body: Model
    layer: str

    def source(self, source: Source) -> Source:
        """The rows with what the layer reads as their inputs.

        Args:
            source: on the network's side.
        """
        return source.map(lambda batch: replace(batch, inputs=self._features(batch)))

    def _features(self, batch: Data) -> Tensor:
        rows = range(0, num_rows(batch.inputs), _ROWS)
        parts = [_seen(self.body, self.layer, take_rows(batch.inputs, slice(k, k + _ROWS)))[0] for k in rows]
        return torch.cat(parts)


def head_of(model: Model, names: tuple[str, ...], inputs: Inputs) -> Head | None:
    """The layer that owns the named weights, where it reads one tensor and gives the network's outputs; else None.

    Args:
        model: the whole, on the network's side of any standardisation.
        names: of weights of one layer.
        inputs: some rows, on the network's side.
    """
    owners = {name.removeprefix("net.").rpartition(".")[0] for name in names}
    layer = owners.pop() if len(owners) == 1 else ""
    if not layer or model.offset is not None or _is_tied(model, layer):
        return None
    with seeded(0, "record", device=module_device(model)):
        features, given, outputs = _seen(model, layer, take_rows(inputs, slice(0, 2)))
    if not isinstance(features, Tensor) or len(features) != len(outputs) or not _same(given, outputs):
        return None
    net = _Path(layer, model.net.get_submodule(layer))
    return Head(Model(net, model.likelihood, model.prior, noise_prior=model.noise_prior), model, layer)


def _is_tied(model: Model, layer: str) -> bool:
    """Whether another layer has a weight of this one: what it gives is then not the same in every draw."""
    own = [id(weight) for weight in model.net.get_submodule(layer).parameters()]
    every = [id(weight) for _, weight in model.net.named_parameters(remove_duplicate=False)]
    return any(every.count(each) > 1 for each in own)


def _seen(model: Model, layer: str, inputs: Inputs) -> tuple[Tensor, object, Tensor]:
    """What the layer read, what it gave, and the network's outputs; nothing of several calls or arguments."""
    calls: list[tuple[object, object]] = []

    def note(part: nn.Module, args: tuple[object, ...], kwargs: dict[str, object], given: object) -> None:  # noqa: ARG001
        calls.append((args[0] if len(args) == 1 and not kwargs else None, given))

    handle = model.net.get_submodule(layer).register_forward_hook(note, with_kwargs=True)
    try:
        with torch.no_grad(), evaluating(model.core):
            outputs = model.core(inputs, "outputs")
    finally:
        handle.remove()
    features, given = calls[0] if len(calls) == 1 else (None, None)
    return features, given, outputs  # type: ignore[return-value]


def _same(given: object, outputs: Tensor) -> bool:
    return isinstance(given, Tensor) and given.shape == outputs.shape and torch.equal(given, outputs)
