"""Checks at the boundary: each returns what it was given, or raises an error that says what is needed."""

from decimal import Decimal
from fractions import Fraction
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from credibly.core.errors import NotFiniteError, ShapeError
from credibly.core.typing import ArrayLike

__all__ = [
    "as_number",
    "as_tensor",
    "check_bool",
    "check_count",
    "check_coverage",
    "check_finite",
    "check_nonnegative",
    "check_positive",
    "check_same_rows",
    "exact_level",
]


def as_tensor(values: ArrayLike, *, dtype: torch.dtype | None = None, device: Any = None) -> Tensor:
    """The values as a tensor. Tensors keep their dtype; arrays take `dtype` if they are floating.

    numpy arrays, pandas objects and lists are read through the array protocol and copied, so that the
    caller's memory is never shared. Integers and booleans stay integers and booleans.
    """
    if isinstance(values, Tensor):
        return values if device is None else values.to(device)
    array = _as_array(values)
    if array.dtype.kind not in "biuf":
        raise TypeError(
            f"expected numbers, got an array of dtype {array.dtype}; "
            "map labels and other objects to numbers first (credibly.interop.ClassLabels)"
        )
    if array.dtype.kind == "u":
        array = array.astype(np.int64)
    tensor = torch.from_numpy(array)
    if dtype is not None and tensor.is_floating_point():
        tensor = tensor.to(dtype)
    return tensor if device is None else tensor.to(device)


def _as_array(values: ArrayLike) -> "np.ndarray[Any, Any]":
    """A numpy array in native byte order; columns of booleans beside columns of numbers are numbers."""
    try:
        array = np.array(values, order="C")
    except ValueError as error:
        raise ShapeError(f"expected a rectangular array of numbers; the rows differ in length ({error})") from error
    if array.dtype.kind == "O" and all(isinstance(value, (Real, np.bool_)) for value in array.flat):
        array = array.astype(np.float64)
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:
        array = array.astype(np.float64)
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def check_finite(name: str, values: Tensor) -> Tensor:
    """The tensor itself, or a NotFiniteError that counts the bad entries."""
    if values.is_floating_point():
        bad = int((~torch.isfinite(values)).sum())
        if bad:
            raise NotFiniteError(f"`{name}` must be finite; {bad} of {values.numel()} values are NaN or infinite")
    return values


def _check_number(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, Real):
        kind = type(value).__name__
        raise TypeError(f"`{name}` must be a number; got {value!r}" + (f", a {kind}" if isinstance(value, str) else ""))


def check_positive(name: str, value: float) -> float:
    """The number itself, or a ValueError unless it is finite and above 0; a TypeError unless it is a number."""
    _check_number(name, value)
    if not 0 < value < float("inf"):
        raise ValueError(f"`{name}` must be a finite number above 0; got {value}")
    return value


def check_nonnegative(name: str, value: float) -> float:
    """The number itself, or a ValueError unless it is finite and at least 0; a TypeError unless it is a number."""
    _check_number(name, value)
    if not 0 <= value < float("inf"):
        raise ValueError(f"`{name}` must be a finite number, 0 or above; got {value}")
    return value


def check_bool(name: str, value: bool) -> bool:
    """The value itself, or a TypeError unless it is True or False."""
    if not isinstance(value, bool):
        raise TypeError(f"`{name}` must be True or False; got {value!r}")
    return value


def check_count(name: str, value: int, *, least: int = 1) -> int:
    """The number itself, or a ValueError unless it is a whole number of at least `least`."""
    if isinstance(value, bool) or not hasattr(value, "__index__") or value < least:
        raise ValueError(f"`{name}` must be a whole number, {least} or more; got {value!r}")
    return int(value)


def check_same_rows(name: str, rows: int, other: str, other_rows: int) -> None:
    """Raise a ShapeError unless both have the same number of rows."""
    if rows != other_rows:
        raise ShapeError(f"`{name}` has {rows} rows, `{other}` has {other_rows}; they must agree")


def as_number(name: str, value: Any) -> float:
    """A real number of any kind as a float: Python's, numpy's, or a tensor or array without axes.

    A number of less precision than float64 means the shortest decimal that rounds to it: float32's 0.9 is 0.9, not
    0.8999999761581421.

    Raises:
        TypeError: anything else; of several numbers, such as a list, it says to take them one by one.
    """
    given: Any = value
    of_python = isinstance(value, (Real, Decimal)) and not isinstance(value, np.generic)
    if of_python and not isinstance(value, bool):
        return float(value)
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "iuf":
        given = as_tensor(value)
    if isinstance(given, Tensor) and not given.dim() and given.dtype != torch.bool and not given.is_complex():
        return _shortest_decimal(given)
    several = isinstance(value, (list, tuple)) or getattr(value, "ndim", 0) > 0
    advice = "; take several one by one" if several else ""
    raise TypeError(f"`{name}` must be one number; got {value!r}, a {type(value).__name__}{advice}")


def _shortest_decimal(number: Tensor) -> float:
    value = float(number)
    if number.dtype == torch.float64 or not number.is_floating_point():
        return value
    decimals = (float(f"{value:.{digits}g}") for digits in range(1, 17))
    return next((each for each in decimals if float(torch.tensor(each, dtype=number.dtype)) == value), value)


def check_coverage(coverage: Any) -> float:
    """The level as a float, see `as_number`, or a ValueError unless it lies in [0, 1]."""
    level = as_number("coverage", coverage)
    if not 0 <= level <= 1:
        raise ValueError(f"`coverage` must lie in [0, 1]; got {coverage}")
    return level


def exact_level(level: Any) -> Fraction:
    """The nearest rational with a denominator of at most 10^6, so that 0.5800000000000001 is 58/100."""
    return Fraction(as_number("level", level)).limit_denominator(10**6)
