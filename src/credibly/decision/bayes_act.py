r"""The Bayes act: of all acts the one whose expected cost is least ("Statistical Decision Theory", Berger, 1985).

    act = argmin_a sum_j costs[a, j] p_j

With a cost of 1 off the diagonal and 0 on it, it is the most probable class. Among acts of equal expected cost the
first is taken. So that rounding does not break such ties, acts that come close to the least are compared by the sums
of p_j (costs[a, j] - costs[b, j]), in which what they have in common is exactly 0.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributions import Distribution

from credibly.core.typing import ArrayLike
from credibly.decision.costs import check_costs, check_no_nan, costs_of_rows, finite_part, probs_against
from credibly.distributions.class_rows import class_log_prob_blocks

__all__ = ["Decisions", "bayes_act", "best_acts"]

_CLOSE = 1e-9  # differences that may be rounding, relative to the sizes of the costs


@dataclass(frozen=True, eq=False)
class Decisions:
    """The act of every row.

    Attributes:
        acts: the index of the act, (rows,), int64.
        expected_costs: of all acts, (rows, acts), float64.
    """

    acts: Tensor
    expected_costs: Tensor

    @property
    def expected_cost(self) -> Tensor:
        """The expected cost of the act that was taken, (rows,), float64."""
        return self.expected_costs.gather(-1, self.acts.unsqueeze(-1)).squeeze(-1)


def bayes_act(predicted: Distribution, costs: ArrayLike) -> Decisions:
    """The act of least expected cost for every row; the first of those that tie.

    Args:
        predicted: one choice among classes a row; a mixture counts as its mean probabilities.
        costs: (acts, classes), or (rows, acts, classes) where rows have costs of their own. Negative costs are gains;
            +infinity forbids an act where the class has a probability above 0. If all acts are forbidden, the first
            is taken, at an infinite expected cost.

    Raises:
        NotSupportedError: `predicted` is not one choice among classes a row; see `grid_act`.
        ShapeError: `costs` has another shape.
        NotFiniteError: a NaN cost or probability.
        ValueError: a cost of -infinity.
    """
    matrix = check_costs(costs, predicted)
    parts = []
    with torch.no_grad():
        for rows, log_probs in class_log_prob_blocks(predicted):
            probs = check_no_nan(log_probs, rows.start).exp()
            parts.append(best_acts(probs, costs_of_rows(matrix, rows)))
    acts, means = (torch.cat(column) for column in zip(*parts, strict=True))
    return Decisions(acts, means)


def best_acts(
    probs: Tensor,  # (rows, classes)
    costs: Tensor,  # (acts, classes) or (rows, acts, classes)
) -> tuple[Tensor, Tensor]:
    """The act of each row, (rows,), and the expected costs of all, (rows, acts)."""
    means = probs_against(probs, costs)
    acts = means.argmin(-1)
    if not means.numel():
        return acts, means
    sizes = (probs * finite_part(_costs_taken(costs, acts)).abs()).sum(-1, keepdim=True)
    close = means <= means.gather(-1, acts.unsqueeze(-1)) + _CLOSE * sizes
    for row_set in _rows_by_act(acts, close.sum(-1) > 1, costs.dim() == 2):
        own = costs_of_rows(costs, row_set)
        first = acts[row_set[:1]] if costs.dim() == 2 else acts[row_set]  # a group shares one matrix and one act
        taken = finite_part(_costs_taken(own, first))
        to_first = own - (taken if costs.dim() == 2 else taken.unsqueeze(1))
        acts[row_set] = probs_against(probs[row_set], to_first).argmin(-1)
    return acts, means


def _rows_by_act(acts: Tensor, chosen: Tensor, shared: bool) -> list[Tensor]:
    """The chosen rows, in groups of one act if they share a matrix."""
    rows = chosen.nonzero().squeeze(-1)
    if not len(rows):
        return []
    return [rows[acts[rows] == act] for act in acts[rows].unique()] if shared else [rows]  # type: ignore[no-untyped-call]


def _costs_taken(costs: Tensor, acts: Tensor) -> Tensor:
    """The costs of one act a row, (rows, classes)."""
    return costs[acts] if costs.dim() == 2 else costs[torch.arange(len(acts), device=acts.device), acts]
