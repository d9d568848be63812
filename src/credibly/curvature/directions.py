"""Directions in the outputs of each row, some at a time."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Columns", "Directions", "Given", "root_of"]


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
        matrices: (rows, *elements, C, C).
    """

    matrices: Tensor

    @property
    def num(self) -> int:
        """C for each element."""
        return self.matrices.shape[1:-1].numel()

    def take(self, first: int, last: int) -> Tensor:
        """Some columns, in the order of elements."""
        rows, *elements, size = self.matrices.shape[:-1]
        flat = self.matrices.reshape(rows, -1, size, size)
        index = torch.arange(first, min(last, self.num), device=flat.device)
        element, column = index // size, index % size
        found = flat.new_zeros(len(index), rows, flat.shape[1], size)
        found[index - first, :, element] = flat.permute(1, 3, 0, 2)[element, column]
        return found.reshape(len(index), rows, *elements, size)


def root_of(matrices: Tensor) -> Tensor:
    """L with L L' the positive semi-definite matrices, (..., C, C): by Cholesky, to the rounding of the matrices.

    A singular matrix, as the Fisher matrix of classes is, is moved by a few units in the last place of its largest
    entry; one for which that is not enough is decomposed into eigenvectors.
    """
    if matrices.shape[-1] == 1:
        return matrices.clamp(min=0).sqrt()
    largest = matrices.diagonal(dim1=-2, dim2=-1).amax(-1)
    shift = largest * (matrices.shape[-1] * 4 * torch.finfo(matrices.dtype).eps)
    eye = torch.eye(matrices.shape[-1], dtype=matrices.dtype, device=matrices.device)
    factor: Tensor
    factor, failed = torch.linalg.cholesky_ex(matrices + shift[..., None, None] * eye)
    wrong = failed != 0
    if bool(wrong.any()):
        values, vectors = torch.linalg.eigh(matrices[wrong])
        factor[wrong] = vectors * values.clamp(min=0).sqrt().unsqueeze(-2)
    return factor
