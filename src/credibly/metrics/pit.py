"""The probability integral transform: where in its predicted distribution each target fell.

If the prediction is true, the transform F(y) is uniform on [0, 1] wherever F is continuous (A. Philip Dawid,
"Statistical Theory: The Prequential Approach", 1984). Where F jumps (counts, ordered classes, draws, point masses)

    PIT = F(y-) + u (F(y) - F(y-)),    u uniform and independent of y, one a row,

is uniform again (Czado, Gneiting, Held, "Predictive Model Assessment for Count Data", 2009). F(y) alone is not: for
Poisson(1.5) its mean is 0.6215. Weights for each row, such as those of Pareto-smoothed importance sampling, give the
transform under the leave-one-out predictive: F_i(y_i) = sum over draws of w_si F(y_i | draw s).

A forecast of quantiles knows F between its outer levels alone. Beyond its lowest quantile, at level q, the transform is
u q, and above the highest 1 - (1 - u)(1 - q): if the quantiles are true, the whole is uniform again.
"""

import torch
from torch import Tensor
from torch.distributions import Distribution

from credibly.core.checks import as_tensor, check_finite
from credibly.core.errors import ShapeError
from credibly.core.randomness import Stream, base_seed
from credibly.core.typing import ArrayLike
from credibly.distributions.operations import check_distribution
from credibly.distributions.pit import cdf_limits, draw_cdf_limits
from credibly.distributions.targets import check_rows, match_targets

__all__ = ["pit", "pit_limits"]


def pit(
    predicted: Distribution,
    targets: ArrayLike,
    *,
    u: ArrayLike | None = None,
    seed: int | None = None,
    log_weights: ArrayLike | None = None,
) -> Tensor:
    """The randomised probability integral transform of every target.

    Args:
        predicted: a distribution with a cdf; classes are read in their order.
        targets: what came.
        u: numbers in [0, 1] in place of drawn ones, (rows,) or (rows, *event_shape). They matter only where F jumps.
        seed: of the numbers, one a row.
        log_weights: logarithms of weights of every draw for every row, (num_draws, rows), up to a constant a row, for
            leave-one-out; `predicted` must keep its draws.

    Returns:
        (rows, *event_shape), float64, in [0, 1].

    Raises:
        NotSupportedError: no cdf is known; weights for a distribution without draws.
        NotFiniteError: NaN or infinite targets, or a prediction that is NaN.
        ShapeError, ValueError: `u` or `log_weights` has another shape, or values that make no sense.
    """
    below, at = pit_limits(predicted, targets, log_weights=log_weights)
    chosen = _uniforms(u, seed, below)
    return (below + chosen * (at - below)).clamp(0, 1)


def pit_limits(
    predicted: Distribution, targets: ArrayLike, *, log_weights: ArrayLike | None = None
) -> tuple[Tensor, Tensor]:
    """F(y-) and F(y) of every target, each (rows, *event_shape), float64; equal where F does not jump.

    Of a quantile forecast, beyond its outer quantiles, 0 and the lowest level, or the highest level and 1.

    Args:
        predicted: as in `pit`.
        targets: what came.
        log_weights: as in `pit`.
    """
    check_distribution(predicted)
    check_rows(predicted)
    matched = match_targets(predicted, targets)
    values = matched if matched.is_floating_point() else matched.to(torch.float64)
    if log_weights is None:
        below, at = (limit.double() for limit in cdf_limits(predicted, values))
    else:
        below, at = _weighted_limits(predicted, values, log_weights)
    check_finite("predicted", at)
    return torch.minimum(below, at), at


def _weighted_limits(predicted: Distribution, values: Tensor, log_weights: ArrayLike) -> tuple[Tensor, Tensor]:
    limits = draw_cdf_limits(predicted, values)
    weights = as_tensor(log_weights, dtype=torch.float64, device=values.device).to(torch.float64)
    needed = limits[1].shape[:2]
    if weights.shape != needed:
        raise ShapeError(
            f"`log_weights` must have shape (num_draws, rows) = {tuple(needed)}; got {tuple(weights.shape)}"
        )
    if not bool(torch.isfinite(torch.logsumexp(weights, 0)).all()):
        raise ValueError("`log_weights` must not be NaN or +inf, nor all -inf for a row")
    weights = torch.softmax(weights, 0).reshape(*needed, *(1,) * (values.dim() - 1))
    below, at = ((weights * each.double()).sum(0) for each in limits)
    return below, at


def _uniforms(u: ArrayLike | None, seed: int | None, like: Tensor) -> Tensor:
    """One number a row, broadcast over the elements of its target; or those that were given."""
    rows = len(like)
    if u is None:
        generator = Stream(base_seed(seed), "pit", like.device).generator()
        chosen = torch.rand(rows, generator=generator, dtype=torch.float64, device=like.device)
    else:
        chosen = as_tensor(u, dtype=torch.float64, device=like.device).to(torch.float64)
    if chosen.shape == (rows,):
        chosen = chosen.reshape(-1, *(1,) * (like.dim() - 1))
    elif chosen.shape != like.shape:
        raise ShapeError(f"`u` must have shape {(rows,)} or {tuple(like.shape)}; got {tuple(chosen.shape)}")
    if not bool(((chosen >= 0) & (chosen <= 1)).all()):
        raise ValueError("`u` must lie in [0, 1]")
    return chosen
