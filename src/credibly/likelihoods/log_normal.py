"""Positive targets whose logarithm is Gaussian, with predicted location and scale of the logarithm.

    log p(y) = log Normal(log y | loc, scale) - log y

The median is exp(loc), the mean exp(loc + scale^2 / 2).
"""

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
    element_fisher,
    joined,
    joint_density,
    refuse_shift,
)
from credibly.likelihoods.gaussian import gaussian_log_prob
from credibly.likelihoods.offsets import add_offset

__all__ = ["LogNormal"]


class LogNormal(Likelihood):
    """`log y ~ Normal(loc, softplus(raw) + min_scale)`, both read from the network.

    Args:
        num_targets: the number of targets per row; the network gives `2 * num_targets` outputs, locations first.
        min_scale: the floor of the scale of the logarithm.

    An offset (a log exposure) is added to the locations alone.
    """

    def __init__(self, num_targets: int = 1, *, min_scale: float = 1e-4) -> None:
        super().__init__()
        self.num_targets = check_count("num_targets", num_targets)
        self.num_outputs = 2 * num_targets
        self.min_scale = check_positive("min_scale", min_scale)

    def parameters_of(self, outputs: Tensor) -> dict[str, Tensor]:
        """`loc` and `scale` of the logarithm, each (*batch,) or (*batch, num_targets)."""
        loc, raw = blocks(outputs, 2, self.num_targets)
        return {"loc": loc, "scale": F.softplus(raw) + self.min_scale}

    def distribution(self, parameters: dict[str, Tensor]) -> Distribution:
        """A LogNormal; over vectors, an Independent of them."""
        each = distributions.LogNormal(parameters["loc"], parameters["scale"], validate_args=False)
        return joined(each, self.num_targets)

    def log_prob(self, parameters: dict[str, Tensor], targets: Tensor) -> Tensor:
        """The log density, -inf unless a target is above 0."""
        inside = (targets > 0) & (targets < torch.inf)
        log_y = torch.where(inside, targets, 1.0).log()
        density = gaussian_log_prob(parameters["loc"], parameters["scale"], log_y, event=False) - log_y
        return joint_density(density, inside, self.num_targets)

    def fisher(self, outputs: Tensor) -> Tensor:
        """Diagonal: `1 / scale^2` for locations, `2 (scale' / scale)^2` for raw scales."""
        _, raw = outputs.chunk(2, -1)
        scale = F.softplus(raw) + self.min_scale
        return element_fisher(scale**-2, 2 * (raw.sigmoid() / scale) ** 2)

    def with_offset(self, outputs: Tensor, offset: Tensor) -> Tensor:
        """The outputs with the offset (a log exposure) added to the locations, not to the raw scales."""
        return add_offset(outputs, offset, first=self.num_targets)

    def standardized(self, loc: Tensor, scale: Tensor) -> "LogNormal":
        """Itself, where targets are only divided: both parameters are predicted on the network's side."""
        refuse_shift("LogNormal", loc)
        return LogNormal(self.num_targets, min_scale=self.min_scale)

    def match_targets(self, targets: ArrayLike, outputs: Tensor) -> Tensor:
        """As for every likelihood; a refusal says what to do about zeros."""
        try:
            return super().match_targets(targets, outputs)
        except SupportError as error:
            raise SupportError(
                f"{error}; 0 has no density: model the zeros apart (a Bernoulli for "
                "whether there is anything, a LogNormal for how much), or add half the smallest unit of measurement"
            ) from None
