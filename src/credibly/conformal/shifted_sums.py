"""The k-th smallest of all sums c_f + r_i, without a table of them.

A test row has one centre c_f for each of K folds, a fold its sorted residuals r_i. How many sums are at most v is a
search for v - c_f in every fold's residuals; so the k-th smallest sum is closed in on by its value, and the few sums
that are left in between are looked at one by one. Sums are those of exact arithmetic, rounded down at the end, which
keeps their order: ties and infinite residuals included, the result is that of the full table to the last bit.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from credibly.conformal.intervals import sum_down, sum_up

__all__ = ["kth_smallest_sum"]

_FEW = 64  # sums that are looked at one by one
_TABLE = 2**22  # elements of a table of sums at a time
_MEMBERS_OF_A_FOLD = 8  # below so many residuals a fold, a table costs less than searches


def kth_smallest_sum(
    centres: Tensor,  # (folds, rows)
    residuals: Sequence[Tensor],  # one a fold, sorted, (n_f,)
    k: int,
) -> Tensor:
    """The k-th smallest of the sums of every row, rounded down, (rows,), float64.

    Args:
        centres: finite, float64.
        residuals: float64, without NaN and -inf.
        k: from 1 to the number of residuals.
    """
    residuals = [each[: int(each.isfinite().sum())] for each in residuals]
    rows, total = centres.shape[-1], sum(len(each) for each in residuals)
    if k > total:
        return torch.full((rows,), torch.inf, dtype=torch.float64, device=centres.device)
    few = total < _MEMBERS_OF_A_FOLD * len(residuals)
    size = max(1, _TABLE // max(total if few else _FEW, 1))
    solve = _by_table if few else _by_search
    parts = [solve(centres[:, first : first + size], residuals, k) for first in range(0, rows, size)]
    return torch.cat(parts) if parts else centres.new_empty(0)


def _by_table(centres: Tensor, residuals: Sequence[Tensor], k: int) -> Tensor:
    sizes = torch.tensor([len(each) for each in residuals], device=centres.device)
    spread = centres.T.repeat_interleave(sizes, 1)
    return sum_down(spread, torch.cat(list(residuals))).kthvalue(k, -1).values


def _by_search(centres: Tensor, residuals: Sequence[Tensor], k: int) -> Tensor:
    low, high = _bracket(centres, residuals, k)
    found = high.clone()
    active = torch.arange(len(low), device=low.device)
    below, upto = _counts(low, centres, residuals), _counts(high, centres, residuals)
    turn = 0
    while len(active):
        small = (upto - below).sum(0) <= _FEW
        adjacent = torch.nextafter(low, high) >= high
        done = small | adjacent
        if bool(done.any()):
            ready = small & done
            found[active[ready]] = _among_few(centres[:, ready], residuals, k, below[:, ready], upto[:, ready])
            tied = done & ~small
            found[active[tied]] = _of_neighbours(centres[:, tied], residuals, k, low[tied], high[tied])
            keep = ~done
            active, low, high, centres = active[keep], low[keep], high[keep], centres[:, keep]
            below, upto = below[:, keep], upto[:, keep]
            if not len(active):
                break
        middle = _guess(low, high, below.sum(0), upto.sum(0), k, turn)
        counts = _counts(middle, centres, residuals)
        enough = counts.sum(0) >= k
        low, high = torch.where(enough, low, middle), torch.where(enough, middle, high)
        below, upto = torch.where(enough, below, counts), torch.where(enough, counts, upto)
        turn += 1
    return found


def _bracket(centres: Tensor, residuals: Sequence[Tensor], k: int) -> tuple[Tensor, Tensor]:
    """Numbers below and not below the k-th smallest sum: it lies among those of one rank in each fold."""
    total = sum(len(each) for each in residuals)
    ranks = [min(len(each), -(-k * len(each) // total)) for each in residuals]
    at = torch.stack([each[rank - 1] for each, rank in zip(residuals, ranks, strict=True) if len(each)])
    before = torch.stack([each[max(rank - 2, 0)] for each, rank in zip(residuals, ranks, strict=True) if len(each)])
    some = centres[[i for i, each in enumerate(residuals) if len(each)]]
    high = sum_up(some, at.unsqueeze(-1)).amax(0)
    low = sum_down(some, before.unsqueeze(-1)).amin(0)
    largest = torch.finfo(torch.float64).max
    return torch.nextafter(low, low.new_tensor(-torch.inf)).clamp(min=-largest), high.clamp(max=largest)


def _counts(values: Tensor, centres: Tensor, residuals: Sequence[Tensor]) -> Tensor:
    """How many sums of each fold are at most the value, (folds, rows), int64."""
    beyond = sum_down(values.expand(centres.shape), -centres)
    pairs = zip(residuals, beyond, strict=True)
    return torch.stack([torch.searchsorted(each, value.contiguous(), right=True) for each, value in pairs])


def _guess(low: Tensor, high: Tensor, below: Tensor, upto: Tensor, k: int, turn: int) -> Tensor:
    """A number in [low, high): where the k-th sum would be if they lay evenly, or, every third time, the middle."""
    share = torch.full_like(low, 0.5) if turn % 3 == 2 else (k - 0.5 - below) / (upto - below)
    middle = low + share * (high - low)
    half = low / 2 + high / 2
    middle = torch.where(middle.isfinite() & (middle >= low) & (middle < high), middle, half)
    return torch.where((middle > low) & (middle < high), middle, torch.nextafter(low, high))


def _among_few(centres: Tensor, residuals: Sequence[Tensor], k: int, below: Tensor, upto: Tensor) -> Tensor:
    """The k-th smallest sum where at most a few lie above `low` and not above `high`."""
    sizes = upto - below
    ends = sizes.cumsum(0)
    width = int(ends[-1].max()) if ends.numel() else 1
    places = torch.arange(width, device=centres.device).expand(centres.shape[1], width)
    fold = torch.searchsorted(ends.T.contiguous(), places.contiguous(), right=True)
    inside = fold < len(residuals)
    fold = fold.clamp(max=len(residuals) - 1)
    offsets = torch.tensor([0, *(len(each) for each in residuals[:-1])], device=centres.device).cumsum(0)
    start = (below + offsets.unsqueeze(-1) - (ends - sizes)).T.gather(1, fold)
    index = (start + places).clamp(max=sum(len(each) for each in residuals) - 1)
    sums = sum_down(centres.T.gather(1, fold), torch.cat(list(residuals))[index]).masked_fill(~inside, torch.inf)
    return sums.sort(-1).values.gather(1, (k - 1 - below.sum(0)).unsqueeze(-1)).squeeze(-1)


def _of_neighbours(centres: Tensor, residuals: Sequence[Tensor], k: int, low: Tensor, high: Tensor) -> Tensor:
    """The k-th smallest sum where it lies above one number and not above the next: many are tied."""
    least = sum_up(high.expand(centres.shape), -centres)
    pairs = zip(residuals, least, strict=True)
    under = torch.stack([torch.searchsorted(each, value.contiguous()) for each, value in pairs]).sum(0)
    return torch.where(under >= k, low, high)
