"""A prediction given by draws of targets alone: the (weighted) empirical distribution.

Its cdf is the ECDF, its quantile the ECDF's inverse, its CRPS the ensemble form E|X - y| - E|X - X'|/2,
where the second term is the integral of F(1 - F) over the gaps of the sorted draws, in O(M log M); for equal
weights it is sum_i (2i - M - 1) x_(i) / M^2. The
fair form (Christopher Ferro, "Fair scores for ensemble forecasts", 2014) divides by M (M - 1) rather than
M^2: unbiased for the CRPS of the distribution from which the draws come. There is no density.
"""

from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

from credibly.core.checks import as_tensor, check_finite
from credibly.core.errors import NotSupportedError, ShapeError
from credibly.core.randomness import base_seed, seeded
from credibly.core.typing import ArrayLike
from credibly.distributions.affine import affine
from credibly.distributions.crps import crps
from credibly.distributions.cumulative import cdf, icdf
from credibly.distributions.density import safe_log_prob
from credibly.distributions.drawing import drawable
from credibly.distributions.kinds import reference
from credibly.distributions.moments import mean, variance
from credibly.distributions.operations import Operation
from credibly.distributions.predictive import Predictive
from credibly.distributions.rows import Change, rebuild
from credibly.distributions.targets import inside_support, match_targets
from credibly.distributions.weights import normalised_log_weights

__all__ = ["Empirical", "ensemble", "fair_crps"]


class Empirical(Predictive):
    """The distribution of given draws.

    Args:
        draws: (num_draws, batch, *event), in the units of the targets. Integers are read as numbers of
            torch's default dtype.
        log_weights: (num_draws,) logarithms of weights up to a constant; None is equal weights.

    Raises:
        ShapeError: draws without a batch axis, or weights of another length.
        ValueError: no draws; weights that are NaN, infinite or all 0.
        NotFiniteError: draws that are NaN or infinite.
    """

    def __init__(self, draws: ArrayLike, log_weights: ArrayLike | None = None) -> None:
        values = as_tensor(draws)
        if values.dim() < 2:
            raise ShapeError(f"`draws` must have shape (num_draws, batch, *event); got {tuple(values.shape)}")
        if values.shape[0] == 0:
            raise ValueError("`draws` must hold at least one draw; got 0")
        values = values if values.is_floating_point() else values.to(torch.get_default_dtype())
        super().__init__(values.shape[1:2], values.shape[2:])
        self.draws = check_finite("draws", values)
        self.equal_weights = log_weights is None
        self.log_weights = normalised_log_weights(log_weights, values.shape[0], values)

    @property
    def num_draws(self) -> int:
        """The number of draws."""
        return self.draws.shape[0]

    def _element_support(self) -> Any:
        """Draws do not say where targets may lie: all real numbers."""
        return constraints.real

    def _draw(self, shape: torch.Size) -> Tensor:
        chosen = torch.multinomial(self.log_weights.exp(), shape.numel(), replacement=True)
        return self.draws[chosen].reshape(shape + self.batch_shape + self.event_shape)

    def sorted(self) -> tuple[Tensor, Tensor]:
        """The draws sorted along a last axis, (batch, *event, num_draws), and the ECDF at each of them."""
        values, order = self.draws.movedim(0, -1).sort(dim=-1)
        if self.equal_weights:
            steps = torch.arange(1, self.num_draws + 1, dtype=torch.float64, device=values.device)
            return values, (steps / self.num_draws).to(values.dtype).expand(values.shape)
        sums = self.log_weights.double().exp()[order].cumsum(-1)
        return values, (sums / sums[..., -1:]).to(values.dtype)


@inside_support.register(Empirical)
def _(d: Empirical, targets: Tensor) -> Tensor:  # noqa: ARG001
    return ~targets.isnan()  # torch's own check of a vector fails without rows


@rebuild.register(Empirical)
def _(d: Empirical, others: Sequence[Any], change: Change) -> Distribution:
    every = (d, *others)
    draws = change([e.draws for e in every], len(d.event_shape))
    weights = change([e.log_weights for e in every], None)
    new = Empirical(draws)
    new.log_weights, new.equal_weights = weights, all(e.equal_weights for e in every)
    return new


@affine.register(Empirical)
def _(d: Empirical, loc: Tensor, scale: Tensor) -> Distribution:
    return Empirical(loc + scale * d.draws, None if d.equal_weights else d.log_weights)


@safe_log_prob.register(Empirical)
def _(d: Empirical, y: Tensor) -> NoReturn:  # noqa: ARG001
    raise NotSupportedError("log_prob is not available for Empirical: draws have no density; score them with crps")


@mean.register(Empirical)
def _(d: Empirical) -> Tensor:
    return _weighted(d, d.draws)


@variance.register(Empirical)
def _(d: Empirical) -> Tensor:
    return _weighted(d, (d.draws - _weighted(d, d.draws)) ** 2)


def _weighted(d: Empirical, values: Tensor) -> Tensor:
    """The draws of a row lie side by side, so that its sum depends neither on the other rows nor on their layout."""
    return (values.movedim(0, -1).double().contiguous() * d.log_weights.double().exp()).sum(-1).to(values.dtype)


@cdf.register(Empirical)
def _(d: Empirical, value: Tensor) -> Tensor:
    values, table = d.sorted()
    grid, shape = _grid_last(d, value.to(values.dtype))
    rank = torch.searchsorted(values.contiguous(), grid, right=True)
    ecdf = torch.where(rank > 0, table.gather(-1, (rank - 1).clamp(min=0)), 0.0)
    return ecdf.movedim(-1, 0).reshape(shape)


@icdf.register(Empirical)
def _(d: Empirical, q: Tensor) -> Tensor:
    values, table = d.sorted()
    grid, shape = _grid_last(d, q.to(values.dtype))
    rank = torch.searchsorted(table.contiguous(), grid).clamp(max=d.num_draws - 1)
    return values.gather(-1, rank).movedim(-1, 0).reshape(shape)


def _grid_last(d: Predictive, value: Tensor) -> tuple[Tensor, torch.Size]:
    """Values (..., batch, *event) as (batch, *event, grid), and the shape they had."""
    grid = value.reshape(-1, *d.batch_shape, *d.event_shape) if value.numel() else value.unsqueeze(0)
    return grid.movedim(0, -1).contiguous(), value.shape


@crps.register(Empirical)
def _(d: Empirical, y: Tensor) -> Tensor:
    return _weighted(d, (d.draws - y).abs()) - _half_mean_difference(d)


def _half_mean_difference(d: Empirical) -> Tensor:
    """E|X - X'|/2, the integral of F(1 - F)."""
    if d.equal_weights:
        ordered = _sorted_last(d.draws.movedim(0, -1))
        signs = torch.arange(1 - d.num_draws, d.num_draws, 2, dtype=torch.float64, device=ordered.device)
        return ((ordered - ordered[..., :1]).double() @ (signs / d.num_draws**2)).to(ordered.dtype)
    values, table = d.sorted()
    below = table[..., :-1].double()
    return ((values.double().diff(dim=-1)) * below * (1 - below)).sum(-1).to(values.dtype)


def _sorted_last(values: Tensor) -> Tensor:
    """Sorted along the last axis; numpy, which keeps no indices, takes a fraction of torch's time."""
    dense = values.dtype in (torch.float32, torch.float64) and values.device.type == "cpu"
    if dense and not values.requires_grad:
        return torch.from_numpy(np.sort(values.numpy(), axis=-1))
    return values.sort(dim=-1).values


def fair_crps(d: Empirical, y: ArrayLike) -> Tensor:
    """The fair CRPS of draws, per element: unbiased for the distribution they come from; it can be negative.

    Args:
        d: at least two equally weighted draws.
        y: targets of shape (rows, *event_shape).

    Raises:
        NotSupportedError: weighted draws, or another distribution.
        ValueError: fewer than two draws.
    """
    if not isinstance(d, Empirical) or not d.equal_weights:
        raise NotSupportedError("fair_crps is for equally weighted draws, from_draws(draws)")
    if d.num_draws < 2:
        raise ValueError(f"fair_crps needs at least 2 draws; got {d.num_draws}")
    targets = match_targets(d, y)
    correction = d.num_draws / (d.num_draws - 1)
    return _weighted(d, (d.draws - targets).abs()) - correction * _half_mean_difference(d)


@Operation
def ensemble(d: Distribution, num_draws: int | None, seed: int | None) -> tuple[Tensor, Tensor | None]:
    """Draws of a distribution, (num_draws, *batch, *event), and their log weights, None for equal ones.

    Args:
        d: the distribution. One that is made of draws gives these, unless a number is asked for.
        num_draws: how many; None is all that are stored, or else 100.
        seed: equal seeds give equal draws.
    """
    count = 100 if num_draws is None else num_draws
    precise = drawable(d)
    with torch.no_grad(), seeded(base_seed(seed), "ensemble", device=reference(d).device):
        return precise.sample(torch.Size([count])), None


@ensemble.register(Empirical)
def _(d: Empirical, num_draws: int | None, seed: int | None) -> tuple[Tensor, Tensor | None]:
    if num_draws is None:
        return d.draws, None if d.equal_weights else d.log_weights
    return d.draw(num_draws, seed), None
