"""Durations whose hazard rises or falls with a power of time: a Weibull distribution with predicted parameters.

    log p(y) = log k + k t - exp(k t) - log y,   t = log y - log scale

The hazard falls for a concentration k below 1, is constant at 1 (the exponential distribution) and rises above. With
the log link of the scale this is the accelerated failure time model (The Statistical Analysis of Failure Time Data,
Kalbfleisch and Prentice 2002).
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, distributions
from torch.distributions import Distribution

from credibly.core.checks import check_count, check_positive
from credibly.core.errors import SupportError
from credibly.core.typing import ArrayLike
from credibly.likelihoods.base import Likelihood
from credibly.likelihoods.elements import (
    blocks,
    bounded,
    bounded_exp,
    element_fisher,
    joined,
    joint_density,
    refuse_shift,
)
from credibly.likelihoods.offsets import add_offset

__all__ = ["Weibull"]

_EULER = 0.57721566490153286


class Weibull(Likelihood):
    """`y ~ Weibull(scale, k)` with `scale = exp(output)` and `k = softplus(raw) + min_concentration`.

    Args:
        num_targets: the number of targets per row; the network gives `2 * num_targets` outputs, log scales first.
        min_concentration: the floor of the concentration (the shape) k.

    The scale, which is the quantile at 1 - 1/e, is kept within exp(-60) and exp(60). An offset is added
    to the log scales alone.
    """

    def __init__(self, num_targets: int = 1, *, min_concentration: float = 1e-2) -> None:
        super().__init__()
        self.num_targets = check_count("num_targets", num_targets)
        self.num_outputs = 2 * num_targets
        self.min_concentration = check_positive("min_concentration", min_concentration)

    def parameters_of(self, outputs: Tensor) -> dict[str, Tensor]:
        """`log_scale` and `concentration`, each (*batch,) or (*batch, num_targets)."""
        log_scale, raw = blocks(outputs, 2, self.num_targets)
        return {"log_scale": bounded(log_scale), "concentration": F.softplus(raw) + self.min_concentration}

    def distribution(self, parameters: dict[str, Tensor]) -> Distribution:
        """A Weibull; over vectors, an Independent of them."""
        scale, concentration = parameters["log_scale"].exp(), parameters["concentration"]
        return joined(distributions.Weibull(scale, concentration, validate_args=False), self.num_targets)

    def log_prob(self, parameters: dict[str, Tensor], targets: Tensor) -> Tensor:
        """The log density, -inf unless a target is above 0."""
        concentration = parameters["concentration"]
        inside = (targets > 0) & (targets < torch.inf)
        log_y = torch.where(inside, targets, 1.0).log()
        power = concentration * (log_y - parameters["log_scale"])
        return joint_density(concentration.log() + power - bounded_exp(power) - log_y, inside, self.num_targets)

    def fisher(self, outputs: Tensor) -> Tensor:
        """`k^2` for log scales, `(pi^2/6 + c^2) (k'/k)^2` for raw concentrations, `-c k'` between; c is 1 - gamma."""
        _, raw = outputs.chunk(2, -1)
        k, slope = F.softplus(raw) + self.min_concentration, raw.sigmoid()
        c = 1 - _EULER
        return element_fisher(k.square(), (math.pi**2 / 6 + c**2) * (slope / k) ** 2, -c * slope)

    def with_offset(self, outputs: Tensor, offset: Tensor) -> Tensor:
        """The outputs with the offset (a log factor of time) added to the log scales, not to the raw concentrations."""
        return add_offset(outputs, offset, first=self.num_targets)

    def standardized(self, loc: Tensor, scale: Tensor) -> "Weibull":
        """Itself, where targets are only divided: both parameters are predicted on the network's side."""
        refuse_shift("Weibull", loc)
        return Weibull(self.num_targets, min_concentration=self.min_concentration)

    def match_targets(self, targets: ArrayLike, outputs: Tensor) -> Tensor:
        """As for every likelihood; a refusal says what to do about zeros."""
        try:
            return super().match_targets(targets, outputs)
        except SupportError as error:
            raise SupportError(
                f"{error}; 0 has no density: model the zeros apart (a Bernoulli for "
                "whether it begins at all, a Weibull for how long), or add half the smallest unit of time"
            ) from None
