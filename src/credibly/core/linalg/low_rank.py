r"""A diagonal plus a product of low rank, D + F F'.

With V = D^-1/2 F and the k eigenvalues s of V'V = W diag(s) W', functions of I + V V' are rational in V'V alone,

    (I + V V')^1/2  = I + V W diag(1 / (sqrt(1 + s) + 1)) W' V'
    (I + V V')^-1/2 = I - V W diag(1 / (sqrt(1 + s) (sqrt(1 + s) + 1))) W' V'
    (I + V V')^-1   = I - V W diag(1 / (1 + s)) W' V'

so that nothing larger than (d, k) is stored, and no eigenvalue divides. The inverse is what is left of the identity
once the span of V is taken out of it: where that is little, as in a direction that many data determine, it is the
difference of two numbers near 1. It and its root are computed in double precision.
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
        """V W, (d, k), and s, (k,), in double precision."""
        scaled = self.factor.double() / self.values.double().sqrt().unsqueeze(-1)
        eigenvalues, basis = torch.linalg.eigh(scaled.mT @ scaled)
        return scaled @ basis, eigenvalues.clamp(min=0)

    @property
    def _rounded(self) -> tuple[Tensor, Tensor]:
        """The same in the precision of the factor."""
        basis, eigenvalues = self._spectrum
        return basis.to(self.factor.dtype), eigenvalues.to(self.factor.dtype)

    def share_of_rounding(self) -> float:
        """How much of the inverse's least variance, 1 / (1 + s) beside 1, is rounding."""
        rank = self.factor.shape[1]
        return rank * float(self._spectrum[1].max()) * torch.finfo(torch.float64).eps if rank else 0.0

    def matmul(self, x: Tensor) -> Tensor:
        """Both parts."""
        return x * self.values + (x @ self.factor) @ self.factor.mT

    def solve(self, x: Tensor) -> Tensor:
        """By the identity of Woodbury."""
        basis, eigenvalues = self._spectrum
        deviations = self.values.double().sqrt()
        solved = _identity_plus(basis, -1 / (1 + eigenvalues), x.double() / deviations) / deviations
        return solved.to(x.dtype)

    def root(self, x: Tensor) -> Tensor:
        """D^1/2 (I + V V')^1/2."""
        basis, eigenvalues = self._rounded
        return _identity_plus(basis, 1 / ((1 + eigenvalues).sqrt() + 1), x) * self.values.sqrt()

    def inverse_root(self, x: Tensor) -> Tensor:
        """D^-1/2 (I + V V')^-1/2."""
        basis, eigenvalues = self._spectrum
        stretch = (1 + eigenvalues).sqrt()
        rooted = _identity_plus(basis, -1 / (stretch * (stretch + 1)), x.double()) / self.values.double().sqrt()
        return rooted.to(x.dtype)

    def logdet(self) -> Tensor:
        """That of D plus that of I + V'V."""
        return self.values.log().sum() + self._rounded[1].log1p().sum()

    def diagonal(self) -> Tensor:
        """D plus the squared rows of F."""
        return self.values + self.factor.square().sum(-1)

    def inverse_diagonal(self) -> Tensor:
        """By the identity of Woodbury."""
        basis, eigenvalues = self._spectrum
        left = 1 - (basis.square() / (1 + eigenvalues)).sum(-1)
        return left.to(self.values.dtype) / self.values

    def times(self, factor: float | Tensor) -> "LowRankPlusDiagonal":
        """Both parts times a number."""
        return LowRankPlusDiagonal(self.values * factor, self.factor * factor**0.5)

    def plus_diagonal(self, values: Tensor) -> "LowRankPlusDiagonal":
        """The sum."""
        return LowRankPlusDiagonal(self.values + values, self.factor)


def _identity_plus(basis: Tensor, weights: Tensor, x: Tensor) -> Tensor:
    """(I + V W diag(weights) W' V') x, for V W as the basis."""
    return x + ((x @ basis) * weights) @ basis.mT
