"""Gradients in the outputs of a layer, whose products give covariances without the gradients in its weights."""

from dataclasses import dataclass

from torch import Tensor

__all__ = ["Vectors", "project", "same_vectors"]


@dataclass(frozen=True, eq=False)
class Vectors:
    """Gradients of each row whose products, weighed in a basis, are a covariance of outputs.

    Attributes:
        gradients: (K, R, q).
        basis: (q, q); None is the identity.
        weights: of each direction of the basis, (R, q) or (1, q).
    """

    gradients: Tensor
    basis: Tensor | None
    weights: Tensor

    def covariance(self) -> Tensor:
        """(R, K, K)."""
        rows = project(self.gradients, self.basis).transpose(0, 1)
        return (rows * self.weights.unsqueeze(1)) @ rows.mT

    def plus(self, other: "Vectors") -> "Vectors | None":
        """Vectors that give the sum of both covariances, where the two differ in weights alone."""
        if self.basis is not other.basis or not same_vectors(self.gradients, other.gradients):
            return None
        return Vectors(self.gradients, self.basis, self.weights + other.weights)


def same_vectors(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors hold the same vectors in the same place in memory."""
    return one.data_ptr() == other.data_ptr() and _order(one) == _order(other)


def _order(vectors: Tensor) -> tuple[object, ...]:
    """What tells, beside the place in memory, that two tensors hold the same vectors."""
    axes = zip(vectors.shape, vectors.stride(), strict=True)
    return vectors.shape[-1], vectors.dtype, [axis for axis in axes if axis[0] > 1]


def project(values: Tensor, basis: Tensor | None) -> Tensor:
    """Vectors on the last axis in a basis of columns; None is the identity."""
    return values if basis is None else values @ basis
