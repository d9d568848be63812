r"""Regions for several targets at once: boxes and ellipsoids that hold the whole vector.

A box comes from the largest of the targets' own scores, score(y) = max_j s_j(y_j), and its region is the product of
their intervals at one threshold; standardised residuals make the targets comparable. `BonferroniBox` gives each of D
targets its own threshold at coverage 1 - (1 - c)/D instead: no unit is needed, but it is conservative, and infinite
with fewer than D/(1 - c) - 1 calibration rows.

An ellipsoid comes from the Mahalanobis distance, score(y) = sqrt((y - mu)^T Sigma^-1 (y - mu)), with the predicted
covariance of every row or one for all ("Conformal Uncertainty Sets for Robust Optimization", Johnstone, Cox, 2021;
"Ellipsoidal conformal inference for Multi-Target Regression", Messoudi, Destercke, Rousseau, 2022).
"""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.distributions import Distribution

from credibly.conformal.base import ConformalPredictor, Score
from credibly.conformal.bonferroni import part_coverage
from credibly.conformal.interval_score import IntervalScore, one_limit_a_row, without_nan
from credibly.conformal.intervals import widths
from credibly.conformal.region import Region
from credibly.conformal.residual import StandardizedResidual
from credibly.core.checks import as_tensor, check_finite
from credibly.core.errors import NotFiniteError, NotSupportedError, ShapeError
from credibly.core.typing import ArrayLike
from credibly.distributions.covariance import covariance
from credibly.distributions.kinds import kind
from credibly.distributions.moments import mean
from credibly.distributions.targets import check_rows, match_targets

__all__ = ["BonferroniBox", "BonferroniBoxPredictor", "Box", "Boxes", "Ellipsoid", "Ellipsoids", "TargetScore"]


@dataclass(frozen=True, eq=False)
class Boxes(Region):
    """A box for every row, closed. Make one with `Boxes.between`.

    Attributes:
        lower: lower ends, (rows, targets), float64; NaN where the box is empty.
        upper: upper ends, likewise.
        empty: whether the box contains nothing, (rows,), bool.
        of_counts: whether the targets are counts, so that `width` is how many of them a side holds.
    """

    lower: Tensor
    upper: Tensor
    empty: Tensor
    of_counts: bool = field(default=False, kw_only=True)

    @classmethod
    def between(cls, lower: Tensor, upper: Tensor, *, of_counts: bool = False) -> "Boxes":
        """The boxes with these ends; empty where no real number lies between those of one target."""
        empty = ((lower > upper) | (lower == math.inf) | (upper == -math.inf)).any(-1)
        crossed = empty.unsqueeze(-1)
        lower, upper = lower.masked_fill(crossed, math.nan), upper.masked_fill(crossed, math.nan)
        return cls(lower, upper, empty, of_counts=of_counts)

    @property
    def width(self) -> Tensor:
        """The length of every side, (rows, targets): 0 where the box is empty; of counts, how many it holds."""
        return widths(self.lower, self.upper, of_counts=self.of_counts).masked_fill(self.empty.unsqueeze(-1), 0.0)

    @property
    def volume(self) -> Tensor:
        """The volume of each box, (rows,): 0 with a side of length 0, else infinite with an infinite one."""
        sides = self.width
        return sides.prod(-1).masked_fill((sides == 0).any(-1), 0.0)

    def contains(self, targets: ArrayLike) -> Tensor:
        """Whether each row's target lies in its box, (rows,), bool.

        Raises:
            ShapeError: `targets` is not (rows, targets).
            NotFiniteError: NaN or infinite targets.
        """
        values = _vectors(targets, self.lower)
        return ((self.lower <= values) & (values <= self.upper)).all(-1)


@dataclass(frozen=True, eq=False)
class Ellipsoids(Region):
    """An ellipsoid for every row, closed: all y with |L^-1 (y - centre)| <= radius.

    Attributes:
        centre: (rows, targets), float64.
        scale_tril: the lower triangular L with covariance L L^T, (rows, targets, targets), float64.
        radius: (rows,), float64; below 0 where the region is empty.
    """

    centre: Tensor
    scale_tril: Tensor
    radius: Tensor

    @property
    def empty(self) -> Tensor:
        """Whether the region contains nothing, (rows,), bool."""
        return self.radius < 0

    @property
    def volume(self) -> Tensor:
        """The volume of each ellipsoid, (rows,): that of the unit ball, times radius^D, times det L."""
        size = self.centre.shape[-1]
        log_ball = size / 2 * math.log(math.pi) - math.lgamma(size / 2 + 1)
        log_det = self.scale_tril.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        return (log_ball + log_det + size * self.radius.clamp(min=0).log()).exp()

    def contains(self, targets: ArrayLike) -> Tensor:
        """Whether each row's target lies in its ellipsoid, (rows,), bool.

        Raises:
            ShapeError: `targets` is not (rows, targets).
            NotFiniteError: NaN or infinite targets.
        """
        values = _vectors(targets, self.centre).to(torch.float64)
        return _mahalanobis(self.centre, self.scale_tril, values) <= self.radius


@dataclass(frozen=True)
class Box(Score[Boxes]):
    """The largest of the targets' scores; the region is the product of their intervals.

    Args:
        of: the score of one target. Give it units that make targets comparable, as the default does.
    """

    of: IntervalScore = field(default_factory=StandardizedResidual)

    def __post_init__(self) -> None:
        _check_interval_score(type(self).__name__, self.of)

    def score(self, predicted: Distribution, targets: ArrayLike, u: ArrayLike | None = None) -> Tensor:
        """The largest score of every row, (rows,); see `Score.score`.

        Raises:
            NotSupportedError: `predicted` is about classes, or not about a vector.
        """
        anchors = _vector_anchors(self.of, predicted)
        values = match_targets(predicted, as_tensor(targets)).to(torch.float64)
        return self.of.of_values(anchors, values).amax(-1)

    def region(self, predicted: Distribution, thresholds: ArrayLike, u: ArrayLike | None = None) -> Boxes:
        """The box of every row; see `Score.region`.

        Raises:
            NotSupportedError: `predicted` is about classes, or not about a vector.
        """
        anchors = _vector_anchors(self.of, predicted)
        limits = one_limit_a_row(thresholds, len(anchors[0]), anchors[0].device)
        return Boxes.between(*self.of.ends(anchors, limits.unsqueeze(-1)), of_counts=kind(predicted) == "count")


@dataclass(frozen=True)
class TargetScore(Score[Boxes]):
    """The score of one target of several, by itself; the region is a box without ends for the others.

    Args:
        of: the score.
        index: which target, from 0; negative ones count from the last.
    """

    of: IntervalScore
    index: int

    def __post_init__(self) -> None:
        _check_interval_score(type(self).__name__, self.of)
        if isinstance(self.index, bool) or not hasattr(self.index, "__index__"):
            raise TypeError(f"`index` must be a whole number; got {self.index!r}")

    def score(self, predicted: Distribution, targets: ArrayLike, u: ArrayLike | None = None) -> Tensor:
        """The score of every row's target at the index, (rows,); `targets` are all of them, (rows, targets).

        Raises:
            NotSupportedError: `predicted` is about classes, or not about a vector.
            ShapeError: there is no such target.
        """
        anchors = self._anchors(predicted)
        values = match_targets(predicted, as_tensor(targets)).to(torch.float64)
        return self.of.of_values(anchors, values)[:, self.index]

    def region(self, predicted: Distribution, thresholds: ArrayLike, u: ArrayLike | None = None) -> Boxes:
        """The interval of the target at the index, and all numbers of the others, for every row.

        Raises:
            NotSupportedError: `predicted` is about classes, or not about a vector.
            ShapeError: there is no such target.
        """
        anchors = self._anchors(predicted)
        limits = one_limit_a_row(thresholds, len(anchors[0]), anchors[0].device)
        lower, upper = torch.full_like(anchors[0], -math.inf), torch.full_like(anchors[0], math.inf)
        own = self.of.ends(tuple(anchor[:, self.index] for anchor in anchors), limits)
        lower[:, self.index], upper[:, self.index] = own
        return Boxes.between(lower, upper, of_counts=kind(predicted) == "count")

    def _anchors(self, predicted: Distribution) -> tuple[Tensor, ...]:
        anchors = _vector_anchors(self.of, predicted)
        count = anchors[0].shape[-1]
        if not -count <= self.index < count:
            raise ShapeError(f"`index` must lie between {-count} and {count - 1} for {count} targets; got {self.index}")
        return anchors


@dataclass(frozen=True)
class BonferroniBox:
    """A box with a threshold for every target, each at coverage 1 - (1 - c)/D. A recipe like a `Score`.

    Args:
        of: the score of one target.
    """

    of: IntervalScore = field(default_factory=StandardizedResidual)

    def __post_init__(self) -> None:
        _check_interval_score(type(self).__name__, self.of)

    def calibrate(
        self,
        predicted: Distribution,
        targets: ArrayLike,
        *,
        groups: ArrayLike | None = None,
        weights: ArrayLike | None = None,
        difficulty: ArrayLike | None = None,
    ) -> "BonferroniBoxPredictor":
        """Score held-out rows, every target by itself; see `Score.calibrate`."""
        _check_vector(type(self).__name__, predicted)
        scores = [TargetScore(self.of, j) for j in range(predicted.event_shape[0])]
        return BonferroniBoxPredictor(
            targets=tuple(
                score.calibrate(predicted, targets, groups=groups, weights=weights, difficulty=difficulty)
                for score in scores
            )
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class BonferroniBoxPredictor:
    """Calibrated targets.

    Attributes:
        targets: the predictor of every target.
    """

    targets: tuple[ConformalPredictor[Boxes], ...]

    def predict(
        self,
        predicted: Distribution,
        coverage: float = 0.9,
        *,
        groups: ArrayLike | None = None,
        weights: ArrayLike | None = None,
        difficulty: ArrayLike | None = None,
    ) -> Boxes:
        """The boxes that hold all targets with the given coverage; see `ConformalPredictor.predict`."""
        level = part_coverage(coverage, len(self.targets))
        boxes = [
            target.predict(predicted, level, groups=groups, weights=weights, difficulty=difficulty)
            for target in self.targets
        ]
        lower = torch.stack([box.lower for box in boxes]).amax(0)
        upper = torch.stack([box.upper for box in boxes]).amin(0)
        empty = torch.stack([box.empty for box in boxes]).any(0).unsqueeze(-1)
        return Boxes.between(lower.masked_fill(empty, math.inf), upper, of_counts=boxes[0].of_counts)


@dataclass(frozen=True)
class Ellipsoid(Score[Ellipsoids]):
    """The Mahalanobis distance from the predicted mean; the region is an ellipsoid.

    Args:
        covariance: None is the predicted covariance of every row; a matrix, as nested tuples, holds for all rows.
    """

    covariance: tuple[tuple[float, ...], ...] | None = None

    def score(self, predicted: Distribution, targets: ArrayLike, u: ArrayLike | None = None) -> Tensor:
        """The distance of every row's target, (rows,); see `Score.score`.

        Raises:
            NotSupportedError: `predicted` is about classes, not about a vector, or without a known covariance.
            ValueError: a covariance that is not positive definite.
        """
        centre, scale_tril = self._shape_of(predicted)
        return _mahalanobis(centre, scale_tril, match_targets(predicted, as_tensor(targets)).to(torch.float64))

    def region(self, predicted: Distribution, thresholds: ArrayLike, u: ArrayLike | None = None) -> Ellipsoids:
        """The ellipsoid of every row; see `Score.region`.

        Raises:
            NotSupportedError: `predicted` is about classes, not about a vector, or without a known covariance.
            ValueError: a covariance that is not positive definite.
        """
        centre, scale_tril = self._shape_of(predicted)
        return Ellipsoids(centre, scale_tril, one_limit_a_row(thresholds, len(centre), centre.device))

    def _shape_of(self, predicted: Distribution) -> tuple[Tensor, Tensor]:
        _check_vector(type(self).__name__, predicted)
        centre = without_nan("mean", mean(predicted), predicted)
        if self.covariance is None:
            matrices = covariance(predicted).detach().to(torch.float64)
        else:
            matrices = torch.tensor(self.covariance, dtype=torch.float64, device=centre.device)
        needed = (*centre.shape, centre.shape[-1])
        if matrices.shape not in (needed, needed[1:]):
            raise ShapeError(f"`covariance` must have shape {needed[1:]}; got {tuple(matrices.shape)}")
        return centre, _cholesky(matrices).expand(needed)


def _cholesky(matrices: Tensor) -> Tensor:
    if not bool(matrices.isfinite().all()):
        raise NotFiniteError("the covariance must be finite")
    factors: Tensor
    factors, failed = torch.linalg.cholesky_ex(matrices)
    if bool((failed > 0).any()):
        raise ValueError(f"the covariance must be positive definite; {int((failed > 0).sum())} matrices are not")
    return factors


def _mahalanobis(centre: Tensor, scale_tril: Tensor, values: Tensor) -> Tensor:
    """The length of L^-1 (y - centre), by forward substitution over the targets: rows do not touch each other."""
    away, solved = values - centre, list[Tensor]()
    for j in range(centre.shape[-1]):
        rest = away[:, j]
        for i, known in enumerate(solved):
            rest = rest - scale_tril[:, j, i] * known
        solved.append(rest / scale_tril[:, j, j])
    total = torch.zeros_like(away[:, 0])
    for each in solved:
        total = torch.hypot(total, each)
    return total


def _vector_anchors(score: IntervalScore, predicted: Distribution) -> tuple[Tensor, ...]:
    score.check_numbers(predicted)
    _check_vector("Box", predicted)
    return score.anchors(predicted)


def _check_interval_score(name: str, score: object) -> None:
    if not isinstance(score, IntervalScore):
        raise TypeError(f"{name} needs a score of numbers, such as StandardizedResidual() or CQR(); got {score!r}")


def _check_vector(name: str, predicted: Distribution) -> None:
    check_rows(predicted)
    if kind(predicted) == "class" or len(predicted.event_shape) != 1:
        raise NotSupportedError(
            f"{name} needs a vector of numbers a row; `predicted` is about a {kind(predicted)} target with event_shape "
            f"{tuple(predicted.event_shape)}: use AbsoluteResidual for a number, LAC or APS for a class"
        )


def _vectors(targets: ArrayLike, like: Tensor) -> Tensor:
    values = as_tensor(targets, device=like.device)
    if values.shape != like.shape:
        raise ShapeError(f"`targets` must have shape {tuple(like.shape)}; got {tuple(values.shape)}")
    return check_finite("targets", values)
