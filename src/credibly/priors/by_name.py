"""Different priors for different weights, chosen by name or by kind."""

import fnmatch
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from credibly.core.typing import Params
from credibly.priors.base import FactorisedPrior

__all__ = ["ByName", "WeightsOnly"]


class ByName(FactorisedPrior):
    """The prior of the first pattern that matches a weight's name.

    Args:
        priors: glob patterns of full names to priors, for example
            `{"net.0.*": Normal(0.1), "*.bias": Flat(), "*": Laplace(1.0)}`. A weight that no pattern matches is an
            error: end with "*" to catch the rest.
    """

    def __init__(self, priors: Mapping[str, FactorisedPrior]) -> None:
        super().__init__()
        if not priors:
            raise ValueError("`priors` must have at least one pattern; got none")
        self.priors = dict(priors)
        self.parts = nn.ModuleList(self.priors.values())

    def __repr__(self) -> str:
        return f"ByName({self.priors})"

    def _groups(self, params: Params) -> list[tuple[FactorisedPrior, Params]]:
        groups: list[Params] = [{} for _ in self.priors]
        for name, weight in params.items():
            matching = (i for i, pattern in enumerate(self.priors) if fnmatch.fnmatchcase(name, pattern))
            index = next(matching, None)
            if index is None:
                raise ValueError(f"no pattern of {list(self.priors)} matches the weight `{name}`; add '*' for the rest")
            groups[index][name] = weight
        return [(prior, group) for prior, group in zip(self.priors.values(), groups, strict=True) if group]

    def log_prob(self, params: Params) -> Tensor:
        """The sum over groups."""
        densities = [prior.log_prob(group) for prior, group in self._groups(params)]
        return sum(densities[1:], start=densities[0]) if densities else torch.zeros(())

    def distributions(self, like: Params) -> dict[str, Distribution]:
        """Each weight's distribution under its own prior."""
        found = {}
        for prior, group in self._groups(like):
            found.update(prior.distributions(group))
        return found


class WeightsOnly(FactorisedPrior):
    """A prior on weight matrices and filters; biases and normalisation scales (one axis or none) stay free.

    Args:
        prior: the prior of every weight with two or more axes.
    """

    def __init__(self, prior: FactorisedPrior) -> None:
        super().__init__()
        self.prior = prior

    @staticmethod
    def _covered(params: Params) -> Params:
        return {name: weight for name, weight in params.items() if weight.dim() > 1}

    def log_prob(self, params: Params) -> Tensor:
        """The inner prior's log density of the covered weights."""
        return self.prior.log_prob(self._covered(params))

    def distributions(self, like: Params) -> dict[str, Distribution]:
        """The inner prior's distributions of the covered weights."""
        return self.prior.distributions(self._covered(like))
