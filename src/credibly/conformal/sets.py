"""Prediction sets: for every row the classes that are not ruled out."""

from dataclasses import dataclass

import torch
from torch import Tensor

from credibly.conformal.region import Region
from credibly.core.checks import as_tensor
from credibly.core.errors import ShapeError, SupportError
from credibly.core.typing import ArrayLike

__all__ = ["PredictionSets"]


@dataclass(frozen=True, eq=False)
class PredictionSets(Region):
    """A set of classes for every row. Column k is class k of the model, whether calibration saw it or not.

    Attributes:
        members: whether the class belongs to the row's set, (rows, classes), bool.
    """

    members: Tensor

    @property
    def size(self) -> Tensor:
        """The number of classes in each set, (rows,), int64."""
        return self.members.sum(-1)

    @property
    def labels(self) -> list[list[int]]:
        """The class indices of each set, increasing."""
        return [row.nonzero().squeeze(-1).tolist() for row in self.members]

    def contains(self, targets: ArrayLike) -> Tensor:
        """Whether each row's class is in its set, (rows,), bool.

        Raises:
            ShapeError: `targets` is not (rows,) or (rows, 1).
            SupportError: a target is not the index of a class.
        """
        rows, classes = self.members.shape
        indices = as_tensor(targets, device=self.members.device)
        if indices.shape not in ((rows,), (rows, 1)):
            raise ShapeError(f"`targets` must have shape ({rows},) or ({rows}, 1); got {tuple(indices.shape)}")
        indices = indices.reshape(rows)
        whole = indices.to(torch.int64)
        bad = (whole != indices) | (whole < 0) | (whole >= classes)
        if bool(bad.any()):
            raise SupportError(
                f"`targets` must be class indices from 0 to {classes - 1}; got {indices[bad][0].item():g}"
            )
        return self.members.gather(-1, whole.unsqueeze(-1)).squeeze(-1)
