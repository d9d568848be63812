"""Gradients of single rows' outputs, for weights of which no rule is known: `vmap` over rows, or a loop.

A network without rows that depend on each other gives for a row alone what it gives for it among others. That is
checked, and whatever a layer does with its weights is right then.
"""

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor
from torch.func import vjp, vmap

from credibly.core.errors import NotSupportedError, ShapeError
from credibly.core.inputs import map_inputs, num_rows, take_rows
from credibly.core.substitution import functional_call
from credibly.core.typing import Inputs
from credibly.curvature.recording import batching
from credibly.model import Core

__all__ = ["row_gradients"]

_TOLERANCE = 1e-3


def row_gradients(
    core: Core, inputs: Inputs, weights: dict[str, Tensor], outputs: Tensor, directions: Tensor, *, keep: bool
) -> dict[str, Tensor]:
    """The gradients of `outputs * direction`, summed over the outputs of a row, in weights.

    Args:
        core: in evaluation mode.
        inputs: rows, on its side.
        weights: by name.
        outputs: of all rows together.
        directions: (K, *outputs.shape).
        keep: keep a graph through the gradients.

    Returns:
        (K, rows, d) for each weight of d entries.

    Raises:
        NotSupportedError: a row alone has other outputs than among the others.
    """
    try:
        with batching():
            alone, found = _mapped(core, inputs, weights, directions)
    except (RuntimeError, ShapeError, TypeError):  # an operation without a rule for vmap, such as a recurrent kernel
        alone, found = _looped(core, inputs, weights, directions, keep)
    scale = float(outputs.detach().abs().max())
    if not torch.allclose(alone.detach(), outputs.detach(), rtol=_TOLERANCE, atol=_TOLERANCE * scale):
        raise NotSupportedError(
            f"the weights {list(weights)} need gradients row by row, and a row alone has other outputs than among "
            "other rows: the network lets rows depend on each other; freeze these weights"
        )
    return {name: gradient.reshape(*gradient.shape[:2], -1) for name, gradient in found.items()}


def _mapped(
    core: Core, inputs: Inputs, weights: dict[str, Tensor], directions: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    def one(row: Inputs, own: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        call = _of_weights(core, map_inputs(lambda leaf: leaf.unsqueeze(0), row))
        outputs, back = cast(tuple[Tensor, Callable[[Tensor], tuple[dict[str, Tensor]]]], vjp(call, weights))
        return outputs, vmap(lambda direction: back(direction)[0])(own)

    return vmap(one, out_dims=(0, 1))(inputs, directions.transpose(0, 1))


def _of_weights(core: Core, row: Inputs) -> Callable[[dict[str, Tensor]], Any]:
    return lambda weights: functional_call(core, weights, (row, "outputs"))[0]


def _looped(
    core: Core, inputs: Inputs, weights: dict[str, Tensor], directions: Tensor, keep: bool
) -> tuple[Tensor, dict[str, Tensor]]:
    outputs: list[Tensor] = []
    columns: list[list[tuple[Tensor, ...]]] = []
    for index in range(num_rows(inputs)):
        own = core(take_rows(inputs, slice(index, index + 1)), "outputs")[0]
        outputs.append(own)
        columns.append([_one(own, weights, direction, keep) for direction in directions[:, index]])
    parts = zip(*(zip(*column, strict=True) for column in columns), strict=True)  # by weight, row, direction
    stacked = [torch.stack([torch.stack(row) for row in rows], 1) for rows in parts]
    return torch.stack(outputs), dict(zip(weights, stacked, strict=True))


def _one(outputs: Tensor, weights: dict[str, Tensor], direction: Tensor, keep: bool) -> tuple[Tensor, ...]:
    options = {"retain_graph": True, "create_graph": keep, "materialize_grads": True}
    return torch.autograd.grad(outputs, tuple(weights.values()), direction, **options)
