"""Which act is taken where, over two inputs, with the regions in which none is."""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, to_rgb

from credibly.core.checks import as_tensor
from credibly.core.errors import ShapeError, SupportError
from credibly.core.typing import ArrayLike
from credibly.plots.columns import Numbers, column
from credibly.plots.style import INK, PALE, axes_of, quiet
from credibly.plots.words import dress

__all__ = ["decision_regions"]

Color: TypeAlias = tuple[float, float, float]

_TINT = 0.42  # how much of a colour its region shows
_SHADE = 0.75  # how bright points are
_MARKERS = ("o", "^", "s", "D", "v", "P", "X", "*")
_PALETTE = 10  # colours that colour-blind readers can tell apart


def decision_regions(
    x: ArrayLike,
    y: ArrayLike,
    acts: ArrayLike,
    ax: Axes | None = None,
    *,
    names: Sequence[str] | None = None,
    abstained: str = "abstained",
    points: ArrayLike | None = None,
    classes: ArrayLike | None = None,
    class_names: Sequence[str] | None = None,
    title: str = "",
    xlabel: str = "first input",
    ylabel: str = "second input",
    legend: bool = True,
) -> Axes:
    """Draw the act at each point of a grid as a region of its colour; grey is the region of no act.

    Args:
        x: increasing places of the columns of the grid, (columns,), 2 or more.
        y: increasing places of its rows, (rows,), 2 or more.
        acts: the act at each point, (rows, columns), whole numbers; -1 is no act.
        ax: where to draw; by default a new figure.
        names: of the acts; by default "act 0", "act 1", ...
        abstained: what no act is called.
        points: rows of data to draw over the regions, (n, 2).
        classes: their classes, (n,), which set marks and colours: class k has the colour of act k.
        class_names: of the classes; by default "class 0", "class 1", ...
        title: above the picture.
        xlabel: below it.
        ylabel: beside it.
        legend: whether to say what the colours mean.

    Raises:
        ShapeError: arguments of other shapes, or too few names.
        SupportError: acts or classes that are not whole numbers of -1, or 0, and more.
        NotFiniteError: NaN or infinite places.
        ValueError: places that do not increase.
    """
    columns, rows = _places("x", x), _places("y", y)
    table = _whole("acts", acts, -1)
    if table.shape != (len(rows), len(columns)):
        raise ShapeError(f"`acts` must have shape ({len(rows)}, {len(columns)}), as y and x; got {table.shape}")
    labels = _named("names", names, "act", int(table.max()) + 1)
    marks = None if points is None else _points(points, classes)
    kinds = [] if marks is None else _named("class_names", class_names, "class", int(marks[2].max()) + 1)
    ax = axes_of(ax, width=5.0, height=4.6)
    colors = _colors(max(len(labels), len(kinds)))
    _regions(ax, columns, rows, table, [*labels, abstained], colors)
    if marks is not None:
        _marks(ax, marks, kinds if classes is not None else ["data"], colors if classes is not None else [to_rgb(INK)])
    ax.set(xlim=(columns[0], columns[-1]), ylim=(rows[0], rows[-1]), xlabel=xlabel, ylabel=ylabel)
    quiet(ax)
    dress(ax, title=title, legend=legend)
    return ax


def _regions(
    ax: Axes,
    columns: Numbers,
    rows: Numbers,
    table: npt.NDArray[np.int64],
    labels: Sequence[str],
    colors: Sequence[Color],
) -> None:
    """Tinted fields with lines between them, and keys for those that occur."""
    tints = [*(_tint(color) for color in colors[: len(labels) - 1]), to_rgb(PALE)]
    codes = np.where(table < 0, len(labels) - 1, table)
    ax.pcolormesh(
        columns,
        rows,
        codes,
        cmap=ListedColormap(tints),
        vmin=-0.5,
        vmax=len(tints) - 0.5,
        shading="nearest",
        rasterized=True,
        zorder=1,
    )
    for code in np.unique(codes):
        inside = (codes == code).astype(float)
        if 0 < inside.mean() < 1:
            ax.contour(columns, rows, inside, [0.5], colors=INK, linewidths=0.5, zorder=2)
        ax.scatter([], [], 70, marker="s", color=tints[code], edgecolor=INK, linewidth=0.5, label=labels[code])


def _marks(
    ax: Axes,
    marks: tuple[Numbers, Numbers, npt.NDArray[np.int64]],
    kinds: Sequence[str],
    colors: Sequence[Color],
) -> None:
    across, up, which = marks
    size = float(np.clip(4000 / len(across), 13, 26))
    for index, kind in enumerate(kinds):
        some = which == index
        if some.any():
            ax.scatter(
                across[some],
                up[some],
                size,
                marker=_MARKERS[index % len(_MARKERS)],
                color=_shade(colors[index]),
                edgecolor="white",
                linewidth=0.02 * size,
                zorder=3,
                label=kind,
            )


def _places(name: str, values: ArrayLike) -> Numbers:
    places = column(name, values)
    if len(places) < 2:
        raise ShapeError(f"`{name}` must have 2 places or more; got {len(places)}")
    if not bool((np.diff(places) > 0).all()):
        raise ValueError(f"`{name}` must increase")
    return places


def _points(points: ArrayLike, classes: ArrayLike | None) -> tuple[Numbers, Numbers, npt.NDArray[np.int64]]:
    table = as_tensor(points)
    if table.dim() != 2 or table.shape[1] != 2:
        raise ShapeError(f"`points` must have shape (n, 2); got {tuple(table.shape)}")
    across, up = column("points", table[:, 0]), column("points", table[:, 1])
    which = np.zeros(len(across), dtype=np.int64) if classes is None else _whole("classes", classes, 0)
    if which.shape != across.shape:
        raise ShapeError(f"`classes` must have shape ({len(across)},), one a point; got {which.shape}")
    return across, up, which


def _whole(name: str, values: ArrayLike, lowest: int) -> npt.NDArray[np.int64]:
    given = as_tensor(values).detach().cpu()
    whole = given.long()
    if not given.numel():
        raise ShapeError(f"`{name}` must not be empty; got shape {tuple(given.shape)}")
    if bool(((whole != given) | (whole < lowest)).any()):
        raise SupportError(f"`{name}` must be whole numbers, {lowest} or more")
    return np.array(whole.numpy())


def _named(argument: str, names: Sequence[str] | None, noun: str, count: int) -> list[str]:
    if names is None:
        return [f"{noun} {index}" for index in range(count)]
    if len(names) < count:
        raise ShapeError(f"`{argument}` must name {count}; got {len(names)}")
    return [str(name) for name in names]


def _colors(count: int) -> list[Color]:
    palette = sns.color_palette("colorblind", count) if count <= _PALETTE else sns.color_palette("husl", count)
    return [(float(red), float(green), float(blue)) for red, green, blue in palette]


def _tint(color: Color) -> Color:
    """The colour, as pale as a background must be."""
    red, green, blue = (1 - _TINT * (1 - part) for part in color)
    return red, green, blue


def _shade(color: Color) -> Color:
    """The colour, dark enough for points on its own region."""
    red, green, blue = (_SHADE * part for part in color)
    return red, green, blue
