"""The checks at the boundary."""

from decimal import Decimal
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from credibly.core import checks
from credibly.core.errors import CrediblyError, NotFiniteError, ShapeError


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([[1.0, 2.0], [3.0, 4.0]], torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64)),
        (np.arange(3, dtype=np.float16), torch.tensor([0, 1, 2], dtype=torch.float16)),
        (np.arange(3, dtype=">f8"), torch.tensor([0.0, 1.0, 2.0], dtype=torch.float64)),
        (np.arange(3, dtype=np.longdouble), torch.tensor([0.0, 1.0, 2.0], dtype=torch.float64)),
        (np.arange(3, dtype=">i4"), torch.tensor([0, 1, 2], dtype=torch.int32)),
        (np.arange(3, dtype=np.uint16), torch.tensor([0, 1, 2])),
        (np.array([True, False]), torch.tensor([True, False])),
        (np.arange(6.0).reshape(2, 3)[:, ::-1], torch.tensor([[2.0, 1, 0], [5, 4, 3]], dtype=torch.float64)),
        (np.asfortranarray(np.arange(4.0).reshape(2, 2)), torch.arange(4, dtype=torch.float64).reshape(2, 2)),
        (pd.Series([1, 2], dtype="Int64"), torch.tensor([1, 2])),
        (pd.Series([True, False]), torch.tensor([True, False])),
        (pd.DataFrame({"a": [1, 2], "b": [0.5, 1.5]}), torch.tensor([[1, 0.5], [2, 1.5]], dtype=torch.float64)),
        (pd.DataFrame({"a": [True, False], "b": [0.5, 1.5]}), torch.tensor([[1, 0.5], [0, 1.5]], dtype=torch.float64)),
        (3.0, torch.tensor(3.0, dtype=torch.float64)),
    ],
)
def test_arrays_become_tensors(values, expected):
    tensor = checks.as_tensor(values)
    assert tensor.dtype == expected.dtype
    assert torch.equal(tensor, expected)


def test_floating_arrays_take_the_dtype_and_integers_do_not():
    assert checks.as_tensor(np.ones(2), dtype=torch.float32).dtype == torch.float32
    assert checks.as_tensor([1, 2], dtype=torch.float32).dtype == torch.int64


def test_arrays_are_copied_and_tensors_are_not():
    array = np.zeros(3)
    array.flags.writeable = False
    tensor = checks.as_tensor(array)
    tensor += 1
    assert array.sum() == 0
    assert checks.as_tensor(tensor) is tensor


@pytest.mark.parametrize("values", [["a", "b"], np.array([1 + 2j]), pd.Series(["1.5", "2"]), [None, 1.0], [object()]])
def test_what_is_not_a_number_is_refused(values):
    with pytest.raises(TypeError, match="expected numbers"):
        checks.as_tensor(values)


def test_ragged_rows_are_refused():
    with pytest.raises(ShapeError, match="rows differ in length"):
        checks.as_tensor([[1.0, 2.0], [3.0]])


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_values_must_be_finite(bad, dtype):
    values = torch.tensor([1.0, bad, bad], dtype=dtype)
    with pytest.raises(NotFiniteError, match="`x` must be finite; 2 of 3"):
        checks.check_finite("x", values)
    assert checks.check_finite("x", values[:1]) is not None
    assert torch.equal(checks.check_finite("x", torch.tensor([1, 2])), torch.tensor([1, 2]))


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_positive_numbers(bad):
    with pytest.raises(ValueError, match="`s` must be a finite number above 0"):
        checks.check_positive("s", bad)
    assert checks.check_positive("s", 0.5) == 0.5


@pytest.mark.parametrize("bad", [-1e-9, float("nan"), float("inf")])
def test_numbers_that_are_not_negative(bad):
    with pytest.raises(ValueError, match="`s` must be a finite number, 0 or above"):
        checks.check_nonnegative("s", bad)
    assert checks.check_nonnegative("s", 0.0) == 0.0


@pytest.mark.parametrize("bad", [-0.1, 1.1, float("nan")])
def test_coverage(bad):
    with pytest.raises(ValueError, match=r"`coverage` must lie in \[0, 1\]"):
        checks.check_coverage(bad)
    assert [checks.check_coverage(level) for level in (0, 0.5, 1)] == [0, 0.5, 1]


def test_rows_must_agree():
    with pytest.raises(ShapeError, match="`targets` has 3 rows, `inputs` has 4"):
        checks.check_same_rows("targets", 3, "inputs", 4)


def test_errors_can_be_caught_as_ours_and_as_pythons():
    assert issubclass(ShapeError, CrediblyError)
    assert issubclass(ShapeError, ValueError)


@given(numerator=st.integers(0, 1000), denominator=st.integers(1, 1000))
def test_a_float_level_is_read_as_the_fraction_that_was_meant(numerator, denominator):
    meant = Fraction(numerator, denominator)
    assert checks.exact_level(numerator / denominator) == meant
    assert checks.exact_level(np.nextafter(numerator / denominator, 2)) == meant


def test_rounding_in_a_level_is_undone():
    assert checks.exact_level(0.5800000000000001) == Fraction(58, 100)
    assert checks.exact_level(1 - 0.1) == Fraction(9, 10)


DIGITS = {torch.float16: 3, torch.bfloat16: 2, torch.float32: 6, torch.float64: 15}
"""How many decimal digits every number of a precision keeps."""


@pytest.mark.parametrize("precision", DIGITS)
@given(st.integers(1, 10**15 - 1), st.integers(-3, 3))
def test_numbers_of_any_precision_mean_their_shortest_decimal(precision, digits, exponent):
    written = float(f"0.{str(digits)[: DIGITS[precision]]}e{exponent}")
    number = torch.tensor(written, dtype=precision)
    assert checks.as_number("level", number) == written


@pytest.mark.parametrize("precision", DIGITS)
@given(st.floats(-(2.0**100), 2.0**100, width=32))
def test_a_shortest_decimal_rounds_to_its_number(precision, value):
    number = torch.tensor(value, dtype=precision)
    assert torch.equal(torch.tensor(checks.as_number("level", number), dtype=precision), number)


@pytest.mark.parametrize(
    "value", [3, 3.0, Fraction(3), Decimal(3), np.int8(3), np.float32(3), np.array(3), torch.tensor(3)]
)
def test_numbers_of_any_kind_become_floats(value):
    found = checks.as_number("level", value)
    assert type(found) is float
    assert found == 3


@pytest.mark.parametrize("value", ["3", None, True, np.True_, 1j, torch.tensor(True), torch.tensor(1j), object()])
def test_what_is_not_one_number_is_refused(value):
    with pytest.raises(TypeError, match="`level` must be one number; got"):
        checks.as_number("level", value)


@pytest.mark.parametrize("value", [[1.0], (1.0,), torch.ones(1), np.ones((1, 1)), pd.Series([1.0])])
def test_several_numbers_are_to_be_taken_one_by_one(value):
    with pytest.raises(TypeError, match="take several one by one"):
        checks.as_number("level", value)
