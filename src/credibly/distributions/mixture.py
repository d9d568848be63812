"""The prediction of a posterior: a weighted mixture over draws of the network's weights.

p(y | x) = sum_k w_k p(y | x, draw k). The log density is a logsumexp over draws, never a moment-matched
Gaussian. The law of total variance splits the variance into the mean of the draws' variances (aleatoric)
and the variance of the draws' means (epistemic); for classes, mutual information is the entropy of the
mean minus the mean entropy.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from credibly.core.errors import ShapeError
from credibly.core.typing import ArrayLike
from credibly.distributions.affine import affine
from credibly.distributions.classes import class_draw_log_probs, class_entropy, class_log_probs
from credibly.distributions.density import safe_log_prob
from credibly.distributions.kinds import base_of, kind, reference
from credibly.distributions.moments import entropy, mean, variance
from credibly.distributions.operations import Operation
from credibly.distributions.predictive import Predictive
from credibly.distributions.rows import Change, rebuild, select
from credibly.distributions.targets import inside_support, match_observed, refusal
from credibly.distributions.weights import normalised_log_weights

__all__ = ["MixturePredictive", "combined", "in_row_chunks", "weighted_mean"]

CHUNK = 2**18  # elements of a table over draws and rows that stay in the cache


class MixturePredictive(Predictive):
    """A weighted mixture over draws.

    Args:
        components: one distribution with batch_shape (num_draws, rows): every row under every draw.
        log_weights: (num_draws,) logarithms of weights up to a constant, -inf for none; None is equal
            weights.

    Attributes:
        components: as given.
        log_weights: (num_draws,), normalised.

    Raises:
        ShapeError: the components have another number of batch axes, or the weights another length.
        ValueError: no draws, or weights that are NaN, infinite or all 0.
    """

    def __init__(self, components: Distribution, log_weights: ArrayLike | None = None) -> None:
        if len(components.batch_shape) != 2:
            raise ShapeError(
                "`components` must have batch_shape (num_draws, rows); "
                f"got {type(components).__name__} with batch_shape {tuple(components.batch_shape)}"
            )
        if components.batch_shape[0] == 0:
            raise ValueError("`components` must hold at least one draw; got 0")
        super().__init__(torch.Size(components.batch_shape[1:]), components.event_shape)
        self.components = components
        self.log_weights = normalised_log_weights(log_weights, components.batch_shape[0], reference(components))

    @property
    def num_draws(self) -> int:
        """The number of draws."""
        return self.components.batch_shape[0]

    @property
    def has_rsample(self) -> bool:  # type: ignore[override]
        """Whether draws carry gradients: the components' do, and the weights need none."""
        return bool(self.components.has_rsample) and not self.log_weights.requires_grad

    @property
    def aleatoric_variance(self) -> Tensor:
        """The mean over draws of the variance, (batch, *event)."""
        return weighted_mean(self, variance(self.components))

    @property
    def epistemic_variance(self) -> Tensor:
        """The variance over draws of the mean, about its mean, (batch, *event)."""
        means = mean(self.components)
        return weighted_mean(self, (means - weighted_mean(self, means)) ** 2)

    def mutual_information(self) -> Tensor:
        """Entropy of the mean minus mean entropy in nats, clamped to [0, entropy]; classes only."""
        if kind(self) != "class":
            self._refuse("mutual_information", "it is for classes; see epistemic_variance")
        each = class_log_probs(self.components)
        total = class_entropy(class_log_probs(self))
        information = total - weighted_mean(self, class_entropy(each))
        return information.clamp(min=torch.zeros_like(total), max=total).to(reference(self).dtype)

    def joint_log_prob(self, value: ArrayLike) -> Tensor:
        """Log density of all rows together: rows are summed inside the logsumexp over draws."""
        each = safe_log_prob(self.components, match_observed(self, value))
        return torch.logsumexp(self.log_weights + each.sum(-1), dim=0)

    def _draw(self, shape: torch.Size) -> Tensor:
        chosen = torch.multinomial(self.log_weights.exp(), shape.numel(), replacement=True)
        components = _with_draws(self.components, chosen)
        draws = components.rsample() if self.has_rsample else components.sample()
        return draws.reshape(shape + self.batch_shape + self.event_shape)


@Operation
def combined(components: Distribution, log_weights: Tensor | None) -> Predictive:
    """The prediction that several draws make together: their mixture, unless the type says otherwise.

    Args:
        components: batch_shape (num_draws, rows).
        log_weights: (num_draws,), or None for equal weights.
    """
    return MixturePredictive(components, log_weights)


def _with_draws(components: Distribution, chosen: Tensor) -> Distribution:
    """The components of the chosen draws, in this order."""

    def pick(tensors: Sequence[Tensor], event_dim: int | None) -> Tensor:
        return tensors[0] if event_dim is None else tensors[0][chosen]

    return rebuild(components, (), pick)


def weighted_mean(d: MixturePredictive, values: Tensor, axis: int = 0) -> Tensor:
    """The mean over draws, which lie on `axis`, accumulated in float64."""
    weights = d.log_weights.double().exp()
    weights = weights / weights.sum()
    moved = values.movedim(axis, -1).double()
    return (moved @ weights).to(values.dtype)


def in_row_chunks(
    d: MixturePredictive,
    values: Tensor,
    function: Callable[[MixturePredictive, Tensor], Tensor],
    per_row: int | None = None,
) -> Tensor:
    """Apply a function to groups of rows small enough for the cache, and put the results together.

    Args:
        d: the mixture.
        values: (..., rows, *event_shape).
        function: takes the mixture of some rows and their values; gives (..., some rows, *event_shape).
        per_row: size of the table that one value needs; num_draws by default.
    """
    axis = values.dim() - 1 - len(d.event_shape)
    rows = values.shape[axis]
    table = (per_row or d.num_draws) * max(1, values.numel() // max(rows, 1))
    size = max(1, CHUNK // table)
    if size >= rows:
        return function(d, values)
    parts = []
    for first in range(0, rows, size):
        some = slice(first, first + size)
        part = select(d, some)
        assert isinstance(part, MixturePredictive)
        parts.append(function(part, values.narrow(axis, first, min(size, rows - first))))
    return torch.cat(parts, dim=axis)


@base_of.register(MixturePredictive)
def _(d: MixturePredictive) -> Distribution:
    return base_of(d.components)


@refusal.register(MixturePredictive)
def _(d: MixturePredictive, targets: Tensor, inside: Tensor) -> str:
    return refusal(d.components, targets, inside)


@inside_support.register(MixturePredictive)
def _(d: MixturePredictive, targets: Tensor) -> Tensor:
    return inside_support(d.components, targets)


@rebuild.register(MixturePredictive)
def _(d: MixturePredictive, others: Sequence[Any], change: Change) -> Distribution:
    components = rebuild(d.components, [e.components for e in others], change)
    weights = change([e.log_weights for e in (d, *others)], None)
    new = MixturePredictive(components)
    new.log_weights = weights  # normalised already; again would move the last bit
    return new


@affine.register(MixturePredictive)
def _(d: MixturePredictive, loc: Tensor, scale: Tensor) -> Distribution:
    return MixturePredictive(affine.formula(d.components, loc, scale), d.log_weights)


@safe_log_prob.register(MixturePredictive)
def _(d: MixturePredictive, y: Tensor) -> Tensor:
    each = safe_log_prob(d.components, y)
    return torch.logsumexp(d.log_weights.unsqueeze(-1) + each, dim=-2)


@mean.register(MixturePredictive)
def _(d: MixturePredictive) -> Tensor:
    return weighted_mean(d, mean(d.components))


@variance.register(MixturePredictive)
def _(d: MixturePredictive) -> Tensor:
    return d.aleatoric_variance + d.epistemic_variance


@entropy.register(MixturePredictive)
def _(d: MixturePredictive) -> Tensor:
    if kind(d) != "class":
        entropy.refuse(d, f"a mixture of {type(base_of(d)).__name__} has no closed form; average -log_prob over draws")
    return class_entropy(class_log_probs(d)).to(reference(d).dtype)


@class_draw_log_probs.register(MixturePredictive)
def _(d: MixturePredictive) -> Tensor:
    return class_log_probs(d.components)


@class_log_probs.register(MixturePredictive)
def _(d: MixturePredictive) -> Tensor:
    each = class_log_probs(d.components)
    weights = torch.log_softmax(d.log_weights.double(), 0)
    return torch.logsumexp(weights.reshape(-1, *(1,) * (each.dim() - 1)) + each, dim=0)
