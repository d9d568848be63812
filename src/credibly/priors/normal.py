"""Independent Gaussian weights: L2 regularisation, with its constant.

MAP estimation with `Normal(0, s)` and N rows minimises the mean loss plus `||w||^2 / (2 N s^2)`, which is what the
`weight_decay = 1 / (N s^2)` argument of torch's SGD and Adam does. The decoupled decay of AdamW (Decoupled Weight
Decay Regularization, Loshchilov and Hutter 2019) has another optimum and no such equivalent.
"""

import math

import torch
from torch import Tensor, distributions
from torch.distributions import Distribution

from credibly.core.checks import check_positive
from credibly.core.typing import Params
from credibly.priors.base import FactorisedPrior

__all__ = ["Normal"]


class Normal(FactorisedPrior):
    """`w ~ Normal(0, scale)` for every weight.

    Args:
        scale: the standard deviation.
        fan_in_scaled: divide the scale of a weight with two or more axes by the square root of its fan-in (all axes
            but the first), so that the variance of a layer's output does not grow with its width (Bayesian Learning
            for Neural Networks, Neal 1996).
    """

    def __init__(self, scale: float = 1.0, *, fan_in_scaled: bool = False) -> None:
        super().__init__()
        self.scale = check_positive("scale", scale)
        self.fan_in_scaled = fan_in_scaled

    @classmethod
    def from_weight_decay(cls, weight_decay: float, num_data: int) -> "Normal":
        """The prior that equals torch's `weight_decay` on the mean loss of `num_data` rows."""
        return cls(1 / math.sqrt(num_data * check_positive("weight_decay", weight_decay)))

    def weight_decay(self, num_data: int) -> float:
        """The `weight_decay` of torch's SGD or Adam that equals this prior, for the mean loss of `num_data` rows."""
        if self.fan_in_scaled:
            raise ValueError("a fan-in scaled prior has another weight decay in every layer; there is no single value")
        return 1 / (num_data * self.scale**2)

    def extra_repr(self) -> str:
        """The options."""
        return f"scale={self.scale:g}" + (", fan_in_scaled=True" if self.fan_in_scaled else "")

    def _scale(self, weight: Tensor) -> float:
        if self.fan_in_scaled and weight.dim() > 1:
            return self.scale / math.sqrt(math.prod(weight.shape[1:]))
        return self.scale

    def log_prob(self, params: Params) -> Tensor:
        """The joint Gaussian log density."""
        if not params:
            return torch.zeros(())
        scales = [self._scale(weight) for weight in params.values()]
        whitened = [weight.reshape(-1) / scale for weight, scale in zip(params.values(), scales, strict=True)]
        flat = torch.cat(whitened)
        constant = sum(
            weight.numel() * (math.log(scale) + 0.5 * math.log(2 * math.pi))
            for weight, scale in zip(params.values(), scales, strict=True)
        )
        return -0.5 * flat.dot(flat) - constant

    def distributions(self, like: Params) -> dict[str, Distribution]:
        """A Normal per weight."""
        return {
            name: distributions.Normal(
                torch.zeros_like(weight), torch.full_like(weight, self._scale(weight)), validate_args=False
            )
            for name, weight in like.items()
        }
