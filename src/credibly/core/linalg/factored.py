"""A matrix that is known by its Cholesky factor, L L'."""

from dataclasses import dataclass

import torch
from torch import Tensor

from credibly.core.errors import NotSupportedError
from credibly.core.linalg.base import PositiveDefinite

__all__ = ["Factored"]


@dataclass(frozen=True, eq=False)
class Factored(PositiveDefinite):
    """L L'. The product is not formed, which would lose what is small beside its largest entries.

    Attributes:
        factor: L, (d, d), lower triangular, with a positive diagonal.
    """

    factor: Tensor

    @property
    def size(self) -> int:
        """The number of rows."""
        return len(self.factor)

    @property
    def like(self) -> Tensor:
        """The factor."""
        return self.factor

    def matmul(self, x: Tensor) -> Tensor:
        """By the factor and its transpose."""
        return (x @ self.factor) @ self.factor.mT

    def solve(self, x: Tensor) -> Tensor:
        """By two triangular solves."""
        flat = x.reshape(-1, self.size)
        return torch.cholesky_solve(flat.mT, self.factor).mT.reshape(x.shape)

    def root(self, x: Tensor) -> Tensor:
        """The factor times vectors."""
        return x @ self.factor.mT

    def inverse_root(self, x: Tensor) -> Tensor:
        """The transposed factor's inverse times vectors."""
        flat = x.reshape(-1, self.size)
        solved: Tensor = torch.linalg.solve_triangular(self.factor.mT, flat.mT, upper=True)
        return solved.mT.reshape(x.shape)

    def logdet(self) -> Tensor:
        """Twice that of the factor."""
        return 2 * self.factor.diagonal().log().sum()

    def diagonal(self) -> Tensor:
        """The squared rows of the factor, added up."""
        return self.factor.square().sum(-1)

    def inverse_diagonal(self) -> Tensor:
        """The squared columns of the factor's inverse, added up."""
        eye = torch.eye(self.size, dtype=self.like.dtype, device=self.like.device)
        inverse: Tensor = torch.linalg.solve_triangular(self.factor, eye, upper=False)
        return inverse.square().sum(0)

    def times(self, factor: float | Tensor) -> "Factored":
        """The factor times the root of a number."""
        return Factored(self.factor * factor**0.5)

    def plus_diagonal(self, values: Tensor) -> PositiveDefinite:
        """Has another factor.

        Raises:
            NotSupportedError: always.
        """
        raise NotSupportedError("the sum has another factor; use core.linalg.Dense(x.dense())")
