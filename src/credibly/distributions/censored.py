"""Observations of which only bounds are known: right-, left- and interval-censored targets.

The prediction is of the quantity itself; what is observed of it is a pair [lower, upper]. Equal bounds are an exact
observation and have the density; otherwise the pair has the probability P(lower < Y <= upper), with an infinite upper
bound right-censored (it lasted at least so long), with a lower bound below the support left-censored (Kalbfleisch,
Prentice, "The Statistical Analysis of Failure Time Data", 2nd edition, 2002, section 3.2).

Probabilities are taken in logarithms of whichever tail is the smaller, in float64: log F(u) + log(1 - F(l)/F(u)), or
the same with 1 - F, so that they and their gradients stay finite far in either tail. An interval that is narrow on this
scale is its width times the density in its middle.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributions import (
    Distribution,
    Exponential,
    Gamma,
    Laplace,
    LogNormal,
    MixtureSameFamily,
    Normal,
    Weibull,
)

from credibly.core.checks import as_tensor
from credibly.core.errors import NotFiniteError, NotSupportedError, SupportError
from credibly.core.typing import ArrayLike
from credibly.distributions.affine import AffineView, affine
from credibly.distributions.density import safe_log_prob
from credibly.distributions.kinds import base_of, kind, reference
from credibly.distributions.log_gamma_tails import log_gamma_tails
from credibly.distributions.marginal import MarginalPredictive
from credibly.distributions.mixture import MixturePredictive
from credibly.distributions.mixture_crps import gaussian_parameters
from credibly.distributions.mixture_same_family import component_log_weights
from credibly.distributions.operations import Operation
from credibly.distributions.rows import Change, rebuild, to
from credibly.distributions.shapes import broadcast
from credibly.distributions.targets import match_observed, match_targets

__all__ = ["Censored", "as_bounds", "interior", "log_interval", "log_tails"]

_ROOT_HALF = 0.5**0.5
_NARROW = 1e-5  # on the scale of the logarithm of the smaller tail


class Censored(MarginalPredictive):
    """A prediction whose targets may be pairs of bounds.

    It is `of` in everything but `log_prob`, `joint_log_prob` and the log score, which take exact targets (rows,) or
    pairs (rows, 2). Other scores need exact targets, also as pairs of equal bounds.

    Args:
        of: the distribution of the quantity itself, of real numbers with event_shape ().

    Raises:
        NotSupportedError: vectors, counts or classes.
    """

    def __init__(self, of: Distribution) -> None:
        if of.event_shape or kind(of) != "real":
            raise NotSupportedError(f"bounds are for one real number a row; got {type(base_of(of)).__name__}")
        super().__init__(of)

    @property
    def of(self) -> Distribution:
        """The distribution of the quantity itself."""
        return self.marginal

    def log_prob(self, value: ArrayLike) -> Tensor:
        """Log density or log probability of what was observed: (batch,); see the class.

        Values for every draw of the batch, (num_draws, batch), are taken unchecked, as torch does.
        """
        grid = isinstance(value, Tensor) and value.dim() > 1 and value.shape == self.batch_shape
        return safe_log_prob(self, value) if grid else super().log_prob(value)


@rebuild.register(Censored)
def _(d: Censored, others: Sequence[Any], change: Change) -> Distribution:
    return Censored(rebuild(d.of, [e.of for e in others], change))


@affine.register(Censored)
def _(d: Censored, loc: Tensor, scale: Tensor) -> Distribution:
    return Censored(affine.formula(d.of, loc, scale))


@gaussian_parameters.register(Censored)
def _(d: Censored) -> tuple[Tensor, Tensor]:
    return gaussian_parameters(d.of)


# -- densities and probabilities -----------------------------------------------------------------------------------


def as_bounds(y: Tensor, batch_shape: torch.Size) -> tuple[Tensor, Tensor]:
    """Lower and upper bounds of targets, which are numbers (..., rows) or pairs (..., rows, 2).

    With two rows, (..., 2, 2) are pairs.
    """
    rows = batch_shape[-1:]
    pairs = y.dim() > 0 and y.shape[-1] == 2 and (not rows or (y.dim() > 1 and y.shape[-2] in (1, rows[0])))
    return (y[..., 0], y[..., 1]) if pairs else (y, y)


@safe_log_prob.register(Censored)
def _(d: Censored, y: Tensor) -> Tensor:
    lower, upper = as_bounds(y, d.batch_shape)
    exact = lower == upper
    density = safe_log_prob.formula(d.of, torch.where(exact, lower, interior(d.of, lower)))
    return torch.where(exact, density, log_interval(d.of, lower, torch.where(exact, float("inf"), upper)))


def log_interval(d: Distribution, lower: Tensor, upper: Tensor) -> Tensor:
    """The logarithm of P(lower < Y <= upper), element by element; -inf where upper is below lower or the support.

    Args:
        d: a distribution of real numbers with an entry in `log_tails`.
        lower: any number below upper; -inf, or below the support, is no bound.
        upper: any number; inf is no bound.
    """
    lowest, highest = _ends(d)
    below, above = lower <= lowest, upper >= highest
    possible = (upper > lowest) & (lower < highest) & (lower < upper)
    precise = to(d, dtype=torch.float64)
    inside = interior(d, lower)
    low = torch.where(possible & ~below, lower, torch.where(possible & ~above, upper, inside)).double()
    high = torch.where(possible & ~above, upper, torch.where(possible & ~below, lower, inside)).double()
    log_f_low, log_s_low = log_tails.formula(precise, low)
    log_f_high, log_s_high = log_tails.formula(precise, high)
    two_sided = _log_between(precise, (low, high), (log_f_low, log_s_low), (log_f_high, log_s_high))
    one_sided = torch.where(below, torch.where(above, 0.0, log_f_high), log_s_low)
    value = torch.where(below | above, one_sided, two_sided)
    return torch.where(possible, value, float("-inf")).to(reference(d).dtype)


def _log_between(
    d: Distribution, ends: tuple[Tensor, Tensor], low: tuple[Tensor, Tensor], high: tuple[Tensor, Tensor]
) -> Tensor:
    """log(F(high) - F(low)) from log F and log(1 - F) at both ends."""
    upper_tail = low[1] < high[0]  # 1 - F(low) < F(high)
    larger = torch.where(upper_tail, low[1], high[0])
    gap = torch.where(upper_tail, high[1] - low[1], low[0] - high[0])  # at most 0
    narrow = gap > -_NARROW
    share = torch.where(narrow, -1.0, gap)
    by_tails = larger + torch.where(share > -0.7, torch.log(-torch.expm1(share)), torch.log1p(-torch.exp(share)))
    middle, width = (ends[0] + ends[1]) / 2, ends[1] - ends[0]
    by_density = safe_log_prob.formula(d, middle) + torch.log(torch.where(width > 0, width, 1.0))
    return torch.where(narrow, by_density, by_tails)


def _ends(d: Distribution) -> tuple[Any, Any]:
    """The ends of the support, numbers or tensors."""
    support: Any = d.support
    support = getattr(support, "base_constraint", support)
    lowest, highest = getattr(support, "lower_bound", None), getattr(support, "upper_bound", None)
    return -math.inf if lowest is None else lowest, math.inf if highest is None else highest


def interior(d: Distribution, like: Tensor) -> Tensor:
    """A number inside the support, for elements whose value is not used."""
    lowest, highest = (torch.as_tensor(end, dtype=like.dtype, device=like.device) for end in _ends(d))
    lowest = torch.where(lowest.isfinite(), lowest, torch.where(highest.isfinite(), highest - 2, -1.0))
    highest = torch.where(highest.isfinite(), highest, lowest + 2)
    return (lowest + highest) / 2


@Operation
def log_tails(d: Distribution, y: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ARG001
    """The logarithms of P(Y <= y) and P(Y > y), with gradients in y, finite and inside the support, and parameters.

    Raises:
        NotSupportedError: no such formula is known.
    """
    return log_tails.refuse(d)


@log_tails.register(Normal)
def _(d: Normal, y: Tensor) -> tuple[Tensor, Tensor]:
    z = (y - d.loc) / d.scale
    return _log_ndtr(z), _log_ndtr(-z)


def _log_ndtr(z: Tensor) -> Tensor:
    """The logarithm of the standard normal distribution function; torch's own has no rule for `vmap`."""
    far = z < -1
    low, high = torch.where(far, z, -1.0), torch.where(far, 0.0, z)
    tail = torch.log(0.5 * torch.special.erfcx(low * -_ROOT_HALF)) - 0.5 * low.square()
    return torch.where(far, tail, torch.log1p(-0.5 * torch.erfc(high * _ROOT_HALF)))


@log_tails.register(LogNormal)
def _(d: LogNormal, y: Tensor) -> tuple[Tensor, Tensor]:
    return log_tails.formula(Normal(d.loc, d.scale, validate_args=False), torch.log(y))


@log_tails.register(Laplace)
def _(d: Laplace, y: Tensor) -> tuple[Tensor, Tensor]:
    z = (y - d.loc) / d.scale
    near = -z.abs() - math.log(2)
    far = torch.log1p(-torch.exp(near))
    return torch.where(z < 0, near, far), torch.where(z < 0, far, near)


def _exponential_tails(hazard: Tensor) -> tuple[Tensor, Tensor]:
    """For the cumulated hazard -log P(Y > y), above 0."""
    positive = hazard.clamp_min(torch.finfo(hazard.dtype).tiny)
    return torch.log(-torch.expm1(-positive)), -hazard


@log_tails.register(Exponential)
def _(d: Exponential, y: Tensor) -> tuple[Tensor, Tensor]:
    return _exponential_tails(d.rate * y)


@log_tails.register(Weibull)
def _(d: Weibull, y: Tensor) -> tuple[Tensor, Tensor]:
    power = d.concentration * (torch.log(y) - torch.log(d.scale))
    return _exponential_tails(torch.exp(power.clamp(max=600.0)))  # beyond, squares of gradients would overflow


@log_tails.register(Gamma)
def _(d: Gamma, y: Tensor) -> tuple[Tensor, Tensor]:
    shape, scaled = broadcast(d.concentration, d.rate * y)
    return log_gamma_tails(shape, scaled)


@log_tails.register(AffineView)
def _(d: AffineView, y: Tensor) -> tuple[Tensor, Tensor]:
    return log_tails.formula(d.base, d.standard(y))


@log_tails.register(MixtureSameFamily)
def _(d: MixtureSameFamily, y: Tensor) -> tuple[Tensor, Tensor]:
    weights = component_log_weights(d, elementwise=False)
    below, above = log_tails.formula(d.component_distribution, y.unsqueeze(-1))
    return torch.logsumexp(weights + below, -1), torch.logsumexp(weights + above, -1)


# -- targets -------------------------------------------------------------------------------------------------------


@match_observed.register(Censored)
def _(d: Censored, y: ArrayLike) -> Tensor:
    like = reference(d)
    targets = as_tensor(y, dtype=like.dtype, device=like.device)
    if targets.shape != (*d.batch_shape[-1:], 2):
        return match_targets.formula(d.of, targets)
    targets = targets if targets.is_floating_point() else targets.to(like.dtype)
    _check_pairs(d.of, targets)
    return targets


def _check_pairs(d: Distribution, pairs: Tensor) -> None:
    lower, upper = pairs.unbind(-1)
    if bool(pairs.isnan().any()):
        raise NotFiniteError(f"`targets` must not be NaN; {int(pairs.isnan().sum())} bounds are")
    turned = (lower > upper).nonzero()
    if len(turned):
        row = int(turned[0])
        raise ValueError(
            f"the lower bound of a target must not exceed its upper bound; row {row} holds "
            f"[{float(lower[row]):g}, {float(upper[row]):g}]"
        )
    exact = lower == upper
    if bool((exact & lower.isinf()).any()):
        raise NotFiniteError("`targets` must be finite where both bounds are equal, which is an exact observation")
    lowest, highest = _ends(d)
    inside: Tensor = d.support.check(torch.where(exact, lower, interior(d, lower)))  # type: ignore[union-attr]
    possible = torch.where(exact, inside, (upper > lowest) & (lower < highest))
    impossible = (~possible.reshape(-1, len(lower)).any(0)).nonzero()
    if len(impossible):
        row = int(impossible[0])
        raise SupportError(
            f"target [{float(lower[row]):g}, {float(upper[row]):g}] of row {row} lies outside the support of "
            f"{type(base_of(d)).__name__}"
        )


@match_targets.register(Censored)
def _(d: Censored, y: ArrayLike) -> Tensor:
    lower, upper = as_bounds(match_observed.formula(d, y), d.batch_shape)
    censored = (lower != upper).nonzero()
    if len(censored):
        raise NotSupportedError(
            f"row {int(censored[0])} is censored, and this needs exact targets; log_prob and log_score take bounds"
        )
    return lower


@match_observed.register(MixturePredictive)
def _(d: MixturePredictive, y: ArrayLike) -> Tensor:
    return match_observed.formula(d.components, y)


@match_targets.register(MixturePredictive)
def _(d: MixturePredictive, y: ArrayLike) -> Tensor:
    return match_targets.formula(d.components, y)


@match_observed.register(AffineView)
def _(d: AffineView, y: ArrayLike) -> Tensor:
    if isinstance(d.base, Censored):
        match_observed.refuse(d, "a view of a censored prediction takes no bounds; use affine(predicted, loc, scale)")
    return match_targets.formula(d, y)
