"""Whether regions held the targets as often as was asked: the observed coverage, its exact intervals and a verdict.

The verdict is an exact test at level 1 - confidence. Regions that hold each target with the asked probability c do so a
Binomial(m, c) number of times in m rows; those of split conformal prediction with n calibration rows a Beta-binomial
number of times (Vladimir Vovk, "Conditional Validity of Inductive Conformal Predictors", 2012), which spreads wider.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from credibly.core.checks import as_tensor
from credibly.core.errors import ShapeError
from credibly.core.typing import ArrayLike
from credibly.metrics.coverage_law import clopper_pearson, coverage_interval, coverage_tails

__all__ = ["CoverageReport", "Verdict", "check_contained", "coverage_report"]

Verdict: TypeAlias = Literal["holds", "below", "above"]


@dataclass(frozen=True)
class CoverageReport:
    """The coverage that was asked for beside the one that was seen.

    Attributes:
        coverage: asked for.
        observed: the fraction of rows whose region held the target.
        num_contained: how many rows that is.
        num_rows: of how many.
        lower: lower end of the exact interval for the true coverage.
        upper: upper end.
        expected: the lowest and the highest observed coverage that agree with what was asked.
        p_value: twice the probability of so extreme a count, were the asked coverage true; at most 1.
        confidence: of both intervals, and of the verdict.
        verdict: `"holds"` where the asked coverage is compatible with what was seen, else `"below"` or `"above"`:
            where the observed coverage lies.
        num_calibration: calibration rows of split conformal prediction, or None.
    """

    coverage: float
    observed: float
    num_contained: int
    num_rows: int
    lower: float
    upper: float
    expected: tuple[float, float]
    p_value: float
    confidence: float
    verdict: Verdict
    num_calibration: int | None = None

    def __str__(self) -> str:
        return (
            f"{self.observed:.4g} of {self.num_rows} rows held, {self.coverage:g} asked: {self.verdict} "
            f"(expected {self.expected[0]:.4g} to {self.expected[1]:.4g}; "
            f"true coverage {self.lower:.4g} to {self.upper:.4g} at {self.confidence:g} confidence)"
        )


def coverage_report(
    contained: ArrayLike, coverage: float, *, confidence: float = 0.95, num_calibration: int | None = None
) -> CoverageReport:
    """The report of regions over independent rows.

    For central intervals of a distribution: `coverage_report(contained(predicted, targets, 0.9), 0.9)`; for conformal
    sets: `coverage_report(sets.contains(targets), 0.9, num_calibration=n)`.

    Args:
        contained: whether each row's region held its target, (rows,) booleans.
        coverage: the coverage asked for.
        confidence: of the intervals and the verdict; at most 1 - confidence of true claims are not found to hold.
        num_calibration: number of calibration rows, for split conformal prediction.

    Raises:
        ShapeError: not one boolean a row, or no rows.
    """
    held = check_contained(contained)
    hits, rows = int(held.sum()), len(held)
    lower, upper = (float(end) for end in clopper_pearson(torch.tensor(hits), torch.tensor(rows), confidence))
    at_most, at_least = coverage_tails(hits, rows, coverage, num_calibration)
    tail = (1 - confidence) / 2
    verdict: Verdict = "below" if at_most < tail else "above" if at_least < tail else "holds"
    return CoverageReport(
        coverage=coverage,
        observed=hits / rows,
        num_contained=hits,
        num_rows=rows,
        lower=lower,
        upper=upper,
        expected=coverage_interval(num_calibration, rows, coverage, confidence),
        p_value=min(1.0, 2 * min(at_most, at_least)),
        confidence=confidence,
        verdict=verdict,
        num_calibration=num_calibration,
    )


def check_contained(contained: ArrayLike) -> Tensor:
    """The booleans as a tensor (rows,), or a ShapeError."""
    held = as_tensor(contained)
    if held.dim() != 1 or held.dtype != torch.bool or not len(held):
        raise ShapeError(
            "`contained` must be one boolean a row, (rows,), of at least one row; for several outputs take a column or "
            f"`.all(-1)`; got {held.dtype} of shape {tuple(held.shape)}"
        )
    return held
