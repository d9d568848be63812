r"""A matrix that is diagonal in the product of two bases, as a Kronecker product B (x) A is.

Vectors are tables (m, n) read row by row, such as the weights of a layer, outputs by inputs. With orthogonal U of m and
V of n columns and eigenvalues c, (m, n),

    M vec(X) = vec(U (c * (U' X V)) V').

B (x) A of eigenvalues b and a has c = b a'. A multiple of the identity adds to c, in the same bases, which is what
makes a posterior out of a curvature and a prior.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from credibly.core.errors import NotSupportedError
from credibly.core.linalg.base import PositiveDefinite

__all__ = ["Kronecker"]


@dataclass(frozen=True, eq=False)
class Kronecker(PositiveDefinite):
    """Diagonal in a product of bases.

    Attributes:
        values: the eigenvalues, (m, n), positive.
        left: the basis of columns U, (m, m); None is the identity.
        right: the basis of rows V, (n, n); None is the identity.
    """

    values: Tensor
    left: Tensor | None
    right: Tensor | None

    @classmethod
    def of_factors(cls, left: Tensor, right: Tensor) -> "Kronecker":
        """B (x) A; rounding makes the least eigenvalues negative, and they are taken to be 0.

        Args:
            left: B, (m, m), symmetric; or (m,), its diagonal.
            right: A, (n, n), symmetric; or (n,), its diagonal.
        """
        (b, u), (a, v) = _spectrum(left), _spectrum(right)
        return cls(b.unsqueeze(-1) * a, u, v)

    @property
    def size(self) -> int:
        """The number of entries of the table."""
        return self.values.numel()

    @property
    def like(self) -> Tensor:
        """The eigenvalues."""
        return self.values

    def matmul(self, x: Tensor) -> Tensor:
        """In the bases, there and back."""
        return self._out(self._into(x) * self.values)

    def solve(self, x: Tensor) -> Tensor:
        """In the bases, there and back."""
        return self._out(self._into(x) / self.values)

    def root(self, x: Tensor) -> Tensor:
        """Out of the bases."""
        return self._out(x.reshape(*x.shape[:-1], *self.values.shape) * self.values.sqrt())

    def inverse_root(self, x: Tensor) -> Tensor:
        """Out of the bases."""
        return self._out(x.reshape(*x.shape[:-1], *self.values.shape) / self.values.sqrt())

    def logdet(self) -> Tensor:
        """The sum of the logarithms of the eigenvalues."""
        return self.values.log().sum()

    def diagonal(self) -> Tensor:
        """The eigenvalues, weighed by the squared entries of the bases."""
        return self._weighed(self.values)

    def inverse_diagonal(self) -> Tensor:
        """The reciprocals, weighed by the squared entries of the bases."""
        return self._weighed(1 / self.values)

    def times(self, factor: float | Tensor) -> "Kronecker":
        """All eigenvalues times a number."""
        return Kronecker(self.values * factor, self.left, self.right)

    def plus_diagonal(self, values: Tensor) -> "Kronecker":
        """The matrix plus a multiple of the identity; of any diagonal where both bases are the identity.

        Raises:
            NotSupportedError: the values differ from each other.
        """
        if (self.left is not None or self.right is not None) and bool((values != values[:1]).any()):
            raise NotSupportedError(
                "a Kronecker product keeps its structure only with one precision for all weights of a tensor; use one "
                "number for each, or the structure Diagonal or Dense"
            )
        return Kronecker(self.values + values.reshape(self.values.shape), self.left, self.right)

    def _into(self, x: Tensor) -> Tensor:
        table = x.reshape(*x.shape[:-1], *self.values.shape)
        table = table if self.left is None else self.left.mT @ table
        return table if self.right is None else table @ self.right

    def _out(self, table: Tensor) -> Tensor:
        table = table if self.left is None else self.left @ table
        table = table if self.right is None else table @ self.right.mT
        return table.flatten(-2)

    def _weighed(self, values: Tensor) -> Tensor:
        values = values if self.left is None else self.left.square() @ values
        values = values if self.right is None else values @ self.right.square().mT
        return values.flatten()


def _spectrum(factor: Tensor) -> tuple[Tensor, Tensor | None]:
    if factor.dim() == 1:
        return factor, None
    eigenvalues, basis = torch.linalg.eigh(factor)
    return eigenvalues.clamp(min=0), basis
