"""The probability of success of Bernoulli trials, read from the parameter that the distribution was built with.

Torch turns logits into probabilities that round to 1, and probabilities into clamped logits; here both the
probability of success and that of failure keep their precision, and 0 stays 0.
"""

from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import Binomial, Geometric, NegativeBinomial

from credibly.distributions.classes import built_from_probs

__all__ = ["Trials", "log_of_success_and_failure", "success_and_failure"]

Trials: TypeAlias = Binomial | Geometric | NegativeBinomial


def success_and_failure(d: Trials) -> tuple[Tensor, Tensor]:
    """The two probabilities p and 1 - p, in float64."""
    if built_from_probs(d):
        probs = d.probs.double()
        return probs, 1 - probs
    logits = d.logits.double()
    return torch.sigmoid(logits), torch.sigmoid(-logits)


def log_of_success_and_failure(d: Trials) -> tuple[Tensor, Tensor]:
    """The two logarithms, log p and log(1 - p), in float64; -inf, without a gradient, at 0."""
    if built_from_probs(d):
        probs = d.probs.double()
        never, always = probs <= 0, probs >= 1
        log_probs = torch.log(torch.where(never, 1.0, probs))
        log_rest = torch.log1p(-torch.where(always, 0.0, probs))
        return torch.where(never, float("-inf"), log_probs), torch.where(always, float("-inf"), log_rest)
    logits = d.logits.double()
    return F.logsigmoid(logits), F.logsigmoid(-logits)
