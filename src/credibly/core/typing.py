"""The names that signatures use throughout the library."""

from typing import Any, TypeAlias

from torch import Tensor

__all__ = ["ArrayLike", "Inputs", "Params"]

Params: TypeAlias = dict[str, Tensor]
"""Weights by name, under ``net.`` and ``likelihood.``; a leading axis, where there is one, is the draw."""

Inputs: TypeAlias = Tensor | tuple[Tensor, ...] | dict[str, Tensor]
"""What a network reads: ``net(x)``, ``net(*x)`` or ``net(**x)``. All tensors share axis 0, the rows."""

ArrayLike: TypeAlias = Any
"""A tensor, a numpy array, a pandas object or a nested list of numbers."""
