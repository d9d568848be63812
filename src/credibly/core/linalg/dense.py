"""A matrix without structure, by its Cholesky factor."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from credibly.core.errors import NotFiniteError
from credibly.core.linalg.base import PositiveDefinite
from credibly.core.linalg.factored import Factored

__all__ = ["Dense"]


@dataclass(frozen=True, eq=False)
class Dense(PositiveDefinite):
    """All entries.

    Attributes:
        matrix: (d, d), symmetric and positive definite.
    """

    matrix: Tensor

    @property
    def size(self) -> int:
        """The number of rows."""
        return len(self.matrix)

    @property
    def like(self) -> Tensor:
        """The matrix."""
        return self.matrix

    @cached_property
    def factor(self) -> Tensor:
        """The lower Cholesky factor, (d, d).

        Raises:
            NotFiniteError: the matrix is not positive definite.
        """
        factor, failed = torch.linalg.cholesky_ex(self.matrix)
        if bool(failed):
            raise NotFiniteError(
                f"a matrix of {self.size} rows is not positive definite: its leading minor of order {int(failed)} is "
                "not; use float64, or a prior that is stronger, or proper where it is flat"
            )
        lower: Tensor = factor
        return lower

    @property
    def _factored(self) -> Factored:
        return Factored(self.factor)

    def matmul(self, x: Tensor) -> Tensor:
        """A product."""
        return x @ self.matrix

    def solve(self, x: Tensor) -> Tensor:
        """By the factor."""
        return self._factored.solve(x)

    def root(self, x: Tensor) -> Tensor:
        """The factor times vectors."""
        return self._factored.root(x)

    def inverse_root(self, x: Tensor) -> Tensor:
        """The transposed factor's inverse times vectors."""
        return self._factored.inverse_root(x)

    def logdet(self) -> Tensor:
        """Twice that of the factor."""
        return self._factored.logdet()

    def diagonal(self) -> Tensor:
        """Of the matrix."""
        return self.matrix.diagonal()

    def inverse_diagonal(self) -> Tensor:
        """The squared columns of the factor's inverse, added up."""
        return self._factored.inverse_diagonal()

    def times(self, factor: float | Tensor) -> "Dense":
        """All entries times a number."""
        return Dense(self.matrix * factor)

    def plus_diagonal(self, values: Tensor) -> "Dense":
        """The sum."""
        return Dense(self.matrix + values.diag())

    def dense(self) -> Tensor:
        """The matrix."""
        return self.matrix
