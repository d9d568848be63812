"""A diagonal matrix."""

from dataclasses import dataclass

from torch import Tensor

from credibly.core.linalg.base import PositiveDefinite

__all__ = ["Diagonal"]


@dataclass(frozen=True, eq=False)
class Diagonal(PositiveDefinite):
    """Independent entries.

    Attributes:
        values: the diagonal, (d,), positive.
    """

    values: Tensor

    @property
    def size(self) -> int:
        """The number of rows."""
        return len(self.values)

    @property
    def like(self) -> Tensor:
        """The values."""
        return self.values

    def matmul(self, x: Tensor) -> Tensor:
        """Entry by entry."""
        return x * self.values

    def solve(self, x: Tensor) -> Tensor:
        """Entry by entry."""
        return x / self.values

    def root(self, x: Tensor) -> Tensor:
        """Entry by entry."""
        return x * self.values.sqrt()

    def inverse_root(self, x: Tensor) -> Tensor:
        """Entry by entry."""
        return x / self.values.sqrt()

    def logdet(self) -> Tensor:
        """The sum of the logarithms."""
        return self.values.log().sum()

    def diagonal(self) -> Tensor:
        """The values."""
        return self.values

    def inverse_diagonal(self) -> Tensor:
        """Their reciprocals."""
        return 1 / self.values

    def times(self, factor: float | Tensor) -> "Diagonal":
        """All values times a number."""
        return Diagonal(self.values * factor)

    def plus_diagonal(self, values: Tensor) -> "Diagonal":
        """The sum."""
        return Diagonal(self.values + values)
