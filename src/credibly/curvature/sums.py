"""Sums over batches, in each structure, of the outer products of gradients along directions."""

from abc import ABC, abstractmethod
from collections.abc import Iterable

import torch
from torch import Tensor

from credibly.core.linalg.base import PositiveDefinite
from credibly.core.linalg.blocks import Blocks
from credibly.core.linalg.dense import Dense
from credibly.core.linalg.diagonal import Diagonal
from credibly.core.linalg.low_rank import LowRankPlusDiagonal
from credibly.curvature.factors import Factors, Moments, SharedSpectra
from credibly.curvature.uses import Use

__all__ = ["DenseSum", "DiagonalSum", "ExactLowRankSum", "KroneckerSum", "LowRankSum", "Sum"]


class Sum(ABC):
    """What a structure keeps of all rows so far.

    Attributes:
        by_row: whether gradients of rows may take the place of the layers' in some of them.
    """

    by_row: bool = True

    @abstractmethod
    def add(self, uses: Iterable[tuple[str, Use]], counts: Tensor) -> None:
        """Add rows, along some of their directions.

        Args:
            uses: of each weight, in order.
            counts: how much each row counts as a row: (rows,), all 0 if that was told already.
        """

    @abstractmethod
    def result(self) -> PositiveDefinite:
        """The matrix."""


class DiagonalSum(Sum):
    """Squares."""

    def __init__(self) -> None:
        self._squares: dict[str, Tensor] = {}

    def add(self, uses: Iterable[tuple[str, Use]], counts: Tensor) -> None:
        """Add squares."""
        for name, use in uses:
            squares = use.squares()
            self._squares[name] = self._squares[name] + squares if name in self._squares else squares

    def result(self) -> Diagonal:
        """One weight after another."""
        return Diagonal(torch.cat(list(self._squares.values())))


class KroneckerSum(Sum):
    """Factors of each weight.

    Args:
        diagonal: the weights of which only the diagonal is kept.
    """

    by_row = False

    def __init__(self, diagonal: Iterable[str]) -> None:
        self._diagonal = frozenset(diagonal)
        self._sums: dict[str, Factors | Tensor] = {}

    def add(self, uses: Iterable[tuple[str, Use]], counts: Tensor) -> None:
        """Add factors."""
        moments = Moments()
        for name, use in uses:
            part = use.squares() if name in self._diagonal else use.factors(counts, moments)
            self._sums[name] = self._sums[name] + part if name in self._sums else part  # type: ignore[operator]

    def result(self) -> Blocks:
        """One block for each weight."""
        parts, spectra = self._sums.values(), SharedSpectra()
        return Blocks(tuple(part.block(spectra) if isinstance(part, Factors) else Diagonal(part) for part in parts))


class DenseSum(Sum):
    """All entries."""

    def __init__(self) -> None:
        self._total: Tensor | None = None

    def add(self, uses: Iterable[tuple[str, Use]], counts: Tensor) -> None:
        """Add products of the gradients."""
        rows = written_out(uses)
        self._total = rows.mT @ rows if self._total is None else self._total.addmm_(rows.mT, rows)

    def result(self) -> Dense:
        """The matrix."""
        assert self._total is not None
        return Dense(self._total)


class ExactLowRankSum(DenseSum):
    """All entries, of which only the leading eigenvectors are kept in the end.

    Args:
        rank: their number.
    """

    def __init__(self, rank: int) -> None:
        super().__init__()
        self._rank = rank

    def result(self) -> LowRankPlusDiagonal:  # type: ignore[override]
        """The leading eigenvectors."""
        values, vectors = torch.linalg.eigh(super().result().matrix)
        leading = values[-self._rank :].clamp(min=0).sqrt()
        return _low_rank(vectors[:, -self._rank :] * leading)


class LowRankSum(Sum):
    """A factor F with F F' near the sum, cut back by its singular values whenever it has grown.

    Until the end it keeps twice the rank. The first cut comes when there are more gradients than the factor may have
    columns: with fewer rows than that the result is exact.

    Args:
        rank: of the result.
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._factors: list[Tensor] = []

    def add(self, uses: Iterable[tuple[str, Use]], counts: Tensor) -> None:
        """Add gradients as columns."""
        self._factors.append(written_out(uses).mT)
        if sum(factor.shape[1] for factor in self._factors) > 6 * self._rank:
            self._cut(2 * self._rank)

    def result(self) -> LowRankPlusDiagonal:
        """The leading singular vectors."""
        self._cut(self._rank)
        return _low_rank(self._factors[0])

    def _cut(self, rank: int) -> None:
        vectors, values, _ = torch.linalg.svd(torch.cat(self._factors, 1), full_matrices=False)
        self._factors = [vectors[:, :rank] * values[:rank]]


def written_out(uses: Iterable[tuple[str, Use]]) -> Tensor:
    """The gradients in all weights: (K R, d)."""
    return torch.cat([use.rows() for _, use in uses], -1).flatten(0, 1)


def _low_rank(factor: Tensor) -> LowRankPlusDiagonal:
    return LowRankPlusDiagonal(factor.new_zeros(len(factor)), factor)
