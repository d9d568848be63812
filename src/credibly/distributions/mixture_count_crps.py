"""The CRPS of mixtures over draws of counts, by its definition: the sum over counts k of (F(k) - 1{y <= k})^2.

F is the running sum of the mixture's probabilities, so that a count costs one log probability a draw, and none of the
distribution functions, which are incomplete beta and gamma functions on the host. The sum ends where all but 1e-12 of
the mass is behind it; beyond, a larger target adds its distance. Rows that would reach too far are left to
`crps_numeric`, which does not visit every count.
"""

import torch
from torch import Tensor

from credibly.distributions.crps import integrated
from credibly.distributions.density import element_log_prob
from credibly.distributions.mixture import MixturePredictive, in_row_chunks, weighted_mean
from credibly.distributions.moments import mean, variance
from credibly.distributions.rows import select, to

__all__ = ["count_mixture_crps"]

REST = 1e-12
BLOCK = 32  # counts at once
LONGEST = 2048  # counts of a sum
DEVIATIONS = 8


def count_mixture_crps(d: MixturePredictive, y: Tensor) -> Tensor:
    """The CRPS of every element, (rows, *event_shape), without gradients.

    Args:
        d: a mixture of counts.
        y: checked targets.
    """
    with torch.no_grad():
        precise = to(d, dtype=torch.float64)
        assert isinstance(precise, MixturePredictive)
        targets = y.detach().double()
        scores = torch.full_like(targets, torch.nan)
        short = _is_short(precise)
        some = short.nonzero().squeeze(1)
        if len(some):
            part = select(precise, some)
            assert isinstance(part, MixturePredictive)
            scores[some] = in_row_chunks(part, targets[some], _summed, per_row=BLOCK * d.num_draws)
        late = scores.isnan().reshape(len(scores), -1).any(1).nonzero().squeeze(1)
        if len(late):
            scores[late] = integrated(select(precise, late), targets[late])
        return scores.to(y.dtype)


def _is_short(d: MixturePredictive) -> Tensor:
    """Which rows' draws all seem to end early enough, by their moments: (rows,)."""
    reach = mean(d.components) + DEVIATIONS * variance(d.components).sqrt()
    return (reach < LONGEST).transpose(0, 1).flatten(1).all(1)


def _summed(d: MixturePredictive, y: Tensor) -> Tensor:
    """The score of every element, NaN where the sum has not come to its end."""
    score, behind = torch.zeros_like(y), torch.zeros_like(y)
    for first in range(0, LONGEST, BLOCK):
        counts = torch.arange(first, first + BLOCK, dtype=y.dtype, device=y.device).reshape(-1, *(1,) * y.dim())
        spread = counts.unsqueeze(1).expand(BLOCK, 1, *y.shape)
        masses = weighted_mean(d, element_log_prob(d.components, spread).exp(), axis=1)
        upto = behind + masses.cumsum(0)
        score = score + (upto - (y <= counts).double()).square().sum(0)
        behind = upto[-1]
        if not bool((behind < 1 - REST).any()):
            break
    score = score + (y - first - BLOCK).clamp(min=0)
    return torch.where((behind - 1).abs() <= REST, score, torch.nan)
