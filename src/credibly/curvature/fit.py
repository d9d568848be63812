r"""The curvature of the negative log likelihood in the weights, summed over the rows, in one pass over the data.

    H = sum over rows r of J_r' F_r J_r,    F_r = sum over directions k of s_kr s_kr',

with the Jacobian J_r of a row's outputs. It is never written out: each batch goes forwards once, with hooks that keep
the inputs of layers, and backwards once for all directions together, which gives the gradients in what each layer
returned. Diagonals and Kronecker factors are sums of products of the two.
"""

from collections.abc import Sequence
from typing import Any

import torch

from credibly.core.data import Data, Source
from credibly.core.inputs import take_rows
from credibly.core.linalg.base import PositiveDefinite
from credibly.core.params import evaluating, module_device
from credibly.core.randomness import derived_seed, seeded
from credibly.curvature.kinds import CurvatureKind
from credibly.curvature.layout import as_outputs, as_table
from credibly.curvature.memory import MAX_BYTES, check_bytes
from credibly.curvature.passes import Pass, rows_at_once
from credibly.curvature.plan import make_plan
from credibly.curvature.structures import Structure
from credibly.model import Core, Model

__all__ = ["curvature"]


def curvature(
    model: Model,
    source: Source,
    names: Sequence[str],
    structure: Structure,
    kind: CurvatureKind,
    *,
    seed: int = 0,
    max_bytes: int = MAX_BYTES,
) -> PositiveDefinite:
    """The curvature over the flat vector of the named weights: positive semi-definite, summed over rows, no prior.

    Args:
        model: never changed; its weights are where the curvature is taken, in evaluation mode.
        source: data on the network's side of the standardisation. Row weights and masks are applied.
        names: random weights under `net.`, in the order of the flat vector.
        structure: how much of the matrix is kept. Kronecker gives `Blocks` with one block per name (Blocks again for
            convolutions with groups), Diagonal a `Diagonal`, Dense a `Dense`, LowRank a `LowRankPlusDiagonal` whose
            diagonal is 0.
        kind: which curvature.
        seed: of sampled scores.
        max_bytes: the most that the result may take.

    Raises:
        NotSupportedError: a layer without the structure, by name; a training head; more memory than the limit.
        NotFiniteError: outputs or scores that are not finite.
    """
    model.likelihood.check_density()
    check_bytes(model, names, structure, max_bytes)
    core = model.core
    with evaluating(core), torch.no_grad(), seeded(seed, "network", device=module_device(core)):
        fit = _Fit(core, source, names, structure, kind)
        for batch in source.batches(None):
            for data in batch.split(fit.size):
                fit.add(data, derived_seed(seed, "curvature", fit.num_batches))
    return fit.total.result()


class _Fit:
    """A pass over the data."""

    def __init__(
        self, core: Core, source: Source, names: Sequence[str], structure: Structure, kind: CurvatureKind
    ) -> None:
        self.core = core
        self.kind = kind
        self.num_batches = 0
        first = source.first().inputs
        self.plan = make_plan(core, first, names)
        self.total = structure.sum(self.plan)
        outputs: Any = core(take_rows(first, slice(0, 1)), "outputs")
        num, written_out = kind.num_directions(outputs), structure.written_out(self.plan)
        self.size = rows_at_once(self.plan, num, written_out)
        self.directions_at_once = num if self.size > 1 else rows_at_once(self.plan, 1, written_out)

    def add(self, data: Data, seed: int) -> None:
        """Some rows, and where one row is too much at once, some directions at a time."""
        self.num_batches += 1
        passed = Pass.of(self.core, self.plan, data.inputs)
        table = as_table(self.core.likelihood, passed.outputs.detach())
        directions = self.kind.directions(self.core.likelihood, table, data, seed)
        counts = data.row_weights(table)
        for first in range(0, directions.num, self.directions_at_once):
            some = directions.take(first, first + self.directions_at_once)
            along = as_outputs(self.core.likelihood, some.expand(len(some), *table.shape))
            uses = passed.uses(along, by_row=self.total.by_row)
            self.total.add(uses, counts)
            counts = torch.zeros_like(counts)  # rows count once, however many directions there are
