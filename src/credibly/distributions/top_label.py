"""The most probable class and its probability, and the probability of a binary event, in float64.

Both are also columns of `class_log_probs`. Here they come without the table where the type allows it: the
largest of softmax(z) is 1 / sum_k exp(z_k - max z), and a distribution built from probabilities is read as it
is, so that 0.7 stays 0.7 and does not become exp(log 0.7).
"""

from typing import Any

import torch
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Distribution, Independent

from credibly.core.errors import NotSupportedError
from credibly.distributions.class_rows import class_log_prob_blocks
from credibly.distributions.classes import built_from_probs, class_log_probs
from credibly.distributions.marginal import MarginalPredictive
from credibly.distributions.operations import Operation
from credibly.distributions.rows import num_rows

__all__ = ["event_probs", "top_label"]

_BLOCK = 2**17  # numbers; a float64 block of 1 MiB stays in the cache


@Operation
def top_label(d: Distribution) -> tuple[Tensor, Tensor]:
    """The largest class probability, float64, and its class, int64, both (rows, *event_shape). No gradients.

    Raises:
        NotSupportedError: `d` is not a distribution over classes.
    """
    tops = [log_probs.detach().max(-1) for _, log_probs in class_log_prob_blocks(d)]
    return torch.cat([top.values for top in tops]).exp_(), torch.cat([top.indices for top in tops])


@top_label.register(Categorical)
def _(d: Categorical) -> tuple[Tensor, Tensor]:
    num_rows(d)
    if built_from_probs(d):
        top = d.probs.max(-1)
        return top.values.detach().to(torch.float64), top.indices
    logits = d.logits.detach()
    top = logits.max(-1)
    sums = torch.empty(top.values.shape, dtype=torch.float64, device=top.values.device)
    block = max(1, _BLOCK // logits.shape[-1])
    for start in range(0, len(sums), block):
        where = slice(start, start + block)
        centred = logits[where].to(torch.float64, copy=True).sub_(top.values[where].unsqueeze(-1))
        torch.sum(centred.exp_(), -1, out=sums[where])
    return sums.reciprocal_(), top.indices


@Operation
def event_probs(d: Distribution) -> Tensor:
    """The probability of class 1 of two, float64, (rows, *event_shape).

    Raises:
        NotSupportedError: `d` is not a distribution over exactly two classes.
    """
    log_probs = class_log_probs(d)
    if log_probs.shape[-1] != 2:
        raise NotSupportedError(
            f"event_probs needs a binary outcome; this {type(d).__name__} has {log_probs.shape[-1]} classes: "
            "use top_label"
        )
    return log_probs[..., 1].exp()


@event_probs.register(Bernoulli)
def _(d: Bernoulli) -> Tensor:
    if built_from_probs(d):
        return d.probs.to(torch.float64)
    return d.logits.to(torch.float64).sigmoid()


@event_probs.register(Independent)
def _(d: Any) -> Tensor:
    return event_probs(d.base_dist)


@top_label.register(MarginalPredictive)
def _(d: MarginalPredictive) -> tuple[Tensor, Tensor]:
    return top_label(d.marginal)


@event_probs.register(MarginalPredictive)
def _(d: MarginalPredictive) -> Tensor:
    return event_probs(d.marginal)
