"""Observed coverage of intervals and sets beside the coverage that was asked for, at several levels or by group.

The intervals are exact ("The Use of Confidence or Fiducial Limits Illustrated in the Case of the Binomial", Clopper,
Pearson, 1934), and so are the ranges of what would be seen if the claim were true, which for split conformal prediction
follow its Beta-binomial law ("Conditional Validity of Inductive Conformal Predictors", Vovk, 2012).
"""

from collections.abc import Iterable, Sequence

import numpy as np
from matplotlib.axes import Axes

from credibly.core.errors import ShapeError
from credibly.metrics.conditional_coverage import GroupCoverage
from credibly.metrics.coverage_report import CoverageReport
from credibly.plots.columns import Numbers, check_table, column
from credibly.plots.style import ALARM, DATA, INK, PALE, axes_of, quiet
from credibly.plots.words import dress

__all__ = ["coverage_against_nominal", "coverage_by_group"]

_SMALLEST = 5.0  # points of type


def coverage_against_nominal(
    reports: CoverageReport | Sequence[CoverageReport], ax: Axes | None = None, *, title: str = "", legend: bool = True
) -> Axes:
    """Draw the observed against the asked coverage, each with its exact interval.

    A grey bar is the range in which the observed coverage lies if the claim is true; red is a verdict other than
    "holds". The picture shows the part of the diagonal on which the reports lie.

    Args:
        reports: from `metrics.coverage_report`, of one level or of several.
        ax: where to draw; by default a new figure.
        title: above the picture.
        legend: whether to say what the marks mean.

    Raises:
        ShapeError: there are no reports.
        NotFiniteError: a report with NaN.
        ValueError: reports of different confidence.
        TypeError: another object than such a table.
    """
    if not isinstance(reports, Iterable):
        check_table("reports", reports, CoverageReport, "metrics.coverage_report")
    all_reports = [reports] if isinstance(reports, CoverageReport) else list(reports)
    if not all_reports:
        raise ShapeError("`reports` must hold at least one report; got none")
    for report in all_reports:
        check_table("reports", report, CoverageReport, "metrics.coverage_report")
    confidences = {report.confidence for report in all_reports}
    if len(confidences) > 1:
        raise ValueError(f"`reports` must share one confidence; got {sorted(confidences)}")
    percent = f"{100 * confidences.pop():g} %"
    asked = column("coverage", [report.coverage for report in all_reports])
    observed = column("observed", [report.observed for report in all_reports])
    ends = np.stack([column("lower", [r.lower for r in all_reports]), column("upper", [r.upper for r in all_reports])])
    expected = np.stack([column("expected", [report.expected[end] for report in all_reports]) for end in (0, 1)])
    holds = np.array([report.verdict == "holds" for report in all_reports])
    ax = axes_of(ax, width=4.2, height=4.6)
    limits = _limits(np.concatenate([asked, observed, ends.ravel(), expected.ravel()]))
    ax.plot(limits, limits, color=INK, linewidth=0.9, linestyle=(0, (5, 3)), zorder=2)
    ax.vlines(asked, *expected, color=PALE, linewidth=7, zorder=1, label=f"{percent} if it holds")
    for chosen, color, name in ((holds, DATA, f"observed, {percent} interval"), (~holds, ALARM, "does not hold")):
        if chosen.any():
            ax.vlines(asked[chosen], *ends[:, chosen], color=color, linewidth=1.4, zorder=3)
            ax.plot(asked[chosen], observed[chosen], "o", color=color, markersize=5, zorder=4, label=name)
    ax.set(xlim=limits, ylim=limits, xlabel="coverage asked for", ylabel="observed coverage")
    ax.set_box_aspect(1)
    quiet(ax)
    dress(ax, title=title, legend=legend)
    return ax


def _limits(values: Numbers) -> tuple[float, float]:
    """A part of [0, 1] that holds all values, with a margin."""
    low, high = float(values.min()), float(values.max())
    margin = 0.06 * max(high - low, 0.05)
    return max(low - margin, -0.02), min(high + margin, 1.02)


def coverage_by_group(
    table: GroupCoverage,
    ax: Axes | None = None,
    *,
    names: Sequence[str] | None = None,
    title: str = "",
    ylabel: str = "group",
    simultaneous: bool = True,
    legend: bool = True,
) -> Axes:
    """Draw the observed coverage of each group as a dot with its exact interval, the groups from top to bottom.

    A dashed line stands at the coverage asked for; a group whose interval does not hold it is red. The numbers on the
    right count its rows.

    Args:
        table: from `metrics.class_coverage`, `metrics.size_stratified_coverage` or `metrics.group_coverage`.
        ax: where to draw; by default a new figure, as high as the groups need.
        names: of the groups, in the order of the table; by default their numbers.
        title: above the picture.
        ylabel: what the groups are.
        simultaneous: intervals that hold for all groups together; otherwise each by itself.
        legend: whether to say what the marks mean.

    Raises:
        ShapeError: a table without groups; another number of names.
        NotFiniteError: a group without rows.
        TypeError: another object than such a table.
    """
    check_table("table", table, GroupCoverage, "metrics.class_coverage or metrics.group_coverage")
    observed, counts = column("observed", table.observed), column("counts", table.counts)
    low, high = (column("interval", end) for end in table.interval(simultaneous=simultaneous))
    labels = [str(int(group)) for group in table.groups] if names is None else [str(name) for name in names]
    if len(labels) != len(observed):
        raise ShapeError(f"`names` must name {len(observed)} groups; got {len(labels)}")
    ax = axes_of(ax, width=5.0, height=min(2.0 + 0.24 * len(labels), 12.0))
    places, percent = np.arange(len(labels)), f"{100 * table.confidence:g} %"
    fits = (low <= table.coverage) & (table.coverage <= high)
    key = f"{percent} intervals, {'jointly' if simultaneous else 'each'}"
    size = float(np.clip(120 / len(labels), 2.5, 5.0))
    for chosen, color, name in ((fits, DATA, key), (~fits, ALARM, "differs")):
        if chosen.any():
            ax.hlines(places[chosen], low[chosen], high[chosen], color=color, linewidth=0.3 * size, zorder=3)
            ax.plot(observed[chosen], places[chosen], "o", color=color, markersize=size, zorder=4, label=name)
    ax.axvline(
        table.coverage, color=INK, linewidth=0.9, linestyle=(0, (5, 3)), zorder=2, label=f"{table.coverage:g} asked for"
    )
    left, right = _limits(np.concatenate([low, high, [table.coverage]]))
    ax.set(xlim=(left, right), ylim=(len(labels) - 0.4, -0.6), xlabel="observed coverage", ylabel=ylabel)
    quiet(ax)
    left, right = (5.5 * max(map(len, words)) for words in (labels, [f"{count:,.0f}" for count in counts]))
    height = dress(ax, title=title, legend=legend, beside=(max(left - 20, 0), right + 12))
    _label_rows(ax, labels, counts, height / len(labels))
    return ax


def _label_rows(ax: Axes, labels: Sequence[str], counts: Numbers, height: float) -> None:
    """Names on the left and counts on the right, as large as their rows; only some of them where rows are too low."""
    size = min(0.8 * height, 9.0)
    step = 1 if size >= _SMALLEST else int(np.ceil(_SMALLEST / size))
    size = max(size, _SMALLEST)
    shown = range(0, len(labels), step)
    ax.set_yticks(list(shown), labels=[labels[index] for index in shown], fontsize=size)
    ax.tick_params(axis="y", length=0)
    for index in shown:
        ax.annotate(
            f"{int(counts[index]):,}",
            (1, index),
            xytext=(4, 0),
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            va="center",
            color=INK,
            fontsize=size,
        )
