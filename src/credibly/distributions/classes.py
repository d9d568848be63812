"""Class probabilities as exact float64 logarithms.

Everything that reads class probabilities reads them here. They come from the very parameter the distribution
was built with: torch clamps the logits it derives from probabilities, so that a probability of 0 would
turn into 1e-7. A Bernoulli has two classes, in the order (does not happen, happens).
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Distribution, Independent

from credibly.distributions.kinds import base_of, reference
from credibly.distributions.operations import Operation

__all__ = [
    "built_from_probs",
    "class_draw_log_probs",
    "class_entropy",
    "class_log_probs",
    "class_masses",
    "class_probs",
]


def built_from_probs(d: Distribution) -> bool:
    """Whether the distribution holds probabilities as its own parameter, rather than logits.

    Torch computes the other one on first use and keeps it. Most classes remember which was given; of a Geometric it is
    the one that came first.
    """
    own = vars(d)
    if "_param" in own:
        return "probs" in own and own["_param"] is own["probs"]
    return next((name for name in own if name in ("probs", "logits")), "") == "probs"


@Operation
def class_log_probs(d: Distribution) -> Tensor:
    """Log probabilities of the classes, float64, of shape (*batch, *event, classes); probability 0 is -inf.

    Raises:
        NotSupportedError: the distribution is not over classes.
    """
    class_log_probs.refuse(d)


@class_log_probs.register(Categorical)
def _(d: Categorical) -> Tensor:
    if built_from_probs(d):
        probs = d.probs.double()
        return torch.log(probs / probs.sum(-1, keepdim=True))
    return torch.log_softmax(d.logits.double(), dim=-1)


@class_log_probs.register(Bernoulli)
def _(d: Bernoulli) -> Tensor:
    if built_from_probs(d):
        probs = d.probs.double()
        return torch.stack([torch.log1p(-probs), torch.log(probs)], dim=-1)
    logits = d.logits.double()
    return torch.stack([F.logsigmoid(-logits), F.logsigmoid(logits)], dim=-1)


@class_log_probs.register(Independent)
def _(d: "Independent[Any]") -> Tensor:
    return class_log_probs(d.base_dist)


@Operation
def class_masses(d: Distribution) -> Tensor:
    """Probabilities of the classes, float64, of shape (*batch, *event, classes).

    Where the distribution holds probabilities they are taken from there, without a way through logarithms.

    Raises:
        NotSupportedError: the distribution is not over classes.
    """
    return class_log_probs(d).exp()


@class_masses.register(Categorical)
def _(d: Categorical) -> Tensor:
    if built_from_probs(d):
        probs = d.probs.double()
        return probs / probs.sum(-1, keepdim=True)
    return torch.softmax(d.logits.double(), dim=-1)


@Operation
def class_draw_log_probs(d: Distribution) -> Tensor:
    """Log probabilities of the classes in every draw, float64, of shape (num_draws, batch, *event, classes).

    Raises:
        NotSupportedError: the distribution keeps no draws.
    """
    class_draw_log_probs.refuse(d)


def class_entropy(log_probs: Tensor) -> Tensor:
    """Entropy in nats over the last axis of log probabilities; probability 0 contributes nothing."""
    finite = torch.where(torch.isneginf(log_probs), 0.0, log_probs)
    return -(log_probs.exp() * finite).sum(-1)


def class_probs(d: Distribution) -> Tensor:
    """Class probabilities in torch's shapes and the distribution's dtype.

    Returns:
        (*batch, *event), the probability that it happens, over a Bernoulli; (*batch, *event, classes) over
        a Categorical.

    Raises:
        NotSupportedError: the distribution is not over classes.
    """
    return _torch_shape(base_of(d), class_log_probs(d).exp()).to(reference(d).dtype)


@Operation
def _torch_shape(base: Distribution, probs: Tensor) -> Tensor:  # noqa: ARG001
    return probs


@_torch_shape.register(Bernoulli)
def _(base: Bernoulli, probs: Tensor) -> Tensor:  # noqa: ARG001
    return probs[..., 1]
