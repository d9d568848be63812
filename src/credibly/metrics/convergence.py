"""Whether chains have converged, and how much their draws are worth: R-hat, effective sample size, standard errors.

Rank-Normalization, Folding, and Localization: An Improved R-hat for Assessing Convergence of MCMC (Vehtari, Gelman,
Simpson, Carpenter, Buerkner, 2021). Chains are split into halves. With W the mean variance within the halves and B/N
that of their means,

    R-hat = sqrt(1 - 1/N + (B/N) / W),      ESS = C N / tau,      tau = -1 + 2 sum over lags of the autocorrelation,

where the sum ends by Geyer's initial monotone sequence (Practical Markov Chain Monte Carlo, Geyer, 1992). Rank
normalisation replaces draws by normal scores of their ranks over all chains, so that infinite variances do no harm.

Everything is computed in float64, for all parameters at once in blocks. Where all draws are equal, every draw counts as
effective, and R-hat is NaN as ArviZ has it, because there is no variance to compare: a weight that never moved is no
sign of chains that agree, so that any number would mislead. Chains stuck at different values have an infinite R-hat.
"""

import math
from collections.abc import Callable
from typing import Literal, TypeAlias

import torch
from scipy.special import betaincinv
from torch import Tensor

from credibly.core.checks import as_tensor, check_finite
from credibly.core.errors import ShapeError
from credibly.core.typing import ArrayLike

__all__ = ["EssKind", "McseKind", "ess", "mcse", "rhat"]

EssKind: TypeAlias = Literal["bulk", "tail", "mean", "sd", "median"]
McseKind: TypeAlias = Literal["mean", "sd", "median"]

_BLOCK = 2**21  # draws that are worked on at once
_CONSTANT = 1e-15  # draws that differ by less are all one value
_ONE_SIGMA = (0.1586553, 0.8413447)  # the levels between which a normal lies one standard deviation about its mean
_MIN_DRAWS = 4


def ess(draws: ArrayLike, *, kind: EssKind = "bulk") -> Tensor:
    """How many independent draws would say as much as these.

    Args:
        draws: (chains, draws, *parameter), of chains of one length.
        kind: for what: "bulk" (rank-normalised draws: the middle of the distribution), "tail" (the smaller one of those
            of the 5 % and 95 % quantiles), "mean", "sd" or "median".

    Returns:
        (*parameter) in float64. Draws that alternate about the mean may be worth more than their number.

    Raises:
        ShapeError: fewer than two axes, no chain, or fewer than 4 draws a chain.
        NotFiniteError: a draw is NaN or infinite.
        ValueError: an unknown kind.
    """
    return _over_parameters(_chosen("kind", kind, _ESS), draws)


def rhat(draws: ArrayLike) -> Tensor:
    """The rank-normalised split R-hat: near 1 where chains, and halves of chains, agree; above 1.01 they do not.

    The larger one of the values for the bulk and for the folded draws, which tells differences of spread. One chain is
    judged by its two halves.

    Args:
        draws: (chains, draws, *parameter), of chains of one length.

    Returns:
        (*parameter) in float64; NaN where all draws of all chains are equal, which says nothing of convergence.

    Raises:
        ShapeError, NotFiniteError: as in `ess`.
    """
    return _over_parameters(_rank_rhat, draws)


def mcse(draws: ArrayLike, *, kind: McseKind = "mean") -> Tensor:
    """The Monte Carlo standard error of what is estimated from the draws.

    Args:
        draws: (chains, draws, *parameter), of chains of one length.
        kind: the estimate: the "mean", the standard deviation "sd" or the "median" of the draws.

    Returns:
        (*parameter) in float64, in the units of the draws; 0 where all draws are equal.

    Raises:
        ShapeError, NotFiniteError: as in `ess`.
        ValueError: an unknown kind.
    """
    return _over_parameters(_chosen("kind", kind, _MCSE), draws)


def _chosen(name: str, key: str, table: dict[str, Callable[[Tensor], Tensor]]) -> Callable[[Tensor], Tensor]:
    if key not in table:
        raise ValueError(f"`{name}` must be one of {sorted(table)}; got {key!r}")
    return table[key]


def _over_parameters(function: Callable[[Tensor], Tensor], draws: ArrayLike) -> Tensor:
    """Apply a function of (parameters, chains, draws) in blocks."""
    chains = as_tensor(draws).detach()
    if chains.dim() < 2 or chains.shape[0] == 0 or chains.shape[1] < _MIN_DRAWS:
        raise ShapeError(
            "`draws` must have shape (chains, draws, *parameter) with at least one chain of at least "
            f"{_MIN_DRAWS} draws; got {tuple(chains.shape)}"
        )
    check_finite("draws", chains)
    if not chains.numel():
        return torch.zeros(chains.shape[2:], dtype=torch.float64, device=chains.device)
    columns = chains.flatten(2) if chains.dim() > 2 else chains.unsqueeze(-1)
    size = max(1, _BLOCK // (chains.shape[0] * chains.shape[1]))
    parts = [function(part.movedim(-1, 0).double()) for part in torch.split(columns, size, dim=-1)]
    return torch.cat(parts).reshape(chains.shape[2:])


# -- what chains are turned into: (parameters, chains, draws) to the same or halved -------------------------------


def _halves(draws: Tensor) -> Tensor:
    """First and second halves as chains of their own; a middle draw is left out."""
    half = draws.shape[-1] // 2
    return torch.cat([draws[..., :half], draws[..., -half:]], dim=-2)


def _normal_scores(draws: Tensor) -> Tensor:
    """Blom's normal scores of the ranks over all chains; ties share their mean rank."""
    flat = draws.flatten(1)
    scores: Tensor = torch.special.ndtri((_mean_ranks(flat) - 0.375) / (flat.shape[-1] + 0.25))
    return scores.reshape(draws.shape)


def _mean_ranks(values: Tensor) -> Tensor:
    """Ranks from 1 along the last axis of (parameters, draws): a run of ties ends where the next value is another."""
    ordered, order = values.sort(-1)
    size = values.shape[-1]
    position = torch.arange(size, device=values.device)
    differs = ordered[:, 1:] != ordered[:, :-1]
    edge = torch.ones_like(differs[:, :1])
    first = torch.where(torch.cat([edge, differs], -1), position, 0).cummax(-1).values
    last = torch.where(torch.cat([differs, edge], -1), position, size).flip(-1).cummin(-1).values.flip(-1)
    return torch.empty_like(values).scatter_(-1, order, (first + last).to(values.dtype) / 2 + 1)


def _quantile(draws: Tensor, level: float) -> Tensor:
    """The interpolated quantile over all chains (type 7 of Hyndman and Fan), with axes to broadcast."""
    ordered = draws.flatten(1).sort(-1).values
    size = ordered.shape[-1]
    position = size * level + 1 - level
    below = math.floor(min(max(position, 1), size - 1))
    part = min(max(position - below, 0.0), 1.0)
    return ((1 - part) * ordered[:, below - 1] + part * ordered[:, below])[:, None, None]


def _below(draws: Tensor, level: float) -> Tensor:
    return (draws <= _quantile(draws, level)).double()


def _centred_squares(draws: Tensor) -> Tensor:
    return (draws - draws.mean((-2, -1), keepdim=True)) ** 2


# -- effective sample size ----------------------------------------------------------------------------------------


def _effective(draws: Tensor) -> Tensor:
    """The effective sample size of the mean of chains (parameters, chains, draws): (parameters,)."""
    total = draws.shape[-2] * draws.shape[-1]
    flat = draws.flatten(1)
    constant = flat.amax(-1) - flat.amin(-1) < _CONSTANT
    correlation = _autocorrelation(torch.where(constant[:, None, None], 0.0, draws))
    tau = _autocorrelation_time(correlation).clamp(min=1 / math.log10(total))
    return torch.where(constant, float(total), total / tau)


def _autocorrelation(draws: Tensor) -> Tensor:
    """At every lag, over all chains, against the variance that includes that of their means: (parameters, draws)."""
    size = draws.shape[-1]
    covariance = _autocovariance(draws).mean(-2)
    within = covariance[:, :1] * size / (size - 1)
    pooled = covariance[:, :1] + draws.mean(-1).var(-1, keepdim=True)
    correlation = 1 - (within - covariance) / pooled
    correlation[:, 0] = 1.0
    return correlation


def _autocovariance(draws: Tensor) -> Tensor:
    """Each chain's own, by a Fourier transform padded so that lags do not wrap around."""
    size = draws.shape[-1]
    padded = 2 ** math.ceil(math.log2(2 * size))
    spectrum = torch.fft.rfft(draws - draws.mean(-1, keepdim=True), n=padded)
    sums: Tensor = torch.fft.irfft(spectrum.abs() ** 2, n=padded)
    return sums[..., :size] / size


def _autocorrelation_time(correlation: Tensor) -> Tensor:
    """Geyer's initial monotone sequence: pairs of lags are summed while positive, each at most the one before."""
    last = max(0, (correlation.shape[-1] - 3) // 2)  # the last pair that is looked at
    even = correlation[:, : 2 * last + 2 : 2]
    pairs = even + correlation[:, 1 : 2 * last + 2 : 2]
    index = torch.arange(last + 1, device=pairs.device)
    ends = (pairs <= 0) | (index == last)
    end = ends.int().argmax(-1, keepdim=True)  # the first pair that is not summed whole
    monotone = torch.where(index < end, pairs.cummin(-1).values, 0.0).sum(-1, keepdim=True)
    rest = even.gather(-1, end)
    rest = torch.where((rest > 0) | (pairs.gather(-1, end) >= 0), rest, 0.0)
    return (2 * monotone + rest - 1).squeeze(-1)


def _ess_bulk(draws: Tensor) -> Tensor:
    return _effective(_normal_scores(_halves(draws)))


def _ess_quantile(draws: Tensor, level: float) -> Tensor:
    return _effective(_halves(_below(draws, level)))


def _ess_tail(draws: Tensor) -> Tensor:
    return torch.minimum(_ess_quantile(draws, 0.05), _ess_quantile(draws, 0.95))


def _ess_mean(draws: Tensor) -> Tensor:
    return _effective(_halves(draws))


def _ess_sd(draws: Tensor) -> Tensor:
    return _ess_mean(_centred_squares(draws))


def _ess_median(draws: Tensor) -> Tensor:
    return _ess_quantile(draws, 0.5)


# -- R-hat --------------------------------------------------------------------------------------------------------


def _plain_rhat(draws: Tensor) -> Tensor:
    size = draws.shape[-1]
    between, within = draws.mean(-1).var(-1), draws.var(-1).mean(-1)
    return ((size - 1) / size + between / within).sqrt()


def _rank_rhat(draws: Tensor) -> Tensor:
    halves = _halves(draws)
    folded = (halves - _quantile(halves, 0.5)).abs()
    # a fold that makes all draws equal says nothing, and leaves the other one
    return torch.fmax(_plain_rhat(_normal_scores(halves)), _plain_rhat(_normal_scores(folded)))


# -- standard errors ----------------------------------------------------------------------------------------------


def _mcse_mean(draws: Tensor) -> Tensor:
    return draws.flatten(1).std(-1) / _ess_mean(draws).sqrt()


def _mcse_sd(draws: Tensor) -> Tensor:
    """By the delta method from the standard error of the variance."""
    squares = _centred_squares(draws)
    variance = squares.mean((-2, -1))
    of_variance = ((squares**2).mean((-2, -1)) - variance**2) / _ess_mean(squares)
    return torch.where(variance > 0, (of_variance / variance / 4).clamp(min=0).sqrt(), 0.0)


def _mcse_median(draws: Tensor) -> Tensor:
    """Half the distance between the order statistics that bound the median's one-sigma interval."""
    ordered = draws.flatten(1).sort(-1).values
    shape = (_ess_median(draws) / 2 + 1).cpu().numpy()
    low, high = (torch.as_tensor(betaincinv(shape, shape, level)) * ordered.shape[-1] - 1 for level in _ONE_SIGMA)
    first = low.floor().clamp(min=0).long().to(ordered.device).unsqueeze(-1)
    last = high.ceil().clamp(max=ordered.shape[-1] - 1).long().to(ordered.device).unsqueeze(-1)
    return ((ordered.gather(-1, last) - ordered.gather(-1, first)) / 2).squeeze(-1)


_ESS: dict[str, Callable[[Tensor], Tensor]] = {
    "bulk": _ess_bulk,
    "tail": _ess_tail,
    "mean": _ess_mean,
    "sd": _ess_sd,
    "median": _ess_median,
}
_MCSE: dict[str, Callable[[Tensor], Tensor]] = {"mean": _mcse_mean, "sd": _mcse_sd, "median": _mcse_median}
