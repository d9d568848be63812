r"""Comparisons of computed numbers with levels that were written as decimals.

A level such as 0.07 means 7/100, and a count such as 7 of 100 equals it, though neither is a binary fraction. So levels
become rationals, what is compared is multiplied by their denominators, and numbers that differ by rounding alone count
as equal. A ratio a / b and a level p / q that differ do so by 1 / (b q) at least, so the comparison is exact wherever
b p < 2^48.
"""

from fractions import Fraction

from torch import Tensor

from credibly.core.checks import as_number, exact_level

__all__ = ["at_most", "exact_number"]

_ROUNDING = 2.0**-48


def exact_number(value: float) -> Fraction:
    """The rational number that a float was written for; the float itself where no small denominator comes near."""
    given = Fraction(as_number("value", value))
    nearest = exact_level(value)
    return nearest if abs(nearest - given) <= abs(given) / 2**40 else given


def at_most(values: Tensor, limit: Fraction, factor: Tensor | float = 1.0) -> Tensor:
    """Whether values <= limit * factor, up to rounding, elementwise.

    Args:
        values: float64, any shape.
        limit: a rational number.
        factor: a whole number, or one for each value, that multiplies the limit.
    """
    bound = float(limit.numerator) * (factor if isinstance(factor, Tensor) else values.new_tensor(factor))
    return values * float(limit.denominator) <= bound + bound.abs() * _ROUNDING
