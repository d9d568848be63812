"""Laplace noise whose location and scale the network predicts: the mean absolute error as a likelihood.

    log p(y) = -|y - loc| / scale - log(2 scale)

The location is the conditional median. Tails fall exponentially, so that single targets far off count linearly.
"""

import math

import torch.nn.functional as F
from torch import Tensor, distributions
from torch.distributions import Distribution

from credibly.core.checks import check_count, check_positive
from credibly.likelihoods.base import Likelihood
from credibly.likelihoods.elements import blocks, element_fisher, joined
from credibly.likelihoods.offsets import add_offset

__all__ = ["Laplace"]


class Laplace(Likelihood):
    """`y ~ Laplace(loc, softplus(raw) + min_scale)`, both read from the network.

    Args:
        num_targets: the number of targets per row; the network gives `2 * num_targets` outputs, locations first.
        min_scale: the floor of the scale, on the network's side of any standardisation, so that no prediction is
            certain and neither the loss nor its gradient can overflow.
    """

    def __init__(self, num_targets: int = 1, *, min_scale: float = 1e-4) -> None:
        super().__init__()
        self.num_targets = check_count("num_targets", num_targets)
        self.num_outputs = 2 * num_targets
        self.min_scale = check_positive("min_scale", min_scale)

    def parameters_of(self, outputs: Tensor) -> dict[str, Tensor]:
        """`loc` and `scale`, each (*batch,) or (*batch, num_targets). The standard deviation is `sqrt(2) scale`."""
        loc, raw = blocks(outputs, 2, self.num_targets)
        return {"loc": loc, "scale": F.softplus(raw) + self.min_scale}

    def distribution(self, parameters: dict[str, Tensor]) -> Distribution:
        """A Laplace; over vectors, an Independent of them."""
        each = distributions.Laplace(parameters["loc"], parameters["scale"], validate_args=False)
        return joined(each, self.num_targets)

    def log_prob(self, parameters: dict[str, Tensor], targets: Tensor) -> Tensor:
        """The Laplace log density."""
        scale = parameters["scale"]
        density = -((targets - parameters["loc"]) / scale).abs() - scale.log() - math.log(2)
        return density.sum(-1) if self.num_targets > 1 else density

    def fisher(self, outputs: Tensor) -> Tensor:
        """Diagonal: `1 / scale^2` for locations, `(scale' / scale)^2` for raw scales."""
        _, raw = outputs.chunk(2, -1)
        scale = F.softplus(raw) + self.min_scale
        return element_fisher(scale**-2, (raw.sigmoid() / scale) ** 2)

    def with_offset(self, outputs: Tensor, offset: Tensor) -> Tensor:
        """The outputs with the offset added to the locations, not to the raw scales."""
        return add_offset(outputs, offset, first=self.num_targets)

    def standardized(self, loc: Tensor, scale: Tensor) -> "Laplace":
        """Itself: both parameters are predicted on the network's side."""
        return Laplace(self.num_targets, min_scale=self.min_scale)
