r"""Not deciding: abstain where every act is too dear, or leave the row to somebody who errs at a known rate.

Chow's rule ("On Optimum Recognition Error and Reject Tradeoff", Chow, 1970): abstain where the expected cost of the
best act exceeds the cost of abstaining. No other rule has a lower expected cost. Deferral is the same rule with the
expected cost of the expert in that place ("Consistent Estimators for Learning to Defer to an Expert", Mozannar,
Sontag, 2020): who takes act a where class j comes with probability E[j, a] costs

    fee + sum_j p_j sum_a E[j, a] costs[a, j],

if the expert's errors depend on the class alone. Both are as right as the probabilities are: calibrate them first.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributions import Distribution

from credibly.core.checks import as_tensor
from credibly.core.errors import ShapeError
from credibly.core.typing import ArrayLike
from credibly.decision.bayes_act import Decisions, bayes_act
from credibly.decision.costs import ABSTAINED, check_costs, expected_costs, numbers_of_rows
from credibly.distributions.rows import num_rows

__all__ = ["Abstention", "abstain", "defer", "expert_confusion"]

_ROUNDING = 1e-6


@dataclass(frozen=True, eq=False)
class Abstention(Decisions):
    """The act of every row, or none.

    Attributes:
        acts: the index of the act, (rows,), int64; -1 where the row is left alone or to the expert.
        expected_costs: of all acts, (rows, acts), float64.
        option_costs: the expected cost of abstaining or deferring, (rows,), float64.
    """

    option_costs: Tensor

    @property
    def abstained(self) -> Tensor:
        """Whether the row was left, (rows,), bool."""
        return self.acts == ABSTAINED

    @property
    def expected_cost(self) -> Tensor:
        """The expected cost of what is done, (rows,), float64."""
        taken = self.expected_costs.gather(-1, self.acts.clamp(min=0).unsqueeze(-1)).squeeze(-1)
        return torch.where(self.abstained, self.option_costs, taken)


def abstain(predicted: Distribution, costs: ArrayLike, *, cost: ArrayLike) -> Abstention:
    """The Bayes act, or none where its expected cost exceeds that of abstaining; in a tie, the act.

    Args:
        predicted: one choice among classes a row; a mixture counts as its mean probabilities.
        costs: (acts, classes), or (rows, acts, classes); see `bayes_act`.
        cost: of abstaining: one number, or one a row, (rows,).

    Raises:
        NotSupportedError: `predicted` is not one choice among classes a row.
        ShapeError: `costs` or `cost` has another shape.
        NotFiniteError: NaN costs or probabilities.
        ValueError: a cost of -infinity.
    """
    best = bayes_act(predicted, costs)
    return _either(best, numbers_of_rows("cost", cost, best.acts))


def defer(predicted: Distribution, costs: ArrayLike, *, expert: ArrayLike, fee: ArrayLike = 0.0) -> Abstention:
    """The Bayes act, or none where its expected cost exceeds that of an expert; in a tie, the act.

    Args:
        predicted: one choice among classes a row; a mixture counts as its mean probabilities.
        costs: (acts, classes), or (rows, acts, classes); see `bayes_act`.
        expert: the probability of each act by class, (classes, acts), or (rows, classes, acts); see `expert_confusion`.
        fee: of asking: one number, or one a row, (rows,).

    Raises:
        NotSupportedError: `predicted` is not one choice among classes a row.
        ShapeError: `costs`, `expert` or `fee` has another shape.
        NotFiniteError: NaN costs or probabilities.
        ValueError: a cost of -infinity; probabilities of the expert outside [0, 1], or that do not sum to 1.
    """
    best = bayes_act(predicted, costs)
    matrix = check_costs(costs, predicted)
    chances = _check_expert(expert, num_rows(predicted), matrix)
    by_class = torch.where(chances > 0, chances * matrix.mT, 0.0).sum(-1)
    with torch.no_grad():
        asked = expected_costs(predicted, by_class.unsqueeze(-2)).squeeze(-1)
    return _either(best, asked + numbers_of_rows("fee", fee, best.acts))


def _either(best: Decisions, option_costs: Tensor) -> Abstention:
    left = best.expected_cost > option_costs
    return Abstention(torch.where(left, ABSTAINED, best.acts), best.expected_costs, option_costs)


def _check_expert(expert: ArrayLike, rows: int, costs: Tensor) -> Tensor:
    chances = as_tensor(expert, device=costs.device).to(torch.float64)
    acts, classes = costs.shape[-2:]
    if chances.shape not in ((classes, acts), (rows, classes, acts)):
        raise ShapeError(
            f"`expert` must have shape ({classes}, {acts}) or ({rows}, {classes}, {acts}), the chance of each act by "
            f"class; got {tuple(chances.shape)}"
        )
    off = (chances.sum(-1) - 1).abs()
    if not bool(((chances >= 0) & (chances <= 1)).all() & (off <= _ROUNDING).all()):
        raise ValueError("`expert` must hold probabilities that sum to 1 over acts")
    return chances


def expert_confusion(error_rates: ArrayLike) -> Tensor:
    """The expert who errs at a known rate in each class, and then takes one of the other classes at random.

    Args:
        error_rates: (classes,), 2 or more, in [0, 1].

    Returns:
        The probability of each answer by class, (classes, classes), float64.

    Raises:
        ShapeError: another shape.
        ValueError: a rate outside [0, 1].
    """
    rates = as_tensor(error_rates).to(torch.float64)
    if rates.dim() != 1 or len(rates) < 2:
        raise ShapeError(f"`error_rates` must have shape (classes,), of 2 or more; got {tuple(rates.shape)}")
    if not bool(((rates >= 0) & (rates <= 1)).all()):
        raise ValueError("`error_rates` must lie in [0, 1]")
    table = (rates / (len(rates) - 1)).unsqueeze(-1).repeat(1, len(rates))
    table.diagonal().copy_(1 - rates)
    return table
