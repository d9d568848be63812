r"""How a weight enters the outputs: the gradients of each row's outputs in it, before they are written out.

Along a direction k of the outputs, row r has a gradient in the weight that is built from the inputs a of the layer and
the gradients s_k in what the layer gives, summed over the positions t at which the row uses the weight,

    g_kr = sum over t of s_krt a_rt'.

For a weight that is used once per row, sums over rows of its squares and covariances of outputs need no g, which has as
many entries as the weight: sum_kr g_kr^2 = (sum_k s_k^2)' a^2. With several positions g is summed before it is squared,
some rows at a time. Factors of a Kronecker product treat positions as rows of their own: the setting "expand" of
Kronecker-Factored Approximate Curvature for Modern Neural Network Architectures (Eschenhagen, Immer, Turner, Schneider,
Hennig 2023).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from credibly.core.linalg.base import PositiveDefinite
from credibly.curvature.factors import Factors, Moments
from credibly.curvature.spectra import Spectrum, spectra
from credibly.curvature.vectors import Vectors, project

__all__ = ["CHUNK_NUMBERS", "Direct", "Lookup", "Product", "Unused", "Use"]

CHUNK_NUMBERS = 2**23
"""Numbers that are written out at once."""

MAX_DENSE = 4096
"""Entries of a bias or scale up to which its block of a Kronecker curvature is exact, and diagonal beyond."""


@dataclass(frozen=True, eq=False)
class Use(ABC):
    """The gradients of the outputs of R rows along K directions in one weight of d entries."""

    @abstractmethod
    def squares(self) -> Tensor:
        """Their squares, summed over rows and directions: (d,)."""

    @abstractmethod
    def rows(self) -> Tensor:
        """The gradients themselves: (K, R, d)."""

    @abstractmethod
    def factors(self, counts: Tensor, moments: Moments) -> Factors:
        """The factors of a Kronecker product, summed over rows.

        Args:
            counts: how much each row counts: (R,).
            moments: of gradients, shared by the weights of a batch.
        """

    @abstractmethod
    def folded(self, share: int) -> "Use":
        """The use by R / share rows, each of which lies here as `share` neighbouring ones."""

    @abstractmethod
    def numbers(self) -> tuple[int, int]:
        """How many numbers it holds apart from directions, and for each of them."""

    def covariance(self, matrix: PositiveDefinite) -> Tensor:
        """The covariance g S g' of each row, (R, K, K), for S over the weight."""
        gradients = self.rows().movedim(0, 1)
        return gradients @ matrix.matmul(gradients).mT

    def vectors(self, matrix: PositiveDefinite) -> Vectors | None:
        """Vectors that give that covariance; None where there is none without the weight's gradients."""
        return None

    def map(self, change: Callable[[Tensor], Tensor]) -> Any:
        """The same of changed tensors."""
        values = {part.name: getattr(self, part.name) for part in fields(self)}
        changed = {k: change(v) for k, v in values.items() if isinstance(v, Tensor) and (v.is_floating_point())}
        return replace(self, **changed)


@dataclass(frozen=True, eq=False)
class Product(Use):
    """Of a weight that multiplies: tables, outputs by inputs, one for each of G groups.

    Attributes:
        inputs: a, (R, T, G, p), at T positions.
        gradients: s, (K, R, T, G, q).
        transposed: whether the weight's tables are (p, q), not (q, p).
    """

    inputs: Tensor
    gradients: Tensor
    transposed: bool = False

    @property
    def _is_single(self) -> bool:
        return self.inputs.shape[1] == 1

    def squares(self) -> Tensor:
        """Without the gradients where there is one position."""
        if self._is_single:
            total = self.gradients.square().sum(0).squeeze(1)  # (R, G, q)
            tables = total.permute(1, 2, 0) @ self.inputs.squeeze(1).square().transpose(0, 1)
        else:
            tables = sum(part._tables().square().sum((0, 2)) for part in self._chunks())  # type: ignore[assignment]
        return self._flat(tables)

    def rows(self) -> Tensor:
        """The products, summed over positions."""
        return self._flat(self._tables().movedim(2, 0), 2)

    def factors(self, counts: Tensor, moments: Moments) -> Factors:
        """Means over rows and positions of a a', and sums of s s'."""
        weighted = self.inputs * counts.reshape(-1, 1, 1, 1)
        a = torch.einsum("rtgi,rtgj->gij", weighted, self.inputs)
        b = torch.stack([moments(part) for part in self.gradients.unbind(3)])
        return Factors(a, b, counts.sum() * self.inputs.shape[1], self.transposed)

    def folded(self, share: int) -> "Product":
        """Rows become positions."""
        if share == 1:
            return self
        positions = self.inputs.shape[1] * share
        inputs = self.inputs.reshape(-1, positions, *self.inputs.shape[2:])
        gradients = self.gradients.reshape(len(self.gradients), len(inputs), positions, *self.gradients.shape[3:])
        return Product(inputs, gradients, self.transposed)

    def numbers(self) -> tuple[int, int]:
        """Inputs and gradients."""
        return self.inputs.numel(), self.gradients[0].numel()

    def covariance(self, matrix: PositiveDefinite) -> Tensor:
        """In the bases of the matrix, where it is diagonal; in general with the gradients written out."""
        groups, p, q = self.inputs.shape[2], self.inputs.shape[3], self.gradients.shape[4]
        found = spectra(matrix, groups, *((p, q) if self.transposed else (q, p)))
        if found is None:
            return _all_rows([super(Product, part).covariance(matrix) for part in self._chunks()])
        return sum(self._of_group(group, spectrum) for group, spectrum in enumerate(found))  # type: ignore[return-value]

    def _of_group(self, group: int, spectrum: Spectrum) -> Tensor:
        if self._is_single:
            return self._vectors(group, spectrum).covariance()
        spectrum = spectrum.transposed() if self.transposed else spectrum
        gradients, inputs = self.gradients[..., group : group + 1, :], self.inputs[..., group : group + 1, :]
        return Product(project(inputs, spectrum.right), project(gradients, spectrum.left))._several(spectrum.values)

    def vectors(self, matrix: PositiveDefinite) -> Vectors | None:
        """Of one position: output gradients, weighed by what the inputs make of the eigenvalues."""
        groups, p, q = self.inputs.shape[2], self.inputs.shape[3], self.gradients.shape[4]
        if groups > 1 or not self._is_single:
            return None
        found = spectra(matrix, 1, *((p, q) if self.transposed else (q, p)))
        return None if found is None else self._vectors(0, found[0])

    def _vectors(self, group: int, spectrum: Spectrum) -> Vectors:
        spectrum = spectrum.transposed() if self.transposed else spectrum
        weights = project(self.inputs[:, 0, group], spectrum.right).square() @ spectrum.values.mT
        return Vectors(self.gradients[:, :, 0, group], spectrum.left, weights)

    def _several(self, values: Tensor) -> Tensor:
        parts = []
        for part in self._chunks():
            tables = part._tables()[:, 0].flatten(-2)  # (R, K, q p)
            parts.append((tables * values.flatten()) @ tables.mT)
        return _all_rows(parts)

    def _tables(self) -> Tensor:
        """(R, G, K, q, p)."""
        num, rows, positions, groups, q = self.gradients.shape
        left = self.gradients.permute(1, 3, 0, 4, 2).reshape(rows, groups, num * q, positions)
        return (left @ self.inputs.transpose(1, 2)).reshape(rows, groups, num, q, -1)

    def _flat(self, tables: Tensor, leading: int = 0) -> Tensor:
        return (tables.mT if self.transposed else tables).flatten(leading)

    def _chunks(self) -> Iterator["Product"]:
        num, rows, _, groups, q = self.gradients.shape
        size = max(1, CHUNK_NUMBERS // max(1, num * groups * q * self.inputs.shape[3]))
        for start in range(0, rows, size):
            part = slice(start, start + size)
            yield Product(self.inputs[part], self.gradients[:, part], self.transposed)


@dataclass(frozen=True, eq=False)
class Lookup(Use):
    """Of a table from which rows use one entry, a vector, per position.

    Attributes:
        indices: (R, T).
        gradients: s, (K, R, T, q).
        num_entries: of the table.
    """

    indices: Tensor
    gradients: Tensor
    num_entries: int

    def squares(self) -> Tensor:
        """Summed over the positions of a row that use the same entry, then squared."""
        each = (self.gradients * self._merged(self.gradients)).sum(0)
        return self._scattered(each.flatten(0, 1)).flatten()

    def rows(self) -> Tensor:
        """Added up by entry."""
        num, rows, _, q = self.gradients.shape
        tables = self.gradients.new_zeros(num, rows, self.num_entries, q)
        index = self.indices.unsqueeze(-1).expand(self.gradients.shape)
        return tables.scatter_add(2, index, self.gradients).flatten(2)

    def factors(self, counts: Tensor, moments: Moments) -> Factors:
        """How often each entry is used, and sums of s s'."""
        used = counts.unsqueeze(1).expand(self.indices.shape).flatten()
        a = used.new_zeros(self.num_entries).index_add(0, self.indices.flatten(), used)
        total = counts.sum() * self.indices.shape[1]
        return Factors(a.unsqueeze(0), moments(self.gradients).unsqueeze(0), total, transposed=True)

    def folded(self, share: int) -> "Lookup":
        """Rows become positions."""
        indices = self.indices.reshape(-1, self.indices.shape[1] * share)
        gradients = self.gradients.reshape(len(self.gradients), *indices.shape, -1)
        return Lookup(indices, gradients, self.num_entries)

    def numbers(self) -> tuple[int, int]:
        """Pairs of positions, and gradients."""
        return self.indices.numel() * self.indices.shape[1], self.gradients[0].numel()

    def covariance(self, matrix: PositiveDefinite) -> Tensor:
        """Without the table where the matrix does not mix entries."""
        found = spectra(matrix, 1, self.num_entries, self.gradients.shape[-1])
        if found is None or found[0].left is not None:
            return super().covariance(matrix)
        gradients = project(self.gradients, found[0].right)
        weighted = gradients * found[0].values[self.indices]
        merged = self._merged(gradients)
        return weighted.transpose(0, 1).flatten(2) @ merged.transpose(0, 1).flatten(2).mT

    def _merged(self, gradients: Tensor) -> Tensor:
        """At each position the sum over the positions of its row that use the same entry."""
        same = self.indices.unsqueeze(-1) == self.indices.unsqueeze(-2)
        return same.to(gradients) @ gradients

    def _scattered(self, values: Tensor) -> Tensor:
        table = values.new_zeros(self.num_entries, values.shape[-1])
        return table.index_add(0, self.indices.flatten(), values)


@dataclass(frozen=True, eq=False)
class Direct(Use):
    """Written out: of a bias, a scale, or a weight of which nothing is known.

    Attributes:
        gradients: (K, R, d).
    """

    gradients: Tensor

    def squares(self) -> Tensor:
        """The squares."""
        return self.gradients.square().sum((0, 1))

    def rows(self) -> Tensor:
        """The gradients."""
        return self.gradients

    def factors(self, counts: Tensor, moments: Moments) -> Factors:
        """One exact block, or its diagonal where that is large."""
        total, size = counts.sum(), self.gradients.shape[-1]
        block = moments(self.gradients) if size <= MAX_DENSE else self.squares()
        return Factors(total.reshape(1, 1), block.unsqueeze(0), total)

    def covariance(self, matrix: PositiveDefinite) -> Tensor:
        """In the basis of the matrix, where it has one."""
        found = self.vectors(matrix)
        return super().covariance(matrix) if found is None else found.covariance()

    def vectors(self, matrix: PositiveDefinite) -> Vectors | None:
        """The gradients, in the basis of the matrix."""
        found = spectra(matrix, 1, self.gradients.shape[-1], 1)
        return None if found is None else Vectors(self.gradients, found[0].left, found[0].values.mT)

    def folded(self, share: int) -> "Direct":
        """Rows are added up."""
        num, rows, size = self.gradients.shape
        return Direct(self.gradients.reshape(num, rows // share, share, size).sum(2)) if share > 1 else self

    def numbers(self) -> tuple[int, int]:
        """Gradients."""
        return 0, self.gradients[0].numel()


@dataclass(frozen=True, eq=False)
class Unused(Use):
    """Of a weight that no output depends on.

    Attributes:
        zeros: (d,).
        num_directions: K.
        num_rows: R.
    """

    zeros: Tensor
    num_directions: int
    num_rows: int

    def squares(self) -> Tensor:
        """0."""
        return self.zeros

    def rows(self) -> Tensor:
        """0."""
        return self.zeros.expand(self.num_directions, self.num_rows, -1)

    def factors(self, counts: Tensor, moments: Moments) -> Factors:
        """The layout of a diagonal, all 0."""
        return Factors(counts.sum().reshape(1, 1), self.zeros.unsqueeze(0), counts.sum())

    def covariance(self, matrix: PositiveDefinite) -> Tensor:
        """0."""
        return self.zeros.new_zeros(self.num_rows, self.num_directions, self.num_directions)

    def folded(self, share: int) -> "Unused":
        """Of fewer rows."""
        return replace(self, num_rows=self.num_rows // share)

    def numbers(self) -> tuple[int, int]:
        """None for each direction."""
        return len(self.zeros), 0


def _all_rows(parts: list[Tensor]) -> Tensor:
    """Chunks of rows, one after another."""
    return parts[0] if len(parts) == 1 else torch.cat(parts)
