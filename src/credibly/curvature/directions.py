"""Directions in the outputs of each row, some at a time."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Columns", "Directions", "Given"]


@dataclass(frozen=True, eq=False)
class Directions(ABC):
    """K directions in a table of outputs, (rows, *elements, C)."""

    @property
    @abstractmethod
    def num(self) -> int:
        """K."""

    @abstractmethod
    def take(self, first: int, last: int) -> Tensor:
        """Directions `first` to `last - 1`: (last - first, rows, *elements, C)."""


@dataclass(frozen=True, eq=False)
class Given(Directions):
    """Written out.

    Attributes:
        values: (K, rows, *elements, C).
    """

    values: Tensor

    @property
    def num(self) -> int:
        """All."""
        return len(self.values)

    def take(self, first: int, last: int) -> Tensor:
        """Some."""
        return self.values[first:last]


@dataclass(frozen=True, eq=False)
class Columns(Directions):
    """The columns of a matrix for each element, each of them 0 in the other elements.

    Attributes:
        matrices: (rows, *elements, C, J).
    """

    matrices: Tensor

    @property
    def num(self) -> int:
        """J for each element."""
        return self.matrices.shape[1:-2].numel() * self.matrices.shape[-1]

    def take(self, first: int, last: int) -> Tensor:
        """Some columns, in the order of elements."""
        rows, *elements, size, columns = self.matrices.shape
        flat = self.matrices.reshape(rows, -1, size, columns)
        index = torch.arange(first, min(last, self.num), device=flat.device)
        element, column = index // columns, index % columns
        found = flat.new_zeros(len(index), rows, flat.shape[1], size)
        found[index - first, :, element] = flat.permute(1, 3, 0, 2)[element, column]
        return found.reshape(len(index), rows, *elements, size)
