"""Weights as dicts of tensors: taken out of a module, stacked over draws, put back, initialised afresh.

A weight that a network uses in several places has one name, its first, and one entry.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import TypeVar

import torch
from torch import Tensor, nn

from credibly.core.errors import NotSupportedError, ShapeError
from credibly.core.randomness import seeded
from credibly.core.typing import Params

M = TypeVar("M", bound=nn.Module)

__all__ = [
    "buffers_of",
    "check_params",
    "evaluating",
    "floating_dtype",
    "initialize",
    "load_params",
    "module_device",
    "network_buffers",
    "network_weights",
    "stack",
    "trainable_params",
    "training_mode",
]


def trainable_params(module: nn.Module) -> Params:
    """The weights that require gradients, detached and shared with the module; tied weights once."""
    return {name: p.detach() for name, p in module.named_parameters() if p.requires_grad}


def network_weights(core: nn.Module) -> Params:
    """Those of a model's core that are under `net.`: the weights that can be random.

    Raises:
        ValueError: there are none.
    """
    weights = {name: value for name, value in trainable_params(core).items() if name.startswith("net.")}
    if not weights:
        raise ValueError(
            "no weight of the network is trainable, as none requires a gradient, so none can be random; see "
            "requires_grad_()"
        )
    return weights


def buffers_of(module: nn.Module) -> Params:
    """The buffers (BatchNorm statistics and the like), shared with the module; none that is a weight as well."""
    weights = {id(p) for p in module.parameters()}
    return {name: value for name, value in module.named_buffers() if id(value) not in weights}


def network_buffers(core: nn.Module) -> Params:
    """The buffers under `net.`: what travels with the weights of one draw."""
    return {name: value for name, value in buffers_of(core).items() if name.startswith("net.")}


def stack(members: Sequence[Params]) -> Params:
    """Dicts with equal names as one dict whose tensors have a leading draw axis."""
    return {name: torch.stack([member[name] for member in members]) for name in members[0]}


def check_params(params: Params, like: Params, name: str = "start") -> None:
    """Raise unless `params` has the names and shapes of `like`."""
    missing, extra = sorted(like.keys() - params.keys()), sorted(params.keys() - like.keys())
    if missing or extra:
        raise ValueError(f"`{name}` must hold exactly the trainable weights; missing {missing}, unknown {extra}")
    for key, value in like.items():
        if params[key].shape != value.shape:
            raise ShapeError(f"`{name}['{key}']` must have shape {tuple(value.shape)}; got {tuple(params[key].shape)}")


def load_params(module: nn.Module, values: Params) -> None:
    """Copy values into the module's parameters and buffers of those names."""
    # every name of a tied tensor is known: a module may hold one part under two names
    own = {
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers(remove_duplicate=False)),
    }
    with torch.no_grad():
        for name, value in values.items():
            own[name].copy_(value)


def module_device(module: nn.Module) -> torch.device:
    """The device of the module's tensors: read from them, never stored."""
    for tensor in chain(module.parameters(), module.buffers()):
        return tensor.device
    return torch.device("cpu")


def floating_dtype(module: nn.Module) -> torch.dtype:
    """The dtype of the module's first floating weight; torch's default where it has none."""
    for tensor in chain(module.parameters(), module.buffers()):
        if tensor.is_floating_point():
            return tensor.dtype
    return torch.get_default_dtype()


def training_mode(module: M) -> M:
    """The module in training mode, except layers that are wholly frozen: their BatchNorm statistics stay."""
    module.train()
    for part in module.modules():
        own = list(part.parameters(recurse=False))
        if own and not any(p.requires_grad for p in own):
            part.training = False
    return module


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Evaluation mode for a while; each module's flag is restored, also after an exception."""
    training = [part for part in module.modules() if part.training]
    for part in training:
        part.training = False
    try:
        yield
    finally:
        for part in training:
            part.training = True


def initialize(module: nn.Module, seed: int, device: torch.device) -> None:
    """Draw fresh weights in place by each module's own `reset_parameters`.

    Frozen layers keep their weights (a pretrained backbone stays pretrained). Layers are reset before the
    modules that contain them, so that a container may refine, or draw, the weights of its parts.

    Raises:
        NotSupportedError: if a weight is set by no `reset_parameters`; then the module is left as it was.
    """
    tensors = (*module.parameters(), *module.buffers())
    before = {tensor: tensor.detach().clone() for tensor in tensors}
    trainable = {name: p for name, p in module.named_parameters() if p.requires_grad}
    kept = {part for root in module.modules() if _is_frozen(root) for part in root.modules()}
    try:
        with seeded(seed, "init", device=device), torch.no_grad():
            for weight in trainable.values():
                weight.fill_(math.nan)  # so that what no reset sets is found
            for part in reversed([part for part in module.modules() if part not in kept]):
                _reset(part)
        _check_all_set(module, trainable)
    except BaseException:
        _restore(before)
        raise
    frozen = {p for p in module.parameters() if not p.requires_grad} | {b for part in kept for b in part.buffers()}
    _restore({tensor: before[tensor] for tensor in frozen})


def _is_frozen(part: nn.Module) -> bool:
    """Whether all weights inside, of which there are some, are frozen: the buffers inside belong to them."""
    weights = list(part.parameters())
    return bool(weights) and not any(weight.requires_grad for weight in weights)


def _reset(part: nn.Module) -> None:
    # nn.MultiheadAttention and nn.Transformer name the method with an underscore
    reset = getattr(part, "reset_parameters", None) or getattr(part, "_reset_parameters", None)
    if callable(reset):
        reset()


def _check_all_set(module: nn.Module, trainable: Mapping[str, Tensor]) -> None:
    for name, weight in trainable.items():
        if bool(weight.isnan().any()):
            owner = name.rpartition(".")[0]
            kind = type(module.get_submodule(owner)).__name__
            raise NotSupportedError(
                f"`{owner or kind}` ({kind}) owns the weight `{name}`, which no `reset_parameters` sets, so members "
                "cannot be initialised afresh; add the method (for a network, Ensemble(initialize=f) may set new "
                "weights instead)"
            )


def _restore(values: dict[Tensor, Tensor]) -> None:
    with torch.no_grad():
        for tensor, value in values.items():
            tensor.copy_(value)
