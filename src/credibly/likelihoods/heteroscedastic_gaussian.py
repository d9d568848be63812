"""Gaussian noise whose scale the network predicts for each row.

Estimating the Mean and Variance of the Target Probability Distribution, Nix and Weigend 1994.
"""

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import Distribution

from credibly.core.checks import check_count, check_positive
from credibly.likelihoods.base import Likelihood
from credibly.likelihoods.gaussian import gaussian_distribution, gaussian_log_prob
from credibly.likelihoods.offsets import add_offset

__all__ = ["HeteroscedasticGaussian"]


class HeteroscedasticGaussian(Likelihood):
    """`y ~ Normal(loc, softplus(raw) + min_scale)`, both read from the network.

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
        """`loc` and `scale`, each (*batch,) or (*batch, num_targets)."""
        loc, raw = outputs.chunk(2, -1)
        if self.num_targets == 1:
            loc, raw = loc.squeeze(-1), raw.squeeze(-1)
        return {"loc": loc, "scale": F.softplus(raw) + self.min_scale}

    def distribution(self, parameters: dict[str, Tensor]) -> Distribution:
        """A Normal; over vectors, an Independent of them."""
        return gaussian_distribution(parameters["loc"], parameters["scale"], event=self.num_targets > 1)

    def log_prob(self, parameters: dict[str, Tensor], targets: Tensor) -> Tensor:
        """The Gaussian log density."""
        return gaussian_log_prob(parameters["loc"], parameters["scale"], targets, event=self.num_targets > 1)

    def fisher(self, outputs: Tensor) -> Tensor:
        """Diagonal: `1 / scale^2` for locations, `2 (scale' / scale)^2` for raw scales."""
        _, raw = outputs.chunk(2, -1)
        scale = F.softplus(raw) + self.min_scale
        return torch.diag_embed(torch.cat([scale**-2, 2 * (torch.sigmoid(raw) / scale) ** 2], -1))

    def with_offset(self, outputs: Tensor, offset: Tensor) -> Tensor:
        """The outputs with the offset added to the locations, not to the raw scales."""
        return add_offset(outputs, offset, first=self.num_targets)

    def standardized(self, loc: Tensor, scale: Tensor) -> "HeteroscedasticGaussian":
        """Itself: both parameters are predicted on the network's side."""
        return HeteroscedasticGaussian(self.num_targets, min_scale=self.min_scale)
