r"""Conformal risk control: the least conservative parameter whose expected loss is at most a level.

"Conformal Risk Control" (Angelopoulos, Bates, Fisch, Lei, Schuster, 2024). Losses L_i(lambda) <= B never grow with
lambda. From n calibration rows, exchangeable with the test row, take the smallest lambda with

    n / (n + 1) R^(lambda) + B / (n + 1)  <=  level;

then the expected loss of the test row is at most the level. For the loss 1{score > lambda} this is split conformal
prediction. If no lambda qualifies, the last and most conservative one is given back, and the result says that nothing
is promised.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from credibly.conformal.comparisons import at_most, exact_number
from credibly.core.checks import as_tensor, check_finite
from credibly.core.errors import ShapeError, SupportError
from credibly.core.typing import ArrayLike

__all__ = ["ConformalRiskControl", "ControlledRisk", "monotone_losses"]


@dataclass(frozen=True, eq=False, kw_only=True)
class ControlledRisk:
    """A chosen parameter, and what is known about its risk.

    Attributes:
        parameter: the chosen lambda, a scalar tensor.
        index: its place in the grid.
        controlled: whether the guarantee holds; if not, the parameter is the most conservative one.
        risks: the mean loss of every lambda, (lambdas,), float64.
        bounds: what was compared with the level, (lambdas,), float64.
    """

    parameter: Tensor
    index: int
    controlled: bool
    risks: Tensor
    bounds: Tensor

    @property
    def risk(self) -> Tensor:
        """The mean loss of the chosen parameter on the calibration rows, a scalar tensor."""
        return self.risks[self.index]


@dataclass(frozen=True, kw_only=True)
class ConformalRiskControl:
    """Control the expected loss of a monotone loss.

    Args:
        level: the expected loss allowed, in the unit of the losses.
        maximum: a number B that no loss can exceed.
    """

    level: float
    maximum: float = 1.0

    def __post_init__(self) -> None:
        for name, value in (("level", self.level), ("maximum", self.maximum)):
            if not math.isfinite(value):
                raise ValueError(f"`{name}` must be finite; got {value}")

    def calibrate(self, losses: ArrayLike, lambdas: ArrayLike) -> ControlledRisk:
        """Choose the smallest lambda that qualifies.

        Args:
            losses: the loss of every held-out row at every lambda, (rows, lambdas), never growing along a row.
            lambdas: the grid, (lambdas,), increasing; the last is the most conservative.

        Raises:
            ShapeError: no rows, no lambdas, or shapes that do not agree.
            NotFiniteError: NaN or infinite losses.
            SupportError: a loss above `maximum`.
            ValueError: lambdas that do not increase, or a loss that grows along its row.
        """
        table, grid = checked_table(losses, lambdas, self.maximum)
        growing = (table.diff(dim=-1) > 0).any(-1)
        if bool(growing.any()):
            raise ValueError(
                f"`losses` must not grow with lambda; they do in {int(growing.sum())} of {len(table)} rows, first row "
                f"{int(growing.nonzero()[0])}: use monotone_losses(losses), or LearnThenTest"
            )
        rows = len(table)
        total = table.sum(0) + self.maximum
        qualifies = at_most(total, exact_number(self.level), rows + 1)
        return chosen(grid, qualifies, table.mean(0), total / (rows + 1))


def monotone_losses(losses: ArrayLike) -> Tensor:
    """The least losses that never grow along a row and are at least the given ones, (rows, lambdas), float64."""
    table = as_tensor(losses).to(torch.float64)
    return table.flip(-1).cummax(-1).values.flip(-1)


def checked_losses(losses: ArrayLike, maximum: float) -> Tensor:
    """The losses as float64, none above the maximum, which is compared in the precision that the losses have."""
    table = check_finite("losses", as_tensor(losses)).detach()
    dtype = table.dtype if table.is_floating_point() else torch.float64
    limit = torch.tensor(maximum, dtype=dtype, device=table.device)
    if bool((table > limit).any()):
        raise SupportError(f"`losses` must be at most {maximum:g}; the largest is {table.max():g}")
    return table.to(torch.float64).clamp(max=maximum)


def checked_table(losses: ArrayLike, lambdas: ArrayLike, maximum: float) -> tuple[Tensor, Tensor]:
    """The losses, (rows, lambdas), float64, and the increasing grid, (lambdas,), on one device."""
    table = checked_losses(losses, maximum)
    grid = as_tensor(lambdas, device=table.device).detach()
    if table.dim() != 2 or grid.shape != table.shape[1:] or not table.numel():
        raise ShapeError(
            "`losses` must have shape (rows, lambdas) and `lambdas` (lambdas,), with one row and one lambda or more; "
            f"got {tuple(table.shape)} and {tuple(grid.shape)}"
        )
    if bool((grid.isnan() if grid.is_floating_point() else grid != grid).any()) or bool((grid[1:] <= grid[:-1]).any()):
        raise ValueError("`lambdas` must increase strictly")
    return table, grid


def chosen(grid: Tensor, qualifies: Tensor, risks: Tensor, bounds: Tensor) -> ControlledRisk:
    """The first lambda that qualifies, else the last."""
    controlled = bool(qualifies.any())
    index = int(qualifies.to(torch.int8).argmax()) if controlled else len(grid) - 1
    return ControlledRisk(parameter=grid[index], index=index, controlled=controlled, risks=risks, bounds=bounds)
