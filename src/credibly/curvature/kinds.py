r"""Which matrix stands for the curvature of the negative log likelihood, and the scores that it is made of.

Each is a sum of outer products J' s s' J over directions s in the outputs of a row with Jacobian J:

* generalised Gauss-Newton: columns s of a factor L L' of the likelihood's Fisher matrix; or, for many outputs, scores
  at targets drawn from the prediction, whose outer products average to it (New Insights and Perspectives on the Natural
  Gradient Method, Martens 2020);
* empirical Fisher: the score at the target that was observed. It is no approximation of the curvature away from the
  optimum (Limitations of the Empirical Fisher Approximation for Natural Gradient Descent, Kunstner, Balles, Hennig
  2019).

A row weight multiplies its outer products, also of the empirical Fisher: a row of weight 2 counts as two rows. A
missing target, or element, adds nothing.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from credibly.core.checks import check_count
from credibly.core.data import Data
from credibly.core.errors import NotFiniteError
from credibly.core.randomness import derived_seed
from credibly.curvature.directions import Columns, Directions, Given
from credibly.likelihoods.base import Likelihood
from credibly.model import weighted_rows

__all__ = ["GGN", "CurvatureKind", "EmpiricalFisher"]


@dataclass(frozen=True, kw_only=True)
class CurvatureKind(ABC):
    """Which matrix stands for the curvature."""

    @abstractmethod
    def directions(self, likelihood: Likelihood, table: Tensor, data: Data, seed: int) -> Directions:
        """The directions in the outputs.

        Args:
            likelihood: on the network's side.
            table: outputs of the batch with those of one element last, as `as_table` gives them, detached.
            data: the batch, on the network's side.
            seed: of this batch.
        """

    @abstractmethod
    def num_directions(self, table: Tensor) -> int:
        """How many of them a row has at most."""


@dataclass(frozen=True, kw_only=True)
class GGN(CurvatureKind):
    """The generalised Gauss-Newton matrix: the Fisher information of the likelihood, seen through the Jacobian.

    Args:
        num_scores: None takes the exact Fisher matrix, with a backward pass per output; a number takes so many scores
            at drawn targets instead, for networks with many outputs.
    """

    num_scores: int | None = None

    def __post_init__(self) -> None:
        if self.num_scores is not None:
            check_count("num_scores", self.num_scores)

    def directions(self, likelihood: Likelihood, table: Tensor, data: Data, seed: int) -> Directions:
        """Columns of a factor of the Fisher matrix, or drawn scores."""
        amounts, (element, _) = _amounts(data, table), likelihood.elements()
        if self.num_scores is None:
            return Columns(_checked(element.fisher_root(table) * amounts.sqrt().unsqueeze(-1)))
        scores = element.sample_scores(table, self.num_scores, seed=derived_seed(seed, "scores"))
        return Given(_checked(scores * (amounts / self.num_scores).sqrt()))

    def num_directions(self, table: Tensor) -> int:
        """One for each output, of which a likelihood may need fewer, or each drawn score."""
        return table[0].numel() if self.num_scores is None else self.num_scores


@dataclass(frozen=True, kw_only=True)
class EmpiricalFisher(CurvatureKind):
    """The sum over rows of outer products of the gradient of the row's log likelihood at its observed target."""

    def directions(self, likelihood: Likelihood, table: Tensor, data: Data, seed: int) -> Directions:
        """The score of each row."""
        element, axes = likelihood.elements()
        with torch.enable_grad():
            own = table.detach().clone().requires_grad_()
            rows = weighted_rows(
                element.log_prob, element.parameters_of(own), Data(None, data.targets, None, data.mask), 0.0, axes
            )
            (scores,) = torch.autograd.grad(rows.sum(), own)
        return Given(_checked(scores * _amounts(data, table).sqrt()).unsqueeze(0))

    def num_directions(self, table: Tensor) -> int:
        """One."""
        return 1


def _amounts(data: Data, table: Tensor) -> Tensor:
    """How much each element counts, 0 where its target is missing: broadcasts against the table."""
    amounts = table.new_ones(len(table)) if data.weights is None else data.weights.to(table)
    amounts = amounts.reshape(-1, *[1] * (table.dim() - 1))
    if data.mask is None:
        return amounts
    mask: Tensor = data.mask.reshape(data.mask.shape + (1,) * (table.dim() - data.mask.dim()))
    return amounts * mask.to(table)


def _checked(scores: Tensor) -> Tensor:
    if not bool(scores.isfinite().all()):
        raise NotFiniteError("the scores of the likelihood must be finite at the weights of the curvature")
    return scores
