r"""Answer only where confident, with a guarantee on the risk among the answers.

A row is answered where its confidence is above a threshold t, at the selective risk R(t) = E[loss | confidence > t].
From held-out rows a threshold is chosen such that, with probability 1 - delta over these rows, R(t) <= r ("Selective
Classification for Deep Neural Networks", Geifman, El-Yaniv, 2017). A candidate t with m held-out rows above it, k of
them wrong, passes at the level a where

    P(Bin(m, r) <= k) <= a,

and of those that pass the lowest answers most.

Given that t is the confidence of the held-out row of a fixed rank, the rows strictly above it are independent draws
of what lies above t, ties or not, so the binomial law is exact. The paper keeps the row at t among the answers, which
that argument does not cover, and finds t by a binary search whose steps follow the losses, over which a union of its
log n steps is not one. Here the ranks of the candidates depend on n, r and delta only, each is tested at delta
divided by their number, and their union is the guarantee. Thresholds that were fixed without these rows can be tested
in fixed sequence instead, the highest first, each at the whole of delta, up to the first that fails ("Learn then
Test: Calibrating Predictive Algorithms to Achieve Risk Control", Angelopoulos, Bates, Candes, Jordan, Lei, 2021).
"""

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from scipy import special
from torch import Tensor

from credibly.core.checks import as_tensor, check_count, check_finite, check_same_rows
from credibly.core.errors import NotFiniteError, ShapeError, SupportError
from credibly.core.typing import ArrayLike
from credibly.decision.costs import ABSTAINED, HasActs, acts_of

__all__ = ["RiskTest", "SelectivePredictor", "SelectiveRisk", "candidate_ranks"]


class RiskTest(Protocol):
    """Whatever tests that a mean loss is above a risk, such as `conformal.HoeffdingBentkus()`."""

    def p_values(self, losses: ArrayLike, risk: float, *, delta: float) -> Tensor:
        """The p-value of losses (rows,) at the level at which it will be used."""
        ...


@dataclass(frozen=True, eq=False, kw_only=True)
class SelectivePredictor:
    """A threshold above which rows are answered.

    Attributes:
        threshold: rows whose confidence is above it are answered; infinite, so that none is, where no threshold could
            be shown to keep the risk.
        coverage: the share of the calibration rows that are answered.
        risk: their mean loss; NaN without any.
        p_value: the evidence for the threshold; 1 without any.
        controlled: whether a threshold was found.
    """

    threshold: float
    coverage: float
    risk: float
    p_value: float
    controlled: bool

    def answers(self, confidences: ArrayLike) -> Tensor:
        """Whether each row is answered, bool, in the shape of `confidences`.

        Raises:
            NotFiniteError: NaN confidences.
        """
        sure = as_tensor(confidences)
        if bool(sure.isnan().any()):
            raise NotFiniteError(
                f"`confidences` must not be NaN; {int(sure.isnan().sum())} of {sure.numel()} values are"
            )
        return sure.to(torch.float64) > self.threshold

    def select(self, acts: ArrayLike | HasActs, confidences: ArrayLike) -> Tensor:
        """The acts, with -1 where the row is not answered.

        Raises:
            ShapeError: arguments of different shapes.
            NotFiniteError: NaN confidences.
        """
        chosen = as_tensor(acts_of(acts))
        answered = self.answers(confidences).to(chosen.device)
        if chosen.shape != answered.shape:
            raise ShapeError(
                f"`acts` and `confidences` must have one shape; got {tuple(chosen.shape)} and {tuple(answered.shape)}"
            )
        return torch.where(answered, chosen, ABSTAINED)


@dataclass(frozen=True, kw_only=True)
class SelectiveRisk:
    """Selective prediction whose risk is at most `risk` with probability 1 - `delta`.

    Args:
        risk: the mean loss that answered rows may have, strictly between 0 and 1.
        delta: the probability of being wrong about that, strictly between 0 and 1.
        num_candidates: how many thresholds are tried, at evenly spaced coverages. More are finer, and each is tested
            more strictly.
        bound: tests the mean of losses in [0, 1], such as `conformal.HoeffdingBentkus()`; None is the exact binomial
            test of losses of 0 and 1.
    """

    risk: float = 0.05
    delta: float = 0.05
    num_candidates: int = 32
    bound: RiskTest | None = None

    def __post_init__(self) -> None:
        for name, value in (("risk", self.risk), ("delta", self.delta)):
            if not 0 < value < 1:
                raise ValueError(f"`{name}` must lie strictly between 0 and 1; got {value}")
        check_count("num_candidates", self.num_candidates)

    def calibrate(
        self, confidences: ArrayLike, losses: ArrayLike, *, thresholds: ArrayLike | None = None
    ) -> SelectivePredictor:
        """Choose the threshold on rows that neither trained nor calibrated what makes the confidences.

        Args:
            confidences: any number that is larger where one is surer, (rows,), such as
                `metrics.largest_prob(predicted)`, or an expected cost with its sign turned.
            losses: in [0, 1], (rows,), such as `metrics.zero_one_loss(predicted, targets)`.
            thresholds: candidates that were fixed without these rows, (candidates,): tested in sequence, the highest
                first, in place of ranks of these confidences.

        Raises:
            ShapeError: no rows, or arguments of other shapes.
            NotFiniteError: NaN or infinite confidences, losses or thresholds.
            SupportError: losses outside [0, 1]; without `bound`, losses other than 0 and 1.
        """
        sure, lost = self._checked(confidences, losses)
        if thresholds is None:
            places = candidate_ranks(len(sure), self.risk, self.delta, self.num_candidates).to(sure.device)
            level = self.delta / max(len(places), 1)
            candidates = _at_ranks(sure, places)
        else:
            level, candidates = self.delta, _fixed(thresholds, sure)
        p_values = self._p_values(sure, lost, candidates, level)
        passed = (p_values <= level).nonzero().squeeze(-1)
        if thresholds is not None:
            passed = passed[passed == torch.arange(len(passed), device=passed.device)]  # up to the first that failed
        if not len(passed):
            return SelectivePredictor(threshold=math.inf, coverage=0.0, risk=math.nan, p_value=1.0, controlled=False)
        last = int(passed[-1])
        answered = sure > candidates[last]
        return SelectivePredictor(
            threshold=float(candidates[last]),
            coverage=float(answered.double().mean()),
            risk=float(lost[answered].mean()),
            p_value=float(p_values[last]),
            controlled=True,
        )

    def _checked(self, confidences: ArrayLike, losses: ArrayLike) -> tuple[Tensor, Tensor]:
        sure = check_finite("confidences", as_tensor(confidences)).detach()
        lost = check_finite("losses", as_tensor(losses, device=sure.device)).detach().to(torch.float64)
        for name, values in (("confidences", sure), ("losses", lost)):
            if values.dim() != 1 or not len(values):
                raise ShapeError(f"`{name}` must have shape (rows,), of at least one row; got {tuple(values.shape)}")
        check_same_rows("losses", len(lost), "confidences", len(sure))
        if bool(((lost < 0) | (lost > 1)).any()):
            raise SupportError(f"`losses` must lie in [0, 1]; they range from {lost.min():g} to {lost.max():g}")
        if self.bound is None and bool(((lost != 0) & (lost != 1)).any()):
            raise SupportError("the binomial test needs `losses` of 0 and 1; for others give a `bound`")
        return sure.to(torch.float64), lost

    def _p_values(self, sure: Tensor, lost: Tensor, candidates: Tensor, level: float) -> Tensor:
        if self.bound is None:
            return _binomial_p_values(sure, lost, candidates, self.risk)
        parts = [self._one_p_value(self.bound, lost[sure > candidate], level) for candidate in candidates]
        return torch.stack(parts) if parts else lost.new_empty(0)

    def _one_p_value(self, bound: RiskTest, losses: Tensor, level: float) -> Tensor:
        """In the order in which the rows came, which some tests read; without rows there is no evidence."""
        return bound.p_values(losses, self.risk, delta=level) if len(losses) else losses.new_ones(())


def candidate_ranks(num_rows: int, risk: float, delta: float, num_candidates: int) -> Tensor:
    """How many rows, if no confidences tie, lie above each candidate: increasing, at most `num_candidates`, int64.

    They are evenly spaced up to all rows; so few that even without losses they could not pass are left out.
    """
    fewest = math.ceil(math.log(delta / num_candidates) / math.log1p(-risk))
    if fewest > num_rows:
        return torch.empty(0, dtype=torch.int64)
    return torch.linspace(fewest, num_rows, num_candidates, dtype=torch.float64).round().long().unique()  # type: ignore[no-untyped-call, no-any-return]


def _at_ranks(confidences: Tensor, places: Tensor) -> Tensor:
    """The confidences with so many rows above them, (candidates,); -infinity below all rows."""
    ordered = confidences.sort(descending=True).values
    return torch.cat([ordered, ordered.new_full((1,), -math.inf)])[places]


def _fixed(thresholds: ArrayLike, like: Tensor) -> Tensor:
    candidates = as_tensor(thresholds, device=like.device).to(like.dtype)
    if candidates.dim() != 1 or not len(candidates):
        raise ShapeError(f"`thresholds` must have shape (candidates,), of at least one; got {tuple(candidates.shape)}")
    check_finite("thresholds", torch.where(candidates == -math.inf, 0.0, candidates))
    return candidates.sort(descending=True).values


def _binomial_p_values(sure: Tensor, lost: Tensor, candidates: Tensor, risk: float) -> Tensor:
    ordered, order = sure.sort()
    above = len(sure) - torch.searchsorted(ordered, candidates, right=True)
    totals = torch.cat([lost.new_zeros(1), lost[order].flip(0).cumsum(0)])
    return _binomial_cdf(totals[above], above, risk)


def _binomial_cdf(hits: Tensor, counts: Tensor, risk: float) -> Tensor:
    """P(Bin(counts, risk) <= hits), float64."""
    tail = special.bdtr(hits.cpu().double().numpy(), counts.cpu().numpy(), risk)
    return torch.as_tensor(tail, dtype=torch.float64, device=hits.device)
