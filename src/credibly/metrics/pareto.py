"""Pareto smoothing of importance ratios, and the leave-one-out score that follows from it.

Pareto Smoothed Importance Sampling (Vehtari, Simpson, Gelman, Yao, Gabry, 2024): the largest M = min(S/5, 3 sqrt(S))
of S ratios are replaced by the expected order statistics of a generalised Pareto distribution fitted to them. Its shape
k says how far the weights can be trusted. The fit is the empirical Bayes one of A New and Efficient Estimation Method
for the Generalized Pareto Distribution (Zhang, Stephens, 2009), with 10 pseudo-observations of k = 0.5.

Leaving row i out (Practical Bayesian Model Evaluation Using Leave-One-Out Cross-Validation and WAIC, Vehtari, Gelman,
Gabry, 2017): with the ratios 1 / p(y_i | draw) and their smoothed, normalised weights w,

    elpd = sum over i of log( sum over draws of w_i p(y_i | draw) ).

Everything is computed in float64, for all rows at once in blocks.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from credibly.core.checks import as_tensor, check_finite, check_positive
from credibly.core.errors import NotFiniteError, ShapeError
from credibly.core.typing import ArrayLike

__all__ = ["LeaveOneOut", "SmoothedWeights", "pareto_smooth", "psis_loo"]

_BLOCK = 2**21  # numbers that are worked on at once
_SHORTEST_TAIL = 5
_LOG_TINY = math.log(torch.finfo(torch.float64).tiny)


@dataclass(frozen=True, eq=False)
class SmoothedWeights:
    """Importance weights whose tail was smoothed.

    Attributes:
        log_weights: (draws, *rows), normalised: they sum to 1 over draws.
        k: (*rows) the shape of the tail: below `threshold` the weights can be trusted, from 1 on there is no mean. It
            is infinite where fewer than 5 ratios stand out from the rest, and nothing was smoothed.
        threshold: the k up to which this number of draws is enough, a property.
    """

    log_weights: Tensor
    k: Tensor

    def __repr__(self) -> str:
        return f"SmoothedWeights({self.log_weights.shape[0]} draws, {_k_in_words(self.k, self.threshold)})"

    @property
    def threshold(self) -> float:
        """`min(1 - 1 / log10(draws), 0.7)`: the k up to which this number of draws is enough."""
        return _threshold(self.log_weights.shape[0])


@dataclass(frozen=True, eq=False)
class LeaveOneOut:
    """The leave-one-out score of a set of draws.

    Attributes:
        elpd: the sum over rows of the log density of each under the other rows' posterior.
        standard_error: of `elpd`, from the spread over rows.
        p_loo: the effective number of parameters: how much less that is than the log density in the sample.
        pointwise: (rows,) whose sum is `elpd`.
        k: (rows,) see `SmoothedWeights`; the scores of rows above `threshold` are not to be trusted.
        threshold: the k up to which the number of draws is enough.
    """

    elpd: Tensor
    standard_error: Tensor
    p_loo: Tensor
    pointwise: Tensor
    k: Tensor
    threshold: float

    def __repr__(self) -> str:
        return (
            f"LeaveOneOut(elpd {float(self.elpd):.5g}, standard error {float(self.standard_error):.3g}, "
            f"p_loo {float(self.p_loo):.4g}; {_k_in_words(self.k, self.threshold)})"
        )


def _k_in_words(k: Tensor, threshold: float) -> str:
    return f"k above {threshold:.2f} in {int((k > threshold).sum())} of {k.numel()} rows"


def pareto_smooth(log_ratios: ArrayLike, *, relative_efficiency: float = 1.0) -> SmoothedWeights:
    """Smooth the largest importance ratios, cut them at the largest raw one, and normalise.

    Args:
        log_ratios: (draws, *rows) logarithms of ratios, up to a constant a row; -inf is a ratio of 0.
        relative_efficiency: the effective number of draws over their number: 1 for independent draws, less for chains.

    Raises:
        ShapeError: there are no draws.
        NotFiniteError: a ratio is NaN or infinite, or all of a row are 0.
    """
    ratios = _draws_first("log_ratios", log_ratios)
    _check_ratios(ratios)
    tail = _tail_length(ratios.shape[0], relative_efficiency)
    rows = ratios.reshape(ratios.shape[0], -1)
    parts = [_smooth(part.T.double(), tail) for part in torch.split(rows, _block_rows(ratios.shape[0], tail), dim=1)]
    weights = torch.cat([part[0].T for part in parts], dim=1).reshape(ratios.shape)
    return SmoothedWeights(weights, torch.cat([part[1] for part in parts]).reshape(ratios.shape[1:]))


def psis_loo(log_likelihood: ArrayLike, *, relative_efficiency: float = 1.0) -> LeaveOneOut:
    """The expected log density of each row, had it been left out of the data.

    Args:
        log_likelihood: (draws, rows) log density of each row's target at each draw of the posterior.
        relative_efficiency: as in `pareto_smooth`.

    Raises:
        ShapeError: another number of axes; no draws or no rows.
        NotFiniteError: a log density is NaN or infinite.
    """
    values = _draws_first("log_likelihood", log_likelihood)
    if values.dim() != 2 or values.shape[1] == 0:
        raise ShapeError(f"`log_likelihood` must have shape (draws, rows); got {tuple(values.shape)}")
    check_finite("log_likelihood", values)
    num_draws, num_rows = values.shape
    tail = _tail_length(num_draws, relative_efficiency)
    parts = [_leave_out(part.T.double(), tail) for part in torch.split(values, _block_rows(num_draws, tail), dim=1)]
    left_out, whole, k = (torch.cat(column) for column in zip(*parts, strict=True))
    return LeaveOneOut(
        elpd=left_out.sum(),
        standard_error=(num_rows * left_out.var(correction=0)).sqrt(),
        p_loo=(whole - left_out).sum(),
        pointwise=left_out,
        k=k,
        threshold=_threshold(num_draws),
    )


def _threshold(num_draws: int) -> float:
    return min(1 - 1 / math.log10(num_draws), 0.7) if num_draws > 1 else -math.inf


def _draws_first(name: str, values: ArrayLike) -> Tensor:
    tensor = as_tensor(values).detach()
    if tensor.dim() == 0 or tensor.shape[0] == 0:
        raise ShapeError(f"`{name}` must have draws on axis 0, at least one; got shape {tuple(tensor.shape)}")
    return tensor


def _check_ratios(ratios: Tensor) -> None:
    check_finite("log_ratios", torch.where(ratios == -math.inf, 0.0, ratios))
    if bool((ratios == -math.inf).all(0).any()):
        raise NotFiniteError("`log_ratios` must be above -inf for at least one draw of every row")


def _tail_length(num_draws: int, relative_efficiency: float) -> int:
    efficient = num_draws / check_positive("relative_efficiency", relative_efficiency)
    return math.ceil(min(num_draws / 5, 3 * math.sqrt(efficient)))


def _block_rows(num_draws: int, tail: int) -> int:
    return max(1, _BLOCK // max(num_draws, tail * _num_candidates(tail)))


def _leave_out(log_likelihood: Tensor, tail: int) -> tuple[Tensor, Tensor, Tensor]:
    """For (rows, draws): the log densities with each row left out, those in the sample, and k."""
    log_weights, k = _smooth(-log_likelihood, tail)
    whole = torch.logsumexp(log_likelihood, -1) - math.log(log_likelihood.shape[-1])
    return torch.logsumexp(log_weights + log_likelihood, -1), whole, k


def _smooth(ratios: Tensor, tail: int) -> tuple[Tensor, Tensor]:
    """For (rows, draws): normalised smoothed log weights, and k."""
    values = ratios - ratios.amax(-1, keepdim=True)
    k = torch.full_like(values[:, 0], math.inf)
    if tail < values.shape[-1]:
        top, index = values.topk(tail + 1, dim=-1)
        cutoff = top[:, -1:].clamp(min=_LOG_TINY)
        top, index = top[:, :-1].flip(-1), index[:, :-1].flip(-1)  # in ascending order
        lengths = (top > cutoff).sum(-1)  # ties with the cutoff are not in the tail
        for length in sorted({*lengths.tolist()} - {*range(_SHORTEST_TAIL)}):
            rows = (lengths == length).nonzero().squeeze(-1)
            smoothed, k[rows] = _smooth_tail(top[rows, tail - length :], cutoff[rows])
            values[rows.unsqueeze(-1), index[rows, tail - length :]] = smoothed
    return values - torch.logsumexp(values, -1, keepdim=True), k


def _smooth_tail(tail: Tensor, cutoff: Tensor) -> tuple[Tensor, Tensor]:
    """For ascending tails (rows, length) above a cutoff (rows, 1): smoothed, at most 0; and k, infinite if no fit."""
    length = tail.shape[-1]
    k, sigma = _fit_pareto(tail.exp() - cutoff.exp())
    fits = k.isfinite() & (sigma > 0)
    levels = (torch.arange(length, dtype=tail.dtype, device=tail.device) + 0.5) / length
    excess = _pareto_quantile(levels, k.unsqueeze(-1), sigma.unsqueeze(-1))
    smoothed = (excess + cutoff.exp()).log().clamp(max=0.0)
    return torch.where(fits.unsqueeze(-1), smoothed, tail), torch.where(fits, k, math.inf)


def _num_candidates(length: int) -> int:
    return 30 + int(math.sqrt(length))


def _fit_pareto(excess: Tensor) -> tuple[Tensor, Tensor]:
    """Shape and scale for ascending excesses (rows, length): each (rows,)."""
    length = excess.shape[-1]
    num = _num_candidates(length)
    steps = torch.arange(1, num + 1, dtype=excess.dtype, device=excess.device)
    quartile = excess[:, int(length / 4 + 0.5) - 1, None]
    candidates = (1 - (num / (steps - 0.5)).sqrt()) / (3 * quartile) + 1 / excess[:, -1:]
    shapes = torch.log1p(-candidates.unsqueeze(-1) * excess.unsqueeze(-2)).mean(-1)
    profile = length * ((-candidates / shapes).log() - shapes - 1)
    weights = torch.softmax(profile, -1)
    weights = torch.where(weights >= 10 * torch.finfo(weights.dtype).eps, weights, 0.0)
    best = (candidates * weights).sum(-1) / weights.sum(-1)
    shape = torch.log1p(-best.unsqueeze(-1) * excess).mean(-1)
    return (length * shape + 5) / (length + 10), -shape / best


def _pareto_quantile(levels: Tensor, k: Tensor, sigma: Tensor) -> Tensor:
    """Excess at levels (length,) for shapes and scales (rows, 1)."""
    tails = -torch.log1p(-levels)
    flat = k.abs() < torch.finfo(k.dtype).eps
    return sigma * torch.where(flat, tails, torch.expm1(k * tails) / torch.where(flat, 1.0, k))
