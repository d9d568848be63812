r"""Points and weights that stand for a distribution of numbers in an expectation.

    E g(Y) ~ sum_i w_i g(y_i)

Of a real target the points are quantiles at equal steps h of a standard Normal variable z, y_i = F^-1(Phi(z_i)), z
from -7.5 to 7.5, with the Normal density as weights: the trapezoid rule. Where g(F^-1(Phi(z))) is smooth, its error
falls faster than any power of h; at a kink it is of order h^2, at a jump of order h. Of a count the points are all
counts but for a mass of 1e-12 at either end, which goes to the last ones. Draws are their own points.
"""

import torch
from torch import Tensor
from torch.distributions import Distribution

from credibly.core.errors import NotSupportedError
from credibly.distributions.cumulative import cdf, icdf
from credibly.distributions.empirical import Empirical
from credibly.distributions.kinds import kind, reference
from credibly.distributions.operations import Operation

__all__ = ["integration_nodes"]

_FURTHEST = 7.5  # beyond, 1 - Phi(z) has too few digits
_TAIL = 1e-12
_MOST_COUNTS = 2**14  # a wider distribution of counts is as good as continuous


@Operation
def integration_nodes(d: Distribution, num_points: int) -> tuple[Tensor, Tensor]:
    """Points (points, rows) and weights that broadcast to them and sum to 1 over points.

    Args:
        d: a distribution over one number a row.
        num_points: how many quantiles stand for a continuous distribution.

    Raises:
        NotSupportedError: the distribution is over classes, or its quantiles are not known.
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
    levels = torch.special.ndtr(z).to(like.dtype)
    return icdf(d, levels.unsqueeze(-1)), torch.softmax(-(z**2) / 2, 0).unsqueeze(-1)


def _counts(d: Distribution, num_points: int) -> tuple[Tensor, Tensor]:
    low, high = icdf(d, _TAIL), icdf(d, 1 - _TAIL)
    width = int((high - low).max()) + 1 if low.numel() else 1
    if width > _MOST_COUNTS:
        return _quantiles(d, num_points)
    values = low + torch.arange(width, dtype=low.dtype, device=low.device).unsqueeze(-1)
    below = cdf(d, values[:-1])
    ends = torch.zeros_like(low).unsqueeze(0)
    return values, torch.cat([ends, below, ends + 1]).diff(dim=0)
