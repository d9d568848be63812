r"""Many tests at once: which hypotheses are rejected, given one p-value for each.

- `Bonferroni`: p <= level / m. Family-wise error at most the level, whatever the dependence.
- `Holm` ("A Simple Sequentially Rejective Multiple Test Procedure", Holm, 1979): the k-th smallest p-value against
  level / (m - k + 1), until the first fails. Rejects all that Bonferroni does, under the same guarantee.
- `FixedSequence` ("Optimally Weighted, Fixed Sequence and Gatekeeper Multiple Testing Procedures", Westfall, Krishen,
  2001): tests in an order chosen beforehand, each at the whole level, until the first fails. With several starts, as in
  "Learn then Test" (Angelopoulos, Bates, Candes, Jordan, Lei, 2021), each stretch gets an equal part of the level.
- `BenjaminiHochberg` ("Controlling the False Discovery Rate", Benjamini, Hochberg, 1995): the largest k with
  p_(k) <= k level / m, and all up to it. False discovery rate at most the level for independent or positively dependent
  p-values, conformal ones among them (Bates, Candes, Lei, Romano, Sesia, 2023).

Levels are compared as the rationals they were written for: a p-value of 1/100 is at most 0.1 / 10.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from credibly.conformal.comparisons import at_most, exact_number
from credibly.core.checks import as_tensor, check_count
from credibly.core.errors import NotFiniteError, ShapeError, SupportError
from credibly.core.typing import ArrayLike

__all__ = ["BenjaminiHochberg", "Bonferroni", "FixedSequence", "Holm", "MultipleTest"]


class MultipleTest(ABC):
    """A procedure that turns p-values into rejections. A frozen dataclass of options."""

    @property
    def controls_family_wise_error(self) -> bool:
        """Whether the probability of one false rejection or more is at most the level."""
        return True

    def reject(self, p_values: ArrayLike, level: float) -> Tensor:
        """Which hypotheses are rejected.

        Args:
            p_values: one a hypothesis, (..., m), in [0, 1]; leading axes are separate families.
            level: the error rate to control, in [0, 1].

        Returns:
            Whether each is rejected, (..., m), bool.

        Raises:
            ShapeError: `p_values` is a single number.
            NotFiniteError: NaN among the p-values.
            SupportError: p-values outside [0, 1].
            ValueError: `level` outside [0, 1].
        """
        p = check_p_values(p_values)
        if not 0 <= level <= 1:
            raise ValueError(f"`level` must lie in [0, 1]; got {level}")
        return self._reject(p, exact_number(level)) if p.numel() else torch.zeros_like(p, dtype=torch.bool)

    @abstractmethod
    def _reject(self, p: Tensor, level: Fraction) -> Tensor: ...


def check_p_values(p_values: ArrayLike) -> Tensor:
    """The p-values as float64."""
    p = as_tensor(p_values).to(torch.float64)
    if not p.dim():
        raise ShapeError("`p_values` must have shape (..., hypotheses); got a single number")
    if bool(p.isnan().any()):
        raise NotFiniteError(f"`p_values` must not be NaN; {int(p.isnan().sum())} of {p.numel()} are")
    if bool(((p < 0) | (p > 1)).any()):
        raise SupportError(f"`p_values` must lie in [0, 1]; they range from {p.min():g} to {p.max():g}")
    return p


@dataclass(frozen=True)
class Bonferroni(MultipleTest):
    """Each p-value against level / m."""

    def _reject(self, p: Tensor, level: Fraction) -> Tensor:
        return at_most(p, level / p.shape[-1])


@dataclass(frozen=True)
class Holm(MultipleTest):
    """The k-th smallest p-value against level / (m - k + 1), until the first fails."""

    def _reject(self, p: Tensor, level: Fraction) -> Tensor:
        ordered, order = p.sort(dim=-1, stable=True)
        left = torch.arange(p.shape[-1], 0, -1, dtype=p.dtype, device=p.device)
        return _back(at_most(ordered * left, level).cummin(-1).values, order)


@dataclass(frozen=True)
class FixedSequence(MultipleTest):
    """Tests in the order of the last axis, each at the whole level, until the first fails.

    Args:
        num_starts: the order is cut into so many stretches of about equal length, each tested from its own start
            at level / num_starts.
    """

    num_starts: int = 1

    def __post_init__(self) -> None:
        check_count("num_starts", self.num_starts)

    def _reject(self, p: Tensor, level: Fraction) -> Tensor:
        passed = at_most(p, level / self.num_starts)
        return torch.cat([part.cummin(-1).values for part in passed.tensor_split(self.num_starts, -1)], -1)


@dataclass(frozen=True)
class BenjaminiHochberg(MultipleTest):
    """The largest k with p_(k) <= k level / m, and all up to it. Controls the false discovery rate."""

    @property
    def controls_family_wise_error(self) -> bool:
        """It does not: it bounds the expected fraction of false rejections among all."""
        return False

    def _reject(self, p: Tensor, level: Fraction) -> Tensor:
        ordered, order = p.sort(dim=-1, stable=True)
        number = torch.arange(1, p.shape[-1] + 1, dtype=p.dtype, device=p.device)
        passed = at_most(ordered, level / p.shape[-1], number)
        return _back(passed.flip(-1).cummax(-1).values.flip(-1), order)


def _back(ordered: Tensor, order: Tensor) -> Tensor:
    """From sorted places to the original ones."""
    return torch.empty_like(ordered).scatter_(-1, order, ordered)
