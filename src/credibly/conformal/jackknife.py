r"""The jackknife+ and its kin: intervals from models that left a row out, without a calibration set.

Row i of n has a residual R_i = |y_i - mu_-i(x_i)| under a model that was trained without it. At a new x,

    lower = the (n + 1 - k)-th smallest of mu_-i(x) - R_i,    upper = the k-th smallest of mu_-i(x) + R_i,

with k = ceil(c (n + 1)), so that n + 1 - k = floor((1 - c)(n + 1)). Whatever the models, the interval holds a new
target with probability 2c - 1 at least, and about c in practice ("Predictive inference with the jackknife+", Barber,
Candes, Ramdas, Tibshirani, 2021). CV+ leaves out whole folds and needs one model a fold. After a bootstrap, mu_-i is
the mean or median of those members of an ensemble whose sample does not hold row i, which costs no further training
("Predictive Inference Is Free with the Jackknife+-after-Bootstrap", Kim, Xu, Barber, 2020).

Predictions are distributions, of which the mean counts, or arrays of point predictions, from any source.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor
from torch.distributions import Distribution

from credibly.conformal.fold_counts import row_folds, sort_by_fold
from credibly.conformal.intervals import Intervals, sum_down, sum_up
from credibly.conformal.members import stacked
from credibly.conformal.ranks import rank
from credibly.conformal.residual import moment
from credibly.conformal.shifted_sums import kth_smallest_sum
from credibly.core.checks import as_tensor, check_coverage, check_finite
from credibly.core.errors import ShapeError
from credibly.core.typing import ArrayLike
from credibly.distributions.moments import mean

__all__ = ["AfterBootstrapPredictor", "CVPlus", "JackknifePlus", "JackknifePlusAfterBootstrap", "PlusPredictor"]

_TABLE = 2**22  # elements of a table of rows against rows at a time
_ADVICE = "give point predictions, such as medians, as an array; for classes use ClassCVPlus"

Predictions = Distribution | ArrayLike
Members = Distribution | ArrayLike | Sequence[Distribution]


@dataclass(frozen=True)
class JackknifePlus:
    """The jackknife+: one model for every training row, trained on all others."""

    def calibrate(self, left_out: Predictions, targets: ArrayLike) -> "PlusPredictor":
        """Keep the residuals.

        Args:
            left_out: the prediction for every training row by the model that was trained without it, (rows,).
            targets: what came, (rows,).

        Raises:
            ShapeError: another shape, or fewer than 2 rows.
            NotFiniteError: NaN or infinite predictions or targets.
        """
        residuals = _residuals(left_out, targets)
        return _plus(residuals, torch.arange(len(residuals), device=residuals.device))


@dataclass(frozen=True)
class CVPlus:
    """CV+: one model for every fold of the training rows, trained on the other folds."""

    def calibrate(self, left_out: Predictions, targets: ArrayLike, folds: ArrayLike) -> "PlusPredictor":
        """Keep the residuals.

        Args:
            left_out: the prediction for every training row by the model of its fold, (rows,).
            targets: what came, (rows,).
            folds: the fold of every row, (rows,): 0, 1, ..., num_folds - 1.

        Raises:
            ShapeError: another shape.
            ValueError: a fold without rows, or one fold alone.
            NotFiniteError: NaN or infinite predictions or targets.
        """
        residuals = _residuals(left_out, targets)
        return _plus(residuals, as_tensor(folds, device=residuals.device))


@dataclass(frozen=True, eq=False, kw_only=True)
class PlusPredictor:
    """Residuals under the models that left their rows out.

    Attributes:
        scores: the residuals, increasing, (n,), float64.
        folds: which model left each of them out, (n,), int64.
        num_folds: the number of models.
    """

    scores: Tensor = field(repr=False)
    folds: Tensor = field(repr=False)
    num_folds: int

    def predict(self, members: Members, coverage: float = 0.9) -> Intervals:
        """The intervals of the given nominal coverage. Coverage 0 gives nothing, coverage 1 everything.

        Args:
            members: what each model, in the order of the folds, predicts for the new rows: a distribution with
                batch_shape (num_folds, rows), a mixture of as many components, a sequence of distributions, or an
                array (num_folds, rows).
            coverage: c, in [0, 1].

        Raises:
            ShapeError: another number of models.
            NotFiniteError: NaN or infinite predictions.
        """
        centres = _members(members, self.num_folds)
        residuals = sort_by_fold(self.scores.to(centres.device), self.folds.to(centres.device), self.num_folds)

        def ends(sign: int, k: int) -> Tensor:
            return sign * kth_smallest_sum(sign * centres, residuals, k)

        return _between(len(self.scores), coverage, centres.shape[-1], ends, centres)

    def guaranteed_coverage(self, coverage: float) -> float:
        """The probability with which a new target is held at least, whatever the models; it can be 0.

        With folds of equal size m = n / K it is 2c - 1 - min(2 (1 - 1/K) / (m + 1), (1 - K/n) / (K + 1)).
        """
        n, folds = len(self.scores), self.num_folds
        excess = min(2 * (1 - 1 / folds) / (n / folds + 1), (1 - folds / n) / (folds + 1))
        return max(0.0, 2 * check_coverage(coverage) - 1 - excess)


@dataclass(frozen=True, kw_only=True)
class JackknifePlusAfterBootstrap:
    """The jackknife+ of an ensemble trained on bootstrap samples, or any samples of the rows.

    Args:
        aggregate: how the predictions of members become one.
    """

    aggregate: Literal["mean", "median"] = "mean"

    def __post_init__(self) -> None:
        if self.aggregate not in ("mean", "median"):
            raise ValueError(f"`aggregate` must be 'mean' or 'median'; got {self.aggregate!r}")

    def calibrate(self, members: Members, targets: ArrayLike, in_bag: ArrayLike) -> "AfterBootstrapPredictor":
        """Keep the residuals of every row under the members that did not see it.

        Args:
            members: what each member predicts for every training row: the mixture that an ensemble's posterior
                predicts, whose components are the members; a distribution with batch_shape (members, rows); a sequence
                of distributions; or an array (members, rows).
                Members that are several draws each, such as those of dropout, come as a sequence:
                `[member.predict(inputs) for member in posterior.members]`.
            targets: what came, (rows,).
            in_bag: whether the member's sample holds the row, or how often, (members, rows): `posterior.info.in_bag` of
                `inference.Ensemble(bootstrap=True)`. A row that is in every sample has an infinite residual.

        Raises:
            ShapeError: other shapes.
            NotFiniteError: NaN or infinite predictions, targets or `in_bag`.
            ValueError: `in_bag` below 0.
        """
        centres = _members(members, None)
        bags = check_finite("in_bag", as_tensor(in_bag, device=centres.device))
        if bags.shape != centres.shape:
            raise ShapeError(f"`in_bag` must have shape {tuple(centres.shape)}; got {tuple(bags.shape)}")
        if bool((bags < 0).any()):
            raise ValueError(f"`in_bag` must be 0 or above; got {bags.min().item():g}")
        unseen = (bags == 0).T.contiguous()
        own = _aggregated(centres.T, unseen, self.aggregate)
        seen_by_all = ~unseen.any(-1)
        residuals = _residuals(own.masked_fill(seen_by_all, 0.0), targets).masked_fill(seen_by_all, torch.inf)
        return AfterBootstrapPredictor(scores=residuals, unseen=unseen, aggregate=self.aggregate)


@dataclass(frozen=True, eq=False, kw_only=True)
class AfterBootstrapPredictor:
    """Residuals under the members of an ensemble that did not see their rows.

    Attributes:
        scores: the residuals in the order of the rows, (n,), float64.
        unseen: whether a member's sample left the row out, (n, members), bool.
        aggregate: how the predictions of members become one.
    """

    scores: Tensor = field(repr=False)
    unseen: Tensor = field(repr=False)
    aggregate: Literal["mean", "median"] = "mean"

    def predict(self, members: Members, coverage: float = 0.9) -> Intervals:
        """The intervals of the given nominal coverage. Coverage 0 gives nothing, coverage 1 everything.

        Args:
            members: what each member predicts for the new rows; see `JackknifePlusAfterBootstrap.calibrate`.
            coverage: c, in [0, 1].

        Raises:
            ShapeError: another number of members.
            NotFiniteError: NaN or infinite predictions.
        """
        centres = _members(members, self.unseen.shape[1])
        scores, unseen = self.scores.to(centres.device), self.unseen.to(centres.device)
        rows, work = centres.shape[-1], unseen.numel() if self.aggregate == "median" else len(scores)

        def ends(sign: int, k: int) -> Tensor:
            parts = []
            for some in torch.split((sign * centres).T, max(1, _TABLE // max(work, 1))):
                apart = _aggregated(some.unsqueeze(1), unseen, self.aggregate).masked_fill(~unseen.any(-1), 0.0)
                parts.append(sum_down(apart, scores).kthvalue(k, -1).values)
            return sign * torch.cat(parts) if rows else centres.new_empty(0)

        return _between(len(scores), coverage, rows, ends, centres)

    def guaranteed_coverage(self, coverage: float) -> float:
        """2c - 1: the probability with which a new target is held at least, whatever the members.

        It holds if the number of members was drawn from a binomial distribution, as it were, of unknown size; with a
        fixed number it is what is seen.
        """
        return max(0.0, 2 * check_coverage(coverage) - 1)


def _residuals(left_out: Predictions, targets: ArrayLike) -> Tensor:
    """The distances of targets from predictions, (rows,), float64, rounded up."""
    centres = _points("left_out", left_out)
    values = check_finite("targets", as_tensor(targets, device=centres.device)).to(torch.float64)
    if centres.dim() != 1 or values.shape not in (centres.shape, (*centres.shape, 1)):
        raise ShapeError(
            "predictions and `targets` must both have shape (rows,); "
            f"got {tuple(centres.shape)} and {tuple(values.shape)}"
        )
    values = values.reshape(centres.shape)
    return torch.maximum(sum_up(values, -centres), sum_up(centres, -values))


def _plus(residuals: Tensor, folds: Tensor) -> PlusPredictor:
    if len(residuals) < 2:
        raise ShapeError(f"at least 2 rows are needed; got {len(residuals)}")
    own, num_folds = row_folds(folds, len(residuals), residuals.device)
    scores, order = residuals.sort()
    return PlusPredictor(scores=scores, folds=own[order], num_folds=num_folds)


def _points(name: str, predictions: Predictions) -> Tensor:
    """Point predictions, float64: means of a distribution, a last axis of one output dropped."""
    given = predictions
    values = moment(mean, given, _ADVICE) if isinstance(given, Distribution) else as_tensor(given)
    if isinstance(given, Distribution) and given.event_shape:
        values = values.squeeze(-1) if given.event_shape == (1,) else values
    return check_finite(name, values.detach()).to(torch.float64)


def _members(members: Members, count: int | None) -> Tensor:
    """The point predictions of every member, (members, rows)."""
    if isinstance(members, Sequence) and members and all(isinstance(each, Distribution) for each in members):
        centres = torch.stack([_points("members", each) for each in members])
    else:
        centres = _points("members", stacked(members) if isinstance(members, Distribution) else members)
    if centres.dim() != 2 or (count is not None and len(centres) != count):
        needed = "members" if count is None else count
        raise ShapeError(f"`members` must have shape ({needed}, rows); got {tuple(centres.shape)}")
    return centres


def _aggregated(centres: Tensor, unseen: Tensor, aggregate: str) -> Tensor:
    """The mean or median over the last axis, members, of those that are marked; not finite where none is."""
    if aggregate == "mean":
        marks = unseen.to(torch.float64)
        if centres.dim() == 3:  # every new row against every training row
            return centres.squeeze(1) @ (marks / marks.sum(-1, keepdim=True)).T
        return (centres * marks).sum(-1) / marks.sum(-1)
    ordered = torch.where(unseen, centres, torch.inf).sort(-1).values
    count = unseen.sum(-1).expand(ordered.shape[:-1])
    pair = [ordered.gather(-1, place.clamp(min=0).unsqueeze(-1)) for place in ((count - 1) // 2, count // 2)]
    return (pair[0] / 2 + pair[1] / 2).squeeze(-1)


def _between(
    num_scores: int, coverage: float, rows: int, ends: Callable[[int, int], Tensor], like: Tensor
) -> Intervals:
    """The intervals from `ends(-1, k)` to `ends(1, k)`: the lower and the upper ends at rank k."""
    k = rank(num_scores, coverage)
    if 0 < k <= num_scores:
        return Intervals.between(ends(-1, k), ends(1, k))
    far = torch.full((rows,), math.inf if k > 0 else -math.inf, dtype=torch.float64, device=like.device)
    return Intervals.between(-far, far)
