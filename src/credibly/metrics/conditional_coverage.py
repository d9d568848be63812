"""Coverage where it may fail: by group, by class, by size of the set, and in the worst slab of the inputs.

A coverage that holds on average may be too high on easy rows and too low on hard ones.

    by group, by class     rows that share a label, or the observed class
    size-stratified        rows by the size of their set or interval; the violation is the largest |coverage - asked|
                           over strata (Angelopoulos, Bates, Malik, Jordan, "Uncertainty Sets for Image Classifiers
                           using Conformal Prediction", 2021)
    worst slab             the least coverage over slabs {x: a <= v'x <= b} that hold at least a given share of the
                           rows, over random directions v (Cauchois, Gupta, Duchi, "Knowing what You Know: valid and
                           validated confidence sets in multiclass and multilabel prediction", 2021)

The least of many observed coverages is too small by selection. Tables therefore give exact intervals that hold for all
groups together (Bonferroni), and the worst slab is searched on some rows and judged on others.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from credibly.core.checks import as_tensor, check_coverage, check_same_rows
from credibly.core.errors import NotFiniteError, ShapeError
from credibly.core.typing import ArrayLike
from credibly.metrics.coverage_law import check_confidence, clopper_pearson
from credibly.metrics.coverage_report import check_contained

__all__ = ["GroupCoverage", "class_coverage", "group_coverage", "size_stratified_coverage"]


@dataclass(frozen=True, eq=False)
class GroupCoverage:
    """Coverage group by group. Tables of shards of the data add up by `merged`, exactly.

    Attributes:
        groups: the labels, increasing, (num_groups,), int64.
        counts: rows of each group, (num_groups,), int64.
        hits: how many of them were held, (num_groups,), int64.
        coverage: asked for.
        confidence: of the intervals.
    """

    groups: Tensor
    counts: Tensor
    hits: Tensor
    coverage: float
    confidence: float = 0.95

    @property
    def observed(self) -> Tensor:
        """The coverage of each group, (num_groups,), float64."""
        return self.hits.double() / self.counts.double()

    @property
    def violation(self) -> Tensor:
        """The largest distance between a group's coverage and the one asked for, a float64 scalar."""
        return (self.observed - self.coverage).abs().max()

    @property
    def worst(self) -> Tensor:
        """The least coverage of a group, a float64 scalar: smaller than the truth, being the least of several."""
        return self.observed.min()

    def interval(self, *, simultaneous: bool = True) -> tuple[Tensor, Tensor]:
        """Exact intervals for the true coverages, each end (num_groups,).

        Args:
            simultaneous: all of them hold together with the confidence (each is asked for 1 - (1 - confidence) /
                num_groups, Bonferroni); otherwise each by itself, and about one in 1 / (1 - confidence) fails.
        """
        share = len(self.groups) if simultaneous else 1
        return clopper_pearson(self.hits, self.counts, 1 - (1 - self.confidence) / share)

    def violation_interval(self) -> tuple[Tensor, Tensor]:
        """An interval for the true `violation`, from the simultaneous ones: float64 scalars."""
        lower, upper = self.interval()
        nearest = torch.maximum(lower - self.coverage, self.coverage - upper).clamp(min=0)
        farthest = torch.maximum(self.coverage - lower, upper - self.coverage)
        return nearest.max(), farthest.max()

    def merged(self, other: "GroupCoverage") -> "GroupCoverage":
        """The table of the rows of both; neither is changed.

        Raises:
            ValueError: another coverage or confidence was asked for.
        """
        if (self.coverage, self.confidence) != (other.coverage, other.confidence):
            raise ValueError(
                "only tables of one coverage and confidence can be merged; got "
                f"{(self.coverage, self.confidence)} and {(other.coverage, other.confidence)}"
            )
        labels = torch.cat([self.groups, other.groups.to(self.groups.device)])
        groups, place = torch.unique(labels, return_inverse=True)
        counts, hits = (
            torch.zeros_like(groups).index_add_(0, place, torch.cat([one, two.to(one.device)]))
            for one, two in ((self.counts, other.counts), (self.hits, other.hits))
        )
        return GroupCoverage(groups, counts, hits, self.coverage, self.confidence)


def group_coverage(
    contained: ArrayLike, groups: ArrayLike, coverage: float, *, confidence: float = 0.95
) -> GroupCoverage:
    """Coverage of the rows of each group.

    Args:
        contained: whether each row's region held its target, (rows,) booleans.
        groups: whole numbers, (rows,).
        coverage: the coverage asked for.
        confidence: of the intervals.

    Raises:
        ShapeError: the shapes do not fit, or there are no rows.
        TypeError: groups that are no whole numbers.
    """
    held, labels = check_contained(contained), as_tensor(groups)
    coverage = check_coverage(coverage)
    check_confidence(confidence)
    if labels.is_floating_point():
        raise TypeError(f"`groups` must be whole numbers; got {labels.dtype}")
    if labels.dim() != 1:
        raise ShapeError(f"`groups` must have shape (rows,); got {tuple(labels.shape)}")
    check_same_rows("groups", len(labels), "contained", len(held))
    names, place = torch.unique(labels.to(held.device).long(), return_inverse=True)
    counts = torch.bincount(place, minlength=len(names))
    hits = torch.bincount(place[held], minlength=len(names))
    return GroupCoverage(names, counts, hits, coverage, confidence)


def class_coverage(
    contained: ArrayLike, targets: ArrayLike, coverage: float, *, confidence: float = 0.95
) -> GroupCoverage:
    """Coverage of the rows of each observed class.

    Args:
        contained: whether each row's set held its class, (rows,) booleans.
        targets: the observed classes, (rows,).
        coverage: the coverage asked for.
        confidence: of the intervals.
    """
    classes = as_tensor(targets)
    if classes.is_floating_point() and bool((classes == classes.floor()).all()):
        classes = classes.long()
    return group_coverage(contained, classes, coverage, confidence=confidence)


def size_stratified_coverage(
    contained: ArrayLike,
    sizes: ArrayLike,
    coverage: float,
    *,
    edges: Sequence[float] = (1, 3, 10, 100),
    confidence: float = 0.95,
) -> GroupCoverage:
    """Coverage by size of the prediction set or width of the interval; its `violation` is the SSCV.

    Args:
        contained: whether each row's region held its target, (rows,) booleans.
        sizes: numbers of classes or widths, (rows,); infinite widths are fine.
        coverage: the coverage asked for.
        edges: increasing; stratum j holds edges[j - 1] < size <= edges[j], the first and the last are open. For widths
            take their quantiles. Strata without rows are left out.
        confidence: of the intervals.

    Raises:
        ShapeError: the shapes do not fit, or there are no rows.
        ValueError: edges that do not increase.
        NotFiniteError: a size is NaN.
    """
    values = as_tensor(sizes)
    bounds = torch.tensor([float(edge) for edge in edges], dtype=torch.float64, device=values.device)
    if not len(bounds) or not bool((bounds.diff() > 0).all()):
        raise ValueError(f"`edges` must increase, and hold at least one number; got {tuple(edges)}")
    if bool(values.isnan().any()):
        raise NotFiniteError("`sizes` must not be NaN")
    strata = torch.bucketize(values.double().contiguous(), bounds)
    return group_coverage(contained, strata, coverage, confidence=confidence)
