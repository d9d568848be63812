"""What a network reads: one tensor, a tuple of tensors or a dict of tensors that share axis 0, the rows."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from credibly.core.checks import as_tensor
from credibly.core.errors import ShapeError
from credibly.core.typing import ArrayLike, Inputs

__all__ = [
    "as_inputs",
    "call_net",
    "leaves",
    "map_inputs",
    "num_rows",
    "split_inputs",
    "take_rows",
]


def map_inputs(function: Callable[[Tensor], Tensor], inputs: Inputs) -> Inputs:
    """The same structure with the function applied to every tensor."""
    if isinstance(inputs, dict):
        return {key: function(value) for key, value in inputs.items()}
    if isinstance(inputs, tuple):
        return tuple(function(value) for value in inputs)
    return function(inputs)


def leaves(inputs: Inputs) -> list[Tensor]:
    """The tensors, in order."""
    if isinstance(inputs, dict):
        return list(inputs.values())
    return list(inputs) if isinstance(inputs, tuple) else [inputs]


def num_rows(inputs: Inputs) -> int:
    """The shared size of axis 0; a ShapeError if the tensors disagree."""
    if isinstance(inputs, Tensor) and (shape := inputs.shape):
        return shape[0]
    tensors = leaves(inputs)
    if not tensors:
        raise ShapeError("`inputs` must hold at least one tensor; got none")
    shapes = [tuple(tensor.shape) for tensor in tensors]
    sizes = {shape[0] if shape else -1 for shape in shapes}
    if len(sizes) != 1 or -1 in sizes:
        raise ShapeError(f"all tensors in `inputs` must share axis 0, the rows; got shapes {shapes}")
    return sizes.pop()


def take_rows(inputs: Inputs, rows: Tensor | slice) -> Inputs:
    """The chosen rows of every tensor."""
    return map_inputs(lambda tensor: tensor[rows], inputs)


def split_inputs(inputs: Inputs, size: int, axis: int = 0) -> list[Inputs]:
    """The rows, which lie along `axis`, in batches of that size, as views."""
    if isinstance(inputs, dict):
        columns = zip(*(value.split(size, axis) for value in inputs.values()), strict=True)  # type: ignore[no-untyped-call]
        return [dict(zip(inputs, parts, strict=True)) for parts in columns]
    if isinstance(inputs, tuple):
        return list(zip(*(value.split(size, axis) for value in inputs), strict=True))  # type: ignore[no-untyped-call]
    return list(inputs.split(size, axis))  # type: ignore[no-untyped-call]


def call_net(net: nn.Module, inputs: Inputs) -> Any:
    """`net(x)`, `net(*x)` or `net(**x)`."""
    if isinstance(inputs, dict):
        return net(**inputs)
    if isinstance(inputs, tuple):
        return net(*inputs)
    return net(inputs)


def as_inputs(values: ArrayLike, dtype: torch.dtype, device: torch.device) -> Inputs:
    """Arrays become tensors of the network's dtype on its device; tensors keep their dtype.

    A network that reads integers (token indices) takes them as tensors: numpy and pandas objects, integers
    included, are read as numbers and become floating.
    """

    def convert(value: ArrayLike) -> Tensor:
        if isinstance(value, Tensor):
            return value.to(device)
        return as_tensor(value).to(device=device, dtype=dtype)

    if isinstance(values, dict):
        return {key: convert(value) for key, value in values.items()}
    if isinstance(values, tuple):
        return tuple(convert(value) for value in values)
    return convert(values)
