"""Evaluating a network at many weights: a mapped batch of products, or a loop where one draw fills the cores.

How large the network's tensors become, and how they grow with the rows, is seen by running it on two and three rows.
By that, draws are mapped some at a time, and rows are looped over some at a time, so that what one call makes stays in
the cache, and memory is the same for any number of draws and rows but for the results.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from credibly.core.inputs import leaves, num_rows, split_inputs, take_rows
from credibly.core.randomness import seeded
from credibly.core.substitution import Substitution
from credibly.core.typing import Inputs, Params

__all__ = ["Evaluated", "Evaluator", "concatenated", "grad_if_needed", "is_mappable", "joined", "map_draws"]

Evaluated: TypeAlias = Tensor | dict[str, Tensor]

_LOOP_ROWS = 256  # from here on one draw's products fill the cores, and mapping only adds traffic
_CHUNK_NUMBERS = 2**20  # numbers of the largest tensor of mapped draws that still sits in the cache
_LOOP_NUMBERS = 2**19  # numbers of the largest tensor of one draw that still sits in a core's own cache
_LEAST_ROWS = 64  # rows below which a loop's calls cost more than what they compute


@dataclass(frozen=True, eq=False)
class Evaluator:
    """Evaluates a network on the same rows at any number of draws of its weights.

    Attributes:
        call: evaluates rows at one draw's weights and buffers; those left out are the network's own.
        net: what is called, to see whether it can be mapped.
        inputs: the rows.
    """

    call: Callable[[Params, Params, Inputs], Evaluated]
    net: nn.Module
    inputs: Inputs

    def __call__(self, params: Params, buffers: Params, *, num_draws: int, own_buffers: bool = False) -> Evaluated:
        """`call` at every draw, stacked on axis 0.

        Args:
            params: each with a leading draw axis.
            buffers: shared by all draws, or with a leading draw axis.
            num_draws: the size of that axis.
            own_buffers: whether buffers have a draw axis.
        """
        at_once = self._draws_at_once if num_draws > 1 else 1
        if at_once > 1:
            in_dims = (0, 0 if own_buffers else None)
            mapped = vmap(
                lambda own, shared: self.call(own, shared, self.inputs),
                in_dims=in_dims,
                chunk_size=min(at_once, num_draws),
                randomness="different",
            )
            with suppress(RuntimeError):  # something in the network that vmap has no rule for: a loop needs none
                return mapped(params, buffers)

        def one(draw: int) -> Evaluated:
            own = {name: value[draw] for name, value in buffers.items()} if own_buffers else buffers
            return self._by_rows({name: value[draw] for name, value in params.items()}, own)

        return joined((_lifted(one(draw)) for draw in range(num_draws)), num_draws)

    def _by_rows(self, params: Params, buffers: Params) -> Evaluated:
        """One draw, some rows at a time."""
        some, rows = self._rows_at_once, num_rows(self.inputs)
        if some >= rows:
            return self.call(params, buffers, self.inputs)
        return joined((self.call(params, buffers, part) for part in split_inputs(self.inputs, some)), rows)

    @cached_property
    def _draws_at_once(self) -> int:
        if num_rows(self.inputs) >= _LOOP_ROWS or not is_mappable(self.net):
            return 1
        return max(1, _CHUNK_NUMBERS // max(self._growth.numbers(num_rows(self.inputs)), 1))

    @cached_property
    def _rows_at_once(self) -> int:
        rows = num_rows(self.inputs)
        if rows <= _LEAST_ROWS:
            return rows
        parts = min(rows * self._growth.per_row / _LOOP_NUMBERS, rows / _LEAST_ROWS)
        return -(-rows // max(1, round(parts)))

    @cached_property
    def _growth(self) -> "_Growth":
        few = [self._sizes(take_rows(self.inputs, slice(0, rows))) for rows in (2, 3)]
        return _Growth(*few)

    def _sizes(self, inputs: Inputs) -> list[int]:
        """The size of every tensor that one call makes, in order."""
        device = leaves(inputs)[0].device
        seen = _Sizes()
        own = {
            name: p.detach().clone() for name, p in self.net.named_parameters()
        }  # a network may write to its weights
        with torch.no_grad(), seeded(0, "record", device=device), Substitution(self.net).of(own), seen:
            self.call({}, {}, inputs)
        return seen.sizes


class _Sizes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the size of what every operation gives."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.sizes: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not func.is_view:
            self.sizes += [leaf.numel() for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        return result


@dataclass(frozen=True)
class _Growth:
    """The sizes of a call's tensors on two and on three rows; of fewer rows, where there are fewer, twice the same."""

    two: list[int]
    three: list[int]

    @cached_property
    def per_row(self) -> int:
        """By how much the tensor that grows the most does so with each row."""
        if len(self.two) != len(self.three):
            return max(self.three, default=0) // 3
        return max((b - a for a, b in zip(self.two, self.three, strict=True)), default=0)

    def numbers(self, rows: int) -> int:
        """The size of the largest tensor."""
        if len(self.two) != len(self.three):
            return self.per_row * rows
        return max((a + (b - a) * (rows - 2) for a, b in zip(self.two, self.three, strict=True)), default=0)


def map_draws(call: Callable[[list[Tensor]], Evaluated], draws: list[Tensor], *, chunk: int) -> Evaluated:
    """`call` at each draw of some random tensors, stacked on axis 0.

    Args:
        call: evaluates one draw.
        draws: each with the draws on axis 0.
        chunk: how many draws to map together; below 2 they are looped over.
    """
    num_draws = len(draws[0])
    if chunk > 1:
        parts = zip(*(torch.split(table, chunk) for table in draws), strict=True)
        with suppress(RuntimeError):  # something in the network that vmap has no rule for: a loop needs none
            return joined((vmap(call, randomness="different")(list(part)) for part in parts), num_draws)
    each = zip(*(table.unbind(0) for table in draws), strict=True)
    return joined((_lifted(call(list(draw))) for draw in each), num_draws)


def is_mappable(net: nn.Module) -> bool:
    """Whether `vmap` has rules for all layers; recurrent kernels have none."""
    return not any(isinstance(part, nn.RNNBase) for part in net.modules())


def _lifted(value: Evaluated) -> Evaluated:
    """With a leading axis of size 1."""
    if isinstance(value, dict):
        return {name: part.unsqueeze(0) for name, part in value.items()}
    return value.unsqueeze(0)


def concatenated(parts: Sequence[dict[str, Tensor]], axis: int = 0) -> dict[str, Tensor]:
    """Dicts with equal names as one, joined along an axis."""
    return {name: torch.cat([part[name] for part in parts], axis) for name in parts[0]}


def joined(parts: Iterable[Evaluated], size: int) -> Evaluated:
    """Parts that follow each other on axis 0, where they are `size` long together, as one.

    They are written into the result as they come, so that nothing is held twice; with a graph they are concatenated.
    """
    tables = (part if isinstance(part, dict) else {"": part} for part in parts)
    whole = concatenated(list(tables)) if torch.is_grad_enabled() else _written(tables, size)
    return whole.get("", whole)


def _written(tables: Iterator[dict[str, Tensor]], size: int) -> dict[str, Tensor]:
    whole: dict[str, Tensor] = {}
    start = 0
    for table in tables:
        for name, part in table.items():
            if name not in whole:
                whole[name] = part.new_empty(size, *part.shape[1:])
            whole[name][start : start + len(part)] = part
        start += len(next(iter(table.values())))
    return whole


def grad_if_needed(inputs: Inputs) -> torch.set_grad_enabled:
    """A context that keeps a graph only where an input requires gradients."""
    return torch.set_grad_enabled(torch.is_grad_enabled() and any(leaf.requires_grad for leaf in leaves(inputs)))
