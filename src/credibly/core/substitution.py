"""Call a module with other weights and buffers than its own.

It is what `torch.func.functional_call` does, but for two things. A module that is part of another under two names, as
one layer that is used twice in a `Sequential`, keeps its own weights: torch leaves it with those that were passed. And
which tensor lies where, and which are tied, is found out once for many calls.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

__all__ = ["Substitution", "functional_call"]


def functional_call(module: nn.Module, tensors: Mapping[str, Tensor], args: tuple[Any, ...]) -> Any:
    """What a module gives for the arguments with other weights and buffers; see `Substitution.of`."""
    with Substitution(module).of(tensors):
        return module(*args)


class Substitution:
    """The places of a module's weights and buffers.

    Args:
        module: whose parts and tensors stay the same ones while this is used.
    """

    def __init__(self, module: nn.Module) -> None:
        self._places: dict[str, dict[tuple[int, str], dict[str, Any]]] = {}
        by_tensor: dict[int, dict[tuple[int, str], dict[str, Any]]] = {}
        for prefix, part in module.named_modules(remove_duplicate=False):
            for table in (part._parameters, part._buffers):
                for local, value in table.items():
                    if value is not None:
                        places = by_tensor.setdefault(id(value), {})
                        places[id(table), local] = table
                        self._places[f"{prefix}.{local}" if prefix else local] = places

    @contextmanager
    def of(self, tensors: Mapping[str, Tensor]) -> Iterator[None]:
        """Tensors by name in place of the module's own, for a while. One that is tied is replaced wherever it is.

        Raises:
            ValueError: a name that is none of a parameter or buffer.
        """
        unknown = [name for name in tensors if name not in self._places]
        if unknown:
            raise ValueError(f"the module has no parameters or buffers named {unknown}; it has {list(self._places)}")
        own: list[tuple[dict[str, Any], str, Tensor]] = []
        try:
            for name, value in tensors.items():
                for (_, local), table in self._places[name].items():
                    own.append((table, local, table[local]))
                    table[local] = value
            yield
        finally:
            for table, local, value in reversed(own):
                table[local] = value
