"""Log densities that are -inf outside the support: never finite, never NaN, with finite gradients everywhere.

Where a target lies outside, the formula sees a value inside and its result is replaced, so that no NaN leaks
through the branch that was not taken.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import (
    Bernoulli,
    Categorical,
    Distribution,
    Independent,
    Laplace,
    Normal,
    Uniform,
    biject_to,
    constraints,
)

from credibly.core.typing import ArrayLike
from credibly.distributions.classes import built_from_probs
from credibly.distributions.operations import Operation
from credibly.distributions.shapes import broadcast_shape
from credibly.distributions.targets import match_targets

__all__ = ["element_log_prob", "log_prob", "safe_log_prob"]


def log_prob(d: Distribution, y: ArrayLike) -> Tensor:
    """Log density or log probability of every row's target, joint over the event: shape batch_shape.

    Args:
        d: the distribution.
        y: targets of shape (rows, *event_shape).

    Raises:
        ShapeError, NotFiniteError, SupportError: see `match_targets`.
        NotSupportedError: the distribution has no density.
    """
    return safe_log_prob(d, match_targets(d, y))


@Operation
def safe_log_prob(d: Distribution, y: Tensor) -> Tensor:
    """Log density without any check of the targets: -inf outside the support.

    Has no data-dependent control flow, so that it passes through `torch.func.vmap`. Targets broadcast as
    in torch.
    """
    try:
        support: Any = d.support
        inside = support.check(y)
        within = inside.reshape(inside.shape + (1,) * support.event_dim)
        values = d.log_prob(torch.where(within, y, _interior(support, y)))
    except NotImplementedError:
        safe_log_prob.refuse(d, "its support or its density is not implemented; register an entry for it")
    return torch.where(inside, values, float("-inf"))


def _interior(support: constraints.Constraint, y: Tensor) -> Tensor:
    """A value inside the support, in the dtype of the targets."""
    if support.is_discrete:
        return torch.as_tensor(getattr(support, "lower_bound", 0), dtype=y.dtype, device=y.device)
    zeros = torch.zeros((1,) * support.event_dim, dtype=y.dtype, device=y.device)
    value: Tensor = biject_to(support)(zeros)
    return value


@safe_log_prob.register(Normal, Laplace)
def _(d: Distribution, y: Tensor) -> Tensor:
    return d.log_prob(y)


@safe_log_prob.register(Independent)
def _(d: "Independent[Any]", y: Tensor) -> Tensor:
    each = safe_log_prob(d.base_dist, y)
    return each.sum(tuple(range(-d.reinterpreted_batch_ndims, 0)))


@safe_log_prob.register(Uniform)
def _(d: Uniform, y: Tensor) -> Tensor:
    inside = (y >= d.low) & (y <= d.high)
    return torch.where(inside, -torch.log(d.high - d.low), float("-inf"))


@safe_log_prob.register(Bernoulli)
def _(d: Bernoulli, y: Tensor) -> Tensor:
    happens, inside = y == 1, (y == 0) | (y == 1)
    if built_from_probs(d):
        values = torch.where(happens, _log(d.probs), _log1m(d.probs))
    else:
        values = torch.where(happens, F.logsigmoid(d.logits), F.logsigmoid(-d.logits))
    return torch.where(inside, values, float("-inf"))


def _log(probs: Tensor) -> Tensor:
    positive = probs > 0
    return torch.where(positive, torch.log(torch.where(positive, probs, 1.0)), float("-inf"))


def _log1m(probs: Tensor) -> Tensor:
    below = probs < 1
    return torch.where(below, torch.log1p(-torch.where(below, probs, 0.0)), float("-inf"))


@safe_log_prob.register(Categorical)
def _(d: Categorical, y: Tensor) -> Tensor:
    logits = _log(d.probs) if built_from_probs(d) else d.logits
    inside = (y >= 0) & (y < logits.shape[-1]) & (y == y.round() if y.is_floating_point() else True)
    index = torch.where(inside, y, torch.zeros_like(y)).long().unsqueeze(-1)
    index = index.expand(broadcast_shape(index.shape, logits[..., :1].shape))
    table = logits.expand(index.shape[:-1] + logits.shape[-1:])
    return torch.where(inside, table.gather(-1, index).squeeze(-1), float("-inf"))


@Operation
def element_log_prob(d: Distribution, y: Tensor) -> Tensor:
    """Log density of each element of the event by itself: shape batch_shape + event_shape, unchecked.

    Raises:
        NotSupportedError: the elements of the event depend on each other.
    """
    return element_log_prob.refuse(d) if d.event_shape else safe_log_prob(d, y)


@element_log_prob.register(Independent)
def _(d: "Independent[Any]", y: Tensor) -> Tensor:
    return element_log_prob(d.base_dist, y)
