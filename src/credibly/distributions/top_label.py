"""The probability of the most probable class and whether it came true, and that of a binary event, in float64.

All are read off `class_log_probs`. Here they come without the table where the type allows it: the largest of
softmax(z) is 1 / sum_k exp(z_k - max z), and a distribution built from probabilities is read as it is, so that 0.7
stays 0.7 and does not become exp(log 0.7). Where classes tie, the most probable is the first.

Which class is on top need not be known to see whether it is the target. A largest value takes a third of the time
of its index, and less for integers, as which floating-point numbers that are not negative may be compared.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Distribution, Independent

from credibly.core.checks import check_finite
from credibly.core.errors import NotSupportedError
from credibly.distributions.class_rows import class_log_prob_blocks
from credibly.distributions.classes import built_from_probs, class_log_probs
from credibly.distributions.marginal import MarginalPredictive
from credibly.distributions.operations import Operation
from credibly.distributions.rows import num_rows

__all__ = ["event_probs", "top_label", "top_label_blocks"]

_BLOCK = 2**17  # rows at a time, for a few classes: all that is computed of them stays in the cache
_NUMBERS = 2**21
_BITS = {
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
    torch.float32: torch.int32,
    torch.float64: torch.int64,
}
_CLEAR = 0.51  # a probability above has no equal, however the row was rounded

Blocks = Iterator[tuple[Tensor, Tensor]]


def top_label(d: Distribution, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The largest class probability, float64, and whether its class is the target, bool. No gradients.

    Args:
        d: a distribution over classes.
        targets: as `match_targets` returns them, (rows, *event_shape); so are both results.

    Raises:
        NotSupportedError: `d` is not a distribution over classes.
    """
    confidences, hits = (torch.cat(column) for column in zip(*top_label_blocks(d, targets), strict=True))
    return check_finite("predicted", confidences), hits


@Operation
def top_label_blocks(d: Distribution, targets: Tensor) -> Blocks:
    """`top_label`, a block of rows at a time, in order.

    Raises:
        NotSupportedError: `d` is not a distribution over classes.
    """
    for rows, log_probs in class_log_prob_blocks(d):
        scores, indices = log_probs.detach(), targets[rows].to(torch.int64)
        top = scores.amax(-1)
        confidence = top.exp()
        yield confidence, _is_first(top, confidence, scores, indices)


@top_label_blocks.register(Categorical)
def _(d: Categorical, targets: Tensor) -> Blocks:
    from_probs = built_from_probs(d)
    table = (d.probs if from_probs else d.logits).detach()
    size = max(1, min(_BLOCK, _NUMBERS // table.shape[-1]))
    for start in range(0, max(num_rows(d), 1), size):
        scores, indices = table[start : start + size], targets[start : start + size]
        if from_probs:
            top = scores.view(_BITS[scores.dtype]).amax(-1).view(scores.dtype)
            confidence = top.to(torch.float64)
        else:
            top = scores.amax(-1)
            centred = scores.to(torch.float64, copy=True).sub_(top.unsqueeze(-1))
            confidence = centred.exp_().sum(-1).reciprocal_()
        yield confidence, _is_first(top, confidence, scores, indices)


@top_label_blocks.register(MarginalPredictive)
def _(d: MarginalPredictive, targets: Tensor) -> Blocks:
    return top_label_blocks(d.marginal, targets)


def _is_first(
    top: Tensor,  # (*rows,), the largest score
    confidence: Tensor,  # (*rows,), its probability
    scores: Tensor,  # (*rows, classes)
    targets: Tensor,  # (*rows,), int64
) -> Tensor:
    """Whether the target is the first class with the largest score; only below one half can there be a second."""
    hits = scores.gather(-1, targets.unsqueeze(-1)).squeeze(-1) == top
    open_ones = (hits & (confidence < _CLEAR)).nonzero(as_tuple=True)
    hits[open_ones] = scores[open_ones].max(-1).indices == targets[open_ones]
    return hits


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
