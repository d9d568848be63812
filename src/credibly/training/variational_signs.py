"""Random signs, and their application to tensors: by the sign bit where numbers have 32 bits.

A random word holds 31 signs, each shifted to where a float keeps its sign, so that a table of signs costs a fraction of
a table of random numbers, and applying it is one XOR, which is its own inverse and its own derivative.
"""

from typing import Any

import torch
from torch import Tensor

__all__ = ["flip_bits", "flip_bits_", "flip_signs", "sign_bits"]

_BITS = 31  # `random_` gives int32 words without their sign
_SIGN = -(2**31)


def sign_bits(size: int, generator: torch.Generator) -> Tensor:
    """Independent fair signs as int32 numbers whose sign bit is set or not, all others being 0: (size,)."""
    words = torch.empty(-(-size // _BITS), dtype=torch.int32, device=generator.device).random_(generator=generator)
    shifts = torch.arange(1, _BITS + 1, dtype=torch.int32, device=generator.device)
    bits = (words << shifts.unsqueeze(1)).bitwise_and_(_SIGN)  # one shift for many words, which processors do at once
    return bits.view(-1)[:size]


def flip_signs(values: Tensor, bits: Tensor) -> Tensor:
    """The values with the signs of the table, which broadcasts against them, multiplied on."""
    if values.dtype == torch.float32:
        flipped: Tensor = _Flip.apply(values, bits)  # type: ignore[no-untyped-call]
        return flipped
    return values * torch.where(bits < 0, -1, 1).to(values.dtype)


def flip_bits(values: Tensor, bits: Tensor) -> Tensor:
    """The same for contiguous float32 numbers, without a graph."""
    return (values.view(torch.int32) ^ bits).view(torch.float32)


def flip_bits_(values: Tensor, bits: Tensor) -> Tensor:
    """The same in place."""
    values.view(torch.int32).bitwise_xor_(bits)
    return values


class _Flip(torch.autograd.Function):
    """Float32 numbers with the sign bit changed where the table has it set."""

    generate_vmap_rule = True

    @staticmethod
    def forward(values: Tensor, bits: Tensor) -> Tensor:
        """An XOR of the words."""
        return flip_bits(values.contiguous(), bits)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:  # noqa: ARG004
        """Keep the signs."""
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        """The same flips."""
        (bits,) = ctx.saved_tensors
        return flip_signs(grad, bits), None
