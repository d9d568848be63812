"""Bridges: a `Model` in the terms of another probabilistic programming library. Each loads on first use."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from credibly.bridges.pyro import PyroProgram, to_pyro

__all__ = ["PyroProgram", "to_pyro"]

_DEFINED_IN = {"PyroProgram": "pyro", "to_pyro": "pyro"}


def __getattr__(name: str) -> Any:
    if name not in _DEFINED_IN:
        raise AttributeError(f"module 'credibly.bridges' has no attribute '{name}'")
    return getattr(import_module(f"credibly.bridges.{_DEFINED_IN[name]}"), name)


def __dir__() -> list[str]:
    return list(__all__)
