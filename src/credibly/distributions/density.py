"""Log densities that are -inf outside the support: never finite, never NaN, with finite gradients everywhere.

Where a target lies outside, the formula sees a value inside and its result is replaced, so that no NaN leaks
through the branch that was not taken. Formulas whose large terms cancel are evaluated in float64, and come back in the
dtype of the target.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import (
    Bernoulli,
    Beta,
    Binomial,
    Categorical,
    Distribution,
    Gamma,
    Geometric,
    Independent,
    Laplace,
    NegativeBinomial,
    Normal,
    Poisson,
    StudentT,
    Uniform,
    Weibull,
    biject_to,
    constraints,
)

from credibly.core.typing import ArrayLike
from credibly.distributions.classes import built_from_probs
from credibly.distributions.operations import Operation
from credibly.distributions.shapes import broadcast_shape
from credibly.distributions.special import log_gamma_ratio
from credibly.distributions.targets import match_observed
from credibly.distributions.trials import log_of_success_and_failure

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
    return safe_log_prob(d, match_observed(d, y))


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
    axes = tuple(range(-d.reinterpreted_batch_ndims, 0))
    # an element outside rules the target out, also beside one whose density is infinite
    return torch.where(torch.isneginf(each).any(axes), float("-inf"), each.sum(axes))


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
    none = probs <= 0  # false for NaN, which stays
    return torch.where(none, float("-inf"), torch.log(torch.where(none, 1.0, probs)))


def _log1m(probs: Tensor) -> Tensor:
    none = probs >= 1
    return torch.where(none, float("-inf"), torch.log1p(-torch.where(none, 0.0, probs)))


@safe_log_prob.register(Categorical)
def _(d: Categorical, y: Tensor) -> Tensor:
    logits = _log(d.probs) if built_from_probs(d) else d.logits
    inside = (y >= 0) & (y < logits.shape[-1]) & (y == y.round() if y.is_floating_point() else True)
    index = torch.where(inside, y, torch.zeros_like(y)).long().unsqueeze(-1)
    index = index.expand(broadcast_shape(index.shape, logits[..., :1].shape))
    table = logits.expand(index.shape[:-1] + logits.shape[-1:])
    return torch.where(inside, table.gather(-1, index).squeeze(-1), float("-inf"))


def _times(count: Tensor, log: Tensor) -> Tensor:
    """The product, 0 for a count of 0 also where the logarithm is -inf."""
    some = count != 0
    return torch.where(some, count * torch.where(some, log, 0.0), 0.0)


def _inside_or_minus_infinity(inside: Tensor, values: Tensor, y: Tensor) -> Tensor:
    dtype = y.dtype if y.is_floating_point() else torch.get_default_dtype()
    return torch.where(inside, values, float("-inf")).to(dtype)


@safe_log_prob.register(StudentT)
def _(d: StudentT, y: Tensor) -> Tensor:
    df, scale = d.df.double(), d.scale.double()
    z = (y.double() - d.loc) / scale
    constant = log_gamma_ratio(df / 2, torch.full_like(df, 0.5)) - 0.5 * torch.log(math.pi * df) - torch.log(scale)
    values: Tensor = constant - (df + 1) / 2 * torch.log1p(z * z / df)
    return values.to(y.dtype)


@safe_log_prob.register(Gamma)
def _(d: Gamma, y: Tensor) -> Tensor:
    shape, rate = d.concentration.double(), d.rate.double()
    inside = y >= 0
    x = torch.where(inside, y, 1.0).double()
    powers = torch.special.xlogy(shape - 1, x) + shape * torch.log(rate)
    return _inside_or_minus_infinity(inside, powers - rate * x - torch.lgamma(shape), y)


@safe_log_prob.register(Beta)
def _(d: Beta, y: Tensor) -> Tensor:
    a, b = d.concentration1.double(), d.concentration0.double()
    inside = (y >= 0) & (y <= 1)
    x = torch.where(inside, y, 0.5).double()
    powers = torch.special.xlogy(a - 1, x) + torch.special.xlog1py(b - 1, -x)
    log_beta = torch.lgamma(torch.minimum(a, b)) - log_gamma_ratio(torch.maximum(a, b), torch.minimum(a, b))
    return _inside_or_minus_infinity(inside, powers - log_beta, y)


@safe_log_prob.register(Weibull)
def _(d: Weibull, y: Tensor) -> Tensor:
    """In the logarithm of y/scale, where neither a small nor a large value over- or underflows."""
    shape, scale = d.concentration.double(), d.scale.double()
    inside = (y > 0) & torch.isfinite(y)
    log_z = torch.log(torch.where(inside, y, 1.0).double()) - torch.log(scale)
    values = torch.log(shape / scale) + (shape - 1) * log_z - torch.exp(shape * log_z)
    return _inside_or_minus_infinity(inside, values, y)


def _is_count(y: Tensor) -> Tensor:
    return (y >= 0) & (y == torch.floor(y)) & torch.isfinite(y)


@safe_log_prob.register(Poisson)
def _(d: Poisson, y: Tensor) -> Tensor:
    inside, rate = _is_count(y), d.rate.double()
    count = torch.where(inside, y, 0.0).double()
    values = torch.special.xlogy(count, rate) - rate - torch.lgamma(count + 1)
    return _inside_or_minus_infinity(inside, values, y)


@safe_log_prob.register(NegativeBinomial)
def _(d: NegativeBinomial, y: Tensor) -> Tensor:
    inside = _is_count(y)
    count, total = torch.where(inside, y, 0.0).double(), d.total_count.double()
    log_success, log_failure = log_of_success_and_failure(d)
    none = total == 0
    arrangements = log_gamma_ratio(torch.where(none, 1.0, total), count) - torch.lgamma(count + 1)
    values = arrangements + _times(total, log_failure) + _times(count, log_success)
    at_zero = torch.where(count == 0, 0.0, float("-inf"))  # all mass of a total_count of 0
    return _inside_or_minus_infinity(inside, torch.where(none, at_zero, values), y)


@safe_log_prob.register(Geometric)
def _(d: Geometric, y: Tensor) -> Tensor:
    inside = _is_count(y)
    log_success, log_failure = log_of_success_and_failure(d)
    count = torch.where(inside, y, 0.0).double()
    return _inside_or_minus_infinity(inside, log_success + _times(count, log_failure), y)


@safe_log_prob.register(Binomial)
def _(d: Binomial, y: Tensor) -> Tensor:
    total = d.total_count.double()
    inside = _is_count(y) & (y <= total)
    count = torch.where(inside, y, 0.0).double()
    log_success, log_failure = log_of_success_and_failure(d)
    arrangements = log_gamma_ratio(total - count + 1, count) - torch.lgamma(count + 1)
    values = arrangements + _times(count, log_success) + _times(total - count, log_failure)
    return _inside_or_minus_infinity(inside, values, y)


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
