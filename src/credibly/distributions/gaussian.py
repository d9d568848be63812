"""The closed-form Gaussian prediction of a linearised or conjugate model.

y = f(x) + noise with f(x) Gaussian: the variance of the prediction is the variance of the function
(epistemic) plus the variance of the noise (aleatoric).
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, Independent, Normal

from credibly.core.errors import ShapeError
from credibly.distributions.affine import affine
from credibly.distributions.marginal import MarginalPredictive
from credibly.distributions.rows import Change, rebuild

__all__ = ["GaussianPredictive"]


class GaussianPredictive(MarginalPredictive):
    """A Gaussian for every row and output.

    Rows are drawn independently: the covariance between rows is not kept, so `joint_log_prob` is refused.

    Args:
        mean: (batch,) or (batch, outputs), in the units of the targets.
        function_variance: variance of the function, broadcasts to the mean.
        noise_variance: variance of the noise, broadcasts to the mean.

    Raises:
        ShapeError: the mean has another number of axes, or a variance does not broadcast to it.
        ValueError: a variance is negative or NaN, or their sum is not above 0.
    """

    def __init__(
        self,
        mean: Tensor,  # (batch,) or (batch, outputs)
        function_variance: Tensor | float,
        noise_variance: Tensor | float,
    ) -> None:
        if mean.dim() not in (1, 2):
            raise ShapeError(f"`mean` must have shape (batch,) or (batch, outputs); got {tuple(mean.shape)}")
        self.function_variance = _variance("function_variance", function_variance, mean)
        self.noise_variance = _variance("noise_variance", noise_variance, mean)
        total = self.function_variance + self.noise_variance
        if not bool((total > 0).all()):
            raise ValueError("`function_variance` + `noise_variance` must be above 0")
        marginal = Normal(mean, total.sqrt(), validate_args=False)
        super().__init__(Independent(marginal, 1, validate_args=False) if mean.dim() == 2 else marginal)

    @property
    def aleatoric_variance(self) -> Tensor:
        """The variance of the noise."""
        return self.noise_variance

    @property
    def epistemic_variance(self) -> Tensor:
        """The variance of the function."""
        return self.function_variance

    @property
    def variance(self) -> Tensor:
        """Their sum, exactly."""
        return self.function_variance + self.noise_variance


def _variance(name: str, value: Tensor | float, mean: Tensor) -> Tensor:
    tensor = torch.as_tensor(value, dtype=mean.dtype, device=mean.device)
    try:
        expanded = tensor.expand(mean.shape)
    except RuntimeError:
        raise ShapeError(
            f"`{name}` must broadcast to the shape of `mean`, {tuple(mean.shape)}; got {tuple(tensor.shape)}"
        ) from None
    if not bool((tensor >= 0).all()):
        raise ValueError(f"`{name}` must be 0 or above, without NaN")
    return expanded


@rebuild.register(GaussianPredictive)
def _(d: GaussianPredictive, others: Sequence[Any], change: Change) -> Distribution:
    every, trailing = (d, *others), len(d.event_shape)
    return GaussianPredictive(
        change([e.mean for e in every], trailing),
        change([e.function_variance for e in every], trailing),
        change([e.noise_variance for e in every], trailing),
    )


@affine.register(GaussianPredictive)
def _(d: GaussianPredictive, loc: Tensor, scale: Tensor) -> Distribution:
    return GaussianPredictive(loc + scale * d.mean, scale**2 * d.function_variance, scale**2 * d.noise_variance)
