"""Torch's broadcasting with types."""

import torch
from torch import Tensor

__all__ = ["broadcast", "broadcast_shape"]


def broadcast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Views of the tensors in their common shape."""
    return tuple(torch.broadcast_tensors(*tensors))  # type: ignore[no-untyped-call]


def broadcast_shape(*shapes: tuple[int, ...]) -> torch.Size:
    """The common shape."""
    if all(shape == shapes[0] for shape in shapes):
        return torch.Size(shapes[0])
    return torch.Size(torch.broadcast_shapes(*shapes))  # type: ignore[no-untyped-call]
