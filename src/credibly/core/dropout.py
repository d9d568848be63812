"""Every dropout a network applies, found and replaced by masks that we choose.

A `TorchFunctionMode` sees each call of a dropout function, whether it comes from a module or is written out in
`forward`, and whether the network is in training or in evaluation mode. Two uses stand on it:

* Monte Carlo dropout (Dropout as a Bayesian Approximation, Gal and Ghahramani 2016): the network stays in
  evaluation mode, one mask per draw serves every row, and draws are a `vmap` over masks.
* Reproducible training: masks keyed by (seed, member, step), the same alone and in a stack of members.

Both first record the *sites* (where dropout happens, in order, and at which shape), so that all the random
numbers of a draw or a step are made at once. Inside a handler the mode is off, so functions that hide a dropout
are opened: scaled dot product attention is written out, and `multi_head_attention_forward` is run with the mode
on. A recurrent layer's dropout sits inside its kernel and cannot be reached: it is refused.
"""

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from credibly.core.errors import NotSupportedError
from credibly.core.shared_calls import SharedCalls

__all__ = ["DropoutMode", "MaskSource", "Recorder", "Site", "SiteMasks", "draw_masks", "row_sites"]

_ELEMENTS = {F.dropout, torch.dropout, torch.dropout_}
_CHANNELS = {F.dropout1d, F.dropout2d, F.dropout3d, torch.feature_dropout, torch.feature_dropout_}
_ALPHA = {F.alpha_dropout, torch.alpha_dropout, torch.alpha_dropout_}
_ALPHA_CHANNELS = {F.feature_alpha_dropout, torch.feature_alpha_dropout, torch.feature_alpha_dropout_}
_DROPOUTS = _ELEMENTS | _CHANNELS | _ALPHA | _ALPHA_CHANNELS
_RECURRENT = {torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu}
_ALPHA_PRIME = -1.7580993408473766  # the value to which SELU saturates: Klambauer et al. 2017


def _safe_softmax(scores: Tensor) -> Tensor:
    """Softmax over the last axis, 0 instead of NaN for a query that may attend to nothing."""
    blocked = (scores == -math.inf).all(-1, keepdim=True)
    return scores.masked_fill(blocked, 0.0).softmax(-1).masked_fill(blocked, 0.0)


def _with_visible_calls(function: Callable[..., Any]) -> FunctionType:
    """The function's own body, without its first act of handing itself whole to the mode."""
    names = {**function.__globals__, "has_torch_function": lambda _: False}
    body = FunctionType(function.__code__, names, function.__name__, function.__defaults__)
    body.__kwdefaults__ = function.__kwdefaults__
    return body


_multi_head_attention = _with_visible_calls(F.multi_head_attention_forward)
_multi_head_signature = inspect.signature(F.multi_head_attention_forward)


@dataclass(frozen=True)
class Site:
    """One place where dropout acts.

    Attributes:
        probability: how often a unit is dropped.
        shape: the shape of the mask.
        alpha: whether dropped units take SELU's saturation value (alpha dropout) instead of 0.
        row_axis: the axis along which rows lie, where the mask is shared by all rows; None for a full mask.
    """

    probability: float
    shape: tuple[int, ...]
    alpha: bool = False
    row_axis: int | None = None

    @property
    def factor(self) -> float:
        """By what a kept unit is multiplied."""
        return 1.0 if self.alpha or self.probability == 1 else 1 / (1 - self.probability)

    @property
    def size(self) -> int:
        """How many random numbers the mask takes."""
        return math.prod(self.shape)

    def serves(self, probability: float, shape: tuple[int, ...], *, alpha: bool) -> bool:
        """Whether its mask is one for a dropout of that probability, shape and kind."""
        if (probability, alpha, len(shape)) != (self.probability, self.alpha, len(self.shape)):
            return False
        axis = self.row_axis
        if axis is None:
            return shape == self.shape
        others = shape[:axis] + shape[axis + 1 :] == self.shape[:axis] + self.shape[axis + 1 :]
        return others and shape[axis] % self.shape[axis] == 0


class OtherDropoutsError(NotSupportedError):
    """A network applies other dropouts than those for which there are masks."""


class MaskSource:
    """Gives the mask of each dropout call in turn."""

    def next_mask(self, inputs: Tensor, probability: float, shape: tuple[int, ...], *, alpha: bool) -> Tensor | None:
        """A multiplier that broadcasts against `inputs`, or None to pass them through."""
        raise NotImplementedError


class Recorder(MaskSource):
    """Notes the sites and drops nothing."""

    def __init__(self) -> None:
        self.sites: list[Site] = []

    def next_mask(self, inputs: Tensor, probability: float, shape: tuple[int, ...], *, alpha: bool) -> None:
        """Note the call."""
        self.sites.append(Site(probability, shape, alpha))


class SiteMasks(MaskSource):
    """Gives the recorded sites their masks, in order.

    Args:
        sites: the sites, in the order of their calls.
        masks: one draw: the mask of each site; may be mapped by `vmap`.
    """

    def __init__(self, sites: list[Site], masks: Sequence[Tensor]) -> None:
        self._calls = iter(zip(sites, masks, strict=True))

    def next_mask(self, inputs: Tensor, probability: float, shape: tuple[int, ...], *, alpha: bool) -> Tensor:
        """The next site's mask, repeated over the rows where one mask serves several rows per axis entry."""
        site, mask = next(self._calls, (None, inputs))
        if site is None or not site.serves(probability, shape, alpha=alpha):
            raise OtherDropoutsError(
                "the network applied other dropouts than where they were looked at: dropout whose place, kind or shape "
                "depends on the values of the inputs, as on the lengths of rows, cannot be sampled"
            )
        axis = site.row_axis
        if axis is not None and site.shape[axis] > 1:
            rows = shape[axis] // site.shape[axis]
            mask = mask.unsqueeze(axis).expand(*shape[:axis], rows, *site.shape[axis:]).reshape(shape)
        return mask


def draw_masks(sites: list[Site], uniforms: Tensor, dtype: torch.dtype) -> list[Tensor]:
    """Uniform numbers (*draws, total size) as the masks of each site, (*draws, *shape).

    A unit is kept where its number reaches the probability. A kept unit's mask is 1 / (1 - p), so that the mean is kept
    as well; for alpha dropout, whose correction is affine, it is 1.
    """
    masks, start = [], 0
    for site in sites:
        kept = uniforms[..., start : start + site.size] >= site.probability
        masks.append(kept.to(dtype).mul_(site.factor).reshape(*uniforms.shape[:-1], *site.shape))
        start += site.size
    return masks


def row_sites(two: list[Site], three: list[Site]) -> list[Site]:
    """The sites of one mask per draw, from the sites recorded on two and on three rows.

    The axis that grows with the rows is the row axis; a mask holds one row's share of it.
    """
    if len(two) != len(three):
        raise NotSupportedError("the number of dropouts depends on the number of rows; their masks cannot be sampled")
    return [_row_site(a, b) for a, b in zip(two, three, strict=True)]


def _row_site(two: Site, three: Site) -> Site:
    growing = [axis for axis, (m, n) in enumerate(zip(two.shape, three.shape, strict=True)) if m != n]
    if not growing:
        return two
    axis = growing[0]
    share, rest = divmod(two.shape[axis], 2)
    if len(growing) > 1 or rest or three.shape[axis] != 3 * share:
        raise NotSupportedError(
            f"a dropout acts on shape {two.shape} for two rows and {three.shape} for three: it does not treat rows "
            "one by one, so one mask per draw cannot serve every row"
        )
    shape = (*two.shape[:axis], share, *two.shape[axis + 1 :])
    return Site(two.probability, shape, two.alpha, axis)


class DropoutMode(TorchFunctionMode):
    """While active, every dropout takes its mask from the source.

    Args:
        source: gives the masks.
        always: act whatever the training flags say (Monte Carlo dropout); otherwise only where a dropout is on.
        shared: what this draw has in common with those before it; None where there is nothing to share.
    """

    def __init__(self, source: MaskSource, *, always: bool, shared: SharedCalls | None = None) -> None:
        super().__init__()
        self._source = source
        self._always = always
        self._shared = shared

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _DROPOUTS:
            return self._dropout(func, *args, **kwargs)
        if func is F.scaled_dot_product_attention:
            return self._attention(*args, **kwargs)
        if func is F.multi_head_attention_forward:
            return self._multi_head(*args, **kwargs)
        if func in _RECURRENT:
            self._refuse_recurrent(func, args)
        return func(*args, **kwargs) if self._shared is None else self._shared(func, args, kwargs)

    def _dropout(
        self,
        func: Callable[..., Any],
        input: Tensor,  # noqa: A002
        p: float = 0.5,
        training: bool = True,
        inplace: bool = False,
        train: bool | None = None,
    ) -> Tensor:
        active = self._always or (training if train is None else train)
        if not active or p == 0:
            return input
        channels = func in _CHANNELS or func in _ALPHA_CHANNELS
        return self._apply(input, p, channels=channels, alpha=func in _ALPHA or func in _ALPHA_CHANNELS)

    def _apply(self, inputs: Tensor, p: float, *, channels: bool = False, alpha: bool = False) -> Tensor:
        shape = tuple(inputs.shape)
        if channels:
            shape = (*shape[:2], *(1,) * (len(shape) - 2))
        mask = self._source.next_mask(inputs, p, shape, alpha=alpha)
        if mask is None:
            return inputs
        if alpha:
            a = ((1 - p) * (1 + p * _ALPHA_PRIME**2)) ** -0.5 if p < 1 else 0.0
            return a * (inputs * mask + _ALPHA_PRIME * (1 - mask)) - a * _ALPHA_PRIME * p
        return inputs * mask

    def _attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        if dropout_p == 0:
            grouped = {"enable_gqa": True} if enable_gqa else {}
            return F.scaled_dot_product_attention(
                query, key, value, attn_mask, is_causal=is_causal, scale=scale, **grouped
            )
        if enable_gqa:
            key = key.repeat_interleave(query.size(-3) // key.size(-3), -3)
            value = value.repeat_interleave(query.size(-3) // value.size(-3), -3)
        scores = query @ key.mT * (query.size(-1) ** -0.5 if scale is None else scale)
        if is_causal:
            scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -math.inf)
        if attn_mask is not None:
            blocked = attn_mask.dtype == torch.bool
            scores = scores.masked_fill(~attn_mask, -math.inf) if blocked else scores + attn_mask
        return self._apply(_safe_softmax(scores), dropout_p) @ value

    def _multi_head(self, *args: Any, **kwargs: Any) -> Any:
        arguments = _multi_head_signature.bind(*args, **kwargs).arguments
        if self._always:
            arguments["training"] = True
        with self:
            return _multi_head_attention(**arguments)

    def _refuse_recurrent(self, func: Callable[..., Any], args: tuple[Any, ...]) -> None:
        # (..., has_biases, num_layers, dropout, train, bidirectional[, batch_first]): the same order in every kernel
        numbers = [value for value in args if isinstance(value, (bool, int, float))]
        if self._always and numbers[2] > 0 and numbers[1] > 1:
            raise NotSupportedError(
                f"the dropout of `{getattr(func, '__name__', func)}` (p={numbers[2]}) sits inside its kernel and "
                "cannot be sampled one mask per draw; stack single-layer recurrent modules with nn.Dropout between them"
            )
