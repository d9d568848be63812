"""The default optimiser, and which optimisers treat every weight on its own."""

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.optim import Optimizer

__all__ = ["fused_adam", "is_elementwise"]

_ELEMENTWISE = (
    torch.optim.SGD,
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.Adamax,
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.RMSprop,
    torch.optim.Adagrad,
    torch.optim.Adadelta,
    torch.optim.Rprop,
)
_FUSED_DEVICES = {"cpu", "cuda", "xpu"}


def fused_adam(params: Iterable[Tensor], lr: float = 1e-3) -> Optimizer:
    """Adam in one kernel over all weights, where the device has it (Adam, Kingma and Ba 2015)."""
    params = list(params)
    fused = bool(params) and all(p.device.type in _FUSED_DEVICES and p.is_floating_point() for p in params)
    return torch.optim.Adam(params, lr=lr, fused=fused)


def is_elementwise(optimizer: Optimizer) -> bool:
    """Whether updating stacked weights equals updating each member alone: known for the types listed here only."""
    return type(optimizer) in _ELEMENTWISE
