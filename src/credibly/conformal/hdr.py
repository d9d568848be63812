r"""Highest-density regions: all targets of at least some predicted density.

The score is minus the log density, so that the region of a threshold q is {y: log p(y) >= -q}: where the prediction has
several modes, several intervals ("CD-split and HPD-split: efficient conformal regions in high dimensions", Izbicki,
Shimizu, Stern, 2022). Of all regions with the same coverage of a true prediction it is the shortest. Of counts it is
a union of runs, each given by its first and its last count, and their width is the number of counts held.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributions import Distribution

from credibly.conformal.base import Score
from credibly.conformal.interval_score import one_limit_a_row
from credibly.conformal.level_sets import level_sets, level_sets_of_counts
from credibly.conformal.unions import ScoredUnions
from credibly.core.checks import as_tensor
from credibly.core.errors import NotFiniteError, NotSupportedError
from credibly.core.typing import ArrayLike
from credibly.distributions.density import safe_log_prob
from credibly.distributions.kinds import kind, reference
from credibly.distributions.rows import num_rows, select, to
from credibly.distributions.targets import check_rows, match_targets

__all__ = ["HighestDensity"]


@dataclass(frozen=True)
class HighestDensity(Score[ScoredUnions]):
    """Score -log p(y); the region is {y: log p(y) >= -q}, a union of intervals.

    The score decides what a region contains; its ends are those of the density in float64, to the last bit, and leave
    out at most bumps of a mixture that exceed the level by less than a factor of 1 + 1e-6.
    """

    def score(self, predicted: Distribution, targets: ArrayLike, u: ArrayLike | None = None) -> Tensor:
        """Minus the log density of every row's target, (rows,); see `Score.score`.

        Raises:
            NotSupportedError: `predicted` has no density, or is about classes or several outputs a row.
            NotFiniteError: a density that is NaN, as that of no spread at all is at its own point.
        """
        precise = _prepared(predicted)
        values = match_targets(predicted, as_tensor(targets)).to(torch.float64)
        scores = -safe_log_prob.formula(precise, values)
        if bool(scores.isnan().any()):
            raise NotFiniteError(f"the density of `predicted` is NaN in {int(scores.isnan().sum())} rows")
        return scores

    def region(self, predicted: Distribution, thresholds: ArrayLike, u: ArrayLike | None = None) -> ScoredUnions:
        """The pieces of every row's region; see `Score.region`.

        Raises:
            NotSupportedError: `predicted` has no density, or is about classes or several outputs a row.
            NotFiniteError: a density that is NaN.
        """
        precise = _prepared(predicted)
        limits = one_limit_a_row(thresholds, num_rows(predicted), reference(precise).device)
        of_counts = kind(predicted) == "count"
        find = level_sets_of_counts if of_counts else level_sets
        with torch.no_grad():
            lower, upper = find(precise, -limits)
        return ScoredUnions(lower, upper, self, predicted, limits, of_counts=of_counts)


def _prepared(predicted: Distribution) -> Distribution:
    """The prediction in float64, once it is known to be about one number and to have a density."""
    check_rows(predicted)
    if kind(predicted) == "class":
        raise NotSupportedError(
            f"HighestDensity needs a number to predict; a {type(predicted).__name__} is about classes: "
            "use LAC, which is the same for them"
        )
    if predicted.event_shape not in ((), (1,)):
        raise NotSupportedError(
            f"HighestDensity needs one output a row; `predicted` has event_shape {tuple(predicted.event_shape)}: "
            "take each output by itself, or Ellipsoid"
        )
    precise = to(predicted, dtype=torch.float64)
    try:
        nothing = torch.empty(0, *predicted.event_shape, dtype=torch.float64, device=reference(precise).device)
        safe_log_prob.formula(select(precise, slice(0, 0)), nothing)
    except NotSupportedError as error:
        raise NotSupportedError(f"{error}; use CQR for quantiles, PITScore for draws") from error
    return precise
