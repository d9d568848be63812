r"""Class forecasts as forecasts of single events, and back: one against the rest.

A binary outcome is one event; several labels of a row share one map. A choice among K classes is K events, "class k
comes", each with a map of its own (Bianca Zadrozny, Charles Elkan, "Transforming Classifier Scores into Accurate
Multiclass Probability Estimates", 2002); the K recalibrated probabilities of a row are divided by their sum, and a row
in which all are 0 becomes uniform. Both log p and log(1 - p) are kept, so that p within 1e-300 of either end is told
from its neighbours. A probability of exactly 0 counts as 2.2e-308, the smallest normal number.

A map of one event serves a choice between two classes, of which class 1 is the event; maps of two classes serve a
binary outcome. Any other number of classes than that of the fit is refused.
"""

import math
import sys
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import Distribution

from credibly.core.errors import NotFiniteError, ShapeError
from credibly.distributions.class_rows import class_distribution, is_binary
from credibly.distributions.classes import class_log_probs

__all__ = [
    "EventForecasts",
    "check_num_classes",
    "event_forecasts",
    "event_outcomes",
    "finite_log_probs",
    "from_event_log_odds",
]

_LOWEST = math.log(sys.float_info.min)


class EventForecasts(NamedTuple):
    """Log probabilities that events happen and that they fail, each (maps, forecasts), float64 and finite."""

    happens: Tensor
    fails: Tensor

    @property
    def log_odds(self) -> Tensor:
        """Log p - log(1 - p), (maps, forecasts)."""
        return self.happens - self.fails

    @property
    def probs(self) -> Tensor:
        """(maps, forecasts)."""
        return self.happens.exp()


def finite_log_probs(predicted: Distribution) -> Tensor:
    """`class_log_probs` with the smallest normal number in place of 0.

    Raises:
        NotFiniteError: NaN probabilities.
        NotSupportedError: `predicted` is not a distribution over classes.
    """
    log_probs = class_log_probs(predicted).detach()
    if bool(log_probs.isnan().any()):
        rows = log_probs.isnan().flatten(1).any(1).nonzero().squeeze(1)
        raise NotFiniteError(f"`predicted` has NaN probabilities in {len(rows)} rows, first row {int(rows[0])}")
    return torch.where(log_probs.isneginf(), _LOWEST, log_probs)


def check_num_classes(fitted: int, log_probs: Tensor) -> None:
    """Refuse forecasts of another number of classes than that of the fit.

    Args:
        fitted: the number of classes of the fit, 2 for a binary outcome.
        log_probs: of the forecasts, (..., classes).

    Raises:
        ShapeError: they differ.
    """
    if log_probs.shape[-1] != fitted:
        raise ShapeError(
            f"`predicted` must be over {fitted} classes, like the forecasts that the recalibration was fitted to; "
            f"got {log_probs.shape[-1]} classes"
        )


def event_forecasts(predicted: Distribution, num_maps: int | None = None) -> EventForecasts:
    """The forecasts of every event: (1, rows * labels) of a binary outcome, (classes, rows) of a choice.

    Args:
        predicted: a distribution over classes.
        num_maps: how many maps a fitted recalibration has, 1 or one a class: forecasts of two classes are then given
            as one event or as two, (num_maps, forecasts). None is as many as the type says.

    Raises:
        NotFiniteError, NotSupportedError: see `finite_log_probs`.
        ShapeError: another number of classes than that of the fit.
    """
    log_probs = finite_log_probs(predicted)
    flat = log_probs.flatten(0, -2)
    if num_maps is not None:
        check_num_classes(max(num_maps, 2), log_probs)
    if num_maps == 1 or (num_maps is None and is_binary(predicted)):
        return EventForecasts(flat[:, 1].unsqueeze(0), flat[:, 0].unsqueeze(0))
    return EventForecasts(flat.t().contiguous(), _log_complement(flat).t().contiguous())


def _log_complement(log_probs: Tensor) -> Tensor:
    """log(1 - p_k): from p_k where it is small, from the sum of the others where it is not."""
    small = torch.log1p(-log_probs.exp().clamp(max=0.5))
    top = log_probs.argmax(-1, keepdim=True)
    others = torch.logsumexp(log_probs.scatter(-1, top, -math.inf), -1, keepdim=True).clamp(min=_LOWEST, max=0.0)
    return torch.where(log_probs.gather(-1, top) > math.log(0.5), small.scatter(-1, top, others), small)


def event_outcomes(predicted: Distribution, targets: Tensor) -> Tensor:
    """Whether each event happened, in the shape of `event_forecasts`, float64."""
    if is_binary(predicted):
        return targets.to(torch.float64).reshape(1, -1)
    num_classes = class_log_probs(predicted).shape[-1]
    return F.one_hot(targets.long(), num_classes).t().to(torch.float64)


def from_event_log_odds(
    like: Distribution,
    log_odds: Tensor,  # (maps, forecasts)
) -> Distribution:
    """A plain distribution about the same target, in float64, of events with these log odds, infinite ones included."""
    if len(log_odds) == 1 and is_binary(like):
        pair = torch.cat([torch.zeros_like(log_odds), log_odds])
    else:
        pair = F.logsigmoid(torch.cat([-log_odds, log_odds]) if len(log_odds) == 1 else log_odds)
    log_probs = torch.where(pair.isneginf().all(0), 0.0, pair).t()
    return class_distribution(like, log_probs.reshape(like.batch_shape + like.event_shape + log_probs.shape[-1:]))
