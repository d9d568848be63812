"""Predictions that know each row by itself: a plain torch distribution behind the contract of predictions."""

from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from credibly.distributions.classes import class_log_probs
from credibly.distributions.crps import crps
from credibly.distributions.cumulative import cdf, icdf
from credibly.distributions.density import element_log_prob, safe_log_prob
from credibly.distributions.kinds import base_of
from credibly.distributions.moments import entropy, mean, variance
from credibly.distributions.operations import Operation
from credibly.distributions.predictive import Predictive
from credibly.distributions.targets import inside_support, refusal

__all__ = ["MarginalPredictive"]


class MarginalPredictive(Predictive):
    """A prediction given by its marginal distribution over rows; draws of different rows are independent.

    Args:
        marginal: a torch distribution with batch_shape (rows,).
    """

    def __init__(self, marginal: Distribution) -> None:
        super().__init__(marginal.batch_shape, marginal.event_shape)
        self.marginal = marginal

    @property
    def has_rsample(self) -> bool:  # type: ignore[override]
        """Whether the marginal's draws carry gradients."""
        return bool(self.marginal.has_rsample)

    def _draw(self, shape: torch.Size) -> Tensor:
        if self.has_rsample:
            return self.marginal.rsample(shape)
        return self.marginal.sample(shape)


def _through_marginal(operation: Operation[..., Any]) -> None:
    @operation.register(MarginalPredictive)
    def _(d: MarginalPredictive, *args: Any) -> Any:
        return operation.formula(d.marginal, *args)


for _operation in (
    base_of,
    inside_support,
    refusal,
    safe_log_prob,
    element_log_prob,
    cdf,
    icdf,
    crps,
    mean,
    variance,
    entropy,
    class_log_probs,
):
    _through_marginal(_operation)
