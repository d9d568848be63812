"""The covariance matrix of a vector target.

Of a mixture it is the mean of the components' covariances plus the covariance of their means, the law of total
covariance.
"""

from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, Independent, MultivariateNormal

from credibly.distributions.affine import AffineView
from credibly.distributions.empirical import Empirical
from credibly.distributions.marginal import MarginalPredictive
from credibly.distributions.mixture import MixturePredictive
from credibly.distributions.moments import mean, variance
from credibly.distributions.operations import Operation

__all__ = ["covariance"]


@Operation
def covariance(d: Distribution) -> Tensor:
    """The covariance of every row's target, (*batch, outputs, outputs).

    Raises:
        NotSupportedError: no covariance is known for this type.
    """
    covariance.refuse(d)


@covariance.register(Independent)
def _(d: "Independent[Any]") -> Tensor:
    if d.reinterpreted_batch_ndims != 1 or d.base_dist.event_shape:
        covariance.refuse(d, "its elements must be numbers on one axis")
    return torch.diag_embed(variance(d.base_dist))


@covariance.register(MultivariateNormal)
def _(d: MultivariateNormal) -> Tensor:
    matrices: Tensor = d.covariance_matrix
    return matrices


@covariance.register(MarginalPredictive)
def _(d: MarginalPredictive) -> Tensor:
    return covariance.formula(d.marginal)


@covariance.register(AffineView)
def _(d: AffineView) -> Tensor:
    scale = d.scale.expand(d.batch_shape + d.event_shape)
    return covariance.formula(d.base) * scale.unsqueeze(-1) * scale.unsqueeze(-2)


@covariance.register(MixturePredictive)
def _(d: MixturePredictive) -> Tensor:
    weights = d.log_weights.double().exp()
    within = torch.einsum("k,k...->...", weights, covariance.formula(d.components).double())
    return (within + _between(weights, mean(d.components).double())).to(mean(d).dtype)


@covariance.register(Empirical)
def _(d: Empirical) -> Tensor:
    return _between(d.log_weights.double().exp(), d.draws.double()).to(d.draws.dtype)


def _between(weights: Tensor, values: Tensor) -> Tensor:
    """The weighted covariance over the first axis of (draws, *batch, outputs), about the weighted mean."""
    total = weights.sum()
    centred = values - torch.einsum("k,k...->...", weights, values) / total
    return torch.einsum("k,k...i,k...j->...ij", weights, centred, centred) / total
