"""Several curves in one picture: names, and colours and lines that tell them apart also in grey."""

from collections.abc import Mapping
from typing import TypeVar

import seaborn as sns

from credibly.core.errors import ShapeError

__all__ = ["named", "series_color", "series_line"]

T = TypeVar("T")

_BLUE, _, _GREEN, _RED, _PURPLE, *_ = sns.color_palette("colorblind")
_COLORS = (_BLUE, _RED, _GREEN, _PURPLE, (0.15, 0.15, 0.15))  # the others are too pale for a line on white
_LINES = ("-", (0, (6, 1.5)), (0, (3, 1, 1, 1)))


def named(argument: str, tables: T | Mapping[str, T], name: str) -> dict[str, T]:
    """The tables by name; a single one gets the given name.

    Raises:
        ShapeError: there are none.
    """
    found = dict(tables) if isinstance(tables, Mapping) else {name: tables}
    if not found:
        raise ShapeError(f"`{argument}` must hold at least one table; got none")
    return found


def series_color(index: int) -> tuple[float, float, float]:
    """A colour; they repeat after five."""
    red, green, blue = _COLORS[index % len(_COLORS)]
    return float(red), float(green), float(blue)


def series_line(index: int) -> str | tuple[int, tuple[float, ...]]:
    """A pattern of line, solid for the first of all; they repeat after three, out of step with the colours."""
    return _LINES[index % len(_LINES)]
