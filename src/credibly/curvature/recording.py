"""The calls of chosen layers in one pass of a network: their inputs, and where in the graph their outputs are.

A forward hook keeps both. It returns None, so that the network goes on with its own tensors, and it keeps the *edge* of
the graph rather than the output, because an activation may be written over the output in place.
"""

import warnings
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.utils.hooks import RemovableHandle

from credibly.core.errors import NotSupportedError

__all__ = ["Call", "backward", "batching", "graph_leaves", "graph_uses", "operations", "recording"]


@dataclass(frozen=True, eq=False)
class Call:
    """One call of a layer.

    Attributes:
        module: the layer.
        inputs: what it was given.
        version: how often that had been written to.
        shape: of what it returned.
        edge: where that is in the graph, possibly in another shape; None if no gradient reaches it.
    """

    module: nn.Module
    inputs: Tensor
    version: int
    shape: torch.Size
    edge: GradientEdge | None

    def checked_inputs(self) -> Tensor:
        """What it was given, if it has not been written over since."""
        if self.inputs._version != self.version:
            raise NotSupportedError(
                f"the inputs of a {type(self.module).__name__} are changed in place after it was called; "
                "write x = x + y instead of x += y"
            )
        return self.inputs


@contextmanager
def batching() -> Iterator[None]:
    """Without torch's advice, of no use to a user, that an operation has no batching rule and is looped over."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*not yet implemented the batching rule.*")
        yield


@contextmanager
def recording(modules: Collection[nn.Module]) -> Iterator[list[Call]]:
    """Calls of the modules while the context is open, in order; no hook is left behind."""
    calls: list[Call] = []

    def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        inputs = args[0] if args else next(iter(kwargs.values()))
        calls.append(Call(module, inputs, inputs._version, output.shape, _edge(output)))

    handles: list[RemovableHandle] = []
    try:
        handles.extend(module.register_forward_hook(note, prepend=True, with_kwargs=True) for module in modules)
        yield calls
    finally:
        for handle in handles:
            handle.remove()


def _edge(output: Tensor) -> GradientEdge | None:
    if not output.requires_grad:
        return None
    base = output._base
    if base is not None and base.requires_grad and base.numel() == output.numel() and base.is_contiguous():
        return get_gradient_edge(base)  # what is written into a view in place goes by its base
    return get_gradient_edge(output)


def backward(outputs: Tensor, calls: Sequence[Call], directions: Tensor, *, keep: bool) -> list[Tensor]:
    """The gradients of `sum(outputs * direction)` in what each call returned, for K directions at once.

    Args:
        outputs: of the network.
        calls: recorded while they were computed.
        directions: (K, *outputs.shape).
        keep: keep a graph through the gradients.

    Returns:
        for each call (K, *shape of its output).
    """
    edges = [call.edge for call in calls if call.edge is not None]
    found = iter(_gradients(outputs, edges, directions, keep) if edges and outputs.requires_grad else [])
    gradients = [None if call.edge is None else next(found, None) for call in calls]
    shapes = [(len(directions), *call.shape) for call in calls]
    return [
        directions.new_zeros(shape) if gradient is None else gradient.reshape(shape)
        for gradient, shape in zip(gradients, shapes, strict=True)
    ]


def _gradients(outputs: Tensor, edges: Any, directions: Tensor, keep: bool) -> list[Tensor | None]:
    options: dict[str, Any] = {"retain_graph": True, "create_graph": keep, "allow_unused": True}
    if len(directions) == 1:
        return _stacked([torch.autograd.grad(outputs, edges, directions[0], **options)])
    try:
        with batching():
            found = torch.autograd.grad(outputs, edges, directions, is_grads_batched=True, **options)
    except RuntimeError:  # an operation without a batched backward: one direction after another
        found = _stacked([torch.autograd.grad(outputs, edges, direction, **options) for direction in directions])
    return list(found)


def _stacked(parts: list[tuple[Tensor | None, ...]]) -> list[Tensor | None]:
    return [None if column[0] is None else torch.stack(column) for column in zip(*parts, strict=True)]


def graph_uses(outputs: Tensor) -> tuple[dict[int, int], set[Any]]:
    """How often the graph of the outputs uses each leaf, by its id, and all of its nodes."""
    nodes = _nodes(outputs)
    uses = Counter(id(leaf) for leaf in _used(nodes))
    return uses, nodes


def operations(outputs: Tensor) -> set[str]:
    """The names of the operations in the graph of the outputs, as autograd has them."""
    return {node.name() for node in _nodes(outputs)}


def graph_leaves(outputs: Tensor) -> list[Tensor]:
    """The tensors that the graph of the outputs begins with, each once."""
    return list({id(leaf): leaf for leaf in _used(_nodes(outputs))}.values())


def _used(nodes: set[Any]) -> Iterator[Tensor]:
    for node in nodes:
        for following, _ in node.next_functions:
            leaf = getattr(following, "variable", None)
            if leaf is not None:
                yield leaf


def _nodes(outputs: Tensor) -> set[Any]:
    """All nodes but those of leaves."""
    nodes: set[Any] = set()
    waiting = [outputs.grad_fn] if outputs.grad_fn is not None else []
    while waiting:
        node = waiting.pop()
        if node in nodes:
            continue
        nodes.add(node)
        waiting += [f for f, _ in node.next_functions if f is not None and not hasattr(f, "variable")]
    return nodes
