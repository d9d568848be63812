"""Counting scores that belong to folds: the kernel of CV+ and the jackknife+ without an n^2 table.

"Predictive Inference with the Jackknife+" (Barber, Candes, Ramdas, Tibshirani, 2021). In CV+ a test row is compared
with every calibration score s_i through the model that left i's fold out. The value compared is therefore the same
for all scores of one fold, and

    #{i: s_i < v_k(i)}  =  sum over folds k of #{scores of fold k below v_k},

where each term is a search in the fold's sorted scores: m test rows against n scores in K folds cost m K log(n / K)
steps and m numbers of memory instead of m n. Counts are int64 and exact for any n.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from credibly.conformal.groups import row_groups
from credibly.core.errors import ShapeError
from credibly.core.typing import ArrayLike

__all__ = ["count_at_most", "count_below", "row_folds", "sort_by_fold"]


def row_folds(folds: ArrayLike, rows: int, device: torch.device) -> tuple[Tensor, int]:
    """The fold of each row, (rows,), int64, and the number of folds, at least 2.

    Raises:
        ShapeError: not one fold a row.
        ValueError: folds that are not 0, ..., num_folds - 1, each with a row, or fewer than two of them.
    """
    given = row_groups(folds, rows, device, name="folds")
    present = torch.unique(given)
    if len(present) < 2 or not torch.equal(present, torch.arange(len(present), device=device)):
        raise ValueError(
            "`folds` must be 0, 1, ..., num_folds - 1, each with at least one row, and at least two folds; "
            f"got {present[:10].tolist()}"
        )
    return given, len(present)


def sort_by_fold(
    scores: Tensor,  # (n,)
    folds: Tensor,  # (n,)
    num_folds: int,
) -> tuple[Tensor, ...]:
    """The scores of each fold, increasing."""
    ordered, order = scores.sort()
    by_fold = folds[order].argsort(stable=True)
    sizes = torch.bincount(folds, minlength=num_folds).tolist()
    return tuple(torch.split(ordered[by_fold], sizes))


def count_below(sorted_folds: Sequence[Tensor], values: Sequence[Tensor]) -> Tensor:
    """How many scores lie strictly below the value of their fold, int64.

    Args:
        sorted_folds: the scores of each fold, increasing.
        values: what the scores of each fold are compared with: one tensor a fold, all of one shape.

    Raises:
        ShapeError: not one tensor of values a fold.
    """
    return _count(sorted_folds, values, right=False)


def count_at_most(sorted_folds: Sequence[Tensor], values: Sequence[Tensor]) -> Tensor:
    """How many scores are at most the value of their fold, int64; see `count_below`."""
    return _count(sorted_folds, values, right=True)


def _count(sorted_folds: Sequence[Tensor], values: Sequence[Tensor], *, right: bool) -> Tensor:
    if len(values) != len(sorted_folds):
        raise ShapeError(f"`values` must hold one tensor a fold, {len(sorted_folds)}; got {len(values)}")
    total = torch.zeros(values[0].shape, dtype=torch.int64, device=values[0].device)
    for scores, value in zip(sorted_folds, values, strict=True):
        total += torch.searchsorted(scores, value.contiguous(), right=right)
    return total
