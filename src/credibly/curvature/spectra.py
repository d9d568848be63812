"""Matrices that are diagonal in a product of two bases, whatever structure says so."""

from dataclasses import dataclass

import torch
from torch import Tensor

from credibly.core.linalg.base import PositiveDefinite
from credibly.core.linalg.blocks import Blocks
from credibly.core.linalg.diagonal import Diagonal
from credibly.core.linalg.inverse import Inverse, inverse
from credibly.core.linalg.kronecker import Kronecker

__all__ = ["Spectrum", "spectra", "split"]


@dataclass(frozen=True, eq=False)
class Spectrum:
    """A matrix over tables (m, n).

    Attributes:
        values: eigenvalues, (m, n).
        left: the basis of columns, (m, m); None is the identity.
        right: the basis of rows, (n, n); None is the identity.
    """

    values: Tensor
    left: Tensor | None = None
    right: Tensor | None = None

    def transposed(self) -> "Spectrum":
        """The matrix over transposed tables."""
        return Spectrum(self.values.mT, self.right, self.left)

    def inverted(self) -> "Spectrum":
        """The inverse."""
        return Spectrum(1 / self.values, self.left, self.right)


def spectra(matrix: PositiveDefinite, groups: int, m: int, n: int) -> list[Spectrum] | None:
    """The matrix over a weight of so many tables (m, n), table by table; None where it has another structure."""
    if isinstance(matrix, Inverse):
        found = spectra(matrix.of, groups, m, n)
        return None if found is None else [spectrum.inverted() for spectrum in found]
    if isinstance(matrix, Diagonal):
        return [Spectrum(values) for values in matrix.values.reshape(groups, m, n)]
    if isinstance(matrix, Kronecker) and groups == 1 and matrix.values.shape == (m, n):
        return [Spectrum(matrix.values, matrix.left, matrix.right)]
    if isinstance(matrix, Blocks) and groups > 1 and matrix.sizes == [m * n] * groups:
        found = [part for block in matrix.blocks for part in spectra(block, 1, m, n) or []]
        return found if len(found) == groups else None
    return None


def split(matrix: PositiveDefinite, sizes: list[int]) -> list[PositiveDefinite] | None:
    """The blocks of those sizes on its diagonal; None where there is more than those, or another structure."""
    if isinstance(matrix, Inverse):
        parts = split(matrix.of, sizes)
        return None if parts is None else [inverse(part) for part in parts]
    if isinstance(matrix, Diagonal) and matrix.size == sum(sizes):
        return [Diagonal(values) for values in torch.split(matrix.values, sizes)]
    if isinstance(matrix, Blocks) and matrix.sizes == sizes:
        return list(matrix.blocks)
    return [matrix] if sizes == [matrix.size] else None
