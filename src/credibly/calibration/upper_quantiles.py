"""Quantiles from both tails: F^-1 of a level whose complement has digits of its own.

Above the median the quantile is the y with P(Y > y) = q. Families with a closed form use it; a mixture solves the
mirrored equation by the Newton iteration of its lower tail; anything else is searched for where q is so small that
F^-1(1 - q) has no digits.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.distributions import (
    Beta,
    Dirichlet,
    Distribution,
    Exponential,
    Gamma,
    HalfNormal,
    Independent,
    Laplace,
    LogNormal,
    MultivariateNormal,
    Normal,
    StudentT,
    Uniform,
    Weibull,
)

from credibly.calibration.tails import TINY, Tails
from credibly.distributions.affine import AffineView
from credibly.distributions.cumulative import icdf
from credibly.distributions.density import element_log_prob
from credibly.distributions.empirical import Empirical
from credibly.distributions.joint import elements
from credibly.distributions.kinds import kind
from credibly.distributions.marginal import MarginalPredictive
from credibly.distributions.mixture import MixturePredictive, in_row_chunks
from credibly.distributions.mixture_quantiles import mixture_gap, staircase_level
from credibly.distributions.operations import Operation
from credibly.distributions.quantiles import QuantileForecast
from credibly.distributions.roots import solve_counts, solve_increasing
from credibly.distributions.shapes import broadcast
from credibly.distributions.special import betaincinv, gammainccinv, ndtri
from credibly.distributions.survival import survival

__all__ = ["quantile_at", "upper_quantile"]

_ENOUGH = 2.0**-20
"""From here on 1 - q tells q to ten digits."""


@Operation
def quantile_at(d: Distribution, tails: Tails) -> Tensor:
    """The quantile at a pair of tails (..., *batch, *event), in float64.

    Args:
        d: a distribution in float64, of real numbers or counts, with quantiles.
        tails: levels; at 0 and 1 they are the ends of the support, and tails below 2.2e-308 count as that.
    """
    low = icdf.formula(d, tails.lower.clamp(TINY, 0.5))
    high = upper_quantile.formula(d, tails.upper.clamp(TINY, 0.5))
    values = torch.where(tails.lower <= 0.5, low, high)
    for nothing, end in ((tails.lower <= 0, 0.0), (tails.upper <= 0, 1.0)):
        if bool(nothing.any()):
            values = torch.where(nothing, icdf.formula(d, torch.full_like(values, end)), values)
    return values


@quantile_at.register(Empirical, QuantileForecast)
def _(d: Distribution, tails: Tails) -> Tensor:
    """Their steps are no smaller than 1e-16, and a quantile forecast knows no levels but its own."""
    return icdf.formula(d, tails.lower)


@Operation
def upper_quantile(d: Distribution, q: Tensor) -> Tensor:
    """The smallest y with P(Y > y) <= q, for float64 tails q in (0, 1/2]."""
    direct = icdf.formula(d, 1 - q)
    if bool((q >= _ENOUGH).all()):
        return direct
    searched = _searched_counts(d, q) if kind(d) == "count" else _searched(d, q)
    return torch.where(direct.isnan(), direct, searched)


def _searched(d: Distribution, q: Tensor) -> Tensor:
    """An upper end by doubling, then bisection; infinite where the upper tail never falls to q."""
    middle, upper = (icdf.formula(d, torch.full_like(q, at)) for at in (0.5, 0.75))
    width = torch.where(upper > middle, upper - middle, 1.0)
    short = _survives(d, middle + width, q)
    while bool((short & width.isfinite()).any()):
        width = torch.where(short, 2 * width, width)
        short = _survives(d, middle + width, q)
    none = torch.full_like(q, math.nan)  # no slope: every step halves the bracket
    high = torch.where(short, middle, middle + width)
    found = solve_increasing(lambda y: (torch.where(_survives(d, y, q), -1.0, 1.0), none), middle, high, none)
    return torch.where(short, math.inf, found)


def _survives(d: Distribution, y: Tensor, q: Tensor) -> Tensor:
    return survival.formula(d, y) > q


def _searched_counts(d: Distribution, q: Tensor) -> Tensor:
    high = 2 * icdf.formula(d, torch.full_like(q, 0.5)) + 4
    while bool((short := _survives(d, high, q) & high.isfinite()).any()):
        high = torch.where(short, 2 * high, high)
    return solve_counts(lambda k: -survival.formula(d, k), -q, torch.zeros_like(high), high)


@upper_quantile.register(Independent)
def _(d: "Independent[Any]", q: Tensor) -> Tensor:
    return upper_quantile.formula(d.base_dist, q)


@upper_quantile.register(MarginalPredictive)
def _(d: MarginalPredictive, q: Tensor) -> Tensor:
    return upper_quantile.formula(d.marginal, q)


@upper_quantile.register(AffineView)
def _(d: AffineView, q: Tensor) -> Tensor:
    return d.loc + d.scale * upper_quantile.formula(d.base, q)


@upper_quantile.register(MultivariateNormal, Dirichlet)
def _(d: Distribution, q: Tensor) -> Tensor:
    return upper_quantile.formula(elements.formula(d), q)


@upper_quantile.register(Normal)
def _(d: Normal, q: Tensor) -> Tensor:
    return d.loc - d.scale * ndtri(q)


@upper_quantile.register(Laplace)
def _(d: Laplace, q: Tensor) -> Tensor:
    return d.loc - d.scale * torch.log(2 * q)


@upper_quantile.register(StudentT)
def _(d: StudentT, q: Tensor) -> Tensor:
    standard = StudentT(d.df.double(), torch.zeros_like(d.df.double()), 1.0, validate_args=False)
    return d.loc - d.scale * icdf.formula(standard, q)


@upper_quantile.register(LogNormal)
def _(d: LogNormal, q: Tensor) -> Tensor:
    return torch.exp(d.loc - d.scale * ndtri(q))


@upper_quantile.register(HalfNormal)
def _(d: HalfNormal, q: Tensor) -> Tensor:
    return -d.scale * ndtri(q / 2)


@upper_quantile.register(Exponential)
def _(d: Exponential, q: Tensor) -> Tensor:
    return -torch.log(q) / d.rate


@upper_quantile.register(Weibull)
def _(d: Weibull, q: Tensor) -> Tensor:
    return d.scale * (-torch.log(q)) ** (1 / d.concentration)


@upper_quantile.register(Uniform)
def _(d: Uniform, q: Tensor) -> Tensor:
    return torch.lerp(*broadcast(d.high, d.low, q))


@upper_quantile.register(Gamma)
def _(d: Gamma, q: Tensor) -> Tensor:
    return gammainccinv(*broadcast(d.concentration.double(), q)) / d.rate


@upper_quantile.register(Beta)
def _(d: Beta, q: Tensor) -> Tensor:
    return 1 - betaincinv(*broadcast(d.concentration0, d.concentration1, q))


@upper_quantile.register(MixturePredictive)
def _(d: MixturePredictive, q: Tensor) -> Tensor:
    if bool((q >= _ENOUGH).all()):
        return icdf.formula(d, 1 - q)
    return in_row_chunks(d, q, _searched_mixture_counts if kind(d) == "count" else _mirrored_mixture)


def _weights(d: MixturePredictive, axis: int) -> Tensor:
    return torch.softmax(d.log_weights.double(), 0).reshape(-1, *(1,) * (-1 - axis))


def _bracket(d: MixturePredictive, q: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    """The smallest and the largest of the quantiles of the draws that have weight."""
    each = upper_quantile.formula(d.components, q.unsqueeze(axis))
    none = _weights(d, axis) == 0
    return torch.where(none, math.inf, each).amin(axis), torch.where(none, -math.inf, each).amax(axis)


def _mirrored_mixture(d: MixturePredictive, q: Tensor) -> Tensor:
    """Minus the lower quantile of the mixture of the mirrored components."""
    axis = -2 - len(d.event_shape)
    weights, (low, high) = _weights(d, axis), _bracket(d, q, axis)

    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        mirrored = -x.unsqueeze(axis)
        tails = survival.formula(d.components, mirrored)
        return mixture_gap(tails, element_log_prob(d.components, mirrored).exp(), weights, q, axis)

    medians = icdf.formula(d.components, torch.full_like(q.unsqueeze(axis), 0.5))
    where, inner, first, last = staircase_level(-medians, weights, q, axis)
    start = -upper_quantile.formula(d.components, inner.clamp(max=0.5)).gather(axis, where)
    return -solve_increasing(function, -high, -low, start.clamp(first, last).squeeze(axis))


def _searched_mixture_counts(d: MixturePredictive, q: Tensor) -> Tensor:
    low, high = _bracket(d, q, -2 - len(d.event_shape))
    return solve_counts(lambda k: -survival.formula(d, k), -q, (low - 1).clamp(min=0), high + 1)
