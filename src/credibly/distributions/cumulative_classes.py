"""Distribution functions and quantiles of classes, over their indices.

F(y) = P(class <= y), and the quantile is the smallest class with F >= q, computed from the very same rounded F, so
that the two are inverse to each other wherever F still increases.
"""

import torch
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Distribution

from credibly.distributions.classes import class_log_probs
from credibly.distributions.cumulative_tables import cdf, icdf
from credibly.distributions.kinds import reference
from credibly.distributions.shapes import broadcast_shape

__all__ = ["class_cdf", "class_icdf"]


@cdf.register(Bernoulli, Categorical)
def _(d: Distribution, value: Tensor) -> Tensor:
    return class_cdf(class_log_probs(d), value).to(reference(d).dtype)


@icdf.register(Bernoulli, Categorical)
def _(d: Distribution, q: Tensor) -> Tensor:
    return class_icdf(class_log_probs(d), q, reference(d).dtype)


def class_cdf(log_probs: Tensor, value: Tensor) -> Tensor:
    """P(class <= value) in float64, from log probabilities over the last axis."""
    table = _cumulated(log_probs)
    index = torch.floor(value).clamp(-1, table.shape[-1] - 1).long()
    index = index.expand(broadcast_shape(index.shape, table.shape[:-1]))
    table = table.expand(index.shape + table.shape[-1:])
    return torch.where(index < 0, 0.0, table.gather(-1, index.clamp(min=0).unsqueeze(-1)).squeeze(-1))


def class_icdf(log_probs: Tensor, q: Tensor, dtype: torch.dtype) -> Tensor:
    """The smallest class with P(class <= value) >= q, where both are rounded to `dtype` first."""
    table = _cumulated(log_probs).to(dtype)
    return torch.where(table[..., -1].isnan(), torch.nan, (table < q.unsqueeze(-1)).sum(-1)).to(dtype)


def _cumulated(log_probs: Tensor) -> Tensor:
    sums = log_probs.exp().cumsum(-1)
    return sums / sums[..., -1:]
