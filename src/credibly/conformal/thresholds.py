"""The threshold of every test row: one for all, one a group, one a weight."""

import math

import torch
from torch import Tensor

from credibly.conformal.ranks import threshold, weighted_threshold

__all__ = ["thresholds_of_rows"]


def thresholds_of_rows(
    sorted_scores: Tensor,  # (n,), increasing
    coverage: float,
    rows: int,
    *,
    calibration_groups: Tensor | None = None,  # (n,)
    groups: Tensor | None = None,  # (rows,)
    calibration_weights: Tensor | None = None,  # (n,)
    weights: Tensor | None = None,  # (rows,)
) -> Tensor:
    """The conformal threshold of every row, (rows,).

    A group is compared with the calibration scores of its own group only; a group without any gets +infinity,
    unless the coverage is 0.
    """
    if calibration_groups is None or groups is None:
        return _of_one_group(sorted_scores, coverage, rows, calibration_weights, weights)
    thresholds = sorted_scores.new_full((rows,), math.inf if coverage > 0 else -math.inf)
    for group in torch.unique(groups).tolist():
        members, own = groups == group, calibration_groups == group
        if bool(own.any()):
            thresholds[members] = _of_one_group(
                sorted_scores[own],
                coverage,
                int(members.sum()),
                None if calibration_weights is None else calibration_weights[own],
                None if weights is None else weights[members],
            )
    return thresholds


def _of_one_group(
    sorted_scores: Tensor,
    coverage: float,
    rows: int,
    calibration_weights: Tensor | None,
    weights: Tensor | None,
) -> Tensor:
    if calibration_weights is None or weights is None:
        return threshold(sorted_scores, coverage).expand(rows)
    return weighted_threshold(sorted_scores, calibration_weights, weights, coverage)
