"""What does not change between draws, computed once.

The layers before a network's first dropout see the same inputs and weights under every mask. `SharedCalls` notes the
calls of a draw in their order; where a later draw makes the same call, on the very tensors of the last time and
none of them written to since, it gets the result of the last time. Only functions of their arguments alone are
noted, so randomness is never frozen. A call that differs once is let go of together with its result.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["SharedCalls"]

_LAYERS = {F.linear, F.bilinear, F.embedding, F.conv1d, F.conv2d, F.conv3d}
_LAYERS |= {F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d, torch.matmul, torch.bmm, torch.addmm}
_LAYERS |= {F.batch_norm, F.layer_norm, F.group_norm, F.instance_norm, F.normalize, F.pad, F.interpolate}
_LAYERS |= {F.max_pool1d, F.max_pool2d, F.max_pool3d, F.avg_pool1d, F.avg_pool2d, F.avg_pool3d}
_LAYERS |= {F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d}
_ACTIVATIONS = {F.relu, F.relu6, F.leaky_relu, F.elu, F.selu, F.celu, F.gelu, F.silu, F.mish, F.softplus, F.softmax}
_ACTIVATIONS |= {F.hardtanh, F.tanh, F.sigmoid, torch.relu, torch.tanh, torch.sigmoid, torch.exp, torch.sin, torch.cos}
_ARITHMETIC = {Tensor.add, Tensor.sub, Tensor.mul, Tensor.div, Tensor.matmul, Tensor.pow}
_ARITHMETIC |= {torch.add, torch.sub, torch.mul, torch.div, torch.pow, torch.mean, torch.sum, Tensor.mean, Tensor.sum}
_SHAPES = {Tensor.view, Tensor.reshape, Tensor.flatten, Tensor.transpose, Tensor.permute, Tensor.unsqueeze}
_SHAPES |= {Tensor.squeeze, Tensor.contiguous, Tensor.to, Tensor.float, Tensor.__getitem__, torch.cat, torch.stack}
_SHAPES |= {torch.flatten, torch.reshape, torch.transpose, torch.permute, torch.unsqueeze, torch.squeeze}
_DETERMINED = _LAYERS | _ACTIVATIONS | _ARITHMETIC | _SHAPES

_MOST_BYTES = 2**28  # of results held at once
_PLAIN = (int, float, str, type(None), torch.dtype, torch.device, type(...))


def _same(old: Any, new: Any) -> bool:
    """Whether two arguments are the same for certain: tensors by identity, plain values by value."""
    if isinstance(old, Tensor):
        return old is new
    if isinstance(old, (tuple, list)):
        return isinstance(new, (tuple, list)) and len(old) == len(new) and all(map(_same, old, new))
    if isinstance(old, dict):
        return isinstance(new, dict) and old.keys() == new.keys() and all(_same(old[key], new[key]) for key in old)
    if isinstance(old, slice):
        return isinstance(new, slice) and _same((old.start, old.stop, old.step), (new.start, new.stop, new.step))
    return isinstance(old, _PLAIN) and type(old) is type(new) and bool(old == new)


def _frozen(args: Any) -> Any:
    """Arguments whose lists a caller can no longer change."""
    if isinstance(args, (tuple, list)):
        return tuple(map(_frozen, args))
    return args


def _versions(args: Any) -> list[int]:
    """How often each tensor has been written to."""
    if isinstance(args, Tensor):
        return [0 if args.is_inference() else args._version]
    if isinstance(args, dict):
        args = tuple(args.values())
    return [version for arg in args for version in _versions(arg)] if isinstance(args, (tuple, list)) else []


@dataclass(frozen=True)
class _Call:
    """One call, its result, and how often its tensors had been written to."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Tensor
    versions: list[int]

    def serves(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether the same is called again, and nothing has been written to since."""
        same = self.function is function and _same(self.args, args) and _same(self.kwargs, kwargs)
        return same and self.versions == _versions((args, kwargs, self.result))


class SharedCalls:
    """The calls that all draws of one evaluation have in common."""

    def __init__(self) -> None:
        self._calls: list[_Call | None] = []
        self._position = 0
        self._bytes_left = _MOST_BYTES

    def begin_draw(self) -> None:
        """From here on, calls are those of the next draw."""
        self._position = 0

    def __call__(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The function's result, of this call or of the same call in an earlier draw."""
        if function not in _DETERMINED:
            return function(*args, **kwargs)
        position, self._position = self._position, self._position + 1
        if position == len(self._calls):
            return self._note(function, args, kwargs)
        known = self._calls[position]
        if known is not None and known.serves(function, args, kwargs):
            return known.result
        self._calls[position] = None
        return function(*args, **kwargs)

    def _note(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        before = _versions((args, kwargs))
        result = function(*args, **kwargs)
        call = None
        if isinstance(result, Tensor) and before == _versions((args, kwargs)) and result.nbytes <= self._bytes_left:
            self._bytes_left -= result.nbytes
            call = _Call(function, _frozen(args), dict(kwargs), result, _versions((args, kwargs, result)))
        self._calls.append(call)
        return result
