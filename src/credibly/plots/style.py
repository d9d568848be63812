"""What all pictures share: a palette that colour-blind readers can tell apart, and quiet axes.

Everything is set on the Axes at hand. Neither matplotlib's settings nor a style sheet is touched.
"""

import matplotlib.pyplot as plt
import seaborn as sns
from matplotlib.axes import Axes

__all__ = ["ALARM", "DATA", "INK", "PALE", "SECOND", "axes_of", "make_room", "quiet", "shared_top"]

_BLUE, _ORANGE, _, _RED, *_ = sns.color_palette("colorblind")

DATA = _BLUE
"""What was observed."""

SECOND = _ORANGE
"""A second quantity beside it."""

ALARM = _RED
"""What went wrong: gaps and misses."""

INK = "0.25"
"""Reference lines and text."""

PALE = "0.82"
"""Bands and what lies behind the data."""


def axes_of(ax: Axes | None, *, width: float, height: float) -> Axes:
    """The given Axes, or those of a new figure of this size in inches."""
    if ax is not None:
        return ax
    return plt.subplots(figsize=(width, height), layout="constrained")[1]


def quiet(ax: Axes) -> None:
    """No frame on the right and at the top, thin lines elsewhere."""
    sns.despine(ax=ax)
    for spine in ax.spines.values():
        spine.set_linewidth(0.8)
        spine.set_color(INK)
    ax.tick_params(width=0.8, color=INK)


def shared_top(ax: Axes, top: float) -> float:
    """The top of the y axis: at least this, and no lower than what other Axes that share it already show."""
    others = [other for other in ax.get_shared_y_axes().get_siblings(ax) if other is not ax and other.has_data()]
    return max([top, *(float(other.get_ylim()[1]) for other in others)])


def make_room(ax: Axes, *, top: float, bottom: float, left: float = 0.0, right: float = 0.0) -> None:
    """Shrink Axes for what is drawn around them, by shares of their size, where no layout engine will do it."""
    if ax.get_figure() is None or ax.get_figure().get_layout_engine() is not None:  # type: ignore[union-attr]
        return
    box = ax.get_position(original=True)
    width, height = box.width * (1 - left - right), box.height * (1 - top - bottom)
    ax.set_position((box.x0 + left * box.width, box.y0 + bottom * box.height, width, height))
