"""The histogram of the probability integral transform: flat for forecasts whose distributions are right.

"Probabilistic Forecasts, Calibration and Sharpness" (Gneiting, Balabdaoui, Raftery, 2007). If the forecasts are
calibrated, the count of a bin is Binomial(n, 1 / num_bins) distributed, exactly.
"""

import numpy as np
from matplotlib.axes import Axes

from credibly.metrics.regression_calibration import PITHistogram
from credibly.plots.columns import check_table, column
from credibly.plots.style import DATA, INK, PALE, axes_of, quiet, shared_top
from credibly.plots.words import dress, write

__all__ = ["pit_histogram"]


def pit_histogram(
    table: PITHistogram, ax: Axes | None = None, *, title: str = "", band: bool = True, legend: bool = True
) -> Axes:
    """Draw the count of each bin relative to the count expected of calibrated forecasts.

    The grey band runs from the least to the greatest count that agree with calibration, by the exact binomial law of
    each bin by itself: of 20 bins of calibrated forecasts one lies outside a 95 % band, about. A hump is a forecast too
    wide, a valley one too narrow, a slope a bias.

    Args:
        table: from `metrics.pit_histogram`, which sets the number of bins and the probability of the band.
        ax: where to draw; by default a new figure.
        title: above the picture.
        band: whether to draw the band.
        legend: whether to say what the marks mean.

    Raises:
        ShapeError: a table without bins.
        ValueError: a table that counts nothing.
        TypeError: another object than such a table.
    """
    check_table("table", table, PITHistogram, "metrics.pit_histogram")
    edges, counts = column("edges", table.edges), column("counts", table.counts)
    if not counts.sum() > 0:
        raise ValueError("`table` counts no values: there is nothing to draw")
    heights = counts / table.expected
    low, high = table.lower / table.expected, table.upper / table.expected
    ax = axes_of(ax, width=5.0, height=3.6)
    widths = np.diff(edges)
    ax.bar(
        edges[:-1],
        heights,
        widths,
        align="edge",
        color=DATA,
        alpha=0.6,
        edgecolor="white",
        linewidth=0.6,
        zorder=2,
        label="observed",
    )
    if band:
        name = f"{100 * table.confidence:g} % if calibrated"
        ax.axhspan(low, high, color=PALE, linewidth=0, zorder=1, label=name)
        for end in (low, high):
            ax.axhline(end, color=INK, linewidth=0.6, zorder=3)
    ax.axhline(1, color=INK, linewidth=0.9, linestyle=(0, (5, 3)), zorder=4)
    top = max(float(heights.max()), high if band else 1.0)
    ax.set(xlim=(0, 1), ylim=(0, shared_top(ax, 1.18 * top)))
    ax.set(xlabel="probability integral transform", ylabel="relative frequency")
    quiet(ax)
    write(ax, f"n = {int(counts.sum()):,}", 0.99, 0.98, "right", "top")
    dress(ax, title=title, legend=legend)
    return ax
