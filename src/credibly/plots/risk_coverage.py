"""Risk against coverage: what is gained by answering only where one is confident.

"Selective Classification for Deep Neural Networks" (Geifman, El-Yaniv, 2017). Rows of one confidence are answered
together; between two points of the table the losses answered so far grow in proportion, so that the risk at coverage c
is (a + b c) / c there.
"""

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes

from credibly.core.errors import ShapeError
from credibly.metrics.selective import RiskCoverage
from credibly.plots.columns import Numbers, check_table, column
from credibly.plots.series import named, series_color, series_line
from credibly.plots.style import INK, axes_of, quiet, shared_top
from credibly.plots.words import dress

__all__ = ["risk_coverage"]

_BETWEEN = 64  # points that draw a stretch of curve
_STEADY = 0.05  # the coverage from which on the whole curve is inside the picture


def risk_coverage(
    tables: RiskCoverage | Mapping[str, RiskCoverage],
    ax: Axes | None = None,
    *,
    areas: float | Mapping[str, float] | None = None,
    best: bool = True,
    title: str = "",
    ylabel: str = "risk",
    legend: bool = True,
) -> Axes:
    """Draw the mean loss of the rows answered against their share.

    The picture is as high as the curves are from coverage 0.05 on: the mean loss of the first few rows jumps about.

    Args:
        tables: from `metrics.risk_coverage`; several by name.
        ax: where to draw; by default a new figure.
        areas: the area under each curve, from `metrics.aurc`, for the keys; by the names of the tables.
        best: whether to draw, dashed, the curve of the best order of losses of 0 and 1: with the risk r of all rows it
            is 0 up to coverage 1 - r and then 1 - (1 - r) / c. For other losses leave it out, or give the table of
            the best order as one of several.
        title: above the picture.
        ylabel: beside it: the name of the loss.
        legend: whether to say what the lines mean.

    Raises:
        ShapeError: a table without rows, or no table.
        NotFiniteError: a table with NaN.
        ValueError: the best order of losses that are not in [0, 1]; areas of other names than the tables.
        TypeError: another object than such a table.
    """
    curves = named("tables", tables, "observed")
    keys = _keys(list(curves), areas)
    lines = {name: _between(*_columns(table)) for name, table in curves.items()}
    ideal = [_best(risk) for risk in dict.fromkeys(float(y[-1]) for _, y in lines.values())] if best else []
    ax = axes_of(ax, width=4.8, height=3.9)
    for index, (name, line) in enumerate(lines.items()):
        ax.plot(
            *line, color=series_color(index), linewidth=1.6, linestyle=series_line(index), zorder=3, label=keys[name]
        )
    for index, line in enumerate(ideal):
        label = None if index else "best order"
        ax.plot(*line, color=INK, linewidth=0.9, linestyle=(0, (5, 3)), zorder=2, label=label)
    top = max(float(y[x >= min(_STEADY, x[-1])].max()) for x, y in lines.values())
    ax.set(xlim=(0, 1), ylim=(0, shared_top(ax, 1.08 * top if top > 0 else 1)), xlabel="coverage", ylabel=ylabel)
    quiet(ax)
    ax.yaxis.grid(visible=True, color=INK, alpha=0.12, linewidth=0.8)
    dress(ax, title=title, legend=legend)
    return ax


def _keys(names: list[str], areas: float | Mapping[str, float] | None) -> dict[str, str]:
    """What the keys say of each curve."""
    if areas is None:
        return {name: name for name in names}
    values = dict(areas) if isinstance(areas, Mapping) else dict.fromkeys(names[:1], areas)
    if values.keys() != set(names):
        raise ValueError(f"`areas` must name the tables, {names}; got {list(values)}")
    return {name: f"{name}, AURC {float(values[name]):.4g}" for name in names}


def _columns(table: RiskCoverage) -> tuple[Numbers, Numbers]:
    check_table("tables", table, RiskCoverage, "metrics.risk_coverage")
    coverage, risk = column("coverage", table.coverage), column("risk", table.risk)
    if len(risk) != len(coverage):
        raise ShapeError(f"a table must have as many risks as coverages; got {len(risk)} and {len(coverage)}")
    return coverage, risk


def _between(coverage: Numbers, risk: Numbers) -> tuple[Numbers, Numbers]:
    """The curve through the points of the table, with points between them where these lie far apart."""
    losses = coverage * risk
    starts = np.concatenate([[0.0], coverage[:-1]])
    pieces = [
        np.linspace(start, stop, max(2, int(_BETWEEN * (stop - start))))[1:]
        for start, stop in zip(starts, coverage, strict=True)
    ]
    x = np.concatenate([[min(coverage[0], 1e-9)], *pieces])
    return x, np.interp(x, np.concatenate([[0.0], coverage]), np.concatenate([[0.0], losses])) / x


def _best(risk: float) -> tuple[Numbers, Numbers]:
    """The curve of the best order of losses of 0 and 1, of which `risk` is the mean."""
    if not 0 <= risk <= 1:
        raise ValueError(
            f"the best order is known for losses of 0 and 1 only, whose risk lies in [0, 1]; got {risk:.4g}; "
            "pass best=False"
        )
    first = max(1 - risk, 1e-9)
    x = np.concatenate([[0.0], np.linspace(first, 1, 2 * _BETWEEN)])
    return x, np.maximum(0, 1 - (1 - risk) / np.maximum(x, first))
