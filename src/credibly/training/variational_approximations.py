"""Gaussian approximations q of the posterior over the flat vector of the random weights, as they are trained.

    independent:  w = m + s e                       s = softplus(r)
    low rank:     w = m + s e1 + F e2               F of shape (d, k)
    full:         w = m + s (I + C) e               C strictly lower triangular: L = diag(s) (I + C)

A scale is softplus(r) plus the root of the smallest normal number, so that neither it nor its square is ever 0.
"""

import math
from abc import ABC, abstractmethod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from credibly.core.linalg.base import PositiveDefinite
from credibly.core.linalg.dense import Dense
from credibly.core.linalg.diagonal import Diagonal
from credibly.core.linalg.low_rank import LowRankPlusDiagonal

__all__ = [
    "Approximation",
    "FullCovariance",
    "Independent",
    "LowRankCovariance",
    "inverse_softplus",
    "scales_and_penalty",
    "softplus_scale",
]

_MOST_DOUBLINGS = 20
_ENTROPY = 0.5 * (1 + math.log(2 * math.pi))  # of a standard normal number


def inverse_softplus(value: float) -> float:
    """The number whose softplus is `value`."""
    return value + math.log(-math.expm1(-value))


def softplus_scale(raw: Tensor) -> Tensor:
    """Positive scales."""
    scales: Tensor = F.softplus(raw) + torch.finfo(raw.dtype).tiny ** 0.5
    return scales


class Approximation(ABC):
    """A Gaussian in training.

    Attributes:
        mean: (d,), a leaf.
        leaves: what is trained, the mean first.
    """

    mean: Tensor
    leaves: list[Tensor]

    @property
    @abstractmethod
    def num_noise(self) -> int:
        """How many standard normal numbers one draw takes."""

    @abstractmethod
    def parts(self) -> tuple[Tensor | None, Tensor | None]:
        """The covariance as diag(variances) + F F': the variances (d,) and F (d, k), either of which may be missing."""

    @abstractmethod
    def draw(self, noise: Tensor) -> Tensor:
        """Weights (d,) of noise (num_noise,)."""

    @abstractmethod
    def entropy(self) -> Tensor:
        """A scalar."""

    @abstractmethod
    def covariance(self) -> PositiveDefinite:
        """As a result, detached."""

    def score(self, weights: Tensor) -> Tensor:
        """Minus the gradient of log q at weights (d,), detached: the precision times the offset from the mean."""
        return self.covariance().solve(weights.detach() - self.mean.detach())


class Independent(Approximation):
    """Independent weights.

    Args:
        mean: to begin with, (d,).
        scale: the standard deviation to begin with.
    """

    def __init__(self, mean: Tensor, scale: float) -> None:
        self.mean = mean.detach().clone().requires_grad_()
        self.raw = torch.full_like(mean, inverse_softplus(scale)).requires_grad_()
        self.leaves = [self.mean, self.raw]

    @property
    def num_noise(self) -> int:
        """One per weight."""
        return len(self.mean)

    def parts(self) -> tuple[Tensor, None]:
        """Variances only."""
        return softplus_scale(self.raw).square(), None

    def draw(self, noise: Tensor) -> Tensor:
        """Entry by entry."""
        return torch.addcmul(self.mean, softplus_scale(self.raw), noise)

    def entropy(self) -> Tensor:
        """The sum of the logarithms of the scales, and a constant."""
        return softplus_scale(self.raw).log().sum() + self.entropy_constant

    @property
    def entropy_constant(self) -> float:
        """What the entropy holds beside the logarithms of the scales."""
        return _ENTROPY * len(self.raw)

    def covariance(self) -> Diagonal:
        """The variances."""
        return Diagonal(softplus_scale(self.raw.detach()).square())


class LowRankCovariance(Approximation):
    """Few directions on top of independent weights.

    Args:
        mean: to begin with, (d,).
        scale: the standard deviation to begin with.
        rank: the number of directions, k.
        noise: (d, k), standard normal: the directions to begin with, as all zeros would stay zeros.
    """

    def __init__(self, mean: Tensor, scale: float, rank: int, noise: Tensor) -> None:
        self.mean = mean.detach().clone().requires_grad_()
        self.raw = torch.full_like(mean, inverse_softplus(scale)).requires_grad_()
        self.factor = (0.1 * scale / math.sqrt(rank) * noise).requires_grad_()
        self.leaves = [self.mean, self.raw, self.factor]

    @property
    def num_noise(self) -> int:
        """One per weight and one per direction."""
        return len(self.mean) + self.factor.shape[1]

    def parts(self) -> tuple[Tensor, Tensor]:
        """Both."""
        return softplus_scale(self.raw).square(), self.factor

    def draw(self, noise: Tensor) -> Tensor:
        """The sum of both parts."""
        own, shared = noise.split([len(self.mean), self.factor.shape[1]])  # type: ignore[no-untyped-call]
        weights: Tensor = torch.addcmul(self.mean, softplus_scale(self.raw), own) + self.factor @ shared
        return weights

    def entropy(self) -> Tensor:
        """By the determinant lemma."""
        scales = softplus_scale(self.raw)
        whitened = self.factor / scales.unsqueeze(1)
        inner = whitened.mT @ whitened + torch.eye(whitened.shape[1], dtype=scales.dtype, device=scales.device)
        half = torch.linalg.cholesky_ex(inner)[0].diagonal().log().sum()
        entropy: Tensor = scales.log().sum() + half + _ENTROPY * len(scales)
        return entropy

    def covariance(self) -> LowRankPlusDiagonal:
        """Both parts."""
        return LowRankPlusDiagonal(softplus_scale(self.raw.detach()).square(), self.factor.detach().clone())


class FullCovariance(Approximation):
    """All covariances.

    Args:
        mean: to begin with, (d,).
        scale: the standard deviation to begin with.
    """

    def __init__(self, mean: Tensor, scale: float) -> None:
        self.mean = mean.detach().clone().requires_grad_()
        self.raw = torch.full_like(mean, inverse_softplus(scale)).requires_grad_()
        self.ties = torch.zeros(len(mean), len(mean), dtype=mean.dtype, device=mean.device).requires_grad_()
        self.leaves = [self.mean, self.raw, self.ties]

    @property
    def num_noise(self) -> int:
        """One per weight."""
        return len(self.mean)

    def _root(self) -> Tensor:
        scales = softplus_scale(self.raw)
        return torch.addcmul(scales.diag(), scales.unsqueeze(1), self.ties.tril(-1))

    def parts(self) -> tuple[None, Tensor]:
        """The factor only."""
        return None, self._root()

    def draw(self, noise: Tensor) -> Tensor:
        """The factor times the noise."""
        return self.mean + self._root() @ noise

    def entropy(self) -> Tensor:
        """The sum of the logarithms of the factor's diagonal, and a constant."""
        return softplus_scale(self.raw).log().sum() + _ENTROPY * len(self.mean)

    def covariance(self) -> Dense:
        """The product of the factor with itself; where rounding spoils that, with a little more on the diagonal."""
        root = self._root().detach()
        matrix = root @ root.mT
        more = torch.finfo(matrix.dtype).eps * matrix.diagonal().clone()
        for power in range(_MOST_DOUBLINGS):
            if not bool(torch.linalg.cholesky_ex(matrix)[1]):
                break
            matrix = matrix + 2**power * more.diag()
        return Dense(matrix)

    def score(self, weights: Tensor) -> Tensor:
        """By two triangular solves."""
        offset = (weights - self.mean).detach().unsqueeze(1)
        return torch.cholesky_solve(offset, self._root().detach()).squeeze(1)


def scales_and_penalty(
    mean: Tensor, raw: Tensor, loc: Tensor | None, precision: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    """Scales of independent weights, and what their divergence from a Gaussian prior adds to the objective.

    Returns:
        s = softplus(raw), (d,), and the scalar T sum log s - sum P ((m - a)^2 + s^2) / 2: the expected log prior plus
        T times the entropy, without constants. Both in one pass over the vectors, and one back.
    """
    scales, value = _ScalesAndPenalty.apply(mean, raw, loc, precision, temperature)  # type: ignore[no-untyped-call]
    return scales, value


class _ScalesAndPenalty(torch.autograd.Function):
    """See `scales_and_penalty`."""

    @staticmethod
    def forward(
        ctx: Any, mean: Tensor, raw: Tensor, loc: Tensor | None, precision: Tensor, temperature: float
    ) -> tuple[Tensor, Tensor]:
        """Both results; keeps the inputs and the scales."""
        scales = softplus_scale(raw)
        ctx.temperature = temperature
        ctx.save_for_backward(mean, raw, loc, precision, scales)
        offset = mean if loc is None else mean - loc
        if precision.dim() == 0:
            squared = precision * (offset.dot(offset) + scales.dot(scales))
        else:
            squared = (precision * offset).dot(offset) + (precision * scales).dot(scales)
        return scales, temperature * scales.log().sum() - 0.5 * squared

    @staticmethod
    def backward(ctx: Any, of_scales: Tensor, of_value: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        """Towards the means and the raw scales."""
        mean, raw, loc, precision, scales = ctx.saved_tensors
        offset = mean if loc is None else mean - loc
        weight = precision * of_value
        of_raw = scales.reciprocal().mul_(of_value * ctx.temperature).addcmul_(weight, scales, value=-1)
        of_raw.add_(of_scales).mul_(torch.sigmoid(raw))
        return offset * -weight, of_raw, None, None, None
