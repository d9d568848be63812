"""How a network uses its weights: which of them act as one linear layer on every row, and which do not.

A weight that acts once per row lets a layer take noise of its own in every row, by its pre-activations (Kingma,
Salimans and Welling 2015) or by signs (Wen et al. 2018). A weight that acts otherwise, in a recurrence, an embedding, a
normalisation, in two places, or on something that is not one entry per row, has to be the same in all of them; so has
one of a layer that the network itself differentiates, as the noise of a pre-activation has another derivative. Which
is which is found by running the network on two and on three rows and noting every call that a weight goes into.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, resolve_name

from credibly.core.inputs import num_rows, take_rows
from credibly.core.params import buffers_of, module_device
from credibly.core.randomness import seeded
from credibly.core.substitution import functional_call
from credibly.core.typing import Inputs, Params

__all__ = ["LAYERS", "Layer", "Uses", "find_uses"]

_CONVOLUTIONS = {F.conv1d, F.conv2d, F.conv3d, F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d}
LAYERS = {F.linear} | _CONVOLUTIONS
"""Functions `(input, weight, bias=None, ...)` that are linear in the weight and treat rows one by one."""


@dataclass(frozen=True)
class Layer:
    """One linear layer that acts once on every row.

    Attributes:
        weight: the name of its weight.
        bias: the name of its bias, where that is random and used here only; otherwise None.
        num_inputs: the number of features, or channels, that it reads.
        num_outputs: the number of those that it gives.
        has_positions: whether it acts on several positions of a row: a convolution, or a layer over sequences.
    """

    weight: str
    bias: str | None
    num_inputs: int
    num_outputs: int
    has_positions: bool


@dataclass(frozen=True)
class Uses:
    """How a network uses its weights.

    Attributes:
        layers: in the order of their calls.
        others: what else each remaining name is used for.
    """

    layers: list[Layer]
    others: dict[str, str]


@dataclass(frozen=True)
class _Call:
    """One call that weights go into."""

    function: Callable[..., Any]
    names: tuple[str, ...]
    weight: str | None
    bias: str | None
    inputs: torch.Size
    outputs: torch.Size
    is_differentiated: bool

    @property
    def described(self) -> str:
        name: str = resolve_name(self.function) or getattr(self.function, "__name__", "a function")
        return name.replace("torch._C._nn.", "torch.nn.functional.").replace("torch.functional.", "torch.")


def find_uses(core: nn.Module, inputs: Inputs, params: Params) -> Uses:
    """The uses of the named weights, found on two and on three of the rows.

    Args:
        core: the network; it is left as it is.
        inputs: some rows, at least one.
        params: the weights in question, by name.
    """
    two, three = (_recorded(core, inputs, params, rows) for rows in (2, 3))
    if [call.names for call in two] != [call.names for call in three]:
        return Uses([], dict.fromkeys(params, "the network's calls depend on the number of rows"))
    count = Counter(name for call in two for name in call.names)
    layers: list[Layer] = []
    others: dict[str, str] = dict.fromkeys(params, "it is not used")
    for call, other in zip(two, three, strict=True):
        reason = _why_no_layer(call, other, count)
        others.update(dict.fromkeys(call.names, reason))
        if not reason and call.weight is not None:
            layers.append(_layer(call, count))
    taken = {name for layer in layers for name in (layer.weight, layer.bias)}
    repeated = {name: f"it is used in {times} places" for name, times in count.items() if times > 1}
    return Uses(layers, {name: reason for name, reason in (others | repeated).items() if name not in taken})


def _layer(call: _Call, count: Counter[str]) -> Layer:
    feature = -1 if call.function is F.linear else 1
    bias = call.bias if call.bias is not None and count[call.bias] == 1 else None
    has_positions = call.function is not F.linear or len(call.inputs) > 2
    return Layer(call.weight or "", bias, call.inputs[feature], call.outputs[feature], has_positions)


def _why_no_layer(two: _Call, three: _Call, count: Counter[str]) -> str:
    """Why a call is not a layer that acts once on every row; empty where it is."""
    if two.is_differentiated:
        return "the network differentiates by what its layer reads"
    if two.function not in LAYERS:
        return f"it is used by {two.described}"
    if two.weight is None:
        return "the weight of its layer is computed, or not random"
    if count[two.weight] > 1:
        return f"its layer's weight is used in {count[two.weight]} places"
    unbatched = two.function in _CONVOLUTIONS and len(two.inputs) != len(two.outputs)
    if unbatched or two.inputs[:1] != (2,) or three.inputs[:1] != (3,):
        return "its layer's input does not have one entry per row on axis 0"
    return ""


def _recorded(core: nn.Module, inputs: Inputs, params: Params, rows: int) -> "list[_Call]":
    """The calls of a pass over that many rows, on copies of the buffers."""
    some = take_rows(inputs, torch.arange(rows, device=module_device(core)) % num_rows(inputs))
    own = {name: value.detach().clone() for name, value in params.items()}
    buffers = {name: value.clone() for name, value in buffers_of(core).items()}
    recorder = _Recorder(own)
    with seeded(0, "record", device=module_device(core)), torch.no_grad(), recorder:
        functional_call(core, {**own, **buffers}, (some, "outputs"))
    return recorder.calls


class _Recorder(TorchFunctionMode):
    """Notes every call that gives tensors and that a weight goes into."""

    def __init__(self, params: Params) -> None:
        super().__init__()
        self._names = {id(value): name for name, value in params.items()}
        self.calls: list[_Call] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        names = tuple(self._names[id(x)] for x in _tensors((args, kwargs)) if id(x) in self._names)
        if names and any(True for _ in _tensors(result)):
            self.calls.append(self._call(func, names, args, kwargs, result))
        return result

    def _call(
        self, func: Callable[..., Any], names: tuple[str, ...], args: Sequence[Any], kwargs: dict[str, Any], result: Any
    ) -> _Call:
        if func not in LAYERS:
            return _Call(func, names, None, None, torch.Size(), torch.Size(), False)
        given = dict(zip(("input", "weight", "bias"), args, strict=False)) | kwargs
        weight, bias = (self._names.get(id(given.get(part))) for part in ("weight", "bias"))
        as_input = self._names.get(id(given["input"]))
        if as_input is not None:  # a weight as what a layer reads: no layer of its own
            weight = bias = None
        # its weights need no gradients here, and so nothing does that the network does not differentiate by
        differentiated = result.requires_grad or torch._C._are_functorch_transforms_active()
        return _Call(func, names, weight, bias, given["input"].shape, result.shape, differentiated)


def _tensors(values: Any) -> Iterator[Tensor]:
    """The tensors inside, also of lists and dicts."""
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, dict):
        for value in values.values():
            yield from _tensors(value)
    elif isinstance(values, (tuple, list)):
        for value in values:
            yield from _tensors(value)
