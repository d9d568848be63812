"""A prior as Laplace's method sees it: a Gaussian over the random weights, by precision and density at their values."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import singledispatch

import torch
from torch import Tensor
from torch.distributions import Distribution, Normal

from credibly.core.errors import NotSupportedError
from credibly.core.linalg.base import PositiveDefinite
from credibly.core.linalg.blocks import Blocks
from credibly.core.linalg.dense import Dense
from credibly.core.linalg.diagonal import Diagonal
from credibly.core.linalg.low_rank import LowRankPlusDiagonal
from credibly.core.typing import Params
from credibly.distributions.mixture_crps import gaussian_parameters
from credibly.priors.base import FactorisedPrior, Prior
from credibly.priors.gaussian import GaussianPrior

__all__ = ["PriorTerm", "added", "prior_term"]


@dataclass(frozen=True, eq=False)
class PriorTerm:
    """What the prior adds.

    Attributes:
        precision: over the flat vector of the random weights; 0 on the diagonal where the prior is flat.
        log_probs: whose sum is the log density of the random weights at their values, float64: (d,) where they are
            independent, NaN where the prior is flat; or (1,), NaN where there is no density over them alone.
    """

    precision: PositiveDefinite
    log_probs: Tensor

    @property
    def log_prob(self) -> float | None:
        """The log density of the random weights at their values, or None."""
        total = float(self.log_probs.sum())
        return None if math.isnan(total) else total

    @property
    def is_flat_somewhere(self) -> bool:
        """Whether the prior says nothing about some of the weights."""
        return isinstance(self.precision, Diagonal) and bool((self.precision.values == 0).any())

    def at(self, index: Tensor) -> "PriorTerm":
        """Of some of the weights.

        Raises:
            NotSupportedError: the weights depend on each other.
        """
        if not isinstance(self.precision, Diagonal) or len(self.log_probs) != self.precision.size:
            raise NotSupportedError(
                "single weights can be chosen under a prior of independent weights only, such as priors.Normal; take "
                "whole tensors, Named([...]), under a joint one"
            )
        return PriorTerm(Diagonal(self.precision.values[index]), self.log_probs[index])


@singledispatch
def prior_term(prior: Prior, weights: Params, names: Sequence[str]) -> PriorTerm:  # noqa: ARG001
    """The prior's part of the curvature of the log joint, and of the evidence.

    Args:
        prior: whose type has an entry.
        weights: all trainable weights of the network, by name.
        names: the random ones.

    Raises:
        NotSupportedError: the prior is not Gaussian.
    """
    raise _refusal(type(prior).__name__)


@prior_term.register
def _(prior: FactorisedPrior, weights: Params, names: Sequence[str]) -> PriorTerm:
    random = {name: weights[name] for name in names}
    found = prior.distributions(random)
    moments = [_moments(found.get(name), name, weight) for name, weight in random.items()]
    loc, scale = (torch.cat(parts) for parts in zip(*moments, strict=True))
    values = torch.cat([weight.flatten() for weight in random.values()])
    wide = Normal(loc.double(), scale.double(), validate_args=False)
    log_probs: Tensor = wide.log_prob(values.double())  # type: ignore[no-untyped-call]
    return PriorTerm(Diagonal(scale**-2), log_probs.where(scale.isfinite(), torch.nan))


def _moments(law: Distribution | None, name: str, weight: Tensor) -> list[Tensor]:
    """Location and scale of every entry; an infinite scale where the prior is flat."""
    if law is None:
        return [torch.zeros_like(weight).flatten(), torch.full_like(weight, torch.inf).flatten()]
    try:
        return [moment.expand_as(weight).flatten() for moment in gaussian_parameters(law)]
    except NotSupportedError:
        raise _refusal(f"the {type(law).__name__} of `{name}`") from None


@prior_term.register
def _(prior: GaussianPrior, weights: Params, names: Sequence[str]) -> PriorTerm:
    missing = [name for name in names if name not in prior.names]
    if missing:
        raise ValueError(f"the prior has no density over {missing}; it covers {list(prior.names)}")
    like = weights[names[0]]
    precision = _restricted(prior, names).map(lambda part: part.to(like))
    if set(names) != set(prior.names):
        return PriorTerm(precision, torch.full((1,), torch.nan, dtype=torch.float64))
    return PriorTerm(precision, prior.log_prob({name: weights[name].double() for name in prior.names}).reshape(1))


def _refusal(what: str) -> NotSupportedError:
    return NotSupportedError(
        f"Laplace's method needs a Gaussian prior, and {what} is none: its curvature has no fixed precision. Use "
        "priors.Normal, by itself or in ByName or WeightsOnly, a posterior's as_prior(), or "
        "Laplace(prior_precision=...)"
    )


def _restricted(prior: GaussianPrior, names: Sequence[str]) -> PositiveDefinite:
    """The precision of the named weights, given the others, in the order of the names."""
    precision = prior.precision
    if tuple(names) == prior.names:
        return precision
    sizes = [value.numel() for value in prior.mean.values()]
    places = [prior.names.index(name) for name in names]
    if isinstance(precision, Blocks) and precision.sizes == sizes:
        return Blocks(tuple(precision.blocks[place] for place in places))
    every = torch.arange(sum(sizes), device=precision.like.device)
    pieces = torch.split(every, sizes)
    index = torch.cat([pieces[place] for place in places])
    if isinstance(precision, Diagonal):
        return Diagonal(precision.values[index])
    return Dense(precision.dense()[index][:, index])


def added(curvature: PositiveDefinite, prior: PositiveDefinite) -> PositiveDefinite:
    """The sum, in the structure of the curvature.

    Raises:
        NotSupportedError: it has not that structure.
    """
    if isinstance(prior, Diagonal):
        return curvature.plus_diagonal(prior.values)
    if isinstance(curvature, Dense):
        return Dense(curvature.matrix + prior.dense())
    if isinstance(curvature, Blocks) and isinstance(prior, Blocks) and curvature.sizes == prior.sizes:
        return Blocks(tuple(added(a, b) for a, b in zip(curvature.blocks, prior.blocks, strict=True)))
    if isinstance(curvature, LowRankPlusDiagonal) and isinstance(prior, LowRankPlusDiagonal):
        factor = torch.cat([curvature.factor, prior.factor], -1)
        return LowRankPlusDiagonal(curvature.values + prior.values, factor)
    raise NotSupportedError(
        f"a curvature of structure {type(curvature).__name__} and a prior whose precision is {type(prior).__name__} do "
        "not add up to such a structure. With Laplace(structure=Dense()) every prior adds up; structure=Diagonal() "
        "goes with a diagonal one, and LowRank(...) with one of low rank"
    )
