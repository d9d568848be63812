"""A block-diagonal matrix: one structure for each group of neighbouring entries, such as the weights of one tensor."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from credibly.core.linalg.base import PositiveDefinite

__all__ = ["Blocks"]


@dataclass(frozen=True, eq=False)
class Blocks(PositiveDefinite):
    """Blocks on the diagonal, in order.

    Attributes:
        blocks: at least one.
    """

    blocks: tuple[PositiveDefinite, ...]

    @property
    def size(self) -> int:
        """The number of rows of all blocks."""
        return sum(self.sizes)

    @property
    def sizes(self) -> list[int]:
        """The number of rows of each block."""
        return [block.size for block in self.blocks]

    @property
    def like(self) -> Tensor:
        """A tensor of the first block."""
        return self.blocks[0].like

    def matmul(self, x: Tensor) -> Tensor:
        """Block by block."""
        return self._apply(x, lambda block, part: block.matmul(part))

    def solve(self, x: Tensor) -> Tensor:
        """Block by block."""
        return self._apply(x, lambda block, part: block.solve(part))

    def root(self, x: Tensor) -> Tensor:
        """Block by block."""
        return self._apply(x, lambda block, part: block.root(part))

    def inverse_root(self, x: Tensor) -> Tensor:
        """Block by block."""
        return self._apply(x, lambda block, part: block.inverse_root(part))

    def logdet(self) -> Tensor:
        """The sum over blocks."""
        return torch.stack([block.logdet() for block in self.blocks]).sum()

    def diagonal(self) -> Tensor:
        """One after another."""
        return torch.cat([block.diagonal() for block in self.blocks])

    def inverse_diagonal(self) -> Tensor:
        """One after another."""
        return torch.cat([block.inverse_diagonal() for block in self.blocks])

    def times(self, factor: float | Tensor) -> "Blocks":
        """All blocks times a number."""
        return Blocks(tuple(block.times(factor) for block in self.blocks))

    def plus_diagonal(self, values: Tensor) -> "Blocks":
        """Block by block.

        Raises:
            NotSupportedError: the sum with a block does not have its structure.
        """
        parts = zip(self.blocks, torch.split(values, self.sizes), strict=True)
        return Blocks(tuple(block.plus_diagonal(part) for block, part in parts))

    def _apply(self, x: Tensor, change: Callable[[PositiveDefinite, Tensor], Tensor]) -> Tensor:
        parts = zip(self.blocks, torch.split(x, self.sizes, -1), strict=True)
        return torch.cat([change(block, part) for block, part in parts], -1)
