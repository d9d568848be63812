"""Copies of modules that have run."""

import copy
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

__all__ = ["copied"]

M = TypeVar("M", bound=nn.Module)

_REGISTERED = {"_parameters", "_buffers", "_modules"}


def copied(module: M) -> M:
    """A deep copy, also of a module that keeps what it computed: features, attention, a normalised weight.

    `copy.deepcopy` refuses tensors with a graph, and those of a pass over many draws at once. Here the former come
    without their graph and the latter empty: the next call of the module writes them anew.
    """
    memo: dict[int, Any] = {}
    for part in module.modules():
        for value in tree_leaves([v for k, v in vars(part).items() if k not in _REGISTERED]):
            if isinstance(value, Tensor) and torch._C._functorch.is_functorch_wrapped_tensor(value):
                memo[id(value)] = torch.empty(0)
            elif isinstance(value, Tensor) and not value.is_leaf:
                memo[id(value)] = value.detach().clone()
    return copy.deepcopy(module, memo)
