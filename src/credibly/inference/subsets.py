"""Which weights are random; the others stay at their values in every draw.

A subset is a recipe: it names weights once it sees the model. Names are those of the model, under `net.`, in its order;
frozen weights (`requires_grad_(False)`) are never random, wherever in the network they are.
"""

import fnmatch
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from credibly.core.checks import check_count
from credibly.core.inputs import num_rows, take_rows
from credibly.core.params import evaluating, module_device, network_weights
from credibly.core.randomness import seeded
from credibly.core.typing import Inputs
from credibly.model import Model

__all__ = ["AllWeights", "LargestVariance", "LastLayer", "Named", "Subset"]


@dataclass(frozen=True, eq=False)
class Subset(ABC):
    """Which weights are random."""

    @property
    def most(self) -> int | None:
        """How many single weights of the named tensors are random; None is all of them."""
        return None

    @abstractmethod
    def names(self, model: Model, inputs: Inputs) -> tuple[str, ...]:
        """The tensors whose weights are random, in the model's order.

        Args:
            model: with fitted standardisation.
            inputs: some rows in the user's units, to look at how the network is called.

        Raises:
            ValueError: there is no such weight, or it is frozen.
        """


@dataclass(frozen=True, eq=False)
class AllWeights(Subset):
    """All weights of the network that are not frozen."""

    def names(self, model: Model, inputs: Inputs) -> tuple[str, ...]:
        """All trainable names under `net.`."""
        return _trainable(model)


@dataclass(frozen=True, eq=False)
class LastLayer(Subset):
    """The weights of the layer that is called last, of those that have trainable weights.

    Laplace's method evaluates the layers before it once, for data in memory.
    """

    def names(self, model: Model, inputs: Inputs) -> tuple[str, ...]:
        """Weight and bias, say, of the last layer."""
        every = _trainable(model)
        layer = _called_last(model, inputs)
        own = {id(weight) for weight in model.net.get_submodule(layer).parameters(recurse=False)}
        # one that is tied goes by its first name
        return tuple(name for name in every if id(model.core.get_parameter(name)) in own)


@dataclass(frozen=True, eq=False)
class Named(Subset):
    """Weights by name.

    Attributes:
        patterns: full names such as "net.2.weight", layers such as "net.2", or glob patterns such as "*.bias".
    """

    patterns: str | Sequence[str]

    def __post_init__(self) -> None:
        each = (self.patterns,) if isinstance(self.patterns, str) else self.patterns
        if not isinstance(each, Sequence) or not all(isinstance(pattern, str) for pattern in each):
            raise TypeError(f"`patterns` must be a string or a sequence of strings; got {self.patterns!r}")

    def names(self, model: Model, inputs: Inputs) -> tuple[str, ...]:
        """All trainable names that any pattern matches."""
        every = _trainable(model)
        patterns = (self.patterns,) if isinstance(self.patterns, str) else tuple(self.patterns)
        if not patterns:
            raise ValueError("`patterns` must name at least one weight; got none")
        named = list(model.core.named_parameters(remove_duplicate=False))  # a tied weight goes by any of its names
        matched: set[int] = set()
        for pattern in patterns:
            found = [weight for name, weight in named if _matches(name, pattern)]
            if not any(weight.requires_grad for weight in found):
                why = "only frozen weights" if found else "no weight of the network"
                raise ValueError(f"`{pattern}` names {why}; the trainable ones are {list(every)}")
            matched |= {id(weight) for weight in found}
        return tuple(name for name in every if id(model.core.get_parameter(name)) in matched)


@dataclass(frozen=True, eq=False)
class LargestVariance(Subset):
    """The single weights whose marginal variance is largest, by a diagonal approximation of their posterior.

    Bayesian Deep Learning via Subnetwork Inference, Daxberger, Nalisnick, Allingham, Antoran, Hernandez-Lobato 2021.

    Attributes:
        num_weights: how many.
    """

    num_weights: int

    def __post_init__(self) -> None:
        check_count("num_weights", self.num_weights)

    @property
    def most(self) -> int:
        """The number asked for."""
        return self.num_weights

    def names(self, model: Model, inputs: Inputs) -> tuple[str, ...]:
        """All trainable names: single weights are chosen among them."""
        every = _trainable(model)
        size = sum(model.core.get_parameter(name).numel() for name in every)
        if self.num_weights > size:
            raise ValueError(f"`num_weights` must be at most the {size} trainable weights; got {self.num_weights}")
        return every


def _trainable(model: Model) -> tuple[str, ...]:
    return tuple(network_weights(model.core))


def _matches(name: str, pattern: str) -> bool:
    return fnmatch.fnmatchcase(name, pattern) or name.startswith(f"{pattern}.")


def _called_last(model: Model, inputs: Inputs) -> str:
    """The name inside the network of the last module called that owns trainable weights."""
    called: list[str] = []
    handles = []
    for name, part in model.net.named_modules():
        if any(weight.requires_grad for weight in part.parameters(recurse=False)):
            handles.append(part.register_forward_pre_hook(_note(called, name)))
    last = set()
    device = module_device(model)
    try:
        with torch.no_grad(), evaluating(model.core), seeded(0, "record", device=device):
            for row in range(num_rows(inputs)):
                pair = torch.full((2,), row, device=device)  # of one row alone some layers take no batch
                model.core(model.standardize_inputs(take_rows(inputs, pair)), "outputs")
                last.update(called[-1:])
                called.clear()
    finally:
        for handle in handles:
            handle.remove()
    if not last:
        raise ValueError("no layer with trainable weights is called as a module; name the weights: Named([...])")
    if len(last) > 1:
        raise ValueError(
            f"which layer is called last depends on the rows: {sorted(last)}; name the weights: Named([...])"
        )
    return last.pop()


def _note(called: list[str], name: str):  # type: ignore[no-untyped-def]
    def hook(part: nn.Module, args: object) -> None:  # noqa: ARG001
        called.append(name)

    return hook
