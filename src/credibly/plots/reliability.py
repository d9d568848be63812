"""The reliability diagram: how often what was forecast with confidence c came true.

"Predicting Good Probabilities with Supervised Learning" (Niculescu-Mizil, Caruana, 2005), with the counts beside it and
the consistency band of "Increasing the Reliability of Reliability Diagrams" (Brocker, Smith, 2007).
"""

import numpy as np
import numpy.typing as npt
from matplotlib.artist import Artist
from matplotlib.axes import Axes

from credibly.core.errors import ShapeError
from credibly.metrics.bins import BinTable
from credibly.plots.bands import consistency_band
from credibly.plots.columns import check_table
from credibly.plots.style import ALARM, DATA, INK, PALE, axes_of, quiet
from credibly.plots.words import STRIP, dress, write

__all__ = ["reliability_diagram"]

_MANY = 20  # forecasts of a bin that are drawn at full width


def reliability_diagram(
    table: BinTable,
    ax: Axes | None = None,
    *,
    title: str = "",
    band: float | None = 0.95,
    counts: bool = True,
    legend: bool = True,
) -> Axes:
    """Draw the observed frequency of each bin against its mean confidence.

    A point stands for a bin that is not empty, its area growing with the bin's share of the forecasts; a red line for
    the bin's gap: from the diagonal, straight above or below, to the point. A grey bar is its consistency band: where
    the point would lie with this probability if the forecasts were calibrated (see `consistency_band`); a point outside
    is more than chance. The strip on top counts the forecasts of each bin, on a logarithmic scale.

    Args:
        table: the bins, from `metrics.top_label_bins` or `metrics.event_bins`.
        ax: where to draw; by default a new figure.
        title: above the counts.
        band: probability of the consistency band of each bin; None leaves it out.
        counts: whether to draw the strip of counts.
        legend: whether to say what the marks mean.

    Raises:
        ShapeError: a table of several classes, or without forecasts.
        TypeError: another object than such a table.
    """
    check_table("table", table, BinTable, "metrics.top_label_bins or metrics.event_bins")
    if table.counts.dim() != 1:
        raise ShapeError(
            f"`table` must be of one class, (num_bins,); got counts of shape {tuple(table.counts.shape)}; "
            "for a table of all classes see class_reliability_grid"
        )
    if not bool(table.counts.any()):
        raise ShapeError("a reliability diagram needs at least one forecast; `table` counts none")
    ax = axes_of(ax, width=4.2, height=5.4)
    some = (table.counts > 0).cpu().numpy()
    confidence, frequency = table.confidence.cpu().numpy()[some], table.frequency.cpu().numpy()[some]
    lowest = frequency
    drawn: list[Artist] = [*ax.plot([0, 1], [0, 1], color=INK, linewidth=0.9, linestyle=(0, (5, 3)), zorder=1)]
    drawn += _points(ax, confidence, frequency, (table.counts / table.counts.sum()).cpu().numpy()[some])
    weight = np.minimum(table.counts.cpu().numpy()[some] / _MANY, 1.0)
    drawn[-1].set_linewidth(0.5 + 1.1 * weight)  # type: ignore[attr-defined]
    if band is not None:
        low, high = (ends[some] for ends in consistency_band(table, band))
        lowest = np.minimum(low, frequency)
        name = f"{100 * band:g} % if calibrated"
        drawn.append(ax.vlines(confidence, low, high, color=PALE, linewidth=1.5 + 3.5 * weight, zorder=2, label=name))
    for artist in drawn:
        artist.set_clip_on(False)  # points at 0 and 1 are drawn whole
    ax.set(xlim=(0, 1), ylim=(0, 1), xlabel="confidence", ylabel="observed frequency")
    ax.set_box_aspect(1)
    quiet(ax)
    _corner(ax, f"ECE {float(table.error()):.3f}", lowest, confidence)
    if counts:
        _counts(table, ax)
    dress(ax, title=title, legend=legend, strip=counts)
    return ax


def _points(
    ax: Axes, confidence: npt.NDArray[np.float64], frequency: npt.NDArray[np.float64], share: npt.NDArray[np.float64]
) -> list[Artist]:
    """The observed frequencies, and how far they are from the diagonal. Few forecasts make a small point."""
    return [
        ax.scatter(
            confidence,
            frequency,
            16 + 30 * np.sqrt(share),
            color=DATA,
            edgecolor="white",
            linewidth=0.8,
            zorder=4,
            label="observed",
        ),
        ax.vlines(confidence, confidence, frequency, color=ALARM, linewidth=1.6, zorder=3, label="gap"),
    ]


def _corner(ax: Axes, text: str, lowest: npt.NDArray[np.float64], confidence: npt.NDArray[np.float64]) -> None:
    """A word in the lower right corner, or in the upper left one if something is drawn there."""
    taken = bool(((confidence > 0.5) & (lowest < 0.12)).any())
    write(ax, text, *((0.03, 0.97, "left", "top") if taken else (0.97, 0.03, "right", "bottom")))


def _counts(table: BinTable, ax: Axes) -> None:
    """A strip on top of the diagram, on the same bins."""
    strip = ax.inset_axes((0, 1.04, 1, STRIP - 0.04), sharex=ax)
    counts, edges = table.counts.cpu().numpy(), table.edges.cpu().numpy()
    some = counts > 0
    strip.bar(
        edges[:-1][some], counts[some], np.diff(edges)[some], align="edge", color=DATA, edgecolor="white", linewidth=0.6
    )
    strip.set_yscale("log")
    strip.set_ylim(0.5, 3.0 * max(counts.max(), 10))
    strip.set_ylabel("count", fontsize="small", rotation=0, ha="right", va="center")
    top = 10.0 ** np.floor(np.log10(max(counts.max(), 10)))
    strip.set_yticks([1, top], labels=["1", f"{top:,.0f}"])
    strip.tick_params(axis="y", labelsize="small")
    strip.tick_params(axis="x", labelbottom=False, length=0)
    strip.minorticks_off()
    quiet(strip)
