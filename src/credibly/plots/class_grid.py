"""A small reliability diagram for each class, on the same axes."""

import textwrap
from collections.abc import Sequence
from math import ceil, sqrt
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes

from credibly.core.errors import ShapeError
from credibly.metrics.bins import BinTable
from credibly.plots.columns import check_table
from credibly.plots.reliability import reliability_diagram

__all__ = ["class_reliability_grid"]

_MOST_COLUMNS = 5


def class_reliability_grid(
    table: BinTable,
    names: Sequence[str] | None = None,
    axes: npt.NDArray[Any] | Sequence[Axes] | None = None,
    *,
    title: str = "",
    band: float | None = 0.95,
    counts: bool = True,
    legend: bool = True,
) -> npt.NDArray[np.object_]:
    """Draw the reliability diagram of the event "it is this class" for every class.

    Args:
        table: of all classes, from `metrics.classwise_bins`: attributes of shape (classes, ...).
        names: of the classes; by default "class 0", "class 1", ...
        axes: where to draw, at least one Axes a class, in any arrangement; by default a new figure. Spare ones are left
            as they are.
        title: above a figure of its own.
        band: probability of the consistency band of each bin; None leaves it out.
        counts: whether to draw strips of counts, all on one scale.
        legend: whether to say, below a figure of its own, what the marks mean.

    Returns:
        The Axes, one a class: (classes,).

    Raises:
        ShapeError: a table of one class without a leading axis, or without classes or forecasts; other numbers of names
            or Axes.
        TypeError: another object than such a table.
    """
    tables = _by_class(table)
    labels = [f"class {index}" for index in range(len(tables))] if names is None else [str(name) for name in names]
    if len(labels) != len(tables):
        raise ShapeError(f"`names` must name {len(tables)} classes; got {len(labels)}")
    own = axes is None
    cells = _new_axes(len(tables)) if own else np.array(axes, dtype=object).ravel()
    if len(cells) < len(tables):
        raise ShapeError(f"`axes` must hold at least {len(tables)} Axes, one a class; got {len(cells)}")
    cells = cells[: len(tables)]
    most = max(float(one.counts.max()) for one in tables)
    for ax, one, label in zip(cells, tables, labels, strict=True):
        reliability_diagram(one, ax, title=label, band=band, counts=counts, legend=False)
        for strip in ax.child_axes:
            strip.set_ylim(0.5, 3.0 * max(most, 10))
            strip.set_ylabel("")
            strip.set_yticks(strip.get_yticks()[-1:], labels=[strip.get_yticklabels()[-1].get_text()])
    _label_outer(cells)
    if own:
        _frame(cells, title, legend)
    return cells


def _by_class(table: BinTable) -> list[BinTable]:
    check_table("table", table, BinTable, "metrics.classwise_bins")
    columns = (table.edges, table.counts, table.confidence, table.frequency)
    if any(part.dim() != 2 for part in columns) or not len(table.counts):
        raise ShapeError(
            "`table` must hold one row of bins a class, (classes, num_bins), as metrics.classwise_bins gives it; "
            f"got counts of shape {tuple(table.counts.shape)}"
        )
    return [BinTable(*parts) for parts in zip(*columns, strict=True)]


def _new_axes(number: int) -> npt.NDArray[np.object_]:
    """So many Axes in rows of at most five, or in a square."""
    rows = ceil(number / max(_MOST_COLUMNS, ceil(sqrt(number))))
    columns = ceil(number / rows)
    size = 2.2 if number > 1 else 3.4
    figure, axes = plt.subplots(
        rows,
        columns,
        figsize=(size * columns + 0.5, 1.2 * size * rows + 0.7),
        squeeze=False,
        layout="constrained",
    )
    for spare in axes.flat[number:]:
        figure.delaxes(spare)
    cells: npt.NDArray[np.object_] = axes.ravel()[:number]
    return cells


def _label_outer(cells: npt.NDArray[np.object_]) -> None:
    """Labels and numbers on the left of each row and at the foot of each column only."""
    places = [ax.get_subplotspec() for ax in cells]
    for ax, place in zip(cells, places, strict=True):
        if place is None:
            continue
        same = [other for other in places if other is not None and other.get_gridspec() is place.get_gridspec()]
        if any(set(place.rowspan) & set(o.rowspan) and o.colspan.stop <= place.colspan.start for o in same):
            ax.set_ylabel("")
            ax.tick_params(axis="y", labelleft=False)
        if any(set(place.colspan) & set(o.colspan) and o.rowspan.start >= place.rowspan.stop for o in same):
            ax.set_xlabel("")
            ax.tick_params(axis="x", labelbottom=False)


def _frame(cells: npt.NDArray[np.object_], title: str, legend: bool) -> None:
    """Title and keys of the whole figure."""
    figure = cells[0].figure
    if title:
        letters = int(72 * figure.get_size_inches()[0] / 6.5)
        figure.suptitle("\n".join(textwrap.wrap(title, letters)))
    if legend:
        handles, labels = cells[0].get_legend_handles_labels()
        figure.legend(
            handles,
            labels,
            loc="outside lower center",
            ncols=len(labels),
            frameon=False,
            fontsize="small",
            handlelength=1.2,
        )
