"""Prediction intervals beside what came, rows in order of the prediction, misses in red."""

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes

from credibly.core.checks import as_tensor, check_finite, check_same_rows
from credibly.core.errors import ShapeError
from credibly.core.typing import ArrayLike
from credibly.plots.style import ALARM, DATA, INK, axes_of, quiet
from credibly.plots.words import keys_below, wrapped

__all__ = ["prediction_intervals"]

_MOST_ROWS = 300  # more run into each other


def prediction_intervals(
    lower: ArrayLike,
    upper: ArrayLike,
    targets: ArrayLike,
    ax: Axes | None = None,
    *,
    centers: ArrayLike | None = None,
    title: str = "",
    xlabel: str = "rows, in order of their prediction",
    ylabel: str = "target",
    legend: bool = True,
) -> Axes:
    """Draw each row's closed interval and its target.

    The line on top names the share of targets inside, with the count, and the mean width. Of more than 300 rows so many
    are drawn, evenly spaced in order, and the label below says so; the line on top is about all. An infinite end
    reaches the edge of the picture; an empty interval (NaN or crossed ends) is not drawn, and a miss.

    Args:
        lower: lower ends, (rows,).
        upper: upper ends, (rows,).
        targets: what came, (rows,).
        ax: where to draw; by default a new figure.
        centers: point predictions, (rows,), by which the rows are sorted and which are marked; by default rows are
            sorted by the middle of their interval, those without one last, and nothing is marked.
        title: above the picture.
        xlabel: below it.
        ylabel: beside it.
        legend: whether to say what the marks mean.

    Raises:
        ShapeError: the arguments are not one number per row, or there are no rows.
        NotFiniteError: a target is NaN or infinite.
    """
    low, high, values = _column("lower", lower), _column("upper", upper), _column("targets", targets)
    marks = None if centers is None else _column("centers", centers)
    for name, column in (("upper", high), ("targets", values), ("centers", values if marks is None else marks)):
        check_same_rows(name, len(column), "lower", len(low))
    if not len(low):
        raise ShapeError("a picture of intervals needs at least one row; `lower` is empty")
    check_finite("targets", as_tensor(targets))
    empty = ~(low <= high) | np.isposinf(low) | np.isneginf(high)
    low, high = np.where(empty, np.nan, low), np.where(empty, np.nan, high)
    hit = (low <= values) & (values <= high)
    summary = _summary(low, high, hit)
    order = np.argsort(_middles(low, high) if marks is None else marks, kind="stable")
    if len(order) > _MOST_ROWS:
        xlabel = f"{xlabel} ({_MOST_ROWS} of {len(order):,}, evenly spaced)"
        order = order[np.linspace(0, len(order) - 1, _MOST_ROWS).round().astype(int)]
    low, high, values, hit = low[order], high[order], values[order], hit[order]
    ax = axes_of(ax, width=7.5, height=4.2)
    _draw(ax, low, high, values, hit)
    if marks is not None:
        rows = np.arange(len(values))
        ax.plot(rows, marks[order], color=INK, linewidth=1.1, zorder=3, label="prediction")
    ax.set(xlabel=xlabel, ylabel=ylabel, xlim=(-1, len(values)))
    quiet(ax)
    ax.text(0, 1.02, summary, transform=ax.transAxes, fontsize="small", color=INK)
    if title:
        ax.set_title(wrapped(ax, title), loc="left", pad=19)
    if legend:
        keys_below(ax)
    return ax


def _column(name: str, values: ArrayLike) -> npt.NDArray[np.float64]:
    tensor = as_tensor(values).detach().cpu().double()
    if tensor.dim() == 2 and tensor.shape[1] == 1:
        tensor = tensor.squeeze(1)
    if tensor.dim() != 1:
        raise ShapeError(f"`{name}` must have shape (rows,); got {tuple(tensor.shape)}")
    column: npt.NDArray[np.float64] = tensor.numpy()
    return column


def _middles(low: npt.NDArray[np.float64], high: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Midpoints; the finite end of half-infinite intervals; infinity, which sorts last, of whole and empty ones."""
    left = np.where(np.isfinite(low), low, high)
    right = np.where(np.isfinite(high), high, low)
    known = np.isfinite(left) & np.isfinite(right)
    return np.where(known, (np.where(known, left, 0) + np.where(known, right, 0)) / 2, np.inf)


def _draw(
    ax: Axes,
    low: npt.NDArray[np.float64],
    high: npt.NDArray[np.float64],
    values: npt.NDArray[np.float64],
    hit: npt.NDArray[np.bool_],
) -> None:
    rows = np.arange(len(values))
    finite = np.concatenate([values, low[np.isfinite(low)], high[np.isfinite(high)]])
    reach = np.ptp(finite) + 1.0
    bottom, top = np.maximum(low, finite.min() - reach), np.minimum(high, finite.max() + reach)
    thick = float(np.clip(300 / len(rows), 0.8, 4.0))
    size = float(np.clip(300 / len(rows), 2.0, 4.5))
    ax.set_ylim(finite.min() - 0.04 * reach, finite.max() + 0.04 * reach)
    for chosen, color, interval, target in (
        (hit, DATA, "interval", "target inside"),
        (~hit, ALARM, "", "target outside"),
    ):
        drawn = chosen & ~np.isnan(low) & ~np.isnan(high)
        ax.vlines(rows[drawn], bottom[drawn], top[drawn], color=color, linewidth=thick, alpha=0.3, label=interval)
        ax.plot(rows[chosen], values[chosen], "o", color=color, markersize=size, zorder=4, label=target)


def _summary(low: npt.NDArray[np.float64], high: npt.NDArray[np.float64], hit: npt.NDArray[np.bool_]) -> str:
    width = np.nan_to_num(high - low, nan=0.0, posinf=np.inf).mean()
    return f"{hit.sum()} of {len(hit)} inside ({100 * hit.mean():.1f} %), mean width {width:.4g}"
