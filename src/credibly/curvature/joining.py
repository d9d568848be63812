"""Weights that several layers, or several calls of one, share."""

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import torch

from credibly.curvature.uses import Direct, Lookup, Product, Use

__all__ = ["are_alike", "joined"]


def joined(uses: Sequence[Use]) -> Use:
    """One use of a weight, of all of its uses by the same rows.

    Uses of one kind are positions of one use; otherwise the gradients are written out and added up.
    """
    first = uses[0]
    if len(uses) == 1:
        return first
    if not are_alike(uses) or isinstance(first, Direct):
        return Direct(torch.stack([use.rows() for use in uses]).sum(0))
    if isinstance(first, Product):
        products = cast(Sequence[Product], uses)
        inputs = torch.cat([use.inputs for use in products], 1)
        return replace(first, inputs=inputs, gradients=torch.cat([use.gradients for use in products], 2))
    lookups = cast(Sequence[Lookup], uses)
    indices = torch.cat([use.indices for use in lookups], 1)
    return Lookup(indices, torch.cat([use.gradients for use in lookups], 2), lookups[0].num_entries)


def are_alike(uses: Sequence[Use]) -> bool:
    """Whether layers of one kind use the weight, in tables of one layout."""
    return len({_layout(use) for use in uses}) == 1


def _layout(use: Use) -> tuple[object, ...]:
    if isinstance(use, Product):
        return Product, use.transposed, use.inputs.shape[2:], use.gradients.shape[3:]
    return (type(use),)
