r"""Class forecasts as forecasts of single events, and back: one against the rest.

A binary outcome is one event; several labels of a row share one map. A choice among K classes is K events, "class k
comes", each with a map of its own (Bianca Zadrozny, Charles Elkan, "Transforming Classifier Scores into Accurate
Multiclass Probability Estimates", 2002); the K recalibrated probabilities of a row are divided by their sum, and a row
in which all are 0 becomes uniform. Both log p and log(1 - p) are kept, so that p within 1e-300 of either end is told
from its neighbours. A probability of exactly 0 counts as 2.2e-308, the smallest normal number.
"""

import math
import sys
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import Distribution

from credibly.core.errors import NotFiniteError
from credibly.distributions.class_rows import class_distribution, is_binary
from credibly.distributions.classes import class_log_probs

__all__ = ["EventForecasts", "event_forecasts", "event_outcomes", "finite_log_probs", "from_event_log_odds"]

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


def event_forecasts(predicted: Distribution) -> EventForecasts:
    """The forecasts of every event: (1, rows * labels) of a binary outcome, (classes, rows) of a choice.

    Raises:
        NotFiniteError, NotSupportedError: see `finite_log_probs`.
    """
    log_probs = finite_log_probs(predicted)
    if is_binary(predicted):
        flat = log_probs.flatten(0, -2)
        return EventForecasts(flat[:, 1].unsqueeze(0), flat[:, 0].unsqueeze(0))
    return EventForecasts(log_probs.t().contiguous(), _log_complement(log_probs).t().contiguous())


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
    if is_binary(like):
        odds = log_odds.reshape(like.batch_shape + like.event_shape)
        return class_distribution(like, torch.stack([torch.zeros_like(odds), odds], -1))
    log_probs = F.logsigmoid(log_odds.t())
    nothing = log_probs.isneginf().all(-1, keepdim=True)
    return class_distribution(like, torch.where(nothing, 0.0, log_probs))
