"""Class labels of any kind, and the indices that the library works with.

Class targets are indices 0, 1, ..., C - 1 everywhere else; column k of every table is label k of the list,
also when the data at hand lack that label.
"""

from collections.abc import Hashable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from credibly.core.errors import ShapeError, SupportError
from credibly.core.typing import ArrayLike

__all__ = ["ClassLabels"]


class ClassLabels:
    """A list of distinct labels, each standing for its position.

    Args:
        labels: hashable labels: strings, numbers, ...

    Raises:
        ValueError: no labels, a label twice (1, 1.0 and True are the same), or a missing one (None, NaN).
    """

    labels: list[Any]

    def __init__(self, labels: Iterable[Hashable]) -> None:
        self.labels = _plain(labels)
        self._positions = {label: position for position, label in enumerate(self.labels)}
        if not self.labels:
            raise ValueError("`labels` must hold at least one label; got none")
        if len(self._positions) < len(self.labels):
            twice = next(label for i, label in enumerate(self.labels) if self._positions[label] != i)
            raise ValueError(f"`labels` must be distinct; got {twice!r} more than once")
        if any(map(_is_missing, self.labels)):
            raise ValueError("`labels` must not hold missing labels (None or NaN)")

    @classmethod
    def from_targets(cls, targets: ArrayLike) -> "ClassLabels":
        """The distinct labels of some targets: sorted, or as they come if they cannot be compared."""
        distinct = list(dict.fromkeys(_plain(targets)))
        try:
            return cls(sorted(distinct))
        except TypeError:
            return cls(distinct)

    def encode(self, targets: ArrayLike) -> Tensor:
        """The index of each label, (rows,), int64.

        Raises:
            SupportError: a target is none of the labels.
        """
        given = _plain(targets)
        unknown = list(dict.fromkeys(label for label in given if label not in self._positions))
        if unknown:
            named = ", ".join(map(repr, unknown[:5])) + (", ..." if len(unknown) > 5 else "")
            raise SupportError(f"`targets` hold labels that are none of the {len(self)} known ones: {named}")
        return torch.tensor([self._positions[label] for label in given], dtype=torch.int64)

    def decode(self, indices: ArrayLike) -> np.ndarray[Any, Any]:
        """The label of each index, as a numpy array of the same shape.

        Raises:
            SupportError: an index is not between 0 and C - 1.
        """
        given = np.asarray(indices.cpu() if isinstance(indices, Tensor) else indices)
        whole = given.astype(np.int64)
        bad = (whole != given) | (whole < 0) | (whole >= len(self))
        if bad.any():
            raise SupportError(f"`indices` must be whole numbers from 0 to {len(self) - 1}; got {given[bad][0]}")
        return self._array()[whole]

    def _array(self) -> np.ndarray[Any, Any]:
        if len({type(label) for label in self.labels}) == 1 and isinstance(self.labels[0], str | int | float):
            return np.array(self.labels)
        array = np.empty(len(self), dtype=object)
        array[:] = self.labels
        return array

    def __len__(self) -> int:
        return len(self.labels)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.labels)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ClassLabels) and self.labels == other.labels

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"ClassLabels({self.labels!r})"


def _plain(values: Any) -> list[Any]:
    """A list of Python objects: of a tensor, an array, a pandas object, an iterable."""
    if isinstance(values, ClassLabels):
        return list(values.labels)
    if isinstance(values, Tensor):
        values = values.detach().cpu().numpy()
    if not hasattr(values, "__array__"):
        return [value.item() if isinstance(value, np.generic) else value for value in values]
    array = np.asarray(values)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise ShapeError(f"labels must have shape (rows,); got {array.shape}")
    listed: list[Any] = array.tolist()
    return listed


def _is_missing(label: Any) -> bool:
    return label is None or bool(label != label)
