"""Whether a network reads its weights where they are registered, so that others can take their place.

A weight may also hang on a plain attribute, in a list or a tuple, or a function may hold the network itself, which a
copy of the network then goes on calling: a lambda, a patched `forward`, the closure of a hook. What is put in the
weight's place does not get there, and nothing would fail. So it is with what a network computed of its weights and
keeps, such as merged adapters, and with inputs that it writes to.
"""

import torch
from torch import Tensor, nn

from credibly.core.errors import NotSupportedError
from credibly.core.inputs import leaves, map_inputs
from credibly.core.params import buffers_of, evaluating, module_device
from credibly.core.randomness import seeded
from credibly.core.substitution import functional_call
from credibly.core.typing import Inputs
from credibly.curvature.recording import graph_leaves
from credibly.model import Core

__all__ = ["reached_outputs"]


def reached_outputs(core: Core, inputs: Inputs, given: nn.Module) -> Tensor:
    """The outputs of the network at copies of its weights, if they depend on no others; detached.

    Args:
        core: a copy of the user's; left as it is, but for buffers that its first call makes.
        inputs: a few rows, on the network's side.
        given: the user's own network, which the copy must not depend on.

    Raises:
        NotSupportedError: it depends on some, by name.
    """
    buffers = {name: value.detach().clone() for name, value in buffers_of(core).items()}
    own = map_inputs(torch.Tensor.clone, inputs)

    def outputs_at_copies() -> tuple[Tensor, list[Tensor]]:
        weights = {name: p.detach().clone().requires_grad_(p.requires_grad) for name, p in core.named_parameters()}
        outputs: Tensor = functional_call(core, {**weights, **buffers}, (own, "outputs"))
        copies = {id(weight) for weight in weights.values()}
        return outputs, [leaf for leaf in graph_leaves(outputs) if id(leaf) not in copies]

    with torch.enable_grad(), evaluating(core), seeded(0, "record", device=module_device(core)):
        outputs, others = outputs_at_copies()
        if any(not leaf.is_inference() and leaf._version for leaf in leaves(own)):
            raise NotSupportedError(
                "the network writes to its inputs, so that no two calls read the same; write x = x - 1 for x -= 1"
            )
        _, kept = outputs_at_copies()
    names = {id(p): f"net.{name}" for name, p in given.named_parameters()}
    names |= {id(p): name for name, p in core.named_parameters()}
    params = [leaf for leaf in others if isinstance(leaf, nn.Parameter)]
    past = sorted(names.get(id(leaf), f"one of shape {tuple(leaf.shape)}") for leaf in params)
    if past:
        raise NotSupportedError(
            f"the network reads {past} past where they are registered: by a plain attribute, such as a list of "
            "weights, or by a function that holds the network itself, such as a lambda or a patched forward. No other "
            "weights could take their place; read them from the layers, and write functions as methods"
        )
    if len(kept) > len(others):
        raise NotSupportedError(
            "the network keeps what it computed of its weights in one call for the next, so that no other weights "
            "could take their place; compute it in every call"
        )
    return outputs.detach()
