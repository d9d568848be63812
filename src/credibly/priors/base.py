"""A prior is a distribution over the weights of the network.

The one required method is the log density of a dict of weights. Priors under which all weights are independent also
give their distributions, from which closed-form divergences, precisions and draws follow.
"""

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from credibly.core.checks import check_count
from credibly.core.errors import NotSupportedError
from credibly.core.randomness import base_seed, seeded
from credibly.core.typing import Params

__all__ = ["FactorisedPrior", "Prior"]


class Prior(nn.Module, ABC):
    """A distribution over weights by name."""

    @abstractmethod
    def log_prob(self, params: Params) -> Tensor:
        """The log density of all weights together: a scalar, normalising constants included."""

    def sample(self, like: Params, num_draws: int, *, seed: int | None = None) -> Params:
        """Draws of all weights by name, each (num_draws, ...); draw k is the same whatever the number of draws.

        Args:
            like: weights that tell names, shapes, dtype and device.
            num_draws: how many.
            seed: of the draws.

        Raises:
            NotSupportedError: nothing can be drawn from this prior, or it is flat over some of the weights.
        """
        raise NotSupportedError(f"{type(self).__name__} has a density only; nothing can be drawn from it")


class FactorisedPrior(Prior):
    """A prior under which the weights are independent."""

    @abstractmethod
    def distributions(self, like: Params) -> dict[str, Distribution]:
        """For each name whose density is proper, a distribution with the weights' shape as its batch shape."""

    def sample(self, like: Params, num_draws: int, *, seed: int | None = None) -> Params:
        """Draws of all weights by name, each (num_draws, ...), from their distributions; see `Prior.sample`."""
        check_count("num_draws", num_draws)
        found = self.distributions(like)
        improper = [name for name in like if name not in found]
        if improper:
            raise NotSupportedError(
                f"{type(self).__name__} is flat over {improper}: an improper prior, from which nothing can be drawn; "
                "give these weights a proper prior"
            )
        base, draws = base_seed(seed), []
        for index in range(num_draws):
            device = next((weight.device for weight in like.values()), torch.device("cpu"))
            with seeded(base, "prior", index, device=device):
                draws.append({name: found[name].sample() for name in like})
        return {name: torch.stack([draw[name] for draw in draws]) for name in like}
