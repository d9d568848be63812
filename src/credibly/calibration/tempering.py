r"""The likelihood of tempered class probabilities: value, slope and curvature in one pass over the rows.

With a_k = l_k - l_y, the log odds of class k against the outcome, and b = 1/T, the negative log likelihood of
a row is log sum_k exp(b a_k); its derivatives in b are the mean and the variance of a over the tempered
probabilities. All are taken about the largest a, in float64.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributions import Distribution

from credibly.core.errors import NotFiniteError
from credibly.distributions.class_rows import class_log_prob_blocks

__all__ = ["OddsBlocks", "TemperedPass", "tempered_pass"]

_KEPT = 2**22  # log odds (32 MiB) that are kept between passes; more are computed anew in every pass


class TemperedPass(NamedTuple):
    """Means over rows at one power b = 1/T: value, first and second derivative in b.

    `separable` says that every outcome is a most probable class, and some class is less probable: the value
    then falls for ever as b grows.
    """

    value: float
    slope: float
    curvature: float
    separable: bool


class OddsBlocks:
    """Log odds against the outcome, a_k = l_k - l_y, by blocks of rows; kept if they are few."""

    def __init__(self, predicted: Distribution, targets: Tensor) -> None:
        self.predicted = predicted
        self.targets = targets.to(torch.int64)
        self._kept: list[Tensor] | None = None

    def __iter__(self) -> Iterator[Tensor]:
        if self._kept is not None:
            yield from self._kept
            return
        kept: list[Tensor] = []
        size = 0
        for odds in self._computed():
            size += odds.numel()
            if size <= _KEPT:
                kept.append(odds)
            yield odds
        if size <= _KEPT:
            self._kept = kept

    def _computed(self) -> Iterator[Tensor]:
        for rows, log_probs in class_log_prob_blocks(self.predicted):
            of_target = log_probs.gather(-1, self.targets[rows].unsqueeze(-1))
            if not bool(torch.isfinite(of_target).all()):
                _refuse(of_target.squeeze(-1), rows.start)
            yield (log_probs - of_target).flatten(0, -2)


def _refuse(log_prob: Tensor, first_row: int) -> None:
    bad = ~torch.isfinite(log_prob).flatten(1).all(1) if log_prob.dim() > 1 else ~torch.isfinite(log_prob)
    rows = (bad.nonzero().squeeze(1) + first_row).tolist()
    named = ", ".join(map(str, rows[:5])) + (", ..." if len(rows) > 5 else "")
    raise NotFiniteError(
        f"`targets` in rows {named} have probability 0 (or NaN) under `predicted`: their log likelihood is "
        "infinite at any temperature; remove these rows, or mix in a little of the uniform forecast"
    )


def tempered_pass(blocks: Iterable[Tensor], power: float) -> TemperedPass:
    """Value, slope and curvature at b = power, in one pass over blocks of log odds, (rows, classes)."""
    totals = torch.zeros(3, dtype=torch.float64)
    num_rows, all_top, informative = 0, True, False
    for odds in blocks:
        num_rows += len(odds)
        top = odds.amax(-1, keepdim=True)
        all_top = all_top and bool((top <= 0).all())
        informative = all_top and (informative or bool(((odds < 0) & odds.isfinite()).any()))
        totals += _sums(odds, top, power).cpu()
    value, slope, curvature = (totals / num_rows).tolist()
    return TemperedPass(value, slope, curvature, informative)


def _sums(odds: Tensor, top: Tensor, power: float) -> Tensor:
    """Sums over rows of log sum exp(b a), of its mean and of its variance."""
    centred = (odds - top).clamp_(min=-1e300)  # -inf * 0 is NaN; a class of probability 0 has no weight
    weights = (centred * power).exp_()
    total = weights.sum(-1)
    weights *= centred
    mean = weights.sum(-1) / total
    second = weights.mul_(centred).sum(-1) / total
    top = top.squeeze(-1)
    value = power * top + total.log()
    return torch.stack([value.sum(), (mean + top).sum(), (second - mean.square()).sum()])
