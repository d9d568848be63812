"""Draws of any distribution.

Torch's samplers know no half precision, and crash or give numbers where parameters are NaN.
"""

from typing import TypeVar

import torch
from torch import Tensor
from torch.distributions import Distribution

from credibly.core.errors import NotFiniteError
from credibly.distributions.kinds import parameters, reference
from credibly.distributions.rows import to

__all__ = ["drawable", "sampled"]

D = TypeVar("D", bound=Distribution)

_HALF = (torch.float16, torch.bfloat16)


def drawable(d: D) -> D:
    """The distribution itself, or in single precision where it is in half.

    Raises:
        NotFiniteError: a parameter is NaN.
    """
    if any(bool(parameter.isnan().any()) for parameter in parameters(d)):
        raise NotFiniteError(f"no draws can be taken of {type(d).__name__}, which holds NaN")
    return to(d, dtype=torch.float32) if reference(d).dtype in _HALF else d  # type: ignore[return-value]


def sampled(d: Distribution, shape: torch.Size = torch.Size()) -> Tensor:  # noqa: B008
    """Draws (*shape, *batch, *event) under torch's global generator, without a graph, in the distribution's dtype.

    Raises:
        NotFiniteError: a parameter is NaN.
    """
    precise = drawable(d)
    with torch.no_grad():
        draws: Tensor = precise.sample(shape)
    return draws if precise is d or not draws.is_floating_point() else draws.to(reference(d).dtype)
