"""Functions over distributions as open tables: one entry a type, an unknown type refused by name.

An `Operation` is `functools.singledispatch` with two additions. Its refusal says which function was asked
for, of which type, and which types are known. And its general entry may use what a class implements itself
(`Distribution` defines every method, most of which only raise), so that a user's own distribution needs no
registration where it already has the method. `operation.register(MyDistribution)` adds an entry.
"""

import functools
from collections.abc import Callable
from typing import Any, Concatenate, Generic, NoReturn, ParamSpec, TypeVar

from torch import Tensor
from torch.distributions import Distribution

from credibly.core.errors import NotSupportedError
from credibly.core.typing import ArrayLike

__all__ = ["ElementwiseOperation", "Operation", "check_distribution", "elementwise", "own_method"]

P = ParamSpec("P")
R = TypeVar("R")


def check_distribution(d: object) -> None:
    """Raise a TypeError unless it is a torch Distribution, and say how arrays become one."""
    if not isinstance(d, Distribution):
        raise TypeError(
            f"a torch Distribution is needed; got {type(d).__name__}. Arrays become one with "
            "credibly.distributions.from_probs, from_logits, from_draws or from_quantiles"
        )


class Operation(Generic[P, R]):
    """A function whose formula depends on the type of its first argument, a distribution.

    Args:
        general: the entry for types without one of their own. It carries the name and the documentation.
    """

    def __init__(self, general: Callable[Concatenate[Any, P], R]) -> None:
        self._table = functools.singledispatch(general)
        self.__name__ = self.__qualname__ = general.__name__
        self.__module__ = general.__module__
        self.__doc__ = general.__doc__
        self.__wrapped__ = general

    def __call__(self, d: Distribution, *args: P.args, **kwargs: P.kwargs) -> R:
        """Apply the entry of the distribution's type."""
        check_distribution(d)
        return self.formula(d, *args, **kwargs)

    def formula(self, d: Distribution, *args: P.args, **kwargs: P.kwargs) -> R:
        """Apply the entry of the distribution's type, without any check of the other arguments."""
        entry: Callable[Concatenate[Any, P], R] = self._table.dispatch(type(d))
        return entry(d, *args, **kwargs)

    def register(
        self, *types: type[Distribution]
    ) -> Callable[[Callable[Concatenate[Any, P], R]], Callable[Concatenate[Any, P], R]]:
        """A decorator that makes a function the entry of the given types."""

        def decorate(entry: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], R]:
            for cls in types:
                self._table.register(cls, entry)
            return entry

        return decorate

    def refuse(self, d: Distribution, advice: str = "") -> NoReturn:
        """Raise the NotSupportedError of this operation for this distribution."""
        known = sorted(cls.__name__ for cls in self._table.registry if cls not in (object, Distribution))
        listed = f"; entries exist for {', '.join(known)}" if known and not advice else ""
        raise NotSupportedError(
            f"{self.__name__} is not available for {type(d).__name__}{'; ' + advice if advice else listed}"
        )

    def __reduce__(self) -> str:
        return self.__name__

    def __repr__(self) -> str:
        return f"<operation {self.__module__}.{self.__name__}>"


class ElementwiseOperation(Operation[[Tensor], Tensor]):
    """An operation with one more argument, an array, which is checked against the distribution first.

    Args:
        general: the entry for types without one of their own.
        check: turns what the caller gave into a tensor that fits the distribution, or raises.
    """

    def __init__(
        self,
        general: Callable[[Any, Tensor], Tensor],
        check: Callable[[Distribution, ArrayLike], Tensor],
    ) -> None:
        super().__init__(general)
        self._check = check

    def __call__(self, d: Distribution, value: ArrayLike) -> Tensor:
        """Check the array, then apply the entry of the distribution's type."""
        check_distribution(d)
        return self.formula(d, self._check(d, value))


def elementwise(
    check: Callable[[Distribution, ArrayLike], Tensor],
) -> Callable[[Callable[[Any, Tensor], Tensor]], ElementwiseOperation]:
    """A decorator that makes an `ElementwiseOperation` of its general entry."""
    return lambda general: ElementwiseOperation(general, check)


def own_method(d: Distribution, name: str, *args: Any) -> Any:
    """What the distribution's own method or property gives; NotImplemented where its class has none."""
    if getattr(type(d), name, None) is getattr(Distribution, name):
        return NotImplemented
    try:
        attribute = getattr(d, name)
        return attribute(*args) if callable(attribute) else attribute
    except NotImplementedError:
        return NotImplemented
