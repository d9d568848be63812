r"""Parameters whose risk is at most a level with high probability over the calibration rows.

- `RCPS`, risk-controlling prediction sets ("Distribution-Free, Risk-Controlling Prediction Sets", Bates, Angelopoulos,
  Lei, Malik, Jordan, 2021): the risk never grows with lambda. The smallest lambda from which on every upper confidence
  bound of the risk stays below the level; its risk is at most the level with probability 1 - delta.
- `LearnThenTest` ("Learn then Test: Calibrating Predictive Algorithms to Achieve Risk Control", Angelopoulos, Bates,
  Candes, Jordan, Lei, 2021): any losses, any grid of parameters, of any dimension. Each is a hypothesis that its risk
  exceeds the level; a multiple test rejects some, and with probability 1 - delta all that are rejected have a risk of
  at most the level, so the user may choose among them by any other criterion, seen on the same rows.

Conformal risk control bounds the mean over calibration sets; these bound the probability of a bad one.
"""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from credibly.conformal.bounds import HoeffdingBentkus, RiskBound, check_delta
from credibly.conformal.multiple_testing import Bonferroni, MultipleTest
from credibly.conformal.risk_control import ControlledRisk, checked_losses, checked_table, chosen
from credibly.core.checks import as_tensor, check_finite, check_positive
from credibly.core.errors import NotSupportedError, ShapeError
from credibly.core.typing import ArrayLike

__all__ = ["RCPS", "LearnThenTest", "TestedRisks"]


@dataclass(frozen=True, kw_only=True)
class RCPS:
    """Control a risk that never grows with lambda, with high probability.

    Args:
        level: the risk allowed, in the unit of the losses.
        delta: the probability, over calibration sets, that it is exceeded.
        bound: the upper bound of the risk; ExactBinomial() where losses are 0 or `maximum`.
        maximum: a number that no loss can exceed; losses lie between 0 and it.
    """

    level: float
    delta: float = 0.1
    bound: RiskBound = field(default_factory=HoeffdingBentkus)
    maximum: float = 1.0

    def __post_init__(self) -> None:
        _check_options(self.level, self.delta, self.maximum)

    def calibrate(self, losses: ArrayLike, lambdas: ArrayLike) -> ControlledRisk:
        """Choose the smallest lambda from which on all bounds are below the level.

        Args:
            losses: the loss of every held-out row at every lambda, (rows, lambdas), in [0, maximum].
            lambdas: the grid, (lambdas,), increasing; the last is the most conservative.

        Raises:
            ShapeError: no rows, no lambdas, or shapes that do not agree.
            NotFiniteError: NaN or infinite losses.
            SupportError: losses outside [0, maximum].
            ValueError: lambdas that do not increase.
        """
        table, grid = checked_table(losses, lambdas, self.maximum)
        bounds = self.maximum * self.bound.upper_bound(table / self.maximum, self.delta)
        below = (bounds < self.level).flip(0).cummin(0).values.flip(0)
        return chosen(grid, below, table.mean(0), bounds)


@dataclass(frozen=True, eq=False, kw_only=True)
class TestedRisks:
    """Which parameters have a risk of at most the level, with high probability all of them at once.

    Attributes:
        parameters: the grid, (parameters,) or (parameters, dimensions).
        valid: whether each was found to have a small risk, (parameters,), bool.
        p_values: of the hypothesis that it has not, (parameters,), float64.
        risks: the mean losses, (parameters,), float64.
    """

    __test__ = False  # not a test case, whatever pytest makes of its name

    parameters: Tensor
    valid: Tensor
    p_values: Tensor
    risks: Tensor

    @property
    def controlled(self) -> bool:
        """Whether any parameter was found valid."""
        return bool(self.valid.any())

    def best(self, costs: ArrayLike) -> int | None:
        """The index of the valid parameter of least cost, the first of equals; None if none is valid.

        Args:
            costs: what to make small among the valid, (parameters,).

        Raises:
            ShapeError: not one cost a parameter.
            NotFiniteError: NaN costs of valid parameters.
        """
        given = as_tensor(costs, device=self.valid.device).detach().to(torch.float64)
        if given.shape != self.valid.shape:
            raise ShapeError(f"`costs` must have shape {tuple(self.valid.shape)}; got {tuple(given.shape)}")
        places = self.valid.nonzero().squeeze(-1)
        if not len(places):
            return None
        return int(places[check_finite("costs", given[places]).argmin()])


@dataclass(frozen=True, kw_only=True)
class LearnThenTest:
    """Find parameters of small risk by testing each.

    Args:
        level: the risk allowed, in the unit of the losses.
        delta: the probability that any parameter found valid exceeds it.
        bound: the p-value of one parameter; ExactBinomial() where losses are 0 or `maximum`.
        procedure: the multiple test; FixedSequence() where a promising order is known.
        maximum: a number that no loss can exceed; losses lie between 0 and it.

    Raises:
        NotSupportedError: `procedure` does not control the family-wise error.
    """

    level: float
    delta: float = 0.1
    bound: RiskBound = field(default_factory=HoeffdingBentkus)
    procedure: MultipleTest = field(default_factory=Bonferroni)
    maximum: float = 1.0

    def __post_init__(self) -> None:
        _check_options(self.level, self.delta, self.maximum)
        if not self.procedure.controls_family_wise_error:
            raise NotSupportedError(
                f"LearnThenTest needs a `procedure` that controls the family-wise error; {self.procedure} does not: "
                "use Bonferroni, Holm or FixedSequence"
            )

    def calibrate(self, losses: ArrayLike, parameters: ArrayLike, *, order: ArrayLike | None = None) -> TestedRisks:
        """Test every parameter.

        Args:
            losses: the loss of every held-out row at every parameter, (rows, parameters), in [0, maximum].
            parameters: the grid, (parameters,) or (parameters, dimensions).
            order: the order of testing, (parameters,), a permutation chosen without these rows; None goes from the last
                to the first, so that an increasing grid is tested from its conservative end. Only `FixedSequence`
                depends on it.

        Raises:
            ShapeError: no rows, no parameters, or shapes that do not agree.
            NotFiniteError: NaN or infinite losses.
            SupportError: losses outside [0, maximum].
            ValueError: `order` is not a permutation.
        """
        table = checked_losses(losses, self.maximum)
        grid = as_tensor(parameters, device=table.device).detach()
        if table.dim() != 2 or not table.numel() or not grid.dim() or len(grid) != table.shape[1]:
            raise ShapeError(
                "`losses` must have shape (rows, parameters) and `parameters` (parameters, ...), one or more of each; "
                f"got {tuple(table.shape)} and {tuple(grid.shape)}"
            )
        risk = min(self.level / self.maximum, 1.0)
        p_values = self.bound.p_values(table / self.maximum, risk, delta=self.delta)
        places = _order(order, table.shape[1], table.device)
        valid = torch.empty_like(p_values, dtype=torch.bool)
        valid[places] = self.procedure.reject(p_values[places], self.delta)
        return TestedRisks(parameters=grid, valid=valid, p_values=p_values, risks=table.mean(0))


def _order(order: ArrayLike | None, count: int, device: torch.device) -> Tensor:
    if order is None:
        return torch.arange(count - 1, -1, -1, device=device)
    given = as_tensor(order, device=device)
    if given.shape != (count,) or not torch.equal(given.sort().values, torch.arange(count, device=device)):
        raise ValueError(f"`order` must be a permutation of 0 to {count - 1}")
    return given.to(torch.int64)


def _check_options(level: float, delta: float, maximum: float) -> None:
    if not (level >= 0 and math.isfinite(level)):
        raise ValueError(f"`level` must be a finite number, 0 or above; got {level}")
    check_delta(delta)
    check_positive("maximum", maximum)
