"""What a distribution is about: a real number, a count, or a class, read from its support.

Containers (`Independent`, mixtures, views) are about what their innermost distribution is about.
"""

from collections.abc import Iterator
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor
from torch.distributions import (
    Bernoulli,
    Categorical,
    Distribution,
    Independent,
    Multinomial,
    OneHotCategorical,
)

from credibly.distributions.operations import Operation

__all__ = ["Kind", "base_of", "kind", "parameters", "reference"]

Kind: TypeAlias = Literal["real", "count", "class"]


@Operation
def base_of(d: Distribution) -> Distribution:
    """The innermost distribution: a mixture's components, what `Independent` or a view wraps, else itself."""
    return d


@base_of.register(Independent)
def _(d: "Independent[Any]") -> Distribution:
    return base_of(d.base_dist)


@Operation
def kind(d: Distribution) -> Kind:
    """`"class"` for Bernoulli and Categorical, `"count"` for whole numbers, `"real"` otherwise.

    Raises:
        NotSupportedError: the distribution does not state its support.
    """
    base = base_of(d)
    if base is not d:
        return kind(base)
    try:
        support: Any = d.support
        discrete = bool(support.is_discrete)
    except (NotImplementedError, AttributeError):
        kind.refuse(d, "its `support` must be a torch constraint")
    return "count" if discrete else "real"


@kind.register(Bernoulli, Categorical)
def _(d: Distribution) -> Kind:  # noqa: ARG001
    return "class"


@kind.register(OneHotCategorical, Multinomial)
def _(d: Distribution) -> Kind:
    kind.refuse(d, "use Categorical, whose targets are class indices")


def reference(d: Distribution) -> Tensor:
    """A floating-point tensor inside the distribution: the one that tells its dtype and device."""
    return next(parameters(d), torch.empty(0))


def parameters(item: object) -> Iterator[Tensor]:
    """The floating-point tensors inside a distribution, those of distributions inside it included."""
    if isinstance(item, Tensor) and item.is_floating_point():
        yield item
    elif isinstance(item, Distribution):
        for part in vars(item).values():
            yield from parameters(part)
