"""The distribution function just below a value, for the randomised probability integral transform.

Where F jumps at y, F(y) of a true model is not uniform, but F(y-) + u (F(y) - F(y-)) with an independent uniform u
is (Murray Rosenblatt, "Remarks on a Multivariate Transformation", 1952; Anthony Brockwell, "Universal residuals: A
multivariate transformation", 2007). F(y-) = P(Y < y) lies here, in one table: counts and classes jump at every whole
number, draws at each draw, quantiles where two of them coincide; a mixture jumps wherever a component does.
"""

from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, Independent

from credibly.distributions.affine import AffineView
from credibly.distributions.cumulative import cdf
from credibly.distributions.empirical import Empirical
from credibly.distributions.kinds import kind
from credibly.distributions.marginal import MarginalPredictive
from credibly.distributions.mixture import MixturePredictive, in_row_chunks, weighted_mean
from credibly.distributions.operations import Operation, elementwise
from credibly.distributions.quantiles import QuantileForecast
from credibly.distributions.targets import match_values

__all__ = ["cdf_below", "cdf_limits", "draw_cdf_limits"]


@elementwise(match_values)
def cdf_below(d: Distribution, value: Tensor) -> Tensor:
    """P(Y < value), element by element: the cdf itself where it does not jump.

    A real distribution of your own that puts mass on single points needs an entry: `cdf_below.register(MyType)`.

    Args:
        d: the distribution.
        value: one number, one a row, or a grid (..., rows, *event_shape).

    Raises:
        ShapeError, NotFiniteError: see `match_values`.
        NotSupportedError: no cdf is known.
    """
    return cdf.formula(d, value if kind(d) == "real" else torch.ceil(value) - 1)


@cdf_below.register(Independent)
def _(d: "Independent[Any]", value: Tensor) -> Tensor:
    return cdf_below.formula(d.base_dist, value)


@cdf_below.register(MarginalPredictive)
def _(d: MarginalPredictive, value: Tensor) -> Tensor:
    return cdf_below.formula(d.marginal, value)


@cdf_below.register(AffineView)
def _(d: AffineView, value: Tensor) -> Tensor:
    return cdf_below.formula(d.base, d.standard(value))


@cdf_below.register(MixturePredictive)
def _(d: MixturePredictive, value: Tensor) -> Tensor:
    if kind(d) == "class":
        return cdf.formula(d, torch.ceil(value) - 1)
    return in_row_chunks(d, value, _mixed)


def _mixed(d: MixturePredictive, value: Tensor) -> Tensor:
    axis = -2 - len(d.event_shape)
    return weighted_mean(d, cdf_below.formula(d.components, value.unsqueeze(axis)), axis)


@cdf_below.register(Empirical)
def _(d: Empirical, value: Tensor) -> Tensor:
    """The mass of the draws strictly below."""
    values, table = d.sorted()
    leading = value.dim() - values.dim() + 1
    grid = value.to(values.dtype).unsqueeze(0) if leading == 0 else value.to(values.dtype).flatten(0, leading - 1)
    grid = grid.movedim(0, -1).contiguous()
    rank = torch.searchsorted(values.contiguous(), grid)
    mass = torch.where(rank > 0, table.gather(-1, (rank - 1).clamp(min=0)), 0.0)
    return mass.movedim(-1, 0).reshape(value.shape)


@cdf_below.register(QuantileForecast)
def _(d: QuantileForecast, value: Tensor) -> Tensor:
    """P(Y < y) = 1 - P(-Y <= -y), and -Y is a quantile forecast too."""
    mirrored = QuantileForecast(1 - d.levels.flip(0), -d.values.flip(-1))
    return 1 - cdf.formula(mirrored, -value)


@Operation
def cdf_limits(d: Distribution, value: Tensor) -> tuple[Tensor, Tensor]:
    """Between which bounds the transform of a value lies: F(value-) and F(value), unless F is known in parts only.

    Args:
        d: a distribution with a cdf.
        value: checked values, (rows, *event_shape).
    """
    return cdf_below(d, value), cdf(d, value)


@cdf_limits.register(QuantileForecast)
def _(d: QuantileForecast, value: Tensor) -> tuple[Tensor, Tensor]:
    """Beyond the outer quantiles the transform is only known to lie below the first level, or above the last."""
    below, above = value < d.values[..., 0], value > d.values[..., -1]
    inner = torch.minimum(torch.maximum(value, d.values[..., 0]), d.values[..., -1])
    lower, upper = cdf_below.formula(d, inner), cdf.formula(d, inner)
    lower = torch.where(below, 0.0, torch.where(above, d.levels[-1], lower))
    return lower, torch.where(below, d.levels[0], torch.where(above, 1.0, upper))


@Operation
def draw_cdf_limits(d: Distribution, value: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ARG001
    """P(Y < value) and P(Y <= value) under every draw, each (num_draws, rows, *event_shape).

    Args:
        d: a distribution that keeps its draws.
        value: checked values, (rows, *event_shape).

    Raises:
        NotSupportedError: the distribution keeps no draws.
    """
    draw_cdf_limits.refuse(d)


@draw_cdf_limits.register(MixturePredictive)
def _(d: MixturePredictive, value: Tensor) -> tuple[Tensor, Tensor]:
    spread = value.unsqueeze(0)
    return cdf_below.formula(d.components, spread), cdf.formula(d.components, spread)


@draw_cdf_limits.register(Empirical)
def _(d: Empirical, value: Tensor) -> tuple[Tensor, Tensor]:
    return (d.draws < value).to(d.draws.dtype), (d.draws <= value).to(d.draws.dtype)


@draw_cdf_limits.register(AffineView)
def _(d: AffineView, value: Tensor) -> tuple[Tensor, Tensor]:
    return draw_cdf_limits(d.base, d.standard(value))
