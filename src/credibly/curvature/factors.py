"""The factors of Kronecker products B (x) A while they are summed over batches, one product for each group.

B is the *sum* over rows (and positions) of the products of gradients, A the *mean* of the products of inputs, so that
B (x) A stands for the curvature summed over the rows. That is exact for one row with one position, and where either
inputs or gradients are the same in all rows.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from credibly.core.linalg.base import PositiveDefinite
from credibly.core.linalg.blocks import Blocks
from credibly.core.linalg.kronecker import Kronecker
from credibly.curvature.vectors import same_vectors

__all__ = ["Factors", "Moments", "SharedSpectra"]


@dataclass(frozen=True, eq=False)
class Factors:
    """Sums of both factors.

    Attributes:
        inputs: sums of products of inputs, (G, p, p); or of squares, (G, p).
        gradients: sums of products of gradients, (G, q, q); or of squares, (G, q).
        count: how many rows (and positions) the first are sums over, a scalar.
        transposed: whether the weight's tables are (p, q), not (q, p).
    """

    inputs: Tensor
    gradients: Tensor
    count: Tensor
    transposed: bool = False

    def __add__(self, other: "Factors") -> "Factors":
        inputs, gradients = self.inputs + other.inputs, self.gradients + other.gradients
        return Factors(inputs, gradients, self.count + other.count, self.transposed)

    def block(self, spectra: "SharedSpectra") -> PositiveDefinite:
        """The product, in its eigenbases; one block for each group."""
        means = self.inputs / self.count.clamp(min=torch.finfo(self.count.dtype).tiny)
        pairs = zip(means, self.gradients, strict=True)
        blocks = [_product(*((a, b) if self.transposed else (b, a)), spectra) for a, b in pairs]
        return blocks[0] if len(blocks) == 1 else Blocks(tuple(blocks))


class SharedSpectra:
    """Eigenvalues and bases of factors, decomposed once where a weight and a bias have the same."""

    def __init__(self) -> None:
        self._known: list[tuple[Tensor, Tensor, Tensor]] = []

    def __call__(self, factor: Tensor) -> tuple[Tensor, Tensor | None]:
        """Of a matrix, (m, m), those below 0 by rounding taken to be 0; or of a diagonal, (m,), which has no basis."""
        if factor.dim() == 1:
            return factor, None
        for matrix, values, basis in self._known:
            if matrix.shape == factor.shape and torch.equal(matrix, factor):
                return values, basis
        values, basis = torch.linalg.eigh(factor)
        self._known.append((factor, values.clamp(min=0), basis))
        return self._known[-1][1:]


def _product(left: Tensor, right: Tensor, spectra: SharedSpectra) -> Kronecker:
    (b, u), (a, v) = spectra(left), spectra(right)
    return Kronecker(b.unsqueeze(-1) * a, u, v)


class Moments:
    """Sums of products of vectors, computed once for a weight and a bias with the same gradients."""

    def __init__(self) -> None:
        self._known: list[tuple[Tensor, Tensor]] = []

    def __call__(self, vectors: Tensor) -> Tensor:
        """The sum over all but the last axis of v v': (m, m)."""
        for known, found in self._known:  # which are kept, so that no other tensor can lie in their place
            if same_vectors(known, vectors):
                return found
        flat = vectors.flatten(0, -2)
        self._known.append((vectors, flat.mT @ flat))
        return self._known[-1][1]
