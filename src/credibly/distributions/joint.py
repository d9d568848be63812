"""Vectors whose elements depend on each other: the multivariate normal and the Dirichlet distribution.

A density is joint over the vector; cdf, quantiles, CRPS, entropy and moments are those of each element alone. An
element of a multivariate normal is normal with the variance on the covariance's diagonal; an element of Dirichlet(a)
is Beta(a_k, sum(a) - a_k) (Kotz, Balakrishnan, Johnson, "Continuous Multivariate Distributions", 2nd edition, 2000,
chapters 45 and 49).
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import Beta, Dirichlet, Distribution, Independent, MultivariateNormal, Normal

from credibly.distributions.affine import affine
from credibly.distributions.cumulative import cdf, icdf
from credibly.distributions.density import element_log_prob, safe_log_prob
from credibly.distributions.entry import ROUNDING
from credibly.distributions.mixture_crps import gaussian_parameters
from credibly.distributions.moments import entropy
from credibly.distributions.operations import Operation
from credibly.distributions.rows import Change, rebuild
from credibly.distributions.survival import survival
from credibly.distributions.targets import any_draw, inside_support, refusal

__all__ = ["dirichlet_log_prob", "elements", "multivariate_normal_log_prob"]

_HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)


@Operation
def elements(d: Distribution) -> Distribution:
    """The distribution of every element alone: batch_shape (*batch, *event).

    Raises:
        NotSupportedError: a type of vectors whose elements have no known distribution.
    """
    return elements.refuse(d) if d.event_shape else d


@elements.register(Independent)
def _(d: "Independent[Any]") -> Distribution:
    return elements.formula(d.base_dist)


@elements.register(MultivariateNormal)
def _(d: MultivariateNormal) -> Distribution:
    return Normal(d.loc, d.variance.sqrt(), validate_args=False)


@elements.register(Dirichlet)
def _(d: Dirichlet) -> Distribution:
    return Beta(d.concentration, _sum_of_others(d.concentration), validate_args=False)


def _sum_of_others(values: Tensor) -> Tensor:
    """For each the sum of those before and after it, without the difference that a large one would cancel."""
    before, after = values[..., :-1].cumsum(-1), values[..., 1:].flip(-1).cumsum(-1).flip(-1)
    return F.pad(before, (1, 0)) + F.pad(after, (0, 1))


def _by_elements(operation: Operation[..., Any], entry: Callable[..., Any]) -> None:
    @operation.register(MultivariateNormal, Dirichlet)
    def _(d: Distribution, *args: Any) -> Any:
        return entry(elements.formula(d), *args)


for _operation in (cdf, survival, icdf, entropy):
    _by_elements(_operation, _operation.formula)
_by_elements(element_log_prob, safe_log_prob.formula)


@safe_log_prob.register(MultivariateNormal)
def _(d: MultivariateNormal, y: Tensor) -> Tensor:
    return multivariate_normal_log_prob(d.loc, d._unbroadcasted_scale_tril, y)


def multivariate_normal_log_prob(loc: Tensor, scale_tril: Tensor, y: Tensor) -> Tensor:
    """The joint log density, (*batch,), by one triangular solve; half precisions are solved in float32."""
    factor = scale_tril.float() if scale_tril.dtype in (torch.float16, torch.bfloat16) else scale_tril
    difference = (y - loc).to(factor.dtype).unsqueeze(-1)
    standard = torch.linalg.solve_triangular(factor, difference, upper=False).squeeze(-1)
    log_diagonal = factor.diagonal(dim1=-2, dim2=-1).log()
    density: Tensor = (-0.5 * standard.square() - log_diagonal - _HALF_LOG_TWO_PI).sum(-1)
    return density.to(scale_tril.dtype)


@gaussian_parameters.register(MultivariateNormal)
def _(d: MultivariateNormal) -> tuple[Tensor, Tensor]:
    return d.loc, d.variance.sqrt()


@affine.register(MultivariateNormal)
def _(d: MultivariateNormal, loc: Tensor, scale: Tensor) -> Distribution:
    factor = scale.unsqueeze(-1) * d._unbroadcasted_scale_tril
    return MultivariateNormal(loc + scale * d.loc, scale_tril=factor, validate_args=False)


@rebuild.register(MultivariateNormal)
def _(d: MultivariateNormal, others: Sequence[Any], change: Change) -> Distribution:
    every, size = (d, *others), d.event_shape[0]
    factors = [e._unbroadcasted_scale_tril.expand(*e.batch_shape, size, size) for e in every]
    loc = change([e.loc.expand(*e.batch_shape, size) for e in every], 1)
    return MultivariateNormal(loc, scale_tril=change(factors, 2), validate_args=False)


@inside_support.register(Dirichlet)
def _(d: Dirichlet, targets: Tensor) -> Tensor:  # noqa: ARG001
    return any_draw(_on_open_simplex(targets, ROUNDING[targets.dtype]), targets.dim() - 1)


@refusal.register(Dirichlet)
def _(d: Dirichlet, targets: Tensor, inside: Tensor) -> str:  # noqa: ARG001
    row = int((~inside).nonzero()[0, 0])
    shares = targets[row]
    beyond = shares[shares <= 0]
    what = (
        f"row {row} holds the share {float(beyond[0]):g}"
        if len(beyond)
        else f"row {row} sums to {float(shares.sum(dtype=torch.float64)):.6g}"
    )
    return f"{what}, outside the support of Dirichlet: shares above 0 that sum to 1"


def _on_open_simplex(y: Tensor, rounding: float) -> Tensor:
    """Rows of numbers above 0 that sum to 1 up to rounding."""
    return (y > 0).all(-1) & ((y.sum(-1, dtype=torch.float64) - 1).abs() <= rounding)


@safe_log_prob.register(Dirichlet)
def _(d: Dirichlet, y: Tensor) -> Tensor:
    return dirichlet_log_prob(d.concentration, y)


def dirichlet_log_prob(concentration: Tensor, y: Tensor) -> Tensor:
    """The joint log density, (*batch,); -inf off the open simplex.

    Rows may sum to 1 as roughly as in half precision, of whatever precision they are now: targets are checked before.
    """
    inside = _on_open_simplex(y, ROUNDING[torch.float16])
    logarithm = torch.log(torch.where(inside.unsqueeze(-1), y, 1.0))
    normaliser = torch.lgamma(concentration.sum(-1)) - torch.lgamma(concentration).sum(-1)
    return torch.where(inside, ((concentration - 1) * logarithm).sum(-1) + normaliser, float("-inf"))
