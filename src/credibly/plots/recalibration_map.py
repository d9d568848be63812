"""What a recalibration does to a probability: the map, beside the diagonal of a map that does nothing."""

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes

from credibly.core.checks import check_same_rows
from credibly.core.errors import ShapeError
from credibly.core.typing import ArrayLike
from credibly.plots.columns import Numbers, column, table_of_draws
from credibly.plots.series import named, series_color, series_line
from credibly.plots.style import DATA, INK, axes_of, quiet
from credibly.plots.words import STRIP, dress

__all__ = ["recalibration_map"]

_ROUNDING = 1e-6
_BINS = 40


def recalibration_map(
    before: ArrayLike,
    after: ArrayLike | Mapping[str, ArrayLike],
    ax: Axes | None = None,
    *,
    draws: ArrayLike | None = None,
    coverage: float = 0.9,
    forecasts: ArrayLike | None = None,
    title: str = "",
    xlabel: str = "probability forecast",
    ylabel: str = "after recalibration",
    legend: bool = True,
) -> Axes:
    """Draw recalibrated probabilities against those that were forecast.

    Below the diagonal the forecast was too high, above it too low. Of two classes the map may be drawn on a grid,
    before = 0.01, 0.02, ..., by recalibrating `from_probs(before)`; of levels of quantiles likewise.

    Args:
        before: probabilities, (n,).
        after: what each became, (n,); of several maps by name.
        ax: where to draw; by default a new figure.
        draws: of a map that is not known for sure, (num_draws, n), drawn as a band.
        coverage: the share of draws inside the band, at each point.
        forecasts: probabilities to count in a strip on top, which shows where the map is used, (m,).
        title: above the picture.
        xlabel: below it.
        ylabel: beside it.
        legend: whether to say what the lines mean.

    Raises:
        ShapeError: arguments of other lengths, or none.
        NotFiniteError: NaN or infinite numbers.
        ValueError: numbers outside [0, 1]; a coverage that is not between 0 and 1.
    """
    start = _probabilities("before", before)
    order = np.argsort(start, kind="stable")
    maps = {name: _beside(name, values, start)[order] for name, values in named("after", after, "map").items()}
    band = None if draws is None else _band(draws, len(start), coverage)[:, order]
    counted = None if forecasts is None else _probabilities("forecasts", forecasts)
    ax = axes_of(ax, width=4.2, height=4.6 if forecasts is None else 5.4)
    drawn = ax.plot([0, 1], [0, 1], color=INK, linewidth=0.9, linestyle=(0, (5, 3)), zorder=1, label="unchanged")
    if band is not None:
        key = f"{100 * coverage:g} % of draws"
        ax.fill_between(start[order], *band, color=series_color(0), alpha=0.22, linewidth=0, zorder=2, label=key)
    for index, (name, values) in enumerate(maps.items()):
        drawn += ax.plot(
            start[order],
            values,
            color=series_color(index),
            linestyle=series_line(index),
            linewidth=1.6,
            zorder=3,
            label=name,
        )
    for artist in drawn:
        artist.set_clip_on(False)  # maps that touch 0 and 1 are drawn whole
    ax.set(xlim=(0, 1), ylim=(0, 1), xlabel=xlabel, ylabel=ylabel)
    ax.set_box_aspect(1)
    quiet(ax)
    if counted is not None:
        _strip(ax, counted)
    dress(ax, title=title, legend=legend, strip=counted is not None)
    return ax


def _probabilities(name: str, values: ArrayLike) -> Numbers:
    found = column(name, values)
    if found.min() < -_ROUNDING or found.max() > 1 + _ROUNDING:
        raise ValueError(f"`{name}` must lie in [0, 1]; got values from {found.min():g} to {found.max():g}")
    return found


def _beside(name: str, values: ArrayLike, start: Numbers) -> Numbers:
    found = _probabilities(f"after ({name})", values)
    check_same_rows(f"after ({name})", len(found), "before", len(start))
    return found


def _band(draws: ArrayLike, count: int, coverage: float) -> Numbers:
    """Lower and upper ends, (2, n)."""
    if not 0 < coverage < 1:
        raise ValueError(f"`coverage` must lie between 0 and 1; got {coverage}")
    table = table_of_draws("draws", draws)
    if table.shape[1] != count:
        raise ShapeError(f"`draws` must have shape (num_draws, {count}), as `before`; got {table.shape}")
    return np.asarray(np.quantile(table, [(1 - coverage) / 2, (1 + coverage) / 2], axis=0))


def _strip(ax: Axes, forecasts: Numbers) -> None:
    """A histogram of the forecasts on top of the map."""
    strip = ax.inset_axes((0, 1.04, 1, STRIP - 0.04), sharex=ax)
    counts, edges = np.histogram(forecasts.clip(0, 1), _BINS, (0, 1))
    strip.bar(edges[:-1], counts, np.diff(edges), align="edge", color=DATA, linewidth=0)
    strip.set_ylabel("count", fontsize="small", rotation=0, ha="right", va="center")
    strip.set_yticks([counts.max()], labels=[f"{counts.max():,}"])
    strip.tick_params(axis="y", labelsize="small")
    strip.tick_params(axis="x", labelbottom=False, length=0)
    quiet(strip)
