"""The table of the documentation: means over the splits and their standard errors, beside what papers report."""

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks.uci.splits import NUM_SPLITS

__all__ = ["PUBLISHED", "table"]

PUBLISHED = {
    "MC dropout, tuned (Mukhoti, Stenetorp, Gal 2018)": {
        "boston": ("2.90 ± 0.18", "-2.40 ± 0.04"),
        "concrete": ("4.82 ± 0.16", "-2.93 ± 0.02"),
    },
    "matrix-Gaussian VI (Louizos, Welling 2016)": {"boston": ("", "-2.46"), "concrete": ("", "-3.01")},
    "horseshoe BNN (Ghosh, Doshi-Velez 2017)": {"boston": ("", "-2.54"), "concrete": ("", "-3.09")},
}
"""Root mean squared error and mean log density, as printed."""


def table(lines: Iterable[dict[str, Any]], datasets: Sequence[str], methods: Sequence[str]) -> str:
    """Markdown: one row a method, in order; a cell whose splits are not all there says how many are."""
    lines = list(lines)
    head = ["method", *(f"{name}: {score}" for name in datasets for score in ("RMSE", "log density"))]
    rows = [head, ["---"] * len(head)]
    for method in methods:
        own = [line for line in lines if line["method"] == method]
        rows.append([method.replace("_", " "), *(cell for name in datasets for cell in _cells(own, name))])
    rows += [[name, *(cell for d in datasets for cell in own[d])] for name, own in PUBLISHED.items()]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _cells(lines: list[dict[str, Any]], dataset: str) -> list[str]:
    own = [line for line in lines if line["dataset"] == dataset]
    if len({line["split"] for line in own}) < NUM_SPLITS:
        return [f"{len(own)} of {NUM_SPLITS} splits"] * 2
    return [_cell([line[score] for line in own]) for score in ("rmse", "log_prob")]


def _cell(values: Sequence[float]) -> str:
    return f"{statistics.mean(values):.2f} ± {statistics.stdev(values) / len(values) ** 0.5:.2f}"
