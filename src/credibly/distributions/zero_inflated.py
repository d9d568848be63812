"""Counts with more zeros than their distribution allows: with probability pi the count is 0 whatever the rest says.

    P(Y = 0) = pi + (1 - pi) p(0),    P(Y = y) = (1 - pi) p(y) for y > 0

(Zero-Inflated Poisson Regression, with an Application to Defects in Manufacturing, Lambert 1992.) With F, m, v, H and
S(y) the distribution function, mean, variance, entropy and CRPS of the base, all of these are exact for Y:

    cdf       pi + (1 - pi) F(y)
    mean      (1 - pi) m
    variance  (1 - pi) (v + pi m^2)
    entropy   -a log a - (1 - pi) (1 - p(0)) log(1 - pi) + (1 - pi) (H + p(0) log p(0)),   a = P(Y = 0)
    CRPS      pi y + (1 - pi) S(y) - pi (1 - pi) S(0)

The last follows from S(0) = m - E|X - X'|/2, so that no sum over counts is needed where the base has none.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import Distribution, constraints

from credibly.core.errors import NotSupportedError, ShapeError
from credibly.distributions.crps import crps
from credibly.distributions.cumulative import cdf, icdf
from credibly.distributions.density import safe_log_prob
from credibly.distributions.drawing import drawable
from credibly.distributions.kinds import kind
from credibly.distributions.moments import entropy, mean, variance
from credibly.distributions.roots import solve_counts
from credibly.distributions.rows import Change, rebuild, to
from credibly.distributions.shapes import broadcast
from credibly.distributions.survival import survival
from credibly.distributions.targets import inside_support

__all__ = ["ZeroInflated", "inflated_log_prob"]


def inflated_log_prob(zero_logits: Tensor, each: Tensor, targets: Tensor) -> Tensor:
    """The log probability of targets, from that of the base: -inf stays -inf, and nothing is ever NaN.

    Args:
        zero_logits: log odds of a structural zero.
        each: log probability of the targets under the base.
        targets: counts.
    """
    counted = F.logsigmoid(-zero_logits) + each
    return torch.where(targets == 0, torch.logaddexp(F.logsigmoid(zero_logits), counted), counted)


class ZeroInflated(Distribution):
    """A count that is a structural zero with probability `sigmoid(zero_logits)`, and otherwise follows the base.

    Args:
        base: a distribution of single counts, such as torch's Poisson; several counts are an Independent of this.
        zero_logits: log odds of a structural zero, of the base's batch shape.

    Raises:
        NotSupportedError: the base is not over counts.
        ShapeError: its event is not a single number, or `zero_logits` does not fit.
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {"zero_logits": constraints.real}

    def __init__(self, base: Distribution, zero_logits: Tensor) -> None:
        if kind(base) != "count":
            raise NotSupportedError(f"ZeroInflated is for counts; `base` is a {type(base).__name__}")
        if base.event_shape or zero_logits.shape != base.batch_shape:
            raise ShapeError(
                f"`base` must be over single counts and `zero_logits` have its batch shape; got event_shape "
                f"{tuple(base.event_shape)}, batch_shape {tuple(base.batch_shape)} and {tuple(zero_logits.shape)}"
            )
        self.base = base
        self.zero_logits = zero_logits
        super().__init__(base.batch_shape, validate_args=False)

    @property
    def support(self) -> Any:
        """That of the base."""
        return self.base.support

    @property
    def zero_probs(self) -> Tensor:
        """The probability of a structural zero; zeros that the base gives come on top."""
        return torch.sigmoid(self.zero_logits)

    @property
    def mean(self) -> Tensor:
        """The mean."""
        return torch.sigmoid(-self.zero_logits) * mean(self.base)

    @property
    def variance(self) -> Tensor:
        """The variance."""
        zero, counted = torch.sigmoid(self.zero_logits.double()), torch.sigmoid(-self.zero_logits.double())
        base = to(self.base, dtype=torch.float64)  # squares overflow in single precision
        return (counted * (variance(base) + zero * mean(base) ** 2)).to(self.zero_logits.dtype)

    def log_prob(self, value: Tensor) -> Tensor:
        """The log probability, -inf outside the support."""
        return inflated_log_prob(self.zero_logits, safe_log_prob(self.base, value), value)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Draws, without a graph."""
        with torch.no_grad():
            precise = drawable(self)
            counts: Tensor = precise.base.sample(torch.Size(sample_shape))
            is_zero = torch.rand(counts.shape, device=counts.device) < precise.zero_probs
            return counts.masked_fill(is_zero, 0).to(self.zero_logits.dtype)

    def expand(self, batch_shape: Any, _instance: Any = None) -> "ZeroInflated":
        """The same for a larger batch."""
        return ZeroInflated(self.base.expand(batch_shape), self.zero_logits.expand(batch_shape))


@rebuild.register(ZeroInflated)
def _(d: ZeroInflated, others: Sequence[Any], change: Change) -> Distribution:
    base = rebuild(d.base, [e.base for e in others], change)
    return ZeroInflated(base, change([e.zero_logits for e in (d, *others)], 0))


@inside_support.register(ZeroInflated)
def _(d: ZeroInflated, targets: Tensor) -> Tensor:
    return inside_support(d.base, targets)


@safe_log_prob.register(ZeroInflated)
def _(d: ZeroInflated, y: Tensor) -> Tensor:
    return d.log_prob(y)


@cdf.register(ZeroInflated)
def _(d: ZeroInflated, value: Tensor) -> Tensor:
    base = cdf.formula(d.base, value)
    inflated = (base + d.zero_probs * (1 - base)).clamp(max=1)  # in this form never below the base, also rounded
    return torch.where(value >= 0, inflated, 0.0)


@survival.register(ZeroInflated)
def _(d: ZeroInflated, value: Tensor) -> Tensor:
    return torch.where(value >= 0, torch.sigmoid(-d.zero_logits) * survival.formula(d.base, value), 1.0)


@icdf.register(ZeroInflated)
def _(d: ZeroInflated, q: Tensor) -> Tensor:
    """By bisection below the quantile of the base, which is larger; level 1 gives the end of the support."""
    upper, level, _ = broadcast(icdf.formula(d.base, q), q, d.zero_logits)
    inner = torch.where(level < 1, level, 0.0)
    reach = torch.where(level < 1, upper, 0.0)
    zero = torch.zeros_like(reach)
    counts = solve_counts(lambda k: cdf.formula(d, k), inner, zero, reach)
    return torch.where(cdf.formula(d, zero).isnan(), torch.nan, torch.where(level < 1, counts, upper))


@crps.register(ZeroInflated)
def _(d: ZeroInflated, y: Tensor) -> Tensor:
    zero, counted = d.zero_probs, torch.sigmoid(-d.zero_logits)
    of_zero = crps.formula(d.base, torch.zeros_like(y))
    return zero * y + counted * (crps.formula(d.base, y) - zero * of_zero)


@entropy.register(ZeroInflated)
def _(d: ZeroInflated) -> Tensor:
    log_counted = F.logsigmoid(-d.zero_logits)
    log_p0 = safe_log_prob(d.base, torch.zeros_like(d.zero_logits))
    log_zero = d.log_prob(torch.zeros_like(d.zero_logits))
    counts = entropy(d.base) + torch.special.xlogy(log_p0.exp(), log_p0.exp()) + torch.expm1(log_p0) * log_counted
    total: Tensor = log_counted.exp() * counts - log_zero.exp() * log_zero
    return total
