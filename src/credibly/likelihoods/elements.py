"""What likelihoods with several parameters for each element of the target share.

The outputs of the network lie in blocks, one a parameter: with two targets and the parameters location and scale they
are (loc_1, loc_2, raw_1, raw_2). Elements are independent given the outputs, so that their log densities add up and
the Fisher matrix couples the parameters of one element only.
"""

import math

import torch
from torch import Tensor
from torch.distributions import Distribution, Independent

from credibly.core.errors import NotSupportedError

__all__ = [
    "blocks",
    "bounded",
    "bounded_exp",
    "element_fisher",
    "joined",
    "joint_density",
    "refuse_shift",
    "shape_of",
    "stirling_error",
    "trigamma_excess",
]

_BOUND = 60.0  # exp(60) is 1e26: far from any target, and its products with targets still fit in single precision
_SHAPE_BOUND = 20.0
_HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)
_SERIES = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156)
_LARGE_TRIGAMMA = 30.0
_LARGE = 8.0  # from here on seven terms of the series are exact in double precision


def blocks(outputs: Tensor, num_blocks: int, num_targets: int) -> tuple[Tensor, ...]:
    """The parameters of outputs (*batch, num_blocks * num_targets), each (*batch,) or (*batch, num_targets)."""
    parts = outputs.chunk(num_blocks, -1)
    return parts if num_targets > 1 else tuple(part.squeeze(-1) for part in parts)


def joined(each: Distribution, num_targets: int) -> Distribution:
    """The distribution of one target, of elements distributed as `each`."""
    return Independent(each, 1, validate_args=False) if num_targets > 1 else each


def joint_density(density: Tensor, inside: Tensor, num_targets: int) -> Tensor:
    """The log density of one target from those of its elements: -inf where one lies outside the support."""
    density = torch.where(inside, density, -torch.inf)
    return density.sum(-1) if num_targets > 1 else density


def bounded(log_value: Tensor) -> Tensor:
    """The logarithm of a positive parameter, kept where the parameter and its inverse do not overflow."""
    return log_value.clamp(-_BOUND, _BOUND)


def shape_of(raw: Tensor) -> Tensor:
    """`exp`, between 2e-9 and 5e8: a shape or precision whose products with the terms of a density are finite."""
    return raw.clamp(-_SHAPE_BOUND, _SHAPE_BOUND).exp()


def bounded_exp(exponent: Tensor) -> Tensor:
    """`exp`, kept below the largest number by so much that it may still be added to and multiplied."""
    return exponent.clamp(max=math.log(torch.finfo(exponent.dtype).max) - 8).exp()


def refuse_shift(name: str, loc: Tensor) -> None:
    """Positive targets can be divided by a scale, and not shifted."""
    if bool((loc != 0).any()):
        raise NotSupportedError(
            f"targets of {name} cannot be shifted: they would leave its support; Standardize(center=False) only divides"
        )


def element_fisher(first: Tensor, second: Tensor, cross: Tensor | None = None) -> Tensor:
    """The Fisher matrix (*batch, 2 D, 2 D) of two parameters an element, from entries (*batch, D)."""
    if cross is None:
        return torch.diag_embed(torch.cat([first, second], -1))
    top = torch.cat([torch.diag_embed(first), torch.diag_embed(cross)], -1)
    bottom = torch.cat([torch.diag_embed(cross), torch.diag_embed(second)], -1)
    return torch.cat([top, bottom], -2)


def stirling_error(x: Tensor) -> Tensor:
    """`log Gamma(x) - ((x - 1/2) log x - x + log(2 pi) / 2)`, which tends to 0.

    Log densities with large shapes are differences of log Gamma functions that are larger by orders of magnitude; put
    together from this remainder they keep their precision (Fast and Accurate Computation of Binomial Probabilities,
    Loader 2000).
    """
    large = x >= _LARGE
    inverse = 1 / torch.where(large, x, _LARGE)
    square = inverse.square()
    series = torch.zeros_like(x)
    for coefficient in reversed(_SERIES):
        series = series * square + coefficient
    small = torch.where(large, 1.0, x)
    direct = torch.lgamma(small) - (small - 0.5) * small.log() + small - _HALF_LOG_TWO_PI
    return torch.where(large, series * inverse, direct)


def trigamma_excess(x: Tensor) -> Tensor:
    """`trigamma(x) - 1 / x` in float64: what is left of Fisher matrices whose large terms cancel."""
    wide = x.double()
    large = wide >= _LARGE_TRIGAMMA
    inverse = 1 / torch.where(large, wide, _LARGE_TRIGAMMA)
    square = inverse.square()
    series = square * (0.5 + inverse * (1 / 6 - square * (1 / 30 - square * (1 / 42 - square / 30))))
    small = torch.where(large, 1.0, wide)
    return torch.where(large, series, torch.special.polygamma(1, small) - 1 / small)
