"""The inverse of a matrix, without inverting it."""

from dataclasses import dataclass

from torch import Tensor

from credibly.core.errors import NotSupportedError
from credibly.core.linalg.base import PositiveDefinite

__all__ = ["Inverse", "inverse"]


@dataclass(frozen=True, eq=False)
class Inverse(PositiveDefinite):
    """What multiplies by it solves with the other.

    Attributes:
        of: the matrix.
    """

    of: PositiveDefinite

    @property
    def size(self) -> int:
        """The number of rows."""
        return self.of.size

    @property
    def like(self) -> Tensor:
        """A tensor of the matrix."""
        return self.of.like

    def matmul(self, x: Tensor) -> Tensor:
        """A solve."""
        return self.of.solve(x)

    def solve(self, x: Tensor) -> Tensor:
        """A product."""
        return self.of.matmul(x)

    def root(self, x: Tensor) -> Tensor:
        """The root of the inverse."""
        return self.of.inverse_root(x)

    def inverse_root(self, x: Tensor) -> Tensor:
        """The root of the matrix."""
        return self.of.root(x)

    def logdet(self) -> Tensor:
        """Minus that of the matrix."""
        return -self.of.logdet()

    def diagonal(self) -> Tensor:
        """That of the inverse."""
        return self.of.inverse_diagonal()

    def inverse_diagonal(self) -> Tensor:
        """That of the matrix."""
        return self.of.diagonal()

    def times(self, factor: float | Tensor) -> "Inverse":
        """The inverse of the matrix divided by the number."""
        return Inverse(self.of.times(1 / factor))

    def plus_diagonal(self, values: Tensor) -> PositiveDefinite:
        """Has no structure.

        Raises:
            NotSupportedError: always.
        """
        raise NotSupportedError("an inverse plus a diagonal matrix has no structure; use core.linalg.Dense(x.dense())")


def inverse(matrix: PositiveDefinite) -> PositiveDefinite:
    """The inverse; that of an inverse is the matrix itself."""
    return matrix.of if isinstance(matrix, Inverse) else Inverse(matrix)
