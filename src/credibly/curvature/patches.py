"""What a convolution multiplies its weight with at each position, for any number of spatial axes."""

from collections.abc import Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor

__all__ = ["output_patches", "padded", "patches"]


def patches(values: Tensor, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]) -> Tensor:
    """The entries under the kernel at each of T positions: (rows, channels, *sizes) to (rows, T, channels * kernel)."""
    sizes = values.shape[2:]
    for axis, (size, step, spread) in enumerate(zip(kernel, stride, dilation, strict=True), start=2):
        values = values.unfold(axis, spread * (size - 1) + 1, step)[..., ::spread]
    dims = len(sizes)
    order = [0, *range(2, 2 + dims), 1, *range(2 + dims, 2 + 2 * dims)]
    moved = values.permute(order)
    return moved.reshape(len(values), moved.shape[1 : 1 + dims].numel(), -1)


def padded(module: Any, values: Tensor) -> Tensor:
    """The inputs of a convolution with its padding."""
    pairs = [_padding(module, axis) for axis in range(len(module.kernel_size))]
    flat = [number for pair in reversed(pairs) for number in pair]
    if not any(flat):
        return values
    return F.pad(values, flat, mode="constant" if module.padding_mode == "zeros" else module.padding_mode)


def _padding(module: Any, axis: int) -> tuple[int, int]:
    if module.padding == "valid":
        return 0, 0
    if module.padding == "same":
        total = module.dilation[axis] * (module.kernel_size[axis] - 1)
        return total // 2, total - total // 2
    return module.padding[axis], module.padding[axis]


def output_patches(module: Any, gradients: Tensor, sizes: Sequence[int]) -> Tensor:
    """The gradients in the outputs of a transposed convolution under the kernel at each position of its inputs.

    Args:
        module: the layer.
        gradients: (rows, channels, *sizes of the outputs).
        sizes: of its inputs.
    """
    flat: list[int] = []
    for axis in reversed(range(len(sizes))):
        spread = module.dilation[axis] * (module.kernel_size[axis] - 1) + 1
        whole = (sizes[axis] - 1) * module.stride[axis] + spread
        before = module.padding[axis]
        flat += [before, whole - before - gradients.shape[2 + axis]]  # negative: cut off
    return patches(F.pad(gradients, flat), module.kernel_size, module.stride, module.dilation)
