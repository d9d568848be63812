r"""The interval of an AUROC, also near 0 and 1.

The placement of a row is the share of the rows of the other kind that it beats; the AUROC A is their mean, for rows of
both kinds, and its variance V that of their means ("Comparing the Areas under Two or More Correlated Receiver Operating
Characteristic Curves: A Nonparametric Approach", DeLong, DeLong, Clarke-Pearson, 1988). A bootstrap never draws an
error that was not seen, and calls a perfect AUROC certain. So the interval is the one of Clopper and Pearson for as
many trials as have the variance, A (1 - A) / V, where V is that of the rows and one row more that is wholly misplaced:
few errors say little of how they come, pair by pair or a whole row at once. Where rows are wholly right or wholly wrong
it is exact, and it needs no law of the scores.
"""

import torch
from scipy import special
from torch import Tensor

__all__ = ["share_below", "weighted_mean", "win_interval"]


def share_below(counts: Tensor) -> Tensor:
    """The share of the rows below each of the increasing scores, ties counted half; (*batch, scores)."""
    return (counts.cumsum(-1) - counts / 2) / counts.sum(-1, keepdim=True)


def weighted_mean(values: Tensor, counts: Tensor) -> Tensor:
    """The mean over the last axis of values that come so often."""
    return (values * counts).sum(-1) / counts.sum(-1)


def win_interval(inside: Tensor, outside: Tensor, coverage: float) -> tuple[Tensor, Tensor]:
    """The interval for the probability that an outside row scores above an inside row.

    Args:
        inside: how many rows lie at each of the increasing scores, (scores,), float64.
        outside: likewise.
        coverage: of the interval.
    """
    placements = (share_below(inside), outside), (1 - share_below(outside), inside)
    share = weighted_mean(*placements[0])
    squares = [weighted_mean(placement.square(), counts) for placement, counts in placements]
    sizes = [counts.sum() for _, counts in placements]
    hits, tail = float(share), (1 - coverage) / 2
    low, high = (_num_trials(share, squares, sizes, worst) for worst in (0, 1))
    lower = special.betaincinv(low * hits, low * (1 - hits) + 1, tail) if hits > 0 else 0.0
    upper = special.betaincinv(high * hits + 1, high * (1 - hits), 1 - tail) if hits < 1 else 1.0
    return share.new_tensor(lower), share.new_tensor(upper)


def _num_trials(share: Tensor, squares: list[Tensor], sizes: list[Tensor], worst: int) -> float:
    """Of how many independent trials the share would vary as much: the fewest, one row more being misplaced.

    Args:
        share: the mean of the placements of outside and of inside rows.
        squares: the means of their squares.
        sizes: how many rows there are of both kinds.
        worst: the placement of the row more, 0 or 1.
    """
    found = []
    for kind in (0, 1):
        size, other = sizes[kind], 1 - kind
        mean, square = ((size * v + worst) / (size + 1) for v in (share, squares[kind]))
        of_other = (squares[other] - share.square()) * (size / (size + 1)).square()
        variance = (square - mean.square()) / size + of_other / sizes[other]
        found.append(mean * (1 - mean) / variance.clamp(min=1e-300))
    fewest = float(torch.stack(found).amin())
    return fewest if fewest > 0 else float(torch.stack(sizes).amin())
