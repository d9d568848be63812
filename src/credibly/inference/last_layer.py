"""The last layer of a network as a network of its own: what the layers before it give is computed once."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from credibly.core.data import Data, Source
from credibly.core.errors import NotSupportedError
from credibly.core.inputs import num_rows, take_rows
from credibly.core.params import evaluating, module_device
from credibly.core.randomness import seeded
from credibly.core.typing import Inputs
from credibly.curvature.recording import graph_leaves
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
        with torch.no_grad():
            return torch.cat([self._read_by_layer(take_rows(batch.inputs, slice(k, k + _ROWS))) for k in rows])

    def _read_by_layer(self, inputs: Inputs) -> Tensor:
        call, outputs = _seen(self.body, self.layer, inputs)
        if call is None or not call.gave(outputs):
            raise NotSupportedError(
                f"`{self.layer}` gives the network's outputs for the first rows and not for others; which layers are "
                "called must not depend on the inputs"
            )
        return call.inputs


def head_of(model: Model, names: tuple[str, ...], inputs: Inputs) -> Head | None:
    """The layer that owns the named weights, where it reads one tensor and gives the network's outputs; else None.

    Args:
        model: the whole, on the network's side of any standardisation.
        names: of weights of one layer.
        inputs: some rows, on the network's side.
    """
    owners = {name.removeprefix("net.").rpartition(".")[0] for name in names}
    layer = owners.pop() if len(owners) == 1 else ""
    if not layer or model.offset is not None:
        return None
    with torch.enable_grad(), seeded(0, "record", device=module_device(model)):
        call, outputs = _seen(model, layer, take_rows(inputs, slice(0, 2)))
    if call is None or len(call.inputs) != len(outputs) or not call.gave(outputs):
        return None
    own = {id(weight) for weight in model.net.get_submodule(layer).parameters()}
    if any(id(leaf) in own for leaf in graph_leaves(call.inputs)):  # what it reads depends on its weights, as tied ones
        return None
    net = _Path(layer, model.net.get_submodule(layer))
    return Head(Model(net, model.likelihood, model.prior, noise_prior=model.noise_prior), model, layer)


@dataclass(frozen=True, eq=False)
class _Call:
    """What a layer read and gave, and how often that had been written to by then."""

    inputs: Tensor
    given: Tensor
    version: int

    def gave(self, outputs: Tensor) -> bool:
        """Whether what it gave is what the network gave: the very numbers, not some that are equal in these rows."""
        same = self.given.data_ptr() == outputs.data_ptr() and self.given.stride() == outputs.stride()
        return same and self.given.shape == outputs.shape and self.given._version == self.version


def _seen(model: Model, layer: str, inputs: Inputs) -> tuple[_Call | None, Tensor]:
    """The call of the layer, None where there are several or it is one of several arguments; the network's outputs."""
    calls: list[_Call | None] = []

    def note(part: nn.Module, args: tuple[object, ...], kwargs: dict[str, object], given: object) -> None:  # noqa: ARG001
        read = args[0] if len(args) == 1 and not kwargs else None
        both = isinstance(read, Tensor) and isinstance(given, Tensor)
        calls.append(_Call(read, given, given._version) if both else None)  # type: ignore[arg-type, attr-defined]

    handle = model.net.get_submodule(layer).register_forward_hook(note, with_kwargs=True)
    try:
        with evaluating(model.core):
            outputs: Tensor = model.core(inputs, "outputs")
    finally:
        handle.remove()
    return calls[0] if len(calls) == 1 else None, outputs
