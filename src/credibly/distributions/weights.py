"""Normalised logarithms of mixture weights."""

import math

import torch
from torch import Tensor

from credibly.core.checks import as_tensor
from credibly.core.errors import ShapeError
from credibly.core.typing import ArrayLike

__all__ = ["normalised_log_weights"]


def normalised_log_weights(log_weights: ArrayLike | None, count: int, like: Tensor) -> Tensor:
    """The weights of `count` draws, normalised, in the dtype and on the device of `like`.

    Args:
        log_weights: (count,), up to a constant, -inf for no weight; None is equal weights.
        count: the number of draws.
        like: tells dtype and device.

    Raises:
        ShapeError: another shape.
        ValueError: NaN, +inf, or all -inf.
    """
    if log_weights is None:
        return torch.full((count,), -math.log(count), dtype=like.dtype, device=like.device)
    weights = as_tensor(log_weights, dtype=like.dtype, device=like.device).to(like.dtype)
    if weights.shape != (count,):
        raise ShapeError(f"`log_weights` must have shape ({count},), one a draw; got {tuple(weights.shape)}")
    total = torch.logsumexp(weights, 0)
    if not bool(torch.isfinite(total)):
        raise ValueError("`log_weights` must not be NaN or +inf, nor all -inf")
    return weights - total
