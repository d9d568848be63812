"""Evaluating a network at many weights: a mapped batch of products, or a loop where one draw fills the cores."""

from collections.abc import Callable, Sequence
from typing import TypeAlias, cast

import torch
from torch import Tensor, nn
from torch.func import vmap

from credibly.core.inputs import leaves
from credibly.core.params import stack
from credibly.core.typing import Inputs, Params

__all__ = ["Evaluated", "concatenate", "concatenated", "evaluate_draws", "grad_if_needed", "is_mappable", "map_draws"]

Evaluated: TypeAlias = Tensor | dict[str, Tensor]

_LOOP_ROWS = 512  # from here on one draw's products fill the cores, and mapping only adds traffic
_CHUNK_NUMBERS = 2**22  # numbers of one mapped activation that still sit in the cache


def evaluate_draws(
    call: Callable[[Params, Params], Evaluated],
    net: nn.Module,
    params: Params,
    buffers: Params,
    *,
    num_draws: int,
    rows: int,
    own_buffers: bool = False,
) -> Evaluated:
    """`call` at every draw of the weights, stacked on axis 0.

    Args:
        call: evaluates at one draw's weights and buffers.
        net: what is called, to see whether it can be mapped and how wide it is.
        params: each with a leading draw axis.
        buffers: shared by all draws, or with a leading draw axis.
        num_draws: the size of that axis.
        rows: how many rows one call evaluates.
        own_buffers: whether buffers have a draw axis.
    """

    def one(draw: int) -> Evaluated:
        own = {name: value[draw] for name, value in buffers.items()} if own_buffers else buffers
        return call({name: value[draw] for name, value in params.items()}, own)

    if rows >= _LOOP_ROWS or num_draws == 1 or not is_mappable(net):
        return _stack([one(draw) for draw in range(num_draws)])
    widest = max((weight.shape[0] for weight in net.parameters() if weight.dim() > 0), default=1)
    chunk = max(1, _CHUNK_NUMBERS // (rows * widest))
    in_dims = (0, 0 if own_buffers else None)
    return vmap(call, in_dims=in_dims, chunk_size=min(chunk, num_draws), randomness="different")(params, buffers)


def map_draws(call: Callable[[list[Tensor]], Evaluated], draws: list[Tensor], *, chunk: int) -> Evaluated:
    """`call` at each draw of some random tensors, stacked on axis 0.

    Args:
        call: evaluates one draw.
        draws: each with the draws on axis 0.
        chunk: how many draws to map together; below 2 they are looped over.
    """
    if chunk < 2:
        return _stack([call(list(draw)) for draw in zip(*(table.unbind(0) for table in draws), strict=True)])
    parts = zip(*(torch.split(table, chunk) for table in draws), strict=True)
    return concatenate([vmap(call, randomness="different")(list(part)) for part in parts])


def is_mappable(net: nn.Module) -> bool:
    """Whether `vmap` has rules for all layers; recurrent kernels have none."""
    return not any(isinstance(part, nn.RNNBase) for part in net.modules())


def _stack(parts: list[Evaluated]) -> Evaluated:
    if isinstance(parts[0], dict):
        return stack(cast("list[dict[str, Tensor]]", parts))
    return torch.stack(cast("list[Tensor]", parts))


def concatenated(parts: Sequence[dict[str, Tensor]], axis: int = 0) -> dict[str, Tensor]:
    """Dicts with equal names as one, joined along an axis."""
    return {name: torch.cat([part[name] for part in parts], axis) for name in parts[0]}


def concatenate(parts: list[Evaluated]) -> Evaluated:
    """What was evaluated at some draws after others, joined on axis 0."""
    if isinstance(parts[0], dict):
        return concatenated(cast("list[dict[str, Tensor]]", parts))
    return torch.cat(cast("list[Tensor]", parts))


def grad_if_needed(inputs: Inputs) -> torch.set_grad_enabled:
    """A context that keeps a graph only where an input requires gradients."""
    return torch.set_grad_enabled(torch.is_grad_enabled() and any(leaf.requires_grad for leaf in leaves(inputs)))
