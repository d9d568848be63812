"""How wide intervals are where they should be wide: widths against a measure of difficulty."""

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes

from credibly.core.checks import as_tensor, check_count, check_same_rows
from credibly.core.errors import NotFiniteError, ShapeError
from credibly.core.typing import ArrayLike
from credibly.plots.columns import Numbers, column
from credibly.plots.style import ALARM, DATA, INK, axes_of, quiet
from credibly.plots.words import dress

__all__ = ["widths_against_difficulty"]


def widths_against_difficulty(
    widths: ArrayLike,
    difficulty: ArrayLike,
    ax: Axes | None = None,
    *,
    contained: ArrayLike | None = None,
    num_bins: int = 10,
    title: str = "",
    xlabel: str = "difficulty",
    ylabel: str = "width of the interval",
    legend: bool = True,
) -> Axes:
    """Draw the width of each interval against how difficult its row is, and the median width of bins of equal mass.

    A flat line is an interval that does not adapt. Misses that gather on one side are rows whose intervals are too
    narrow there. An infinite width is a triangle at the upper edge.

    Args:
        widths: of the intervals, or measures of other regions, (rows,).
        difficulty: of the rows: an absolute residual, a predicted spread, a feature, (rows,).
        ax: where to draw; by default a new figure.
        contained: whether each interval holds its target, (rows,): those that miss are red.
        num_bins: how many bins the line has, at most; none of fewer than 5 rows.
        title: above the picture.
        xlabel: below it.
        ylabel: beside it.
        legend: whether to say what the marks mean.

    Raises:
        ShapeError: arguments of other lengths, or no rows.
        NotFiniteError: NaN or infinite difficulty; NaN widths.
        ValueError: negative widths.
    """
    check_count("num_bins", num_bins)
    wide, hard = column("widths", widths, finite=False), column("difficulty", difficulty)
    if np.isnan(wide).any():
        raise NotFiniteError(f"`widths` must not be NaN; {int(np.isnan(wide).sum())} of {len(wide)} values are")
    if (wide < 0).any():
        raise ValueError(f"`widths` must be 0 or more; got {wide.min():g}")
    check_same_rows("difficulty", len(hard), "widths", len(wide))
    held = np.ones(len(wide), dtype=bool) if contained is None else _held(contained, len(wide))
    ax = axes_of(ax, width=5.0, height=3.8)
    finite = np.isfinite(wide)
    top = 1.08 * float(wide[finite].max(initial=0.0)) or 1.0
    size, alpha = float(np.clip(4000 / len(wide), 6, 22)), 0.5 if len(wide) > 200 else 0.8
    _points(ax, hard, wide, held & finite, DATA, size, alpha, "interval")
    _points(ax, hard, wide, ~held & finite, ALARM, 1.6 * size, 1.0, "misses its target")
    if not finite.all():
        edge = np.full(int((~finite).sum()), top)
        ax.scatter(hard[~finite], edge, 26, color=INK, marker="^", clip_on=False, zorder=4, label="infinite")
    centers, middles = _medians(hard, wide, num_bins)
    ax.plot(centers, np.minimum(middles, top), color=INK, linewidth=1.5, zorder=3, label="median of a bin")
    ax.set(ylim=(0, top), xlabel=xlabel, ylabel=ylabel)
    quiet(ax)
    dress(ax, title=title, legend=legend)
    return ax


def _points(
    ax: Axes,
    hard: Numbers,
    wide: Numbers,
    chosen: npt.NDArray[np.bool_],
    color: str | tuple[float, float, float],
    size: float,
    alpha: float,
    key: str,
) -> None:
    if chosen.any():
        ax.scatter(hard[chosen], wide[chosen], size, color=color, alpha=alpha, linewidth=0, zorder=2, label=key)


def _held(contained: ArrayLike, rows: int) -> npt.NDArray[np.bool_]:
    values = as_tensor(contained).detach().cpu()
    if values.dim() != 1:
        raise ShapeError(f"`contained` must have shape (rows,); got {tuple(values.shape)}")
    check_same_rows("contained", len(values), "widths", rows)
    return np.array(values.bool().numpy())


def _medians(hard: Numbers, wide: Numbers, num_bins: int) -> tuple[Numbers, Numbers]:
    """The median difficulty and width of bins of equal mass, in order."""
    order = np.argsort(hard, kind="stable")
    bins = np.array_split(order, max(1, min(num_bins, len(order) // 5)))
    return np.array([np.median(hard[b]) for b in bins]), np.array([_median(wide[b]) for b in bins])


def _median(values: Numbers) -> float:
    """The upper median, which is a value: halfway between a number and infinity there is nothing."""
    return float(np.sort(values)[len(values) // 2])
