"""How each type of layer uses its weights: one entry of a table for each.

A rule takes the layer, its inputs x, whose axis 0 is the rows, and the gradients s along K directions in its outputs,
(K, rows, ...), and tells how the weight of a name was used. Types are matched exactly: a subclass may do anything.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias

import torch.nn.functional as F
from torch import Tensor, nn

from credibly.curvature.patches import output_patches, padded, patches
from credibly.curvature.uses import Direct, Lookup, Product, Use

__all__ = ["Layer", "rule_of"]

Rule: TypeAlias = Callable[[Any, Tensor, Tensor], Use]
Tables: TypeAlias = tuple[int, int, int]


@dataclass(frozen=True)
class Layer:
    """A type of layer.

    Attributes:
        rules: how each of its weights is used.
        tables: the shape of its main weight as (groups, rows, columns) of tables.
        rows_anywhere: whether rows may lie on another axis than 0.
        refuse: why a layer with these options is none of ours; "" if it is.
        is_lookup: whether rows of its table are looked up, not multiplied.
    """

    rules: Mapping[str, Rule]
    tables: Callable[[Any], Tables]
    rows_anywhere: bool = False
    refuse: Callable[[Any], str] = lambda _: ""
    is_lookup: bool = False


def rule_of(module: nn.Module) -> Layer | None:
    """The entry of its exact type."""
    return _LAYERS.get(type(module))


# -- products ---------------------------------------------------------------------------------------------------------


def _linear(module: nn.Linear, x: Tensor, s: Tensor) -> Use:
    inputs = x.reshape(len(x), -1, 1, module.in_features)
    return Product(inputs, s.reshape(*s.shape[:2], -1, 1, module.out_features))


def _last_sum(_module: nn.Module, _x: Tensor, s: Tensor) -> Use:
    return Direct(s.flatten(2, -2).sum(2) if s.dim() > 3 else s)


def _convolution(module: Any, x: Tensor, s: Tensor) -> Use:
    inputs = patches(padded(module, x), module.kernel_size, module.stride, module.dilation)
    gradients = s.flatten(3).movedim(-1, 2)
    return Product(_grouped(inputs, module.groups), _grouped(gradients, module.groups))


def _transposed_convolution(module: Any, x: Tensor, s: Tensor) -> Use:
    gradients = output_patches(module, s.flatten(0, 1), x.shape[2:])
    gradients = gradients.reshape(*s.shape[:2], *gradients.shape[1:])
    inputs = x.flatten(2).movedim(-1, 1)
    return Product(_grouped(inputs, module.groups), _grouped(gradients, module.groups), transposed=True)


def _grouped(values: Tensor, groups: int) -> Tensor:
    return values.reshape(*values.shape[:-1], groups, -1)


# -- sums -------------------------------------------------------------------------------------------------------------


def _channel_sum(_module: nn.Module, _x: Tensor, s: Tensor) -> Use:
    return Direct(s.flatten(3).sum(-1) if s.dim() > 3 else s)


def _embedding(module: nn.Embedding, x: Tensor, s: Tensor) -> Use:
    indices = x.reshape(len(x), -1)
    gradients = s.reshape(*s.shape[:2], indices.shape[1], -1)
    if module.padding_idx is not None:
        gradients = gradients * (indices != module.padding_idx).unsqueeze(-1)
    return Lookup(indices, gradients, module.num_embeddings)


def _batch_norm(module: Any, x: Tensor, s: Tensor) -> Use:
    normal = F.batch_norm(x, module.running_mean, module.running_var, eps=module.eps)
    return _channel_sum(module, x, s * normal)


def _group_norm(module: nn.GroupNorm, x: Tensor, s: Tensor) -> Use:
    return _channel_sum(module, x, s * F.group_norm(x, module.num_groups, eps=module.eps))


def _instance_norm(module: Any, x: Tensor, s: Tensor) -> Use:
    own = not module.track_running_stats
    normal = F.instance_norm(x, module.running_mean, module.running_var, use_input_stats=own, eps=module.eps)
    return _channel_sum(module, x, s * normal)


def _layer_norm(module: nn.LayerNorm, x: Tensor, s: Tensor) -> Use:
    return _normalized_sum(module, x, s * F.layer_norm(x, module.normalized_shape, eps=module.eps))


def _rms_norm(module: nn.RMSNorm, x: Tensor, s: Tensor) -> Use:
    return _normalized_sum(module, x, s * F.rms_norm(x, module.normalized_shape, eps=module.eps))


def _normalized_sum(module: Any, _x: Tensor, s: Tensor) -> Use:
    return Direct(s.reshape(*s.shape[:2], -1, math.prod(module.normalized_shape)).sum(2))


# -- the table --------------------------------------------------------------------------------------------------------


def _no_tables(module: nn.Module) -> Tables:
    return 1, next(module.parameters(recurse=False)).numel(), 1


def _no_statistics(module: Any) -> str:
    if module.running_mean is None:
        return "it has no running statistics, so that each row's outputs depend on the other rows"
    return ""


def _changes_itself(module: nn.Embedding) -> str:
    if module.max_norm is not None:
        return "`max_norm` changes its weights whenever it is used"
    return "`scale_grad_by_freq` changes its gradients" if module.scale_grad_by_freq else ""


def _entries(types: Sequence[type], layer: Layer) -> dict[type, Layer]:
    return dict.fromkeys(types, layer)


def _conv_tables(module: Any) -> Tables:
    columns = module.in_channels // module.groups * math.prod(module.kernel_size)
    return module.groups, module.out_channels // module.groups, columns


def _transposed_tables(module: Any) -> Tables:
    columns = module.out_channels // module.groups * math.prod(module.kernel_size)
    return module.groups, module.in_channels // module.groups, columns


def _norm(
    scale: Rule, shift: Rule, *, rows_anywhere: bool = False, refuse: Callable[[Any], str] | None = None
) -> Layer:
    rules = MappingProxyType({"weight": scale, "bias": shift})
    return Layer(rules, _no_tables, rows_anywhere, refuse or (lambda _: ""))


_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_LAYERS: dict[type, Layer] = {
    nn.Linear: Layer(
        {"weight": _linear, "bias": _last_sum}, lambda module: (1, module.out_features, module.in_features), True
    ),
    nn.Embedding: Layer(
        {"weight": _embedding},
        lambda module: (1, module.num_embeddings, module.embedding_dim),
        rows_anywhere=True,
        refuse=_changes_itself,
        is_lookup=True,
    ),
    **_entries((nn.Conv1d, nn.Conv2d, nn.Conv3d), Layer({"weight": _convolution, "bias": _channel_sum}, _conv_tables)),
    **_entries(
        (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
        Layer({"weight": _transposed_convolution, "bias": _channel_sum}, _transposed_tables),
    ),
    **_entries(_BATCH_NORMS, _norm(_batch_norm, _channel_sum, refuse=_no_statistics)),
    **_entries((nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d), _norm(_instance_norm, _channel_sum)),
    nn.GroupNorm: _norm(_group_norm, _channel_sum),
    nn.LayerNorm: _norm(_layer_norm, _normalized_sum, rows_anywhere=True),
    nn.RMSNorm: _norm(_rms_norm, _normalized_sum, rows_anywhere=True),
}
