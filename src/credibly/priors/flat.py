"""No preference at all: an improper prior under which MAP is maximum likelihood."""

import torch
from torch import Tensor
from torch.distributions import Distribution

from credibly.core.typing import Params
from credibly.priors.base import FactorisedPrior

__all__ = ["Flat"]


class Flat(FactorisedPrior):
    """A constant density. It is improper: nothing can be drawn from it, and it has no evidence."""

    def log_prob(self, params: Params) -> Tensor:
        """Zero."""
        for weight in params.values():
            return weight.new_zeros(())
        return torch.zeros(())

    def distributions(self, like: Params) -> dict[str, Distribution]:
        """Nothing: no weight has a proper distribution."""
        return {}
