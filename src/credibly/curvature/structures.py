"""How much of a curvature is kept: its diagonal, a Kronecker product for each weight, its leading part, or all."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from credibly.core.checks import check_count
from credibly.core.errors import NotSupportedError
from credibly.curvature.layers import rule_of
from credibly.curvature.plan import Owner, Plan
from credibly.curvature.sums import DenseSum, DiagonalSum, ExactLowRankSum, KroneckerSum, LowRankSum, Sum
from credibly.curvature.uses import MAX_DENSE

__all__ = ["Dense", "Diagonal", "Kronecker", "LowRank", "Structure"]

_SMALL = 2048  # weights up to which a matrix of low rank is cut from all entries


@dataclass(frozen=True)
class Structure(ABC):
    """How much of the matrix is kept."""

    @abstractmethod
    def sum(self, plan: Plan) -> Sum:
        """An empty sum over rows.

        Raises:
            NotSupportedError: a weight of which the structure cannot be had.
        """

    @abstractmethod
    def num_numbers(self, weights: Mapping[str, Tensor], found: Mapping[str, Sequence[Owner]]) -> int:
        """How many numbers the result holds."""

    def written_out(self, plan: Plan) -> int:
        """How many numbers of each row's gradient along each direction are written out."""
        return 0


@dataclass(frozen=True)
class Diagonal(Structure):
    """The exact diagonal: weights are independent of each other."""

    def sum(self, plan: Plan) -> Sum:
        """Of squares."""
        return DiagonalSum()

    def num_numbers(self, weights: Mapping[str, Tensor], found: Mapping[str, Sequence[Owner]]) -> int:
        """One for each weight."""
        return _total(weights)


@dataclass(frozen=True, kw_only=True)
class Kronecker(Structure):
    """One block for each tensor, a Kronecker product B (x) A of its layer's output gradients and inputs.

    B = sum of s s' over rows and directions, A = mean of a a' over rows (Optimizing Neural Networks with
    Kronecker-factored Approximate Curvature, Martens, Grosse 2015), so that B (x) A stands for the curvature summed
    over the rows. Where a weight is used at several positions, in convolutions, along sequences, or in several calls,
    each position is a row of its own (the setting "expand": Kronecker-Factored Approximate Curvature for Modern Neural
    Network Architectures, Eschenhagen et al. 2023). A convolution with groups has a block for each group, and the table
    of an embedding an A that is diagonal.

    A bias, and the scale of a normalisation layer, has a block of its own, (m x 1) as in laplace-torch, which is exact
    here also for several positions (up to 4096 entries; its diagonal beyond). Folded into the weight's block it would
    give another posterior.

    Args:
        diagonal_for_others: take the exact diagonal of weights without such factors (of recurrent layers, attention,
            or the user's own), which are refused otherwise.
    """

    diagonal_for_others: bool = False

    def sum(self, plan: Plan) -> Sum:
        """Of factors."""
        reasons = {**plan.others, **dict.fromkeys(plan.mixed, "layers of different kinds share it")}
        if reasons and not self.diagonal_for_others:
            told = "; ".join(f"`{name}`: {reason}" for name, reason in reasons.items())
            raise NotSupportedError(
                f"some weights have no Kronecker factors ({told}); use Kronecker(diagonal_for_others=True), "
                "Diagonal(), or leave them out"
            )
        return KroneckerSum(reasons)

    def num_numbers(self, weights: Mapping[str, Tensor], found: Mapping[str, Sequence[Owner]]) -> int:
        """Two bases and the eigenvalues of each block."""
        return sum(_block(weight, found[name][0]) for name, weight in weights.items())


@dataclass(frozen=True)
class LowRank(Structure):
    """The leading eigenvectors of the whole matrix.

    Up to 2048 weights, or up to six times as many gradients as the rank, they are exact; beyond, gradients are gathered
    and cut back to twice the rank by their singular values, again and again, which loses a little.

    Args:
        rank: the number of eigenvectors.
    """

    rank: int

    def __post_init__(self) -> None:
        check_count("rank", self.rank)

    def sum(self, plan: Plan) -> Sum:
        """Of the gradients' products, or of the gradients."""
        size = sum(plan.sizes)
        return ExactLowRankSum(self.rank) if size <= _SMALL else LowRankSum(self.rank)

    def num_numbers(self, weights: Mapping[str, Tensor], found: Mapping[str, Sequence[Owner]]) -> int:
        """One for each weight and eigenvector."""
        return _total(weights) * (1 + min(self.rank, _total(weights)))

    def written_out(self, plan: Plan) -> int:
        """Every weight's."""
        return sum(plan.sizes)


@dataclass(frozen=True)
class Dense(Structure):
    """The whole matrix: exact, for few weights."""

    def sum(self, plan: Plan) -> Sum:
        """Of the gradients' products."""
        return DenseSum()

    def num_numbers(self, weights: Mapping[str, Tensor], found: Mapping[str, Sequence[Owner]]) -> int:
        """The square of the number of weights."""
        return _total(weights) ** 2

    def written_out(self, plan: Plan) -> int:
        """Every weight's."""
        return sum(plan.sizes)


def _total(weights: Mapping[str, Tensor]) -> int:
    return sum(weight.numel() for weight in weights.values())


def _block(weight: Tensor, owner: Owner) -> int:
    """The numbers that the Kronecker block of a weight holds."""
    layer, size = rule_of(owner.module), weight.numel()
    if layer is None or owner.rule is None:
        return size
    groups, m, n = layer.tables(owner.module)
    if groups * m * n != size or n == 1:
        return size + (size**2 if size <= MAX_DENSE else 0)
    rows = 0 if layer.is_lookup else m**2
    return groups * (m * n + rows + n**2)
