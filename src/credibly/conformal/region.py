"""What a conformal predictor returns: one region of targets a row, that can be asked what it contains."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from credibly.core.errors import ShapeError
from credibly.core.typing import ArrayLike

__all__ = ["Region"]


class Region(ABC):
    """A region of targets for every row. Immutable; a frozen dataclass (eq=False)."""

    @abstractmethod
    def contains(self, targets: ArrayLike) -> Tensor:
        """Whether each row's target lies in its region, (rows,), bool."""

    def empirical_coverage(self, targets: ArrayLike) -> Tensor:
        """The fraction of targets that lie in their region, a float64 scalar."""
        inside = self.contains(targets)
        if not len(inside):
            raise ShapeError("coverage needs at least one row; `targets` is empty")
        return inside.to(torch.float64).mean()
