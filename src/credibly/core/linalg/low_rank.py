r"""A diagonal plus a product of low rank, D + F F'.

With V = D^-1/2 F and the k eigenvalues s of V'V = W diag(s) W', functions of I + V V' are rational in V'V alone,

    (I + V V')^1/2  = I + V W diag(1 / (sqrt(1 + s) + 1)) W' V'
    (I + V V')^-1/2 = I - V W diag(1 / (sqrt(1 + s) (sqrt(1 + s) + 1))) W' V'
    (I + V V')^-1   = I - V W diag(1 / (1 + s)) W' V'

so that nothing larger than (d, k) is stored, and no eigenvalue divides.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from credibly.core.linalg.base import PositiveDefinite

__all__ = ["LowRankPlusDiagonal"]


@dataclass(frozen=True, eq=False)
class LowRankPlusDiagonal(PositiveDefinite):
    """D + F F'.

    Attributes:
        values: the diagonal of D, (d,), positive.
        factor: F, (d, k).
    """

    values: Tensor
    factor: Tensor

    @property
    def size(self) -> int:
        """The number of rows."""
        return len(self.values)

    @property
    def like(self) -> Tensor:
        """The diagonal of D."""
        return self.values

    @cached_property
    def _spectrum(self) -> tuple[Tensor, Tensor]:
        """V W, (d, k), and s, (k,)."""
        scaled = self.factor / self.values.sqrt().unsqueeze(-1)
        eigenvalues, basis = torch.linalg.eigh(scaled.mT @ scaled)
        return scaled @ basis, eigenvalues.clamp(min=0)

    def _of_identity_plus(self, x: Tensor, weights: Tensor) -> Tensor:
        basis, _ = self._spectrum
        return x + ((x @ basis) * weights) @ basis.mT

    def matmul(self, x: Tensor) -> Tensor:
        """Both parts."""
        return x * self.values + (x @ self.factor) @ self.factor.mT

    def solve(self, x: Tensor) -> Tensor:
        """By the identity of Woodbury."""
        deviations = self.values.sqrt()
        return self._of_identity_plus(x / deviations, -1 / (1 + self._spectrum[1])) / deviations

    def root(self, x: Tensor) -> Tensor:
        """D^1/2 (I + V V')^1/2."""
        stretch = (1 + self._spectrum[1]).sqrt()
        return self._of_identity_plus(x, 1 / (stretch + 1)) * self.values.sqrt()

    def inverse_root(self, x: Tensor) -> Tensor:
        """D^-1/2 (I + V V')^-1/2."""
        stretch = (1 + self._spectrum[1]).sqrt()
        return self._of_identity_plus(x, -1 / (stretch * (stretch + 1))) / self.values.sqrt()

    def logdet(self) -> Tensor:
        """That of D plus that of I + V'V."""
        return self.values.log().sum() + self._spectrum[1].log1p().sum()

    def diagonal(self) -> Tensor:
        """D plus the squared rows of F."""
        return self.values + self.factor.square().sum(-1)

    def inverse_diagonal(self) -> Tensor:
        """By the identity of Woodbury."""
        basis, eigenvalues = self._spectrum
        return (1 - (basis.square() / (1 + eigenvalues)).sum(-1)) / self.values

    def times(self, factor: float | Tensor) -> "LowRankPlusDiagonal":
        """Both parts times a number."""
        return LowRankPlusDiagonal(self.values * factor, self.factor * factor**0.5)

    def plus_diagonal(self, values: Tensor) -> "LowRankPlusDiagonal":
        """The sum."""
        return LowRankPlusDiagonal(self.values + values, self.factor)
