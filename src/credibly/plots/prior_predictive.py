"""What a model believes before it has seen data: the functions, and the targets, that its prior makes.

"Visualization in Bayesian Workflow" (Gabry, Simpson, Vehtari, Betancourt, Gelman, 2019). Draws of a posterior can be
drawn in the same way.
"""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from credibly.core.checks import check_count, check_same_rows
from credibly.core.errors import ShapeError
from credibly.core.typing import ArrayLike
from credibly.plots.columns import Numbers, column, table_of_draws
from credibly.plots.style import DATA, INK, SECOND, axes_of, quiet
from credibly.plots.words import dress, write

__all__ = ["prior_predictive", "prior_predictive_histogram"]


def prior_predictive(
    inputs: ArrayLike,
    draws: ArrayLike,
    ax: Axes | None = None,
    *,
    observed: tuple[ArrayLike, ArrayLike] | None = None,
    levels: Sequence[float] = (0.5, 0.9),
    num_functions: int = 10,
    title: str = "",
    xlabel: str = "input",
    ylabel: str = "target",
    legend: bool = True,
) -> Axes:
    """Draw functions against one input, with the bands that hold the given shares of all draws at each input.

    The picture is as high as the widest band and the observed rows; what runs out of it is cut off.

    Args:
        inputs: one number a row, (rows,), of at least two different ones; rows are sorted by it.
        draws: functions at these inputs, (num_draws, rows): means, or targets, of each draw of the weights.
        ax: where to draw; by default a new figure.
        observed: inputs and targets of rows to set beside them, each (rows,).
        levels: shares of the draws in the bands.
        num_functions: how many draws, evenly spaced, are drawn as lines.
        title: above the picture.
        xlabel: below it.
        ylabel: beside it.
        legend: whether to say what the marks mean.

    Raises:
        ShapeError: shapes that do not fit, nothing to draw, or one input only.
        NotFiniteError: NaN or infinite values.
        ValueError: a level outside (0, 1), or no levels; a number of functions below 1.
    """
    x, functions = column("inputs", inputs), table_of_draws("draws", draws)
    check_same_rows("draws", functions.shape[1], "inputs", len(x))
    if x.min() == x.max():
        raise ShapeError("`inputs` must hold at least two different inputs to draw a function")
    if not levels or not all(0 < level < 1 for level in levels):
        raise ValueError(f"`levels` must lie between 0 and 1, and be at least one; got {tuple(levels)}")
    order = np.argsort(x, kind="stable")
    x, functions = x[order], functions[:, order]
    ax = axes_of(ax, width=5.5, height=3.9)
    inside = [_draw_bands(ax, x, functions, sorted(levels, reverse=True))]
    for label, which in zip(["draws"] + [None] * len(functions), _evenly(len(functions), num_functions), strict=False):
        ax.plot(x, functions[which], color=INK, linewidth=0.8, alpha=0.7, zorder=3, label=label)
    if observed is not None:
        points = _observed(observed)
        ax.plot(
            *points,
            "o",
            color=SECOND,
            markersize=5,
            markeredgecolor="white",
            markeredgewidth=0.6,
            zorder=4,
            label="observed",
        )
        inside.append(points[1])
    ax.set(xlim=_stretched(x if observed is None else np.concatenate([x, points[0]]), 0.0))
    ax.set(ylim=_stretched(np.concatenate(inside), 0.12), xlabel=xlabel, ylabel=ylabel)
    quiet(ax)
    dress(ax, title=title, legend=legend)
    return ax


def _draw_bands(ax: Axes, x: Numbers, functions: Numbers, levels: list[float]) -> Numbers:
    """The bands, widest first and darker inwards: the ends of the widest."""
    ends = [np.quantile(functions, [(1 - level) / 2, (1 + level) / 2], axis=0) for level in levels]
    for level, (low, high) in zip(levels, ends, strict=True):
        ax.fill_between(
            x, low, high, color=DATA, alpha=0.22, linewidth=0, zorder=1, label=f"{100 * level:g} % of draws"
        )
    ax.plot(x, np.median(functions, axis=0), color=DATA, linewidth=1.6, zorder=2, label="median")
    return ends[0].ravel()


def _evenly(size: int, number: int) -> list[int]:
    """Places of so many draws, evenly spaced."""
    number = min(check_count("num_functions", number), size)
    return [index * size // number for index in range(number)]


def _observed(observed: tuple[ArrayLike, ArrayLike]) -> tuple[Numbers, Numbers]:
    x, y = column("observed inputs", observed[0]), column("observed targets", observed[1])
    check_same_rows("observed targets", len(y), "observed inputs", len(x))
    return x, y


def _stretched(values: Numbers, share: float) -> tuple[float, float]:
    low, high = float(values.min()), float(values.max())
    margin = share * (high - low) if high > low else 1.0
    return low - margin, high + margin


def prior_predictive_histogram(
    draws: ArrayLike,
    ax: Axes | None = None,
    *,
    observed: ArrayLike | None = None,
    num_bins: int = 30,
    level: float = 0.9,
    title: str = "",
    xlabel: str = "target",
    legend: bool = True,
) -> Axes:
    """Draw histograms of predicted data sets: their mean, the band of most of them, and what was observed.

    Draws and observed targets that are whole numbers are counted at whole numbers. The picture spans the central 99 %
    of all draws and everything observed; a line on top says what share of the draws lies outside.

    Args:
        draws: predicted targets, (num_draws, rows): each draw is one data set.
        ax: where to draw; by default a new figure.
        observed: targets, (rows,); their number may differ.
        num_bins: how many bins, at most.
        level: the share of the data sets' histograms inside the band, in each bin by itself.
        title: above the picture.
        xlabel: below it.
        legend: whether to say what the marks mean.

    Raises:
        ShapeError: shapes that do not fit, or nothing to draw.
        NotFiniteError: NaN or infinite values.
        ValueError: a level outside (0, 1), or a number of bins below 1.
    """
    predicted = table_of_draws("draws", draws)
    targets = None if observed is None else column("observed", observed)
    if not 0 < level < 1:
        raise ValueError(f"`level` must lie between 0 and 1; got {level}")
    edges = _edges(predicted, targets, check_count("num_bins", num_bins))
    shares = np.stack([_shares(row, edges) for row in predicted])
    low, high = np.quantile(shares, [(1 - level) / 2, (1 + level) / 2], axis=0)
    ax = axes_of(ax, width=5.5, height=3.9)
    name = f"{100 * level:g} % of data sets"
    ax.bar(edges[:-1], high - low, np.diff(edges), low, align="edge", color=DATA, alpha=0.25, linewidth=0, label=name)
    ax.stairs(shares.mean(0), edges, color=DATA, linewidth=1.6, zorder=3, label="predicted")
    if targets is not None:
        ax.stairs(_shares(targets, edges), edges, color=SECOND, linewidth=1.6, zorder=4, label="observed")
    ax.set(xlim=(edges[0], edges[-1]), xlabel=xlabel, ylabel="density")
    ax.set_ylim(0, 1.12 * ax.get_ylim()[1])
    quiet(ax)
    outside = 1 - float((shares * np.diff(edges)).sum(1).mean())
    if outside > 5e-4:
        write(ax, f"{100 * outside:.2g} % of draws outside", 0.99, 0.98, "right", "top", weight="normal")
    dress(ax, title=title, legend=legend)
    return ax


def _edges(predicted: Numbers, targets: Numbers | None, num_bins: int) -> Numbers:
    """Bins over most of what is predicted and all that was observed, around whole numbers where all are whole."""
    ends = np.quantile(predicted, [0.005, 0.995])
    parts = [ends] if targets is None else [ends, targets]
    low, high = float(np.concatenate(parts).min()), float(np.concatenate(parts).max())
    whole = all(bool((part == np.floor(part)).all()) for part in (predicted, *(parts[1:])))
    if whole:
        width = max(1, int(np.ceil((high - low + 1) / num_bins)))
        return np.arange(np.floor(low) - 0.5, high + width, width, dtype=np.float64)
    if low == high:
        low, high = low - 0.5, high + 0.5
    return np.linspace(low, high, num_bins + 1)


def _shares(values: Numbers, edges: Numbers) -> Numbers:
    """The density of the values in each bin; values outside count too, so that it may integrate to less than 1."""
    counts: Numbers = np.histogram(values, edges)[0] / (len(values) * np.diff(edges))
    return counts
