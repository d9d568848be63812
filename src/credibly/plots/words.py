"""Titles, keys and notes: where they go so that they fit and cover nothing.

Widths are estimated from the number of letters: a picture is not drawn in order to measure it.
"""

import textwrap
from itertools import pairwise

from matplotlib.axes import Axes
from matplotlib.font_manager import FontProperties
from matplotlib.patheffects import withStroke
from matplotlib.transforms import ScaledTranslation

from credibly.plots.columns import Numbers
from credibly.plots.style import INK, make_room

__all__ = ["STRIP", "dress", "keys_below", "note", "wrapped", "write"]

STRIP = 0.2
"""The share of the height of Axes that a strip on top of them takes."""

_EM = 0.52  # the mean width of a letter in units of the size of its font
_REACH = 1.1  # words may be so many times wider than their Axes, by reaching into the margins
_LABELS = 34  # points from the axis down to the keys: ticks and the label of the axis
_SMALL = 130  # points: narrower Axes have smaller notes
_MOST = 0.75  # the largest share of Axes that words may take where no layout engine makes room


def dress(
    ax: Axes, *, title: str, legend: bool, strip: bool = False, beside: tuple[float, float] = (0.0, 0.0)
) -> float:
    """Write the title above and the keys below, and make room for both where no layout engine does.

    Args:
        ax: with everything drawn and labelled.
        title: broken into lines as wide as the picture; more than two are set smaller.
        legend: whether to write the keys.
        strip: whether a strip stands on top, above which the title goes.
        beside: points that labels on the left and on the right take, more than those of ordinary ticks.

    Returns:
        The height in points that is left to the Axes, about.
    """
    width, height = _size(ax)
    size = float(ax.title.get_fontsize())
    lines = _wrapped(title, width - sum(beside), size)
    if lines.count("\n") > 1:
        size *= 0.8
        lines = _wrapped(title, width - sum(beside), size)
    rows = keys_below(ax, beside=sum(beside)) if legend else 0
    above = (1.25 * size * (lines.count("\n") + 1) + 6) / height if title else 4 / height
    below = max(10, 4 + _LABELS - _below(ax)) / height + 13 * rows / height
    shrink = min(1.0, _MOST / (above + STRIP * strip + below))
    squeeze = min(1.0, _MOST * width / max(sum(beside), 1.0))
    left, right = (squeeze * points / width for points in beside)
    make_room(ax, top=shrink * (above + STRIP * strip), bottom=shrink * below, left=left, right=right)
    if title:
        ax.set_title(lines, y=1.03 + STRIP if strip else None, fontsize=size)
    rest = height * (1 - shrink * (above + STRIP * strip + below))
    label = ax.yaxis.label
    label.set_fontsize(min(float(label.get_fontsize()), max(6.0, 1.15 * rest / (_EM * max(len(label.get_text()), 1)))))
    return rest


def wrapped(ax: Axes, title: str) -> str:
    """The title in lines that fit above the Axes."""
    return _wrapped(title, _size(ax)[0], float(ax.title.get_fontsize()))


def _wrapped(title: str, width: float, size: float) -> str:
    return "\n".join(textwrap.wrap(title, max(8, int(_REACH * width / (_EM * size)))))


def keys_below(ax: Axes, *, beside: float = 0.0) -> int:
    """The keys under the label of the x axis, in as many rows as they need: the number of rows.

    Args:
        ax: with labelled artists.
        beside: points that labels beside the Axes take.
    """
    labels = ax.get_legend_handles_labels()[1]
    if not labels:
        return 0
    size = FontProperties(size="small").get_size_in_points()
    columns = _columns([len(label) * _EM + 3.4 for label in labels], (_REACH * _size(ax)[0] - beside) / size)
    place = ax.transAxes + ScaledTranslation(0, -_LABELS / 72, ax.figure.dpi_scale_trans)
    ax.legend(
        loc="upper center",
        bbox_to_anchor=(0.5, 0),
        bbox_transform=place,
        ncols=columns,
        frameon=False,
        fontsize="small",
        handlelength=1.2,
        columnspacing=1.4,
        borderaxespad=0,
    )
    return -(-len(labels) // columns)


def _columns(widths: list[float], room: float) -> int:
    """The most columns that fit into the room, 1 at least; the first ones are one longer where they are not equal."""
    for columns in range(len(widths), 1, -1):
        rows, longer = divmod(len(widths), columns)
        starts = [index * rows + min(index, longer) for index in range(columns + 1)]
        if sum(max(widths[first:last]) for first, last in pairwise(starts)) <= room:
            return columns
    return 1


def _size(ax: Axes) -> tuple[float, float]:
    """Width and height of the place of the Axes, in points."""
    figure = ax.get_figure(root=False)
    if figure is None:
        raise ValueError("`ax` must belong to a figure; it was removed from its own")
    place, scale = ax.get_position(original=True), 72 / ax.figure.dpi
    return float(place.width * figure.bbox.width * scale), float(place.height * figure.bbox.height * scale)


def _below(ax: Axes) -> float:
    """The points between the place of the Axes and the foot of the figure."""
    place = ax.get_position(original=True)
    return float(_size(ax)[1] * place.y0 / place.height)


def note(ax: Axes, text: str, x: Numbers, y: Numbers) -> None:
    """A word in the lower right corner, or in the upper left one if that is freer of points.

    Args:
        ax: where.
        text: the word.
        x: of what is drawn, in shares of the width of the Axes.
        y: likewise, of the height.
    """
    lower_right = int(((x > 0.55) & (y < 0.15)).sum())
    upper_left = int(((x < 0.45) & (y > 0.85)).sum())
    corner = (0.97, 0.03, "right", "bottom") if lower_right <= upper_left else (0.03, 0.97, "left", "top")
    write(ax, text, *corner)


def write(ax: Axes, text: str, x: float, y: float, ha: str, va: str, *, weight: str = "bold") -> None:
    """A word at shares of the width and the height of the Axes, smaller in small ones, legible over what lies there."""
    small = min(_size(ax)) < _SMALL or weight != "bold"
    size = "small" if small else "medium"
    written = ax.text(
        x, y, text, transform=ax.transAxes, ha=ha, va=va, weight=weight, fontsize=size, color=INK, zorder=5
    )
    written.set_path_effects([withStroke(linewidth=2.5, foreground="white")])
