"""The most probable class and its probability, and the probability of a binary event, in float64.

Both are also columns of `class_log_probs`. Here they come without the table where the type allows it: the
largest of softmax(z) is 1 / sum_k exp(z_k - max z), and a distribution built from probabilities is read as it
is, so that 0.7 stays 0.7 and does not become exp(log 0.7).
"""

from collections.abc import Iterator
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

__all__ = ["event_probs", "top_label", "top_label_blocks"]

_BLOCK = 2**17  # rows at a time, for a few classes: all that is computed of them stays in the cache
_NUMBERS = 2**21

TopLabels = Iterator[tuple[slice, Tensor, Tensor]]


def top_label(d: Distribution) -> tuple[Tensor, Tensor]:
    """The largest class probability, float64, and its class, int64, both (rows, *event_shape). No gradients.

    Raises:
        NotSupportedError: `d` is not a distribution over classes.
    """
    _, confidences, labels = zip(*top_label_blocks(d), strict=True)
    return torch.cat(confidences), torch.cat(labels)


@Operation
def top_label_blocks(d: Distribution) -> TopLabels:
    """`top_label`, a block of rows at a time: slices of rows with their confidences and labels, in order.

    Raises:
        NotSupportedError: `d` is not a distribution over classes.
    """
    for rows, log_probs in class_log_prob_blocks(d):
        top = log_probs.detach().max(-1)
        yield rows, top.values.exp_(), top.indices


@top_label_blocks.register(Categorical)
def _(d: Categorical) -> TopLabels:
    from_probs = built_from_probs(d)
    table = (d.probs if from_probs else d.logits).detach()
    size = max(1, min(_BLOCK, _NUMBERS // table.shape[-1]))
    for start in range(0, max(num_rows(d), 1), size):
        rows = slice(start, start + size)
        block = table[rows]
        top = block.max(-1)
        confidence = top.values.to(torch.float64)
        if not from_probs:
            centred = block.to(torch.float64, copy=True).sub_(confidence.unsqueeze(-1))
            confidence = centred.exp_().sum(-1).reciprocal_()
        yield rows, confidence, top.indices


@top_label_blocks.register(MarginalPredictive)
def _(d: MarginalPredictive) -> TopLabels:
    return top_label_blocks(d.marginal)


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


@event_probs.register(MarginalPredictive)
def _(d: MarginalPredictive) -> Tensor:
    return event_probs(d.marginal)
