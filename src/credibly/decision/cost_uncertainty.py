r"""How sure an expected cost is: one for every draw of a mixture, and what knowing the right draw would be worth.

With draws k of weights w_k, c_k(a) = sum_j costs[a, j] p_k(j) is the expected cost of act a if draw k is the truth.
Its mean over draws is the expected cost under the mean probabilities, by which the Bayes act is chosen; its spread
says how much of that is not known. Of the expected cost of the Bayes act,

    min_a sum_k w_k c_k(a) - sum_k w_k min_a c_k(a)  >=  0

would be saved by knowing the function: the expected value of perfect information ("Applied Statistical Decision
Theory", Raiffa, Schlaifer, 1961), here about the function and not about the class.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributions import Distribution

from credibly.core.typing import ArrayLike
from credibly.decision.bayes_act import best_acts
from credibly.decision.costs import check_costs, check_no_nan, costs_of_rows, probs_against
from credibly.distributions.classes import class_draw_log_probs
from credibly.distributions.mixture import MixturePredictive
from credibly.distributions.operations import Operation
from credibly.distributions.rows import num_rows, select

__all__ = ["CostUncertainty", "cost_uncertainty", "draw_log_weights", "expected_cost_draws"]

_CHUNK = 2**20  # probabilities and costs of draws held at once


@Operation
def draw_log_weights(d: Distribution) -> Tensor:
    """The logarithms of the weights of the draws that a distribution keeps, (num_draws,), normalised."""
    draw_log_weights.refuse(d)


@draw_log_weights.register(MixturePredictive)
def _(d: MixturePredictive) -> Tensor:
    return d.log_weights


@dataclass(frozen=True, eq=False)
class CostUncertainty:
    """What is known of the expected cost of every act.

    Attributes:
        expected_costs: the mean over draws, (rows, acts), float64.
        stddev: the standard deviation over draws, (rows, acts); infinite where the mean is.
        best_probability: the weight of the draws in which the act is the best (the first of those that tie),
            (rows, acts); it sums to 1 over acts.
        information_value: what knowing the function would save, (rows,); NaN where every act has an infinite cost.
    """

    expected_costs: Tensor
    stddev: Tensor
    best_probability: Tensor
    information_value: Tensor


def cost_uncertainty(predicted: Distribution, costs: ArrayLike) -> CostUncertainty:
    """The uncertainty of expected costs over the draws of a mixture.

    Args:
        predicted: a mixture over draws, of one choice among classes a row.
        costs: as in `bayes_act`.

    Raises:
        NotSupportedError: `predicted` keeps no draws, or is not one choice among classes a row.
        ShapeError, NotFiniteError, ValueError: see `bayes_act`.
    """
    matrix = check_costs(costs, predicted)
    with torch.no_grad():
        parts = [_of_draws(*block) for block in _blocks(predicted, matrix)]
    return CostUncertainty(*(torch.cat(column) for column in zip(*parts, strict=True)))


def expected_cost_draws(predicted: Distribution, costs: ArrayLike) -> Tensor:
    """The expected cost of every act in every draw, (num_draws, rows, acts), float64, with gradients.

    Args:
        predicted: a mixture over draws, of one choice among classes a row.
        costs: as in `bayes_act`.

    Raises:
        NotSupportedError, ShapeError, NotFiniteError, ValueError: see `cost_uncertainty`.
    """
    matrix = check_costs(costs, predicted)
    parts = []
    for _, probs, own in _blocks(predicted, matrix):
        draws, rows, classes = probs.shape
        parts.append(probs_against(probs.reshape(-1, classes), own).reshape(draws, rows, own.shape[-2]))
    return torch.cat(parts, 1)


def _blocks(predicted: Distribution, matrix: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Weights (num_draws,), probabilities (num_draws, block, classes) and costs for blocks of rows.

    Costs of rows are repeated for every draw: (num_draws * block, acts, classes).
    """
    rows, draws = num_rows(predicted), len(class_draw_log_probs(select(predicted, slice(0, 0))))
    weights = torch.softmax(draw_log_weights(predicted).double(), 0)
    table = matrix.shape[-1] + matrix.shape[-2] if matrix.dim() == 2 else matrix.shape[-1] * matrix.shape[-2]
    size = max(1, _CHUNK // (draws * table))
    for start in range(0, max(rows, 1), size):
        where = slice(start, min(start + size, rows))
        probs = check_no_nan(class_draw_log_probs(select(predicted, where)), start).exp()
        own = costs_of_rows(matrix, where)
        yield weights, probs, own if own.dim() == 2 else own.repeat(draws, 1, 1)


def _of_draws(weights: Tensor, probs: Tensor, costs: Tensor) -> tuple[Tensor, ...]:
    draws, rows, classes = probs.shape
    acts, means = (
        found.reshape(draws, rows, size)
        for found, size in zip(best_acts(probs.reshape(-1, classes), costs), (1, costs.shape[-2]), strict=True)
    )
    share = weights.reshape(-1, 1, 1)
    counted = share > 0
    expected = torch.where(counted, share * means, 0.0).sum(0)
    off = torch.where(counted & expected.isfinite(), means - expected, 0.0)
    stddev = torch.where(expected.isinf(), torch.inf, (share * off**2).sum(0).sqrt())
    best = torch.zeros_like(means).scatter_(-1, acts, 1.0)
    least = torch.where(counted.squeeze(-1), share.squeeze(-1) * means.amin(-1), 0.0).sum(0)
    saved = expected.amin(-1) - least
    return expected, stddev, (share * best).sum(0), torch.where(saved < 0, 0.0, saved)
