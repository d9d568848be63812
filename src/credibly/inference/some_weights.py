"""Single weights instead of whole tensors: which ones, and the curvature over them alone.

The matrix over k of d weights is made from the rows' Jacobians, restricted to those weights, a few rows at a time:
nothing of d by d numbers exists at any moment.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from credibly.core.data import Data, Source
from credibly.core.errors import NotSupportedError
from credibly.core.params import evaluating
from credibly.curvature.kinds import GGN, CurvatureKind
from credibly.curvature.outputs import jacobians
from credibly.curvature.structures import Dense, Diagonal, Structure
from credibly.model import Model

__all__ = ["check_some_weights", "largest", "over_some_weights"]

_NUMBERS = 2**24  # of a table of Jacobians held at once


def largest(values: Tensor, most: int) -> Tensor:
    """A mask, 1 at the largest of some values, the first of equals."""
    order = values.argsort(descending=True, stable=True)
    mask = torch.zeros_like(values)
    mask[order[:most]] = 1
    return mask


def check_some_weights(model: Model, most: int, structure: Structure, kind: CurvatureKind, max_bytes: int) -> None:
    """What `LargestVariance` takes.

    Args:
        model: whose likelihood gives the Fisher matrix.
        most: how many weights.
        structure: must be Dense, or Diagonal, which needs nothing else.
        kind: must be GGN with the exact Fisher matrix.
        max_bytes: the most that the matrix may take.

    Raises:
        NotSupportedError: another structure or kind, a target with several elements, or too many weights.
    """
    if isinstance(structure, Diagonal):
        return
    if not isinstance(structure, Dense):
        raise NotSupportedError(
            f"LargestVariance chooses single weights, over which {structure!r} is not defined; use structure=Dense() "
            "or Diagonal()"
        )
    if not isinstance(kind, GGN) or kind.num_scores is not None or model.likelihood.elements()[1]:
        raise NotSupportedError(
            "LargestVariance takes curvature=GGN(), with the likelihood's own Fisher matrix, and targets of one "
            "element a row; use whole tensors, Named([...])"
        )
    bytes_needed = most**2 * torch.finfo(next(model.net.parameters()).dtype).bits // 8
    if bytes_needed > max_bytes:
        raise NotSupportedError(
            f"a matrix over {most} weights takes {bytes_needed / 2**30:.2f} GiB, and `max_bytes` allows "
            f"{max_bytes / 2**30:.2f} GiB; choose fewer weights, or structure=Diagonal()"
        )


def over_some_weights(model: Model, source: Source, names: Sequence[str], index: Tensor) -> Tensor:
    """The generalised Gauss-Newton matrix over some weights, (k, k), summed over rows.

    Args:
        model: on the network's side of any standardisation.
        source: likewise.
        names: tensors of the flat vector of d weights.
        index: (k,) which of them.
    """
    per_row = model.likelihood.num_outputs * sum(model.core.get_parameter(name).numel() for name in names)
    total = None
    for batch in source.batches(max(1, _NUMBERS // per_row)):
        for part in batch.split(max(1, _NUMBERS // per_row)):
            matrix = _of_rows(model, part, names, index)
            total = matrix if total is None else total + matrix
    assert total is not None
    return total


def _of_rows(model: Model, batch: Data, names: Sequence[str], index: Tensor) -> Tensor:
    table = jacobians(model, batch.inputs, names)[..., index]
    with torch.no_grad(), evaluating(model.core):
        fisher = model.core(batch.inputs, "fisher")
    return torch.einsum("r,rci,rcd,rdj->ij", batch.row_weights(table), table, fisher, table)
