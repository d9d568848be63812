"""The calibration curve of numbers and counts: how often targets fell below, or inside, what was forecast for them.

"Accurate Uncertainties for Deep Learning Using Calibrated Regression" (Kuleshov, Fenner, Ermon, 2018), with the exact
interval of every observed fraction.
"""

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes

from credibly.metrics.regression_calibration import CalibrationCurve
from credibly.plots.columns import Numbers, check_table, column
from credibly.plots.series import named, series_color, series_line
from credibly.plots.style import INK, axes_of, quiet
from credibly.plots.words import dress, note

__all__ = ["calibration_curve"]


def calibration_curve(
    tables: CalibrationCurve | Mapping[str, CalibrationCurve],
    ax: Axes | None = None,
    *,
    title: str = "",
    xlabel: str = "nominal level",
    ylabel: str = "observed fraction",
    simultaneous: bool = False,
    legend: bool = True,
) -> Axes:
    """Draw the observed fraction of targets at each nominal level, with its interval, and the diagonal.

    An S through the middle of a one-sided curve is a spread that is wrong, a curve on one side of the diagonal a bias;
    a central curve below the diagonal is overconfidence.

    Args:
        tables: from `metrics.one_sided_calibration_curve` or `metrics.central_calibration_curve`; several by name.
        ax: where to draw; by default a new figure.
        title: above the picture.
        xlabel: below it.
        ylabel: beside it.
        simultaneous: a band that holds the whole true curve, in place of exact intervals of each point by itself.
        legend: whether to say what the marks mean.

    Raises:
        ShapeError: a table without levels, or no table.
        NotFiniteError: a table with NaN.
        TypeError: another object than such a table.
    """
    curves = named("tables", tables, "observed")
    columns = {name: _columns(table, simultaneous) for name, table in curves.items()}
    ax = axes_of(ax, width=4.2, height=4.6)
    drawn = ax.plot([0, 1], [0, 1], color=INK, linewidth=0.9, linestyle=(0, (5, 3)), zorder=2)
    shape = "band" if simultaneous else "interval"
    for index, (name, (levels, observed, low, high)) in enumerate(columns.items()):
        color = series_color(index)
        label = f"{100 * curves[name].confidence:g} % {shape}" if len(curves) == 1 else None
        ax.fill_between(levels, low, high, color=color, alpha=0.22, linewidth=0, zorder=1, label=label)
        drawn += ax.plot(
            levels,
            observed,
            color=color,
            linewidth=1.4,
            linestyle=series_line(index),
            marker="o",
            markersize=float(np.clip(60 / len(levels), 1.5, 4)),
            zorder=3,
            label=name,
        )
    for artist in drawn:
        artist.set_clip_on(False)  # points at 0 and 1 are drawn whole
    ax.set(xlim=(0, 1), ylim=(0, 1), xlabel=xlabel, ylabel=ylabel)
    ax.set_box_aspect(1)
    quiet(ax)
    sizes = {table.num_values for table in curves.values()}
    if len(sizes) == 1:
        note(
            ax,
            f"n = {sizes.pop():,}",
            *np.concatenate([ends for part in columns.values() for ends in (part[[0, 2]], part[[0, 3]])], 1),
        )
    dress(ax, title=title, legend=legend)
    return ax


def _columns(table: CalibrationCurve, simultaneous: bool) -> Numbers:
    """Levels, observed fractions, lower and upper ends, (4, levels)."""
    check_table("tables", table, CalibrationCurve, "metrics.one_sided_calibration_curve or central_calibration_curve")
    low, high = table.simultaneous() if simultaneous else (table.lower, table.upper)
    parts = {"levels": table.levels, "observed": table.observed, "lower": low, "upper": high}
    return np.stack([column(name, part) for name, part in parts.items()])
