"""The outputs of single elements of a target, wherever the network's outputs have them."""

from torch import Tensor

from credibly.likelihoods.base import Likelihood
from credibly.likelihoods.per_element import PerElement

__all__ = ["as_outputs", "as_table"]


def as_table(likelihood: Likelihood, outputs: Tensor) -> Tensor:
    """Outputs with those of one element on the last axis: (rows, *elements, C)."""
    if not isinstance(likelihood, PerElement):
        return outputs
    return outputs.unsqueeze(-1) if likelihood.axis is None else outputs.movedim(likelihood.axis, -1)


def as_outputs(likelihood: Likelihood, table: Tensor) -> Tensor:
    """The layout of the network's outputs, from (..., *elements, C)."""
    if not isinstance(likelihood, PerElement):
        return table
    return table.squeeze(-1) if likelihood.axis is None else table.movedim(-1, likelihood.axis)
