"""The threshold of every test row: one for all, one a group, one a weight."""

import math

import torch
from torch import Tensor

from credibly.conformal.ranks import group_thresholds, kth_score, kth_weighted_score

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
        if calibration_weights is None or weights is None:
            return kth_score(sorted_scores, coverage).expand(rows)
        return kth_weighted_score(sorted_scores, calibration_weights, weights, coverage)
    known, of_score = torch.unique(calibration_groups, return_inverse=True)
    of_row = _places(known, groups)
    if calibration_weights is None or weights is None:
        return group_thresholds(sorted_scores, of_score, len(known) + 1, coverage)[of_row]
    thresholds = sorted_scores.new_full((rows,), math.inf if coverage > 0 else -math.inf)
    for own, members in zip(_by_place(of_score, len(known)), _by_place(of_row, len(known)), strict=True):
        thresholds[members] = kth_weighted_score(
            sorted_scores[own], calibration_weights[own], weights[members], coverage
        )
    return thresholds


def _places(known: Tensor, groups: Tensor) -> Tensor:
    """The place of each group among the known ones, which are increasing; their number for an unknown group."""
    place = torch.searchsorted(known, groups.contiguous())
    found = known[place.clamp(max=len(known) - 1)] == groups
    return torch.where(found, place, len(known))


def _by_place(places: Tensor, num_places: int) -> list[Tensor]:
    """The indices of the entries of each place, increasing."""
    sizes = torch.bincount(places, minlength=num_places).tolist()
    return list(torch.split(places.argsort(stable=True), sizes)[:num_places])
