"""The expected log density of the weights under their prior, in closed form where it has one.

With q of mean m and covariance diag(v) + F F', a Gaussian prior of location a and precision P gives

    E log p(w) = -((m - a)' P (m - a) + tr(P diag(v)) + tr(F' P F)) / 2 + log det(P) / 2 - (d/2) log(2 pi).

With the entropy of q it makes up the divergence, KL(q || p) = -H(q) - E log p. Weights that have no proper prior
contribute nothing; weights that q does not cover count with the density of their value.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor, distributions

from credibly.core.typing import Params
from credibly.priors.base import FactorisedPrior, Prior
from credibly.priors.gaussian import GaussianPrior

__all__ = ["DrawnPrior", "FlatWeights", "IndependentGaussian", "JointGaussian", "PriorTerm", "prior_term"]

_LOG_2PI = math.log(2 * math.pi)


class FlatWeights:
    """Weights one after another in one vector.

    Args:
        params: in the order of the vector.
    """

    def __init__(self, params: Params) -> None:
        self.shapes = {name: value.shape for name, value in params.items()}
        self.sizes = [shape.numel() for shape in self.shapes.values()]

    def flat(self, params: Params) -> Tensor:
        """Weights by name as a vector, (d,)."""
        return torch.cat([params[name].reshape(-1) for name in self.shapes])

    def named(self, flat: Tensor) -> Params:
        """A vector, (d,), as weights by name, views of it."""
        parts = flat.split_with_sizes(self.sizes)
        pairs = zip(self.shapes.items(), parts, strict=True)
        # what has one axis, as biases have, is in its shape already
        return {name: part if len(shape) == 1 else part.view(shape) for (name, shape), part in pairs}


class PriorTerm(ABC):
    """The prior of the random weights, and of those beside them that are trained as points."""

    @abstractmethod
    def expected(self, mean: Tensor, variances: Tensor | None, factor: Tensor | None, points: Params) -> Tensor | None:
        """The expected log density under q, a scalar; None where there is no closed form.

        Args:
            mean: of the random weights, (d,).
            variances: the diagonal part of their covariance, (d,).
            factor: the factor of the rest, (d, k).
            points: the weights that are not random.
        """

    @abstractmethod
    def log_prob(self, weights: Tensor, points: Params) -> Tensor:
        """The log density at one draw, (d,)."""


@dataclass(frozen=True, eq=False)
class DrawnPrior(PriorTerm):
    """Any prior, by its density at the draw.

    Attributes:
        prior: over all weights.
        layout: of the random weights.
    """

    prior: Prior
    layout: FlatWeights

    def expected(self, mean: Tensor, variances: Tensor | None, factor: Tensor | None, points: Params) -> Tensor | None:
        """Has no closed form."""
        return None

    def log_prob(self, weights: Tensor, points: Params) -> Tensor:
        """That of the prior."""
        return self.prior.log_prob(self.layout.named(weights) | points)


@dataclass(frozen=True, eq=False)
class IndependentGaussian(PriorTerm):
    """Independent Gaussian weights, some of them perhaps without a proper prior.

    Attributes:
        prior: over all weights.
        layout: of the random weights.
        loc: (d,), or None for 0.
        precision: (d,), or () where it is the same for all; 0 where the prior is flat.
        constant: the log of the density's constants.
    """

    prior: FactorisedPrior
    layout: FlatWeights
    loc: Tensor | None
    precision: Tensor
    constant: float

    def expected(self, mean: Tensor, variances: Tensor | None, factor: Tensor | None, points: Params) -> Tensor:
        """In closed form."""
        offset = mean if self.loc is None else mean - self.loc
        squares = offset.square()
        if variances is not None:
            squares = squares + variances
        if factor is not None:
            squares = squares + factor.square().sum(-1)
        return self.of_points(points) + self.constant - 0.5 * (self.precision * squares).sum()

    def of_points(self, points: Params) -> Tensor | float:
        """The log density of the weights that are not random."""
        return self.prior.log_prob(points) if points else 0.0

    def log_prob(self, weights: Tensor, points: Params) -> Tensor:
        """In closed form."""
        return self.expected(weights, None, None, points)


@dataclass(frozen=True, eq=False)
class JointGaussian(PriorTerm):
    """A joint Gaussian over the random weights and the points.

    Attributes:
        prior: over all weights.
        layout: of the random weights.
    """

    prior: GaussianPrior
    layout: FlatWeights

    def expected(self, mean: Tensor, variances: Tensor | None, factor: Tensor | None, points: Params) -> Tensor:
        """In closed form."""
        precision = self.prior.precision
        value = self.log_prob(mean, points)
        if variances is not None:
            value = value - 0.5 * precision.diagonal().to(mean).dot(self._embedded(variances, points))
        if factor is not None:
            columns = torch.stack([self._embedded(column, points) for column in factor.unbind(1)])
            value = value - 0.5 * (columns * precision.map(lambda part: part.to(mean)).matmul(columns)).sum()
        return value

    def log_prob(self, weights: Tensor, points: Params) -> Tensor:
        """That of the prior."""
        return self.prior.log_prob(self.layout.named(weights) | points)

    def _embedded(self, flat: Tensor, points: Params) -> Tensor:
        """The vector in the prior's order, 0 for points."""
        named = self.layout.named(flat) | {name: torch.zeros_like(value) for name, value in points.items()}
        return torch.cat([named[name].reshape(-1) for name in self.prior.names])


def prior_term(prior: Prior, random: Params, layout: FlatWeights) -> PriorTerm:
    """The term of a prior: in closed form where all that is proper in it is Gaussian."""
    if isinstance(prior, GaussianPrior):
        return JointGaussian(prior, layout)
    if isinstance(prior, FactorisedPrior):
        found = prior.distributions(random)
        if all(isinstance(each, distributions.Normal) for each in found.values()):
            return _independent(prior, random, layout, found)
    return DrawnPrior(prior, layout)


def _independent(
    prior: FactorisedPrior, random: Params, layout: FlatWeights, found: dict[str, distributions.Distribution]
) -> IndependentGaussian:
    precisions, locations = [], []
    for name, weight in random.items():
        given = found.get(name)
        zero = torch.zeros_like(weight)
        locations.append((zero if given is None else given.mean.detach()).reshape(-1))
        precisions.append((zero if given is None else 1 / given.variance.detach()).reshape(-1))
    precision, loc = torch.cat(precisions), torch.cat(locations)
    proper = precision[precision > 0].double()
    constant = 0.5 * float(proper.log().sum()) - 0.5 * len(proper) * _LOG_2PI
    if bool((precision == precision[:1]).all()):
        precision = precision[0].clone()
    return IndependentGaussian(prior, layout, loc if bool(loc.any()) else None, precision, constant)
