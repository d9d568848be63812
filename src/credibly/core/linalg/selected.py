"""A covariance that is 0 but for some entries: the others do not move.

With E the (d, k) matrix that puts k entries in their places, the matrix is E S E' for a positive definite S of k rows.
It is positive definite on those entries alone, and inverse, density and log determinant are meant there: vectors are
read at those entries, and are 0 elsewhere.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from credibly.core.errors import NotSupportedError
from credibly.core.linalg.base import PositiveDefinite

__all__ = ["Selected"]


@dataclass(frozen=True, eq=False)
class Selected(PositiveDefinite):
    """A matrix over chosen entries.

    Attributes:
        of: the matrix over the chosen entries, k rows.
        mask: (d,), 1 at the chosen entries and 0 elsewhere.
    """

    of: PositiveDefinite
    mask: Tensor

    @property
    def size(self) -> int:
        """The number of rows, with those of zeros."""
        return len(self.mask)

    @property
    def like(self) -> Tensor:
        """A tensor of the matrix."""
        return self.of.like

    @property
    def index(self) -> Tensor:
        """Where the chosen entries are, (k,)."""
        return self.mask.nonzero().squeeze(-1)

    def matmul(self, x: Tensor) -> Tensor:
        """At the chosen entries."""
        return self._spread(self.of.matmul(x[..., self.index]))

    def solve(self, x: Tensor) -> Tensor:
        """At the chosen entries."""
        return self._spread(self.of.solve(x[..., self.index]))

    def root(self, x: Tensor) -> Tensor:
        """At the chosen entries."""
        return self._spread(self.of.root(x[..., self.index]))

    def inverse_root(self, x: Tensor) -> Tensor:
        """At the chosen entries."""
        return self._spread(self.of.inverse_root(x[..., self.index]))

    def logdet(self) -> Tensor:
        """That of the chosen entries."""
        return self.of.logdet()

    def diagonal(self) -> Tensor:
        """0 where an entry is not chosen."""
        return self._spread(self.of.diagonal())

    def inverse_diagonal(self) -> Tensor:
        """Of the inverse on the chosen entries; 0 elsewhere."""
        return self._spread(self.of.inverse_diagonal())

    def times(self, factor: float | Tensor) -> "Selected":
        """The matrix times a number."""
        return Selected(self.of.times(factor), self.mask)

    def plus_diagonal(self, values: Tensor) -> PositiveDefinite:
        """Has no structure.

        Raises:
            NotSupportedError: always.
        """
        raise NotSupportedError("a matrix over chosen entries plus a diagonal has no structure; use core.linalg.Dense")

    def _spread(self, values: Tensor) -> Tensor:
        whole = torch.zeros(*values.shape[:-1], self.size, dtype=values.dtype, device=values.device)
        whole[..., self.index] = values
        return whole
