"""Independent weights with heavy tails: most near 0, a few large.

log p(w) = -(df + 1)/2 log(1 + (w/s)^2 / df) + constant. The pull on a large weight falls off as 1/w, where that of a
Gaussian grows; trained networks' weights have such tails (Fortuin, Garriga-Alonso, Ober, Wenzel, Rätsch, Turner,
van der Wilk, Aitchison, "Bayesian Neural Network Priors Revisited", 2022).
"""

import math

import torch
from torch import Tensor, distributions
from torch.distributions import Distribution

from credibly.core.checks import check_positive
from credibly.core.typing import Params
from credibly.priors.base import FactorisedPrior

__all__ = ["StudentT"]


class StudentT(FactorisedPrior):
    """`w ~ StudentT(df, 0, scale)` for every weight.

    Args:
        df: degrees of freedom; the fewer, the heavier the tails. 1 is Cauchy's, infinitely many Gaussian.
        scale: the standard deviation is `scale * sqrt(df / (df - 2))` for df above 2.
    """

    def __init__(self, df: float = 4.0, scale: float = 1.0) -> None:
        super().__init__()
        self.df = check_positive("df", df)
        self.scale = check_positive("scale", scale)

    def log_prob(self, params: Params) -> Tensor:
        """The joint log density."""
        if not params:
            return torch.zeros(())
        flat = torch.cat([weight.reshape(-1) for weight in params.values()])
        root = math.sqrt(self.df) * self.scale
        constant = math.lgamma((self.df + 1) / 2) - math.lgamma(self.df / 2) - math.log(root * math.sqrt(math.pi))
        return -(self.df + 1) / 2 * torch.log1p((flat / root).square()).sum() + flat.numel() * constant

    def distributions(self, like: Params) -> dict[str, Distribution]:
        """A Student t per weight."""
        return {
            name: distributions.StudentT(
                torch.full_like(weight, self.df),
                torch.zeros_like(weight),
                torch.full_like(weight, self.scale),
                validate_args=False,
            )
            for name, weight in like.items()
        }
