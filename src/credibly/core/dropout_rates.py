"""Rates of dropout that were learned: set in a network, and read from it again.

A layer `nn.Dropout` holds its rate itself. Any other layer can be given a dropout of what it reads, by a hook that goes
with the layer when it is copied or pickled. Names are those of the modules inside the network.
"""

from collections.abc import Mapping
from typing import Any

import torch.nn.functional as F
from torch import nn

__all__ = ["DROPOUT_LAYERS", "InputDropout", "learned_rates", "set_known_rates", "set_rates", "without_input_dropout"]

DROPOUT_LAYERS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
_MARK = "rate_is_learned"


class InputDropout:
    """A hook that drops units of the first thing that a layer reads, while the layer's training flag is on.

    Args:
        rate: how often a unit is dropped.
    """

    def __init__(self, rate: float) -> None:
        self.rate = rate

    def __call__(self, layer: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments of the layer, units of the first dropped."""
        return F.dropout(args[0], self.rate, layer.training), *args[1:]


def set_rates(net: nn.Module, rates: Mapping[str, float]) -> None:
    """Set rates by name, in place: those of dropout layers, and dropouts of what other layers read.

    Args:
        net: the network.
        rates: in (0, 1), by the names of modules.
    """
    for name, rate in rates.items():
        part = net.get_submodule(name)
        if isinstance(part, DROPOUT_LAYERS):
            part.p = rate
            setattr(part, _MARK, True)
            continue
        hooks = _hooks(part)
        for hook in hooks:
            hook.rate = rate
        if not hooks:
            part.register_forward_pre_hook(InputDropout(rate))


def set_known_rates(net: nn.Module, rates: Mapping[str, float]) -> None:
    """Set the rates of those modules that the network has, in place; see `set_rates`."""
    known = dict(net.named_modules())
    set_rates(net, {name: rate for name, rate in rates.items() if name in known})


def learned_rates(net: nn.Module) -> dict[str, float]:
    """The rates that were set, by the names of their modules."""
    found = {}
    for name, part in net.named_modules():
        if getattr(part, _MARK, False):
            found[name] = float(part.p)
        for hook in _hooks(part):
            found[name] = hook.rate
    return found


def without_input_dropout(part: nn.Module) -> None:
    """Take the dropout of what a layer reads away again, in place."""
    for key, hook in list(part._forward_pre_hooks.items()):
        if isinstance(hook, InputDropout):
            del part._forward_pre_hooks[key]


def _hooks(part: nn.Module) -> list[InputDropout]:
    return [hook for hook in part._forward_pre_hooks.values() if isinstance(hook, InputDropout)]
