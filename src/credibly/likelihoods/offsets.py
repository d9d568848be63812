"""Offsets: known parts of the outputs, such as the logarithm of the time for which a row was observed."""

import torch
from torch import Tensor

from credibly.core.errors import ShapeError

__all__ = ["add_offset", "matching_offset"]


def matching_offset(offset: Tensor, outputs: Tensor) -> Tensor:
    """The offset in the shape and dtype of the outputs it belongs to.

    Args:
        offset: (*batch,), the same for all outputs of a row, or (*batch, k).
        outputs: (*batch, k), those that take one.

    Raises:
        ShapeError: another shape.
    """
    if offset.shape == outputs.shape[:-1]:
        offset = offset.unsqueeze(-1).expand_as(outputs)
    if offset.shape != outputs.shape:
        raise ShapeError(
            f"the offset must have shape (rows,) or that of the outputs it is for, {tuple(outputs.shape)}; "
            f"got {tuple(offset.shape)}"
        )
    return offset.to(outputs.dtype)


def add_offset(outputs: Tensor, offset: Tensor, *, first: int | None = None) -> Tensor:
    """The outputs with the offset added to the first few of the last axis, or to all.

    Args:
        outputs: (*batch, C).
        offset: (*batch,) or (*batch, first); one of the shape of all outputs is added to all.
        first: how many outputs take an offset.
    """
    if first is None or offset.shape == outputs.shape:
        return outputs + matching_offset(offset, outputs)
    taking, rest = outputs[..., :first], outputs[..., first:]
    return torch.cat([taking + matching_offset(offset, taking), rest], -1)
