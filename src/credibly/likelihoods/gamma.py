"""Positive targets with a constant relative error: a Gamma distribution by its mean and shape.

    log p(y) = -shape (y/mean - 1 - log(y/mean)) + log(shape / (2 pi)) / 2 - s(shape) - log y

where s is the remainder of Stirling's formula. The relative standard deviation is 1 / sqrt(shape). Mean and shape
are orthogonal: the Fisher matrix is diagonal, so that what is learned about one does not disturb the other (Parameter
Orthogonality and Approximate Conditional Inference, Cox and Reid 1987).
"""

import math

import torch
from torch import Tensor, distributions
from torch.distributions import Distribution

from credibly.core.checks import check_count, check_positive
from credibly.core.errors import SupportError
from credibly.likelihoods.base import Likelihood
from credibly.likelihoods.elements import (
    blocks,
    bounded,
    bounded_exp,
    element_fisher,
    joined,
    joint_density,
    refuse_shift,
    shape_of,
    stirling_error,
    trigamma_excess,
)
from credibly.likelihoods.offsets import add_offset

__all__ = ["Gamma"]


class Gamma(Likelihood):
    """`y ~ Gamma(shape, rate = shape / mean)` with `mean = exp(output)` and `shape = exp(raw) + min_shape`.

    Args:
        num_targets: the number of targets per row; the network gives `2 * num_targets` outputs, log means first.
        min_shape: the floor of the shape.

    The mean is kept within exp(-60) and exp(60), the shape below exp(20). An offset (a log exposure) is added to the
    log means alone.
    """

    def __init__(self, num_targets: int = 1, *, min_shape: float = 1e-2) -> None:
        super().__init__()
        self.num_targets = check_count("num_targets", num_targets)
        self.num_outputs = 2 * num_targets
        self.min_shape = check_positive("min_shape", min_shape)

    def parameters_of(self, outputs: Tensor) -> dict[str, Tensor]:
        """`log_mean` and `shape`, each (*batch,) or (*batch, num_targets)."""
        log_mean, raw = blocks(outputs, 2, self.num_targets)
        return {"log_mean": bounded(log_mean), "shape": shape_of(raw) + self.min_shape}

    def distribution(self, parameters: dict[str, Tensor]) -> Distribution:
        """A Gamma; over vectors, an Independent of them."""
        shape = parameters["shape"]
        rate = shape * (-parameters["log_mean"]).exp()
        return joined(distributions.Gamma(shape, rate, validate_args=False), self.num_targets)

    def log_prob(self, parameters: dict[str, Tensor], targets: Tensor) -> Tensor:
        """The log density, -inf unless a target is above 0; shapes in the thousands keep it precise."""
        shape = parameters["shape"]
        inside = (targets > 0) & (targets < torch.inf)
        log_y = torch.where(inside, targets, 1.0).log()
        log_ratio = log_y - parameters["log_mean"]
        excess = torch.where(log_ratio < 1, torch.expm1(log_ratio.clamp(max=1)), bounded_exp(log_ratio) - 1)
        constant = 0.5 * shape.log() - 0.5 * math.log(2 * math.pi) - stirling_error(shape)
        return joint_density(constant - shape * (excess - log_ratio) - log_y, inside, self.num_targets)

    def fisher(self, outputs: Tensor) -> Tensor:
        """Diagonal: `shape` for log means, `(trigamma(shape) - 1 / shape) exp(raw)^2` for raw shapes."""
        _, raw = outputs.double().chunk(2, -1)
        shape = shape_of(raw) + self.min_shape
        information = trigamma_excess(shape) * shape_of(raw) ** 2
        return element_fisher(shape.to(outputs.dtype), information.to(outputs.dtype))

    def with_offset(self, outputs: Tensor, offset: Tensor) -> Tensor:
        """The outputs with the offset (a log exposure) added to the log means, not to the raw shapes."""
        return add_offset(outputs, offset, first=self.num_targets)

    def standardized(self, loc: Tensor, scale: Tensor) -> "Gamma":
        """Itself, where targets are only divided: both parameters are predicted on the network's side."""
        refuse_shift("Gamma", loc)
        return Gamma(self.num_targets, min_shape=self.min_shape)

    def check_targets(self, targets: Tensor) -> None:
        """Refuse 0, whose density is 0 or infinite, whatever the mean."""
        if bool((targets == 0).any()):
            raise SupportError(
                "target 0 lies outside the support of Gamma: numbers above 0; model the zeros apart (a Bernoulli for "
                "whether there is anything, a Gamma for how much), or add half the smallest unit of measurement"
            )
