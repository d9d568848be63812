"""The group of each row: whole numbers as they are, or text, which a predictor maps to numbers and remembers."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from credibly.conformal.rows import one_a_row
from credibly.core.typing import ArrayLike

__all__ = ["group_labels", "row_groups"]


def group_labels(groups: ArrayLike) -> tuple[str, ...] | None:
    """The distinct labels of groups that are text, in alphabetical order; None for groups that are numbers."""
    text = _as_text(groups)
    return None if text is None else tuple(np.unique(text).tolist())


def row_groups(
    groups: ArrayLike,
    rows: int,
    device: torch.device,
    *,
    labels: tuple[str, ...] | None = None,
    name: str = "groups",
) -> Tensor:
    """The group of each row, (rows,), int64.

    Args:
        groups: whole numbers or, with `labels`, text.
        rows: how many there must be.
        device: of the result.
        labels: what calibration saw, from `group_labels`: text becomes its place among them, and their number where
            it is none of them.
        name: what an error calls the argument.

    Raises:
        TypeError: text without labels, numbers with them, or neither text nor numbers.
        ShapeError: not one group a row.
        ValueError: numbers that are not whole.
        NotFiniteError: NaN or infinite numbers.
    """
    text = _as_text(groups)
    if labels is not None:
        if text is None:
            raise TypeError(f"`{name}` were text in calibration, such as {labels[0]!r}, and must be text again")
        groups = _places(text, labels)
    elif text is not None:
        raise TypeError(f"`{name}` must be whole numbers here, not text such as {str(text.flat[0])!r}")
    try:
        given = one_a_row(name, groups, rows, device)
    except TypeError as error:
        raise TypeError(
            f"`{name}` must be whole numbers or text, without missing values; number others: "
            f"np.unique({name}, return_inverse=True)"
        ) from error
    whole = given.to(torch.int64)
    if bool((whole != given).any()):
        raise ValueError(f"`{name}` must be whole numbers; got {given[whole != given][0].item():g}")
    return whole


def _as_text(groups: ArrayLike) -> "np.ndarray[Any, Any] | None":
    """The groups as an array of text, if they are text."""
    if isinstance(groups, Tensor):
        return None
    array = np.asarray(groups)
    if array.dtype.kind in "OT" and array.size and all(isinstance(each, str) for each in array.flat):
        array = array.astype(str)
    return array if array.dtype.kind == "U" else None


def _places(text: "np.ndarray[Any, Any]", labels: tuple[str, ...]) -> "np.ndarray[Any, Any]":
    known = np.asarray(labels)
    place = np.searchsorted(known, text)
    return np.where(known[place.clip(max=len(known) - 1)] == text, place, len(known))
