"""Weights as dicts of tensors: taken out of a module, stacked over draws, put back, initialised afresh.

A weight that a network uses in several places has one name, its first, and one entry.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from credibly.core.errors import NotSupportedError, ShapeError
from credibly.core.randomness import seeded
from credibly.core.typing import Params

__all__ = [
    "buffers_of",
    "check_params",
    "evaluating",
    "floating_dtype",
    "initialize",
    "load_params",
    "module_device",
    "stack",
    "trainable_params",
    "unstack",
]


def trainable_params(module: nn.Module) -> Params:
    """The weights that require gradients, detached and shared with the module; tied weights once."""
    return {name: p.detach() for name, p in module.named_parameters() if p.requires_grad}


def buffers_of(module: nn.Module) -> Params:
    """The buffers (BatchNorm statistics and the like), shared with the module."""
    return dict(module.named_buffers())


def stack(members: Sequence[Params]) -> Params:
    """Dicts with equal names as one dict whose tensors have a leading draw axis."""
    return {name: torch.stack([member[name] for member in members]) for name in members[0]}


def unstack(params: Params) -> list[Params]:
    """The draws of a stacked dict, one by one."""
    if not params:
        return []
    num_draws = next(iter(params.values())).shape[0]
    return [{name: value[draw] for name, value in params.items()} for draw in range(num_draws)]


def check_params(params: Params, like: Params, name: str = "start") -> None:
    """Raise unless `params` has the names and shapes of `like`."""
    missing, extra = sorted(like.keys() - params.keys()), sorted(params.keys() - like.keys())
    if missing or extra:
        raise ValueError(f"`{name}` must hold exactly the trainable weights; missing {missing}, unknown {extra}")
    for key, value in like.items():
        if params[key].shape != value.shape:
            raise ShapeError(
                f"`{name}['{key}']` must have shape {tuple(value.shape)}; got {tuple(params[key].shape)}"
            )


def load_params(module: nn.Module, values: Params) -> None:
    """Copy values into the module's parameters and buffers of those names."""
    own = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    with torch.no_grad():
        for name, value in values.items():
            own[name].copy_(value)


def module_device(module: nn.Module) -> torch.device:
    """The device of the module's tensors: read from them, never stored."""
    for tensor in (*module.parameters(), *module.buffers()):
        return tensor.device
    return torch.device("cpu")


def floating_dtype(module: nn.Module) -> torch.dtype:
    """The dtype of the module's first floating weight; torch's default where it has none."""
    for tensor in (*module.parameters(), *module.buffers()):
        if tensor.is_floating_point():
            return tensor.dtype
    return torch.get_default_dtype()


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
    """Draw fresh weights in place by each layer's own `reset_parameters`.

    Frozen layers keep their weights (a pretrained backbone stays pretrained). Layers are reset before the
    modules that contain them, so that a container may refine what its parts drew.

    Raises:
        NotSupportedError: if a module owns weights and has no `reset_parameters`.
    """
    frozen = {p: p.detach().clone() for p in module.parameters() if not p.requires_grad}
    with seeded(seed, "init", device=device), torch.no_grad():
        for name, part in reversed(list(module.named_modules())):
            own = list(part.parameters(recurse=False))
            if not own and not list(part.buffers(recurse=False)):
                continue
            if own and not any(p.requires_grad for p in own):
                continue
            _reset(name, part, needed=bool(own))
        for parameter, value in frozen.items():
            parameter.copy_(value)


def _reset(name: str, part: nn.Module, *, needed: bool) -> None:
    # nn.MultiheadAttention names its method with an underscore
    reset = getattr(part, "reset_parameters", None) or getattr(part, "_reset_parameters", None)
    if callable(reset):
        reset()
    elif needed:
        raise NotSupportedError(
            f"`{name}` ({type(part).__name__}) owns weights but has no `reset_parameters`, so members cannot be "
            "initialised afresh; add the method, or pass Ensemble(initialize=f) where f(net) sets new weights"
        )
