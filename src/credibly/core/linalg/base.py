"""What every structure can do: products, solves, roots of itself and of its inverse, and the log determinant.

A Gaussian over d weights needs no more than that of its covariance or precision. Vectors are rows, (..., d), so that a
table of draws is one argument. With z standard normal, `root(z)` has the matrix as its covariance and
`inverse_root(z)` the inverse.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

__all__ = ["PositiveDefinite"]


class PositiveDefinite(ABC):
    """A symmetric positive definite matrix, (d, d). A frozen dataclass of tensors.

    Curvatures are semi-definite only: they can be multiplied and added to; solves, roots and log determinants are for
    what is positive definite, such as their sum with a prior's precision.
    """

    @property
    @abstractmethod
    def size(self) -> int:
        """The number of rows, d."""

    @property
    @abstractmethod
    def like(self) -> Tensor:
        """A tensor of its dtype and on its device."""

    @abstractmethod
    def matmul(self, x: Tensor) -> Tensor:
        """The matrix times vectors, (..., d)."""

    @abstractmethod
    def solve(self, x: Tensor) -> Tensor:
        """The inverse times vectors, (..., d)."""

    @abstractmethod
    def root(self, x: Tensor) -> Tensor:
        """L times vectors, (..., d), where L L' is the matrix."""

    @abstractmethod
    def inverse_root(self, x: Tensor) -> Tensor:
        """R times vectors, (..., d), where R R' is the inverse."""

    @abstractmethod
    def logdet(self) -> Tensor:
        """The log determinant, a scalar."""

    @abstractmethod
    def diagonal(self) -> Tensor:
        """The diagonal, (d,)."""

    @abstractmethod
    def inverse_diagonal(self) -> Tensor:
        """The diagonal of the inverse, (d,)."""

    @abstractmethod
    def times(self, factor: float | Tensor) -> "PositiveDefinite":
        """The matrix times a positive number."""

    @abstractmethod
    def plus_diagonal(self, values: Tensor) -> "PositiveDefinite":
        """The matrix plus a diagonal one, (d,), in the same structure.

        Raises:
            NotSupportedError: the sum does not have the structure.
        """

    def map(self, change: Callable[[Tensor], Tensor]) -> Any:
        """The same structure of changed tensors, such as of another dtype or on another device."""
        parts = (getattr(self, part.name) for part in fields(self))  # type: ignore[arg-type]
        return type(self)(*(_mapped(part, change) for part in parts))

    def dense(self) -> Tensor:
        """The matrix itself, (d, d): for few weights."""
        return self.matmul(torch.eye(self.size, dtype=self.like.dtype, device=self.like.device))


def _mapped(part: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(part, tuple):
        return tuple(_mapped(item, change) for item in part)
    if isinstance(part, PositiveDefinite):
        return part.map(change)
    return part if part is None else change(part)
