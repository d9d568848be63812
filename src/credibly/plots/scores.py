"""Scores of rows inside and outside the training distribution, and how well they tell the two apart.

"A Baseline for Detecting Misclassified and Out-of-Distribution Examples in Neural Networks" (Hendrycks, Gimpel, 2017).
"""

import numpy as np
from matplotlib.axes import Axes

from credibly.core.checks import check_count
from credibly.core.errors import NotFiniteError
from credibly.core.typing import ArrayLike
from credibly.metrics.ood import auroc
from credibly.plots.columns import Numbers, column
from credibly.plots.style import DATA, SECOND, axes_of, quiet, shared_top
from credibly.plots.words import dress, write

__all__ = ["score_histograms"]


def score_histograms(
    scores_in: ArrayLike,
    scores_out: ArrayLike,
    ax: Axes | None = None,
    *,
    num_bins: int = 40,
    names: tuple[str, str] = ("inside", "outside"),
    title: str = "",
    xlabel: str = "score",
    legend: bool = True,
) -> Axes:
    """Draw the histograms of both kinds of rows on the same bins, each as shares of its own rows, with their AUROC.

    The bins span the central 99.8 % of the finite scores of either kind, as far as they lie within five interquartile
    ranges of the quartiles; the first and the last hold what lies beyond, infinite scores too.

    Args:
        scores_in: of rows from the training distribution, (rows,); large is unfamiliar.
        scores_out: of other rows, (rows,).
        ax: where to draw; by default a new figure.
        num_bins: how many bins.
        names: of the two kinds.
        title: above the picture.
        xlabel: below it: the name of the score.
        legend: whether to say what the colours mean.

    Raises:
        ShapeError: not one score a row, or no rows of a kind.
        NotFiniteError: NaN, or no finite score at all.
        ValueError: a number of bins below 1.
    """
    inside = column("scores_in", scores_in, finite=False)
    outside = column("scores_out", scores_out, finite=False)
    area = float(auroc(inside, outside))
    edges = _edges(inside, outside, check_count("num_bins", num_bins))
    ax = axes_of(ax, width=5.0, height=3.6)
    top = 0.0
    for values, color, name in ((inside, DATA, names[0]), (outside, SECOND, names[1])):
        clipped = np.clip(values, edges[0], edges[-1])
        shares = np.histogram(clipped, edges)[0] / len(values)
        top = max(top, float(shares.max()))
        ax.stairs(shares, edges, fill=True, color=color, alpha=0.35, linewidth=0)
        ax.stairs(shares, edges, color=color, linewidth=1.5, label=f"{name} (n = {len(values):,})")
    ax.set(xlim=(edges[0], edges[-1]), ylim=(0, shared_top(ax, 1.18 * top)), xlabel=xlabel, ylabel="share of rows")
    quiet(ax)
    write(ax, f"AUROC {area:.3f}", 0.99, 0.98, "right", "top")
    dress(ax, title=title, legend=legend)
    return ax


def _edges(inside: Numbers, outside: Numbers, num_bins: int) -> Numbers:
    """Equal bins over most of the finite scores."""
    finite = [values[np.isfinite(values)] for values in (inside, outside)]
    ends = [_span(values) for values in finite if len(values)]
    if not ends:
        raise NotFiniteError("at least one of `scores_in` and `scores_out` must be finite to draw a histogram")
    low, high = float(np.min(ends)), float(np.max(ends))
    if low == high:
        low, high = low - 0.5, high + 0.5
    return np.linspace(low, high, num_bins + 1)


def _span(values: Numbers) -> Numbers:
    """Where most of the scores lie: one stray among a few hundred does not stretch the picture."""
    lowest, first, third, highest = np.quantile(values, [0.001, 0.25, 0.75, 0.999])
    reach = 5 * (third - first) if third > first else np.inf
    return np.array([max(lowest, first - reach), min(highest, third + reach)])
