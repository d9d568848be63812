"""Scores whose regions are intervals: two ends that move apart as the threshold grows.

A subclass reads some anchors off a prediction, a centre or two quantiles, and writes the score of a value and the ends
of the interval as functions of them, element by element. Scores are rounded up and ends inwards, so that a value lies
between the ends exactly when its score is at most the threshold.
"""

from abc import abstractmethod

import torch
from torch import Tensor
from torch.distributions import Distribution

from credibly.conformal.base import Score
from credibly.conformal.float_search import last_true
from credibly.conformal.intervals import Intervals, sum_down, sum_up
from credibly.conformal.rows import row_thresholds
from credibly.core.checks import as_tensor
from credibly.core.errors import NotFiniteError, NotSupportedError, ShapeError
from credibly.core.typing import ArrayLike
from credibly.distributions.kinds import kind
from credibly.distributions.rows import num_rows
from credibly.distributions.targets import check_rows, match_targets

__all__ = ["IntervalScore", "divided", "multiplied", "one_limit_a_row", "stretched", "without_nan"]


class IntervalScore(Score[Intervals]):
    """A score of numbers whose regions are intervals. A frozen dataclass of options."""

    @abstractmethod
    def anchors(self, predicted: Distribution) -> tuple[Tensor, ...]:
        """What scores and ends are made of, each (rows, *event_shape), float64, without NaN."""

    @abstractmethod
    def of_values(self, anchors: tuple[Tensor, ...], values: Tensor) -> Tensor:
        """The score of every element, float64.

        Args:
            anchors: as from `anchors`.
            values: finite, float64, in the same shape.
        """

    @abstractmethod
    def ends(self, anchors: tuple[Tensor, ...], limits: Tensor) -> tuple[Tensor, Tensor]:
        """The smallest and the largest value whose score is at most the limit; crossed where there is none.

        Args:
            anchors: as from `anchors`.
            limits: thresholds, float64, that broadcast to their shape.
        """

    def score(self, predicted: Distribution, targets: ArrayLike, u: ArrayLike | None = None) -> Tensor:
        """The score of every row's target, (rows,), float64; see `Score.score`.

        Raises:
            NotSupportedError: `predicted` is about classes, or about several outputs a row.
            NotFiniteError: a prediction that is NaN.
        """
        anchors = self._checked(predicted)
        values = match_targets(predicted, as_tensor(targets)).reshape(anchors[0].shape).to(torch.float64)
        return self.of_values(anchors, values)

    def region(self, predicted: Distribution, thresholds: ArrayLike, u: ArrayLike | None = None) -> Intervals:
        """The interval of every row; see `Score.region`.

        Raises:
            NotSupportedError: `predicted` is about classes, or about several outputs a row.
            NotFiniteError: a prediction that is NaN.
        """
        anchors = self._checked(predicted)
        limits = one_limit_a_row(thresholds, len(anchors[0]), anchors[0].device)
        return Intervals.between(*self.ends(anchors, limits), of_counts=kind(predicted) == "count")

    def check_numbers(self, predicted: Distribution) -> None:
        """Refuse classes by name."""
        name = type(self).__name__
        if kind(predicted) == "class":
            raise NotSupportedError(
                f"{name} needs a number to predict; a {type(predicted).__name__} is about classes: use LAC or APS"
            )

    def _checked(self, predicted: Distribution) -> tuple[Tensor, ...]:
        check_rows(predicted)
        self.check_numbers(predicted)
        if predicted.event_shape not in ((), (1,)):
            raise NotSupportedError(
                f"{type(self).__name__} needs one output a row; `predicted` has event_shape "
                f"{tuple(predicted.event_shape)}: take each output by itself, or Box({type(self).__name__}())"
            )
        return tuple(anchor.reshape(num_rows(predicted)) for anchor in self.anchors(predicted))


def without_nan(name: str, values: Tensor, predicted: Distribution) -> Tensor:
    """The values as float64 of shape (rows, *event_shape), detached, or a NotFiniteError that names what is NaN."""
    bad = int(values.isnan().sum())
    if bad:
        raise NotFiniteError(f"the {name} of `predicted` is NaN in {bad} rows")
    shape = predicted.batch_shape[-1:] + predicted.event_shape
    return values.detach().to(torch.float64).expand(shape)


def one_limit_a_row(thresholds: ArrayLike, rows: int, device: torch.device) -> Tensor:
    """Thresholds, one number for all rows or one a row, as (rows,), float64.

    Raises:
        ShapeError: thresholds of another shape.
        ValueError: NaN.
    """
    limits = row_thresholds(thresholds, rows, device)
    if limits.dim() == 2 and limits.shape[-1] != 1:
        raise ShapeError(f"`thresholds` must be one number a row; got {tuple(limits.shape)}")
    return limits.squeeze(-1).expand(rows) if limits.dim() else limits.expand(rows)


def stretched(low: Tensor, high: Tensor, limits: Tensor) -> tuple[Tensor, Tensor]:
    """The ends low - limit and high + limit, rounded inwards: everything for +inf, crossed for -inf."""
    whole, none = limits == torch.inf, limits == -torch.inf
    lower = sum_up(low, -limits).masked_fill(whole, -torch.inf).masked_fill(none, torch.inf)
    upper = sum_down(high, limits).masked_fill(whole, torch.inf).masked_fill(none, -torch.inf)
    return lower, upper


def divided(distances: Tensor, scales: Tensor) -> Tensor:
    """Distances in units of a scale of 0 or above, never NaN.

    Nothing but distances of 0 or less is near on a scale of 0, and everything on an infinite one.
    """
    regular = (scales > 0) & scales.isfinite()
    ratio = distances / torch.where(regular, scales, 1.0)
    near = torch.where((scales == 0) & (distances > 0), torch.inf, 0.0)
    return torch.where(regular, ratio, torch.where(scales.isnan(), torch.inf, near))


def multiplied(limits: Tensor, scales: Tensor) -> Tensor:
    """The largest distance d with `divided(d, scale) <= limit`, in floating point; -inf if there is none."""
    limits, scales = torch.broadcast_tensors(limits, scales)  # type: ignore[no-untyped-call]
    regular = (scales > 0) & scales.isfinite()
    unit = torch.where(regular, scales, 1.0)
    everything = torch.full_like(unit, torch.inf)
    distance = last_true(lambda d: d / unit <= limits, -everything, everything)
    edge = torch.where(scales == 0, 0.0, torch.where(scales.isnan(), -torch.inf, torch.inf))
    edge = torch.where(limits >= 0, edge, -torch.inf)
    return torch.where(limits.isinf(), limits, torch.where(regular, distance, edge))
