"""A prior is a distribution over the weights of the network.

The one required method is the log density of a dict of weights. Priors under which all weights are independent also
give their distributions, from which closed-form divergences, precisions and draws follow.
"""

from abc import ABC, abstractmethod

from torch import Tensor, nn
from torch.distributions import Distribution

from credibly.core.typing import Params

__all__ = ["FactorisedPrior", "Prior"]


class Prior(nn.Module, ABC):
    """A distribution over weights by name."""

    @abstractmethod
    def log_prob(self, params: Params) -> Tensor:
        """The log density of all weights together: a scalar, normalising constants included."""


class FactorisedPrior(Prior):
    """A prior under which the weights are independent."""

    @abstractmethod
    def distributions(self, like: Params) -> dict[str, Distribution]:
        """For each name whose density is proper, a distribution with the weights' shape as its batch shape."""
