"""The outputs of a network, linearised in its weights: f(w*) + J (w - w*), without the Jacobian J.

The derivative in u of u' J v is J v. So one forward and one backward pass, of which the graph is kept, serve all draws
of the weights, and each draw costs one pass back through that graph, several at once. Unlike the forward mode of
automatic differentiation, which lacks rules for recurrent and attention kernels, this needs nothing but gradients.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from credibly.core.errors import NotSupportedError
from credibly.core.inputs import leaves, num_rows, take_rows
from credibly.core.typing import Inputs, Params
from credibly.posteriors.evaluation import is_mappable

__all__ = ["linear_outputs"]

_ROWS = 512  # whose graph is held at once
_CHUNK_NUMBERS = 2**22  # numbers of one mapped activation that still sit in the cache


def linear_outputs(
    call: Callable[[Params, Inputs], Tensor], net: nn.Module, mean: Params, offsets: Params, inputs: Inputs
) -> Tensor:
    """The linearised outputs at every draw, (num_draws, *outputs).

    Args:
        call: the network's outputs at some weights, the others as they are.
        net: what is called, to see what it is made of and how wide it is.
        mean: the weights w* around which it is linear.
        offsets: w - w* for every draw, each with a leading draw axis.
        inputs: of all rows. Where they require gradients, so do the outputs.
    """
    rows = num_rows(inputs)
    num_draws = len(next(iter(offsets.values())))
    chunk = min(num_draws, _draws_at_once(net, min(rows, _ROWS)))
    keep = torch.is_grad_enabled() and any(leaf.requires_grad for leaf in leaves(inputs))
    parts = []
    for start in range(0, rows, _ROWS):
        some = take_rows(inputs, slice(start, start + _ROWS)) if rows > _ROWS else inputs
        with torch.enable_grad(), _twice_differentiable(net, some):
            part = torch.cat(list(_of_rows(lambda params, x=some: call(params, x), mean, offsets, chunk, keep=keep)))  # type: ignore[misc]
        parts.append(part if keep else part.detach())
    return torch.cat(parts, 1)


def _of_rows(
    call: Callable[[Params], Tensor], mean: Params, offsets: Params, chunk: int, *, keep: bool
) -> Iterator[Tensor]:
    """Some draws at a time; `keep` a graph."""
    weights = {name: value.detach().requires_grad_() for name, value in mean.items()}
    value = call(weights)
    probe = torch.zeros_like(value, requires_grad=True)
    pulled = torch.autograd.grad(value, list(weights.values()), probe, create_graph=True, materialize_grads=True)
    for tables in zip(*(torch.split(offsets[name], chunk) for name in weights), strict=True):
        along = tables if chunk > 1 else tuple(table.squeeze(0) for table in tables)
        (slopes,) = torch.autograd.grad(
            pulled, probe, along, retain_graph=True, create_graph=keep, is_grads_batched=chunk > 1
        )
        yield value + (slopes if chunk > 1 else slopes.unsqueeze(0))


def _draws_at_once(net: nn.Module, rows: int) -> int:
    """As many as still sit in the cache; one where kernels cannot be mapped."""
    if not is_mappable(net):
        return 1
    widest = max((weight.shape[0] for weight in net.parameters() if weight.dim() > 0), default=1)
    return max(1, _CHUNK_NUMBERS // (rows * widest))


@contextmanager
def _twice_differentiable(net: nn.Module, inputs: Inputs) -> Iterator[None]:
    """Without the fused kernels that can be differentiated only once, for a while.

    Raises:
        NotSupportedError: a layer that has no other.
    """
    on_cuda = any(leaf.is_cuda for leaf in leaves(inputs)) and not is_mappable(net)
    plain: AbstractContextManager[None] = torch.backends.cudnn.flags(enabled=False) if on_cuda else nullcontext()
    try:
        with sdpa_kernel(SDPBackend.MATH), plain:
            yield
    except RuntimeError as error:
        if "the derivative for" not in str(error):
            raise
        raise NotSupportedError(
            f"draws of the linearised network take gradients of gradients, which a layer does not have ({error}); "
            "predict by the network at drawn weights, Laplace(linearized=False)"
        ) from error
