"""Coverage over time: does an online method keep what it promises while the stream drifts?"""

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes

from credibly.core.checks import as_tensor, check_count, check_same_rows
from credibly.core.errors import ShapeError
from credibly.core.typing import ArrayLike
from credibly.metrics.coverage_law import coverage_interval
from credibly.plots.columns import Numbers, column
from credibly.plots.series import named, series_color, series_line
from credibly.plots.style import INK, PALE, axes_of, quiet
from credibly.plots.words import dress

__all__ = ["online_coverage"]


def online_coverage(
    contained: ArrayLike | Mapping[str, ArrayLike],
    coverage: float,
    ax: Axes | None = None,
    *,
    window: int = 100,
    times: ArrayLike | None = None,
    band: float | None = 0.95,
    title: str = "",
    xlabel: str = "time",
    ylabel: str = "",
    legend: bool = True,
) -> Axes:
    """Draw the share of targets held among the last `window` at each time.

    The keys name the share over all times. The grey band holds the share of a window with this probability if each
    target is held with the asked probability, independently of the others, by the binomial law.

    Args:
        contained: whether each target was held, (times,); of several methods by name.
        coverage: the coverage asked for, strictly between 0 and 1.
        ax: where to draw; by default a new figure.
        window: how many targets each share counts; the line begins when there are so many.
        times: the place of each target on the x axis, (times,); by default 1, 2, ...
        band: probability of the band, time by time (not of all at once); None leaves it out.
        title: above the picture.
        xlabel: below it.
        ylabel: beside it; by default it names the window.
        legend: whether to say what the lines mean.

    Raises:
        ShapeError: arguments of different lengths, or fewer times than a window has.
        NotFiniteError: NaN or infinite times.
        ValueError: a coverage or a band that is not between 0 and 1; a window that is not a whole number above 0.
    """
    check_count("window", window)
    for name, level in (("coverage", coverage), ("band", 0.5 if band is None else band)):
        if not 0 < level < 1:
            raise ValueError(f"`{name}` must lie between 0 and 1; got {level}")
    hits = {
        name: column("contained", as_tensor(values).bool())
        for name, values in named("contained", contained, "observed").items()
    }
    length = len(next(iter(hits.values())))
    for name, values in hits.items():
        check_same_rows(f"contained ({name})", len(values), "the first series", length)
    if length < window:
        raise ShapeError(f"`contained` must have {window} times or more, as many as `window`; got {length}")
    places = np.arange(1.0, length + 1) if times is None else column("times", times)
    check_same_rows("times", len(places), "contained", length)
    ax = axes_of(ax, width=7.0, height=3.6)
    lines = {name: _moving_mean(values, window) for name, values in hits.items()}
    ends = [coverage, *(float(end) for line in lines.values() for end in (line.min(), line.max()))]
    if band is not None:
        low, high = coverage_interval(None, window, coverage, band)
        ax.axhspan(low, high, color=PALE, linewidth=0, zorder=1, label=f"{100 * band:g} % of windows if independent")
        ends += [low, high]
    ax.axhline(coverage, color=INK, linewidth=0.9, linestyle=(0, (5, 3)), zorder=2, label=f"{coverage:g} asked for")
    for index, (name, line) in enumerate(lines.items()):
        ax.plot(
            places[window - 1 :],
            line,
            color=series_color(index),
            linestyle=series_line(index),
            linewidth=1.3,
            zorder=3,
            label=f"{name}, {hits[name].mean():.3f}",
        )
    margin = 0.05 * (max(ends) - min(ends)) + 0.005
    limits = max(min(ends) - margin, 0.0), min(max(ends) + margin, 1.005)
    ax.set(
        xlim=(places[0], places[-1]), ylim=limits, xlabel=xlabel, ylabel=ylabel or f"coverage of the last {window:,}"
    )
    quiet(ax)
    dress(ax, title=title, legend=legend)
    return ax


def _moving_mean(values: Numbers, window: int) -> Numbers:
    """The mean of the last `window` values, from the first time on at which there are so many."""
    sums = np.concatenate([[0.0], values.cumsum()])
    return np.asarray((sums[window:] - sums[:-window]) / window)
