"""Gaussian approximations q of the posterior over the flat vector of the random weights, as they are trained.

    independent:  w = m + s e                       s = exp(r)
    low rank:     w = m + s e1 + F e2               F of shape (d, k)
    full:         w = m + s (I + C) e               C strictly lower triangular: L = diag(s) (I + C)

Scales are trained as their logarithms, in which the Fisher information of q is the same everywhere, so that one
learning rate suits scales of all sizes. They stop at the root of the smallest normal number: neither they nor their
squares are ever 0.
"""

import math
from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from credibly.core.linalg.base import PositiveDefinite
from credibly.core.linalg.diagonal import Diagonal
from credibly.core.linalg.factored import Factored
from credibly.core.linalg.low_rank import LowRankPlusDiagonal

__all__ = [
    "Approximation",
    "FullCovariance",
    "Independent",
    "LowRankCovariance",
    "scales_and_penalty",
    "scales_of",
]

_ENTROPY = 0.5 * (1 + math.log(2 * math.pi))  # of a standard normal number


def scales_of(log_scale: Tensor) -> Tensor:
    """Positive scales."""
    return log_scale.exp().clamp(min=_least(log_scale))


def _least(like: Tensor) -> float:
    return math.sqrt(torch.finfo(like.dtype).tiny)


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
        self.log_scale = torch.full_like(mean, math.log(scale)).requires_grad_()
        self.leaves = [self.mean, self.log_scale]

    @property
    def num_noise(self) -> int:
        """One per weight."""
        return len(self.mean)

    def parts(self) -> tuple[Tensor, None]:
        """Variances only."""
        return scales_of(self.log_scale).square(), None

    def draw(self, noise: Tensor) -> Tensor:
        """Entry by entry."""
        return torch.addcmul(self.mean, scales_of(self.log_scale), noise)

    def entropy(self) -> Tensor:
        """The sum of the logarithms of the scales, and a constant."""
        return self.log_scale.sum() + self.entropy_constant

    @property
    def entropy_constant(self) -> float:
        """What the entropy holds beside the logarithms of the scales."""
        return _ENTROPY * len(self.log_scale)

    def covariance(self) -> Diagonal:
        """The variances."""
        return Diagonal(scales_of(self.log_scale.detach()).square())


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
        self.log_scale = torch.full_like(mean, math.log(scale)).requires_grad_()
        self.factor = (0.1 * scale / math.sqrt(rank) * noise).requires_grad_()
        self.leaves = [self.mean, self.log_scale, self.factor]

    @property
    def num_noise(self) -> int:
        """One per weight and one per direction."""
        return len(self.mean) + self.factor.shape[1]

    def parts(self) -> tuple[Tensor, Tensor]:
        """Both."""
        return scales_of(self.log_scale).square(), self.factor

    def draw(self, noise: Tensor) -> Tensor:
        """The sum of both parts."""
        own, shared = noise.split([len(self.mean), self.factor.shape[1]])  # type: ignore[no-untyped-call]
        weights: Tensor = torch.addcmul(self.mean, scales_of(self.log_scale), own) + self.factor @ shared
        return weights

    def entropy(self) -> Tensor:
        """By the determinant lemma."""
        scales = scales_of(self.log_scale)
        whitened = self.factor / scales.unsqueeze(1)
        inner = whitened.mT @ whitened + torch.eye(whitened.shape[1], dtype=scales.dtype, device=scales.device)
        half = torch.linalg.cholesky_ex(inner)[0].diagonal().log().sum()  # only what is not finite fails: a loss of NaN
        entropy: Tensor = self.log_scale.sum() + half + _ENTROPY * len(scales)
        return entropy

    def covariance(self) -> LowRankPlusDiagonal:
        """Both parts."""
        return LowRankPlusDiagonal(scales_of(self.log_scale.detach()).square(), self.factor.detach().clone())


class FullCovariance(Approximation):
    """All covariances.

    Args:
        mean: to begin with, (d,).
        scale: the standard deviation to begin with.
    """

    def __init__(self, mean: Tensor, scale: float) -> None:
        self.mean = mean.detach().clone().requires_grad_()
        self.log_scale = torch.full_like(mean, math.log(scale)).requires_grad_()
        self.ties = torch.zeros(len(mean), len(mean), dtype=mean.dtype, device=mean.device).requires_grad_()
        self.leaves = [self.mean, self.log_scale, self.ties]

    @property
    def num_noise(self) -> int:
        """One per weight."""
        return len(self.mean)

    def _root(self) -> Tensor:
        scales = scales_of(self.log_scale)
        return torch.addcmul(scales.diag(), scales.unsqueeze(1), self.ties.tril(-1))

    def parts(self) -> tuple[None, Tensor]:
        """The factor only."""
        return None, self._root()

    def draw(self, noise: Tensor) -> Tensor:
        """The factor times the noise."""
        return self.mean + self._root() @ noise

    def entropy(self) -> Tensor:
        """The sum of the logarithms of the factor's diagonal, and a constant."""
        return self.log_scale.sum() + _ENTROPY * len(self.mean)

    def covariance(self) -> Factored:
        """By its factor."""
        return Factored(self._root().detach())


def scales_and_penalty(
    mean: Tensor, log_scale: Tensor, loc: Tensor | None, precision: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    """Scales of independent weights, and what their divergence from a Gaussian prior adds to the objective.

    Returns:
        s, (d,), and the scalar T sum log s - sum P ((m - a)^2 + s^2) / 2: the expected log prior plus T times the
        entropy, without constants. Both in one pass over the vectors, and one back.
    """
    scales, value = _ScalesAndPenalty.apply(mean, log_scale, loc, precision, temperature)  # type: ignore[no-untyped-call]
    return scales, value


class _ScalesAndPenalty(torch.autograd.Function):
    """See `scales_and_penalty`."""

    @staticmethod
    def forward(
        ctx: Any, mean: Tensor, log_scale: Tensor, loc: Tensor | None, precision: Tensor, temperature: float
    ) -> tuple[Tensor, Tensor]:
        """Both results; keeps the inputs and the scales."""
        scales = log_scale.exp().clamp_(min=_least(log_scale))
        ctx.temperature = temperature
        ctx.save_for_backward(mean, loc, precision, scales)
        offset = mean if loc is None else mean - loc
        if precision.dim() == 0:
            squared = precision * (offset.dot(offset) + scales.dot(scales))
        else:
            squared = (precision * offset).dot(offset) + (precision * scales).dot(scales)
        return scales, temperature * log_scale.sum() - 0.5 * squared

    @staticmethod
    def backward(ctx: Any, of_scales: Tensor, of_value: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        """Towards the means and the logarithms of the scales."""
        mean, loc, precision, scales = ctx.saved_tensors
        offset = mean if loc is None else mean - loc
        weight = precision * of_value
        of_log_scale = torch.addcmul(of_scales, weight, scales, value=-1).mul_(scales)
        of_log_scale.add_(of_value * ctx.temperature)
        return offset * -weight, of_log_scale, None, None, None
