"""Ordered classes by cumulative logits: between which cutpoints a logistic variable around `loc` falls.

    P(Y <= k) = sigmoid(c_k - loc),   c_0 < ... < c_{K-2}

(Regression Models for Ordinal Data, McCullagh 1980.) With b = c_k - loc, a = c_{k-1} - loc a class has

    log P(Y = k) = log sigmoid(b) + log sigmoid(-a) + log(1 - exp(a - b))

which is sigmoid(b) - sigmoid(a) without the cancellation: no probability rounds to 0 far in the tails.
"""

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import Distribution, constraints

from credibly.core.errors import ShapeError
from credibly.distributions.classes import class_entropy, class_log_probs
from credibly.distributions.crps import crps
from credibly.distributions.cumulative import cdf, class_cdf, class_icdf, icdf
from credibly.distributions.density import safe_log_prob
from credibly.distributions.drawing import drawable
from credibly.distributions.kinds import Kind, kind
from credibly.distributions.moments import entropy, mean, variance
from credibly.distributions.shapes import broadcast_shape
from credibly.distributions.survival import survival
from credibly.distributions.targets import inside_support, target_dtype

__all__ = ["Ordinal", "gather_class", "ordered_log_probs"]

NO_DISTANCES = "ordered classes have no distances; use icdf(d, 0.5), the median class, or class_log_probs(d)"


def ordered_log_probs(loc: Tensor, cutpoints: Tensor) -> Tensor:
    """Log probabilities of the classes, (*batch, classes), from loc (*batch,) and cutpoints (*batch, classes - 1)."""
    distance = cutpoints - loc.unsqueeze(-1)
    below, above = F.logsigmoid(distance), F.logsigmoid(-distance)
    between = below[..., 1:] + above[..., :-1] + torch.log(-torch.expm1(-cutpoints.diff(dim=-1)))
    return torch.cat([below[..., :1], between, above[..., -1:]], -1)


def gather_class(log_probs: Tensor, targets: Tensor) -> Tensor:
    """The log probability of each target, -inf where there is no such class; targets broadcast to the batch."""
    exists = (targets >= 0) & (targets < log_probs.shape[-1]) & (targets == targets.floor())
    index = torch.where(exists, targets, 0).long()
    batch = broadcast_shape(index.shape, log_probs.shape[:-1])
    chosen = log_probs.expand(*batch, -1).gather(-1, index.expand(batch).unsqueeze(-1)).squeeze(-1)
    return chosen.masked_fill(~exists, -torch.inf)


class Ordinal(Distribution):
    """Classes 0, ..., K - 1 in an order that means something, but without distances between them.

    Args:
        loc: (*batch,) the location on the scale of the cutpoints; the larger it is, the higher the class.
        cutpoints: (*batch, K - 1), increasing along the last axis.

    Raises:
        ShapeError: the batch axes differ, or there is no cutpoint.
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {
        "loc": constraints.real,
        "cutpoints": constraints.real_vector,
    }
    has_enumerate_support = True

    def __init__(self, loc: Tensor, cutpoints: Tensor) -> None:
        if cutpoints.dim() == 0 or cutpoints.shape[-1] == 0 or cutpoints.shape[:-1] != loc.shape:
            raise ShapeError(f"`cutpoints` must have shape {(*loc.shape, 'classes - 1')}; got {tuple(cutpoints.shape)}")
        self.loc = loc
        self.cutpoints = cutpoints
        super().__init__(loc.shape, validate_args=False)

    @property
    def num_classes(self) -> int:
        """The number of classes."""
        return self.cutpoints.shape[-1] + 1

    @property
    def support(self) -> Any:
        """Whole numbers from 0 to K - 1."""
        return constraints.integer_interval(0, self.num_classes - 1)  # type: ignore[no-untyped-call]

    @property
    def probs(self) -> Tensor:
        """Class probabilities, (*batch, classes)."""
        return ordered_log_probs(self.loc, self.cutpoints).exp()

    @property
    def mean(self) -> Tensor:
        """NaN, as torch's Categorical has it: class indices are no numbers."""
        return torch.full_like(self.loc, torch.nan)

    @property
    def variance(self) -> Tensor:
        """NaN, as torch's Categorical has it."""
        return torch.full_like(self.loc, torch.nan)

    def log_prob(self, value: Tensor) -> Tensor:
        """The log probability of a class, -inf where there is no such class."""
        return gather_class(ordered_log_probs(self.loc, self.cutpoints), value)

    def entropy(self) -> Tensor:
        """The entropy in nats."""
        return entropy(self)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Draws of classes, int64: how many cutpoints a logistic variable around `loc` exceeds."""
        with torch.no_grad():
            precise = drawable(self)
            shape = torch.Size(sample_shape) + self.batch_shape
            noise = torch.logit(torch.rand(shape, dtype=precise.loc.dtype, device=self.loc.device))
            return ((precise.loc + noise).unsqueeze(-1) > precise.cutpoints).sum(-1)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """All classes along a new first axis."""
        values = torch.arange(self.num_classes, device=self.loc.device)
        values = values.reshape(-1, *(1,) * len(self.batch_shape))
        return values.expand(-1, *self.batch_shape) if expand else values

    def expand(self, batch_shape: Any, _instance: Any = None) -> "Ordinal":
        """The same for a larger batch."""
        return Ordinal(self.loc.expand(batch_shape), self.cutpoints.expand(*batch_shape, -1))


@kind.register(Ordinal)
def _(d: Ordinal) -> Kind:  # noqa: ARG001
    return "class"


@target_dtype.register(Ordinal)
def _(d: Ordinal) -> torch.dtype:  # noqa: ARG001
    return torch.int64


@inside_support.register(Ordinal)
def _(d: Ordinal, targets: Tensor) -> Tensor:
    return (targets >= 0) & (targets < d.num_classes) & (targets == targets.floor())


@class_log_probs.register(Ordinal)
def _(d: Ordinal) -> Tensor:
    return ordered_log_probs(d.loc.double(), d.cutpoints.double())


@safe_log_prob.register(Ordinal)
def _(d: Ordinal, y: Tensor) -> Tensor:
    return d.log_prob(y)


@cdf.register(Ordinal)
def _(d: Ordinal, value: Tensor) -> Tensor:
    return class_cdf(class_log_probs(d), value).to(d.loc.dtype)


@survival.register(Ordinal)
def _(d: Ordinal, value: Tensor) -> Tensor:
    above = torch.sigmoid(d.loc.double().unsqueeze(-1) - d.cutpoints.double())
    above = F.pad(F.pad(above, (1, 0), value=1.0), (0, 1))  # P(Y > k) for k = -1, ..., K - 1
    index = (torch.floor(value).clamp(-1, d.num_classes - 1) + 1).long().unsqueeze(-1)
    index = index.expand(broadcast_shape(index.shape, above[..., :1].shape))
    return above.expand(*index.shape[:-1], -1).gather(-1, index).squeeze(-1).to(d.loc.dtype)


@icdf.register(Ordinal)
def _(d: Ordinal, q: Tensor) -> Tensor:
    return class_icdf(class_log_probs(d), q, d.loc.dtype)


@entropy.register(Ordinal)
def _(d: Ordinal) -> Tensor:
    return class_entropy(class_log_probs(d)).to(d.loc.dtype)


@mean.register(Ordinal)
def _(d: Ordinal) -> Tensor:
    mean.refuse(d, NO_DISTANCES)


@variance.register(Ordinal)
def _(d: Ordinal) -> Tensor:
    variance.refuse(d, NO_DISTANCES)


@crps.register(Ordinal)
def _(d: Ordinal, y: Tensor) -> Tensor:  # noqa: ARG001
    crps.refuse(d, "classes are no numbers; use metrics.ranked_probability_score, which needs their order only")
