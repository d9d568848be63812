"""The tables of distribution functions and quantiles; the entries are in the modules beside this one."""

from typing import Any

from torch import Tensor
from torch.distributions import Distribution, Independent

from credibly.distributions.operations import elementwise, own_method
from credibly.distributions.targets import match_levels, match_values

__all__ = ["cdf", "icdf"]


@elementwise(match_values)
def cdf(d: Distribution, value: Tensor) -> Tensor:
    """P(Y <= value), element by element; any real number may be asked for: outside the support it is 0 or 1.

    Args:
        d: the distribution.
        value: one number, one a row, or a grid (..., rows, *event_shape).

    Raises:
        ShapeError, NotFiniteError: see `match_values`.
        NotSupportedError: no formula is known.
    """
    result = own_method(d, "cdf", value)
    return cdf.refuse(d) if result is NotImplemented else result  # type: ignore[no-any-return]


@elementwise(match_levels)
def icdf(d: Distribution, q: Tensor) -> Tensor:
    """The quantile: the smallest value with F(value) >= q, element by element.

    Args:
        d: the distribution.
        q: a level in [0, 1], one a row, or anything that broadcasts against (rows, *event_shape).

    Raises:
        ValueError: a level outside [0, 1].
        ShapeError: see `match_levels`.
        NotSupportedError: no formula is known.
    """
    result = own_method(d, "icdf", q)
    return icdf.refuse(d) if result is NotImplemented else result  # type: ignore[no-any-return]


@cdf.register(Independent)
def _(d: "Independent[Any]", value: Tensor) -> Tensor:
    return cdf.formula(d.base_dist, value)


@icdf.register(Independent)
def _(d: "Independent[Any]", q: Tensor) -> Tensor:
    return icdf.formula(d.base_dist, q)
