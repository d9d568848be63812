"""The closed-form Gaussian prediction of several targets that depend on each other.

y = f(x) + noise with f(x) Gaussian: the covariance of the prediction is the covariance of the function's values
(epistemic) plus the covariance of the noise (aleatoric). A density is joint over the targets of a row; everything else
is per target.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, MultivariateNormal

from credibly.core.errors import ShapeError
from credibly.distributions.affine import affine
from credibly.distributions.marginal import MarginalPredictive
from credibly.distributions.rows import Change, rebuild

__all__ = ["MultivariateGaussianPredictive"]


class MultivariateGaussianPredictive(MarginalPredictive):
    """A Gaussian vector for every row, with its full covariance.

    Rows are drawn independently: the covariance between rows is not kept, so `joint_log_prob` is refused.

    Args:
        mean: (batch, outputs), in the units of the targets.
        function_covariance: covariance of the function, (batch, outputs, outputs).
        noise_covariance: covariance of the noise, broadcasts to the same shape.

    Raises:
        ShapeError: the mean has another number of axes, or a covariance does not broadcast to its shape.
        ValueError: the sum of both is not positive definite.
    """

    def __init__(self, mean: Tensor, function_covariance: Tensor, noise_covariance: Tensor) -> None:
        if mean.dim() != 2:
            raise ShapeError(f"`mean` must have shape (batch, outputs); got {tuple(mean.shape)}")
        self.function_covariance = _covariances("function_covariance", function_covariance, mean)
        self.noise_covariance = _covariances("noise_covariance", noise_covariance, mean)
        factor, failed = torch.linalg.cholesky_ex(self.function_covariance + self.noise_covariance)
        if bool(failed.any()):
            raise ValueError("`function_covariance` + `noise_covariance` must be positive definite in every row")
        super().__init__(MultivariateNormal(mean, scale_tril=factor, validate_args=False))

    @property
    def aleatoric_variance(self) -> Tensor:
        """The variances of the noise, (batch, outputs)."""
        return self.noise_covariance.diagonal(dim1=-2, dim2=-1)

    @property
    def epistemic_variance(self) -> Tensor:
        """The variances of the function, (batch, outputs)."""
        return self.function_covariance.diagonal(dim1=-2, dim2=-1)

    @property
    def variance(self) -> Tensor:
        """Their sum, exactly."""
        return self.aleatoric_variance + self.epistemic_variance


def _covariances(name: str, value: Tensor, mean: Tensor) -> Tensor:
    shape = (*mean.shape, mean.shape[-1])
    try:
        return value.to(mean).expand(shape)
    except RuntimeError:
        raise ShapeError(f"`{name}` must broadcast to the shape {shape}; got {tuple(value.shape)}") from None


@rebuild.register(MultivariateGaussianPredictive)
def _(d: MultivariateGaussianPredictive, others: Sequence[Any], change: Change) -> Distribution:
    every = (d, *others)
    return MultivariateGaussianPredictive(
        change([e.mean for e in every], 1),
        change([e.function_covariance for e in every], 2),
        change([e.noise_covariance for e in every], 2),
    )


@affine.register(MultivariateGaussianPredictive)
def _(d: MultivariateGaussianPredictive, loc: Tensor, scale: Tensor) -> Distribution:
    both = scale.unsqueeze(-1) * scale.unsqueeze(-2)
    return MultivariateGaussianPredictive(loc + scale * d.mean, both * d.function_covariance, both * d.noise_covariance)
