"""Independent double-exponential weights: L1 regularisation, the lasso, with its constant.

Regression Shrinkage and Selection via the Lasso, Tibshirani 1996. MAP estimation with `Laplace(0, b)` and N rows
minimises the mean loss plus `||w||_1 / (N b)`.
"""

import math

import torch
from torch import Tensor, distributions
from torch.distributions import Distribution

from credibly.core.checks import check_positive
from credibly.core.typing import Params
from credibly.priors.base import FactorisedPrior

__all__ = ["Laplace"]


class Laplace(FactorisedPrior):
    """`w ~ Laplace(0, scale)` for every weight.

    Args:
        scale: the mean absolute value; the standard deviation is `sqrt(2) * scale`.
    """

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = check_positive("scale", scale)

    def log_prob(self, params: Params) -> Tensor:
        """The joint log density."""
        if not params:
            return torch.zeros(())
        flat = torch.cat([weight.reshape(-1) for weight in params.values()])
        return -flat.abs().sum() / self.scale - flat.numel() * math.log(2 * self.scale)

    def distributions(self, like: Params) -> dict[str, Distribution]:
        """A Laplace per weight."""
        return {
            name: distributions.Laplace(
                torch.zeros_like(weight), torch.full_like(weight, self.scale), validate_args=False
            )
            for name, weight in like.items()
        }
