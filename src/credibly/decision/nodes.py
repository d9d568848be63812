r"""Points and weights that stand for a distribution of numbers in an expectation.

    E g(Y) ~ sum_i w_i g(y_i)

Of a real target the points are quantiles at equal steps h of a standard Normal variable z, y_i = F^-1(Phi(z_i)), z
from -7.5 to 7.5, with the Normal density as weights: the trapezoid rule. Where g(F^-1(Phi(z))) is smooth, its error
falls faster than any power of h; at a kink it is of order h^2, at a jump of order h. Where F jumps, as that of a
conformal predictive distribution does at every error, neighbouring points coincide; then 16 times as many quantiles at
equal steps of the level are taken instead, and no mass is off by more than one of them. Of a count the points are all
counts but for a mass of 1e-12 at either end, which goes to the last ones. Draws are their own points.

A mass at infinity is left out, and the rest of the row weighs 1.
"""

import torch
from torch import Tensor
from torch.distributions import Distribution

from credibly.core.errors import NotFiniteError, NotSupportedError
from credibly.distributions.cumulative import cdf, icdf
from credibly.distributions.empirical import Empirical
from credibly.distributions.kinds import kind, reference
from credibly.distributions.operations import Operation

__all__ = ["integration_nodes"]

_FURTHEST = 7.5  # beyond, 1 - Phi(z) has too few digits
_TAIL = 1e-12
_MORE = 16
_MOST_COUNTS = 2**14  # a wider distribution of counts is as good as continuous


@Operation
def integration_nodes(d: Distribution, num_points: int) -> tuple[Tensor, Tensor]:
    """Points (points, rows), all finite, and weights that broadcast to them and sum to 1 over points.

    Args:
        d: a distribution over one number a row.
        num_points: how many quantiles stand for a continuous distribution.

    Raises:
        NotSupportedError: the distribution is over classes, or its quantiles are not known.
        NotFiniteError: a row has no finite quantiles.
    """
    about = kind(d)
    if about == "class":
        raise NotSupportedError(
            f"a cost function is for numbers; a {type(d).__name__} is about classes: use bayes_act with a cost matrix"
        )
    return _counts(d, num_points) if about == "count" else _quantiles(d, num_points)


@integration_nodes.register(Empirical)
def _(d: Empirical, num_points: int) -> tuple[Tensor, Tensor]:  # noqa: ARG001
    return d.draws, torch.softmax(d.log_weights, 0).unsqueeze(-1)


def _quantiles(d: Distribution, num_points: int) -> tuple[Tensor, Tensor]:
    like = reference(d)
    z = torch.linspace(-_FURTHEST, _FURTHEST, num_points, dtype=torch.float64, device=like.device)
    values, weights = icdf(d, torch.special.ndtr(z).to(like.dtype).unsqueeze(-1)), torch.softmax(-(z**2) / 2, 0)
    if bool(((values[1:] == values[:-1]) & values[1:].isfinite()).any()):
        size = _MORE * num_points
        levels = (torch.arange(size, dtype=torch.float64, device=like.device) + 0.5) / size
        values, weights = icdf(d, levels.to(like.dtype).unsqueeze(-1)), torch.full_like(levels, 1 / size)
    return _finite(values, weights.unsqueeze(-1))


def _finite(values: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """The same without what lies at infinity."""
    finite = values.isfinite()
    if bool(finite.all()):
        return values, weights
    share = torch.where(finite, weights, 0.0)
    total = share.sum(0)
    if not bool((total > 0).all()):
        rows = (total == 0).nonzero().squeeze(1).tolist()
        raise NotFiniteError(f"`predicted` has no finite quantiles in {len(rows)} rows, first row {rows[0]}")
    some = torch.where(finite, values, 0.0).amax(
        0
    )  # a stand-in of no weight, at which costs are asked for all the same
    return torch.where(finite, values, some), share / total


def _counts(d: Distribution, num_points: int) -> tuple[Tensor, Tensor]:
    low, high = icdf(d, _TAIL), icdf(d, 1 - _TAIL)
    span = float((high - low).max()) if low.numel() else 0.0
    if not span < _MOST_COUNTS:  # also infinity and NaN
        return _quantiles(d, num_points)
    values = low + torch.arange(int(span) + 1, dtype=low.dtype, device=low.device).unsqueeze(-1)
    below = cdf(d, values[:-1])
    ends = torch.zeros_like(low).unsqueeze(0)
    return values, torch.cat([ends, below, ends + 1]).diff(dim=0)
