"""How large prediction sets are, and which sizes miss."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from credibly.core.checks import as_tensor, check_same_rows
from credibly.core.errors import ShapeError, SupportError
from credibly.core.typing import ArrayLike
from credibly.plots.columns import Numbers, column
from credibly.plots.series import named, series_color
from credibly.plots.style import ALARM, DATA, axes_of, quiet
from credibly.plots.words import dress, write

__all__ = ["set_sizes"]

_MOST_BARS = 40


def set_sizes(
    sizes: ArrayLike | Mapping[str, ArrayLike],
    ax: Axes | None = None,
    *,
    contained: ArrayLike | None = None,
    title: str = "",
    xlabel: str = "classes in the set",
    ylabel: str = "share of rows",
    legend: bool = True,
) -> Axes:
    """Draw the share of rows by the size of their set, and the mean size.

    Sizes above 40 are counted in groups of equal width. Several methods stand side by side.

    Args:
        sizes: the number of classes in each set, (rows,), such as `PredictionSets.size`; of several methods by name.
        ax: where to draw; by default a new figure.
        contained: whether each set holds its target, (rows,): the sets that miss are red. Of one method only.
        title: above the picture.
        xlabel: below it.
        ylabel: beside it.
        legend: whether to say what the colours mean.

    Raises:
        ShapeError: arguments of other lengths, or no rows.
        SupportError: sizes that are not whole numbers, 0 or more.
        ValueError: `contained` of several methods.
    """
    methods = {name: _whole(values) for name, values in named("sizes", sizes, "sets").items()}
    if contained is not None and len(methods) > 1:
        raise ValueError(f"`contained` goes with the sets of one method; got {list(methods)}")
    first = next(iter(methods.values()))
    held = np.ones(len(first), dtype=bool) if contained is None else _held(contained, len(first))
    largest = max(int(values.max()) for values in methods.values())
    step = -(-(largest + 1) // _MOST_BARS)
    width = 0.86 * step / len(methods)
    ax = axes_of(ax, width=5.0, height=3.6)
    for index, (name, values) in enumerate(methods.items()):
        places = np.arange(0, largest + 1, step) + (step - 1) / 2 + (index - (len(methods) - 1) / 2) * width
        color = DATA if len(methods) == 1 else series_color(index)
        kept = held if contained is not None else np.ones(len(values), dtype=bool)
        right = _shares(values[kept], largest, step, len(values))
        mean = f"mean size {values.mean():.3g}"
        key = "holds its target" if contained is not None else mean if len(methods) == 1 else f"{name}, {mean}"
        ax.bar(places, right, width, color=color, linewidth=0, zorder=2, label=key)
        if contained is not None:
            missed = _shares(values[~kept], largest, step, len(values))
            ax.bar(places, missed, width, bottom=right, color=ALARM, linewidth=0, zorder=2, label="misses it")
            write(ax, f"{mean}, {100 * held.mean():.1f} % hold their target", 0.99, 0.98, "right", "top")
    _frame(ax, largest, step, xlabel, ylabel)
    dress(ax, title=title, legend=legend)
    return ax


def _frame(ax: Axes, largest: int, step: int, xlabel: str, ylabel: str) -> None:
    top = max(patch.get_y() + patch.get_height() for patch in ax.patches)  # type: ignore[attr-defined]
    ax.set(xlim=(-0.6, largest + 0.6 + step - 1), ylim=(0, 1.18 * top), xlabel=xlabel, ylabel=ylabel)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    quiet(ax)


def _whole(values: ArrayLike) -> npt.NDArray[np.int64]:
    sizes = column("sizes", values)
    if bool(((sizes < 0) | (sizes % 1 != 0)).any()):
        raise SupportError("`sizes` must be whole numbers, 0 or more")
    return sizes.astype(np.int64)


def _held(contained: ArrayLike, rows: int) -> npt.NDArray[np.bool_]:
    values = as_tensor(contained).detach().cpu()
    if values.dim() != 1:
        raise ShapeError(f"`contained` must have shape (rows,); got {tuple(values.shape)}")
    check_same_rows("contained", len(values), "sizes", rows)
    return np.array(values.bool().numpy())


def _shares(sizes: npt.NDArray[np.int64], largest: int, step: int, rows: int) -> Numbers:
    counts = np.bincount(sizes // step, minlength=largest // step + 1)
    return np.asarray(counts / rows)
