"""The reliability diagram without bins: a smooth curve with its band, and the density of the confidences.

"Smooth ECE: Principled Reliability Diagrams via Kernel Smoothing" (Blasiok, Nakkiran, 2023).
"""

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes

from credibly.metrics.smooth_curve import SmoothCurve
from credibly.plots.columns import Numbers, check_table, column
from credibly.plots.style import ALARM, DATA, INK, axes_of, quiet
from credibly.plots.words import STRIP, dress, note

__all__ = ["smooth_reliability"]

_SHORT = 0.02  # of the axis


def smooth_reliability(
    table: SmoothCurve,
    ax: Axes | None = None,
    *,
    title: str = "",
    band: bool = True,
    density: bool = True,
    legend: bool = True,
) -> Axes:
    """Draw the smoothed observed frequency against the confidence.

    The red area between curve and diagonal, weighted by the density of the confidences in the strip on top, is the
    smooth calibration error in the corner. Nothing is drawn where there are no forecasts nearby; a piece too short to
    be seen is a dot.

    Args:
        table: from `metrics.smooth_curve`, which sets the coverage of the band.
        ax: where to draw; by default a new figure.
        title: above the picture.
        band: whether to draw the bootstrap interval of each point.
        density: whether to draw the strip.
        legend: whether to say what the marks mean.

    Raises:
        ShapeError: a table without points.
        NotFiniteError: a density that is NaN.
        TypeError: another object than such a table.
    """
    check_table("table", table, SmoothCurve, "metrics.smooth_curve")
    confidence, heights = column("confidence", table.confidence), column("density", table.density)
    curve, low, high = (column("curve", part, finite=False) for part in (table.frequency, table.lower, table.upper))
    ax = axes_of(ax, width=4.2, height=5.6)
    ax.plot([0, 1], [0, 1], color=INK, linewidth=0.9, linestyle=(0, (5, 3)), zorder=2, clip_on=False)
    if band:
        name = f"{100 * table.coverage:g} % interval"
        ax.fill_between(confidence, low, high, color=DATA, alpha=0.25, linewidth=0, zorder=1, label=name)
    ax.fill_between(confidence, confidence, curve, color=ALARM, alpha=0.28, linewidth=0, zorder=3, label="gap")
    ax.plot(confidence, curve, color=DATA, linewidth=1.8, zorder=4, label="observed", clip_on=False)
    spots = _spots(confidence, curve)
    if len(spots):
        ax.plot(confidence[spots], curve[spots], "o", color=DATA, markersize=5, zorder=4, clip_on=False)
    ax.set(xlim=(0, 1), ylim=(0, 1), xlabel="confidence", ylabel="observed frequency")
    ax.set_box_aspect(1)
    quiet(ax)
    known = ~np.isnan(curve)
    x = np.concatenate([confidence[known]] * 2)
    y = np.concatenate([low[known], high[known]] if band else [curve[known]] * 2)
    note(ax, f"smECE {float(table.error):.3f}", x, y)
    if density:
        _strip(ax, confidence, heights)
    dress(ax, title=title, legend=legend, strip=density)
    return ax


def _spots(confidence: Numbers, curve: Numbers) -> npt.NDArray[np.int64]:
    """The middle points of pieces of the curve too short to be seen, as forecasts of exactly 0 and 1 leave."""
    known = np.concatenate([[False], ~np.isnan(curve), [False]])
    starts, ends = (np.flatnonzero(np.diff(known.astype(np.int8)) == step) for step in (1, -1))
    short = confidence[ends - 1] - confidence[starts] < _SHORT
    return (starts[short] + ends[short] - 1) // 2


def _strip(ax: Axes, confidence: Numbers, heights: Numbers) -> None:
    """The density on top of the diagram."""
    strip = ax.inset_axes((0, 1.04, 1, STRIP - 0.04), sharex=ax)
    strip.fill_between(confidence, 0, heights, color=DATA, linewidth=0)
    strip.set_ylim(0, 1.05 * max(float(heights.max()), 1e-12))
    strip.set_yticks([])
    strip.set_ylabel("density", fontsize="small", rotation=0, ha="right", va="center")
    strip.tick_params(axis="x", labelbottom=False, length=0)
    quiet(strip)
    strip.spines["left"].set_visible(False)
