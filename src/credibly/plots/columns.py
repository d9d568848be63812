"""What a picture is made of, as arrays that have been checked."""

from typing import Any

import numpy as np
import numpy.typing as npt

from credibly.core.checks import as_tensor, check_finite
from credibly.core.errors import ShapeError
from credibly.core.typing import ArrayLike

__all__ = ["Numbers", "check_table", "column", "table_of_draws"]

Numbers = npt.NDArray[np.float64]


def check_table(name: str, table: object, kind: type, source: str) -> None:
    """Raise a TypeError unless the table is what `source` gives: a picture is not drawn from predictions."""
    if not isinstance(table, kind):
        raise TypeError(f"`{name}` must be a {kind.__name__}, from {source}; got {type(table).__name__}")


def column(name: str, values: ArrayLike, *, finite: bool = True) -> Numbers:
    """One number for each of one or more rows, (rows,) or (rows, 1), as float64 in memory of its own.

    Raises:
        ShapeError: another shape, or no rows.
        NotFiniteError: NaN or infinite values, unless they are allowed.
    """
    array = _numbers(name, values, finite)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1 or not len(array):
        raise ShapeError(f"`{name}` must have shape (rows,), of at least one row; got {array.shape}")
    return array


def table_of_draws(name: str, values: ArrayLike) -> Numbers:
    """Finite numbers (num_draws, rows), of at least one draw and one row; (num_draws, rows, 1) will do.

    Raises:
        ShapeError: another shape, or nothing in it.
        NotFiniteError: NaN or infinite values.
    """
    array = _numbers(name, values, finite=True)
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    if array.ndim != 2 or not array.size:
        raise ShapeError(
            f"`{name}` must have shape (num_draws, rows), of at least one draw and one row; got {array.shape}"
        )
    return array


def _numbers(name: str, values: ArrayLike, finite: bool) -> npt.NDArray[Any]:
    tensor = as_tensor(values).detach()
    if finite:
        check_finite(name, tensor)
    return np.array(tensor.cpu().double().numpy())
