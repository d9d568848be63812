"""Estimators of the expected log likelihood under independent Gaussian weights, w = m + s e with e standard normal.

All are unbiased; they differ in how the noise of the weights reaches the rows of a batch, and so in the variance of
the gradient.

* `WeightDraw`: one draw of the weights for the whole batch (Weight Uncertainty in Neural Networks, Blundell, Cornebise,
  Kavukcuoglu, Wierstra 2015).
* `LocalReparameterization`: each row draws the pre-activations of a layer from their Gaussian, of mean `x m` and
  variance `x^2 s^2` (Variational Dropout and the Local Reparameterization Trick, Kingma, Salimans, Welling 2015). The
  outputs of a row are independent only where the layer acts once on it: over positions, that share their weights, the
  outputs are correlated, and the estimator would be one of another posterior.
* `Flipout`: one draw of the deviations `s e` for the batch, whose signs each row turns by random signs of the layer's
  inputs and outputs (Flipout: Efficient Pseudo-Independent Weight Perturbations on Mini-Batches, Wen, Vicol, Ba, Tran,
  Grosse 2018). The signs of a row are the same at all of its positions, so that it has one draw of the weights
  throughout. One table of signs for inputs and one for outputs serves all layers, whose deviations are independent.

A layer that an estimator cannot treat is left to the next: local reparameterisation, flipout, one draw of the weight.
What a layer does is seen on a few rows beforehand, and watched in every step: one that acts otherwise on later rows, as
where sequences are longer, takes one draw from then on.
Where rows are mixed, as by BatchNorm in training, each row's neighbours have draws of their own under all but
`WeightDraw`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from credibly.training.variational_layers import flipped_linear, local_linear
from credibly.training.variational_signs import flip_signs, sign_bits
from credibly.training.variational_uses import LAYERS, Layer, Uses

__all__ = ["Estimator", "Flipout", "LayerNoise", "LocalReparameterization", "Plan", "UnplannedUseError", "WeightDraw"]


class Estimator(ABC):
    """A way for the noise of the weights to reach the rows of a batch."""

    @abstractmethod
    def plan(self, uses: Uses) -> "Plan":
        """Which layers it treats, and who treats the others."""


@dataclass(frozen=True)
class WeightDraw(Estimator):
    """One draw of all weights per step, for the whole batch. It is right for every network."""

    def plan(self, uses: Uses) -> "Plan":
        """No layer is treated by itself."""
        return Plan((), (), "")


@dataclass(frozen=True)
class Flipout(Estimator):
    """Random signs per row around one draw of the deviations; see the module."""

    def plan(self, uses: Uses) -> "Plan":
        """All layers that act once on every row."""
        return Plan((), tuple(uses.layers), _drawn_reason(uses))


@dataclass(frozen=True)
class LocalReparameterization(Estimator):
    """Pre-activations drawn per row; see the module."""

    def plan(self, uses: Uses) -> "Plan":
        """Layers without positions; those that have them are left to `Flipout`."""
        local = tuple(layer for layer in uses.layers if not layer.has_positions)
        shared = tuple(layer for layer in uses.layers if layer.has_positions)
        reasons = [_drawn_reason(uses)]
        if shared:
            names = ", ".join(f"`{layer.weight}`" for layer in shared)
            reasons.insert(0, f"Flipout for {names}, shared by the positions of a row")
        return Plan(local, shared, "; ".join(filter(None, reasons)))


@dataclass(frozen=True)
class Plan:
    """Which layers take which noise; the weights of no layer are drawn once a step.

    Attributes:
        local: by their pre-activations.
        flipped: by signs.
        reason: which layers the estimator left to another and why; empty where it treats all.
    """

    local: tuple[Layer, ...]
    flipped: tuple[Layer, ...]
    reason: str

    @property
    def local_names(self) -> set[str]:
        """Weights and biases of the layers that draw pre-activations."""
        return _names(self.local)

    @property
    def flipped_names(self) -> set[str]:
        """Weights and biases of the layers that turn signs."""
        return _names(self.flipped)

    def without(self, weight: str, why: str) -> "Plan":
        """The plan with the weight's layer left to one draw."""
        local, flipped = (tuple(x for x in some if x.weight != weight) for some in (self.local, self.flipped))
        return Plan(local, flipped, "; ".join(filter(None, [self.reason, f"WeightDraw for `{weight}`: {why}"])))


class UnplannedUseError(Exception):
    """A layer acts otherwise in this step than in the rows by which its noise was planned.

    Args:
        weight: of the layer.
        why: what it does.
    """

    def __init__(self, weight: str, why: str) -> None:
        super().__init__(weight, why)
        self.weight = weight
        self.why = why


def _names(layers: Sequence[Layer]) -> set[str]:
    return {name for layer in layers for name in (layer.weight, layer.bias) if name is not None}


def _drawn_reason(uses: Uses) -> str:
    """Which weights are drawn once a step, grouped by why."""
    groups: dict[str, list[str]] = {}
    for name, reason in uses.others.items():
        groups.setdefault(reason, []).append(f"`{name}`")
    return "; ".join(f"WeightDraw for {', '.join(names)}: {reason}" for reason, names in groups.items())


class LayerNoise(TorchFunctionMode):
    """While active, the layers of a plan take their noise.

    Args:
        plan: which layers.
        means: the weights that the network is called with, by name.
        variances: of the weights of the local layers, by name.
        deviations: one draw of those of the flipped layers, by name.
        rows: how many there are in the step.
        generator: of the noise of the rows.

    Raises:
        UnplannedUseError: a layer that does, from within the network.
    """

    def __init__(
        self,
        plan: Plan,
        means: dict[str, Tensor],
        variances: dict[str, Tensor],
        deviations: dict[str, Tensor],
        rows: int,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        signs = _Signs(plan.flipped, rows, generator)
        self._rows = rows
        self._rules: dict[int, tuple[Layer, _Local | _Flipped]] = {}
        self._seen: set[int] = set()
        for layer in plan.local:
            self._rules[id(means[layer.weight])] = layer, _Local(*_of(variances, layer), generator)
        for layer in plan.flipped:
            self._rules[id(means[layer.weight])] = layer, _Flipped(*_of(deviations, layer), signs)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in LAYERS:
            key = id(args[1] if len(args) > 1 else kwargs["weight"])
            if key in self._rules:
                layer, rule = self._rules[key]
                self._watch(key, layer, args[0] if args else kwargs["input"])
                return rule(func, *args, **kwargs)
        result = func(*args, **kwargs)
        for given in args:
            if id(given) in self._rules and isinstance(result, Tensor):
                raise UnplannedUseError(self._rules[id(given)][0].weight, "it is used by itself in later rows")
        return result

    def _watch(self, key: int, layer: Layer, inputs: Tensor) -> None:
        """Whether a layer acts once on every row, and only on positions if it did."""
        if key in self._seen:
            raise UnplannedUseError(layer.weight, "its layer is used in more places in later rows")
        if len(inputs) != self._rows or not (layer.has_positions or inputs.dim() == 2):
            raise UnplannedUseError(layer.weight, "its layer's input does not have one entry per row in later rows")
        self._seen.add(key)


def _of(values: dict[str, Tensor], layer: Layer) -> tuple[Tensor, Tensor | None]:
    return values[layer.weight], None if layer.bias is None else values[layer.bias]


def _is_changed(inputs: Tensor) -> bool:
    """Whether torch chooses the precision of each operation, or transforms it by `torch.func`."""
    return torch.is_autocast_enabled(inputs.device.type) or torch._C._are_functorch_transforms_active()


class _Local:
    """A linear layer whose outputs are drawn from their Gaussian, row by row."""

    def __init__(self, weight: Tensor, bias: Tensor | None, generator: torch.Generator) -> None:
        self._weight = weight
        self._bias = bias
        self._generator = generator

    def __call__(
        self,
        func: Callable[..., Tensor],
        input: Tensor,  # noqa: A002
        weight: Tensor,
        bias: Tensor | None = None,
    ) -> Tensor:
        if _is_changed(input):
            return self._by_formula(input, weight, bias)
        noise = torch.empty(len(input), len(weight), dtype=input.dtype, device=input.device)
        noise.normal_(generator=self._generator)
        return local_linear(input, weight, bias, self._weight, self._bias, noise)

    def _by_formula(self, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """As plain operations."""
        mean = F.linear(inputs, weight, bias)
        variance = F.linear(inputs.square(), self._weight, self._bias).float()
        noise = torch.randn(mean.shape, generator=self._generator, device=mean.device)
        return torch.addcmul(mean.float(), (variance + torch.finfo(variance.dtype).tiny).sqrt(), noise).to(mean.dtype)


class _Flipped:
    """A layer whose deviations take the row's signs."""

    def __init__(self, weight: Tensor, bias: Tensor | None, signs: "_Signs") -> None:
        self._weight = weight
        self._bias = bias
        self._signs = signs

    def __call__(
        self,
        func: Callable[..., Tensor],
        input: Tensor,  # noqa: A002
        weight: Tensor,
        bias: Tensor | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> Tensor:
        if self._is_fused(func, input, weight):
            before, after = (self._signs(side, len(input), size) for side, size in enumerate(reversed(weight.shape)))
            return flipped_linear(input, weight, bias, self._weight, self._bias, before, after)
        mean = func(input, weight, bias, *args, **kwargs)
        offset = func(self._turned(func, 0, input), self._weight, self._bias, *args, **kwargs)
        return mean + self._turned(func, 1, offset)

    def _turned(self, func: Callable[..., Tensor], side: int, values: Tensor) -> Tensor:
        """The values with the row's signs, the same at all of its positions."""
        last, positions = func is F.linear, (1,) * (values.dim() - 2)
        rows, width = len(values), values.shape[-1 if last else 1]
        bits = self._signs(side, rows, width)
        return flip_signs(values, bits.reshape((rows, *positions, width) if last else (rows, width, *positions)))

    @staticmethod
    def _is_fused(func: Callable[..., Tensor], inputs: Tensor, weight: Tensor) -> bool:
        """Whether the layer is one product of float32 numbers by rows."""
        plain = inputs.dtype == weight.dtype == torch.float32 and not _is_changed(inputs)
        return func is F.linear and plain and inputs.dim() == 2


class _Signs:
    """The signs of a step, made when the first layer asks for some.

    Layers share them: each takes as many of its side as it has inputs or outputs, from the first one on.
    """

    def __init__(self, layers: Sequence[Layer], rows: int, generator: torch.Generator) -> None:
        self._rows = rows
        self._widths = [max((getattr(x, side) for x in layers), default=0) for side in ("num_inputs", "num_outputs")]
        self._generator = generator
        self._tables: list[Tensor] = []

    def __call__(self, side: int, rows: int, width: int) -> Tensor:
        """The sign bits of a layer's inputs (side 0) or outputs (side 1): (rows, width)."""
        if not self._tables:
            sizes = [self._rows * most for most in self._widths]
            self._tables = list(sign_bits(sum(sizes), self._generator).split_with_sizes(sizes))
        return self._tables[side][: rows * width].view(rows, width)
