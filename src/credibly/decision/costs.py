r"""Costs of acts: the matrix, what it leads one to expect, and what came.

`costs[a, j]` is the cost of act a where class j comes. There may be more acts than classes, or fewer, and a matrix of
its own for every row. Costs may be negative, which is a gain. A cost of +infinity forbids the act wherever the class
has a probability above 0; where it has probability 0 the cost does not count.
"""

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.distributions import Distribution

from credibly.core.checks import as_tensor, check_same_rows
from credibly.core.errors import NotFiniteError, NotSupportedError, ShapeError, SupportError
from credibly.core.typing import ArrayLike
from credibly.distributions.class_rows import class_log_prob_blocks
from credibly.distributions.classes import class_log_probs
from credibly.distributions.kinds import kind, reference
from credibly.distributions.operations import check_distribution
from credibly.distributions.rows import num_rows, select

__all__ = [
    "ABSTAINED",
    "HasActs",
    "acts_of",
    "check_classes",
    "check_costs",
    "check_no_nan",
    "costs_of_rows",
    "expected_costs",
    "finite_part",
    "incurred_costs",
    "numbers_of_rows",
    "probs_against",
]

ABSTAINED = -1
"""The act of a row on which nothing is done."""


def expected_costs(predicted: Distribution, costs: ArrayLike) -> Tensor:
    """The expected cost of every act, sum_j costs[a, j] p_j.

    Args:
        predicted: one choice among classes a row; a mixture counts as its mean probabilities.
        costs: (acts, classes), or (rows, acts, classes) where rows have costs of their own.

    Returns:
        (rows, acts), float64; it carries gradients where `predicted` does.

    Raises:
        NotSupportedError: `predicted` is not one choice among classes a row.
        ShapeError: `costs` has another shape.
        NotFiniteError: a NaN cost or probability.
        ValueError: a cost of -infinity.
    """
    matrix = check_costs(costs, predicted)
    parts = []
    for rows, log_probs in class_log_prob_blocks(predicted):
        probs = check_no_nan(log_probs, rows.start).exp()
        parts.append(probs_against(probs, costs_of_rows(matrix, rows)))
    return torch.cat(parts)


def probs_against(
    probs: Tensor,  # (rows, classes)
    costs: Tensor,  # (acts, classes) or (rows, acts, classes)
) -> Tensor:
    """Expected costs, (rows, acts); a probability of 0 silences an infinite cost."""
    forbidden = costs.isinf()
    means = _product(probs, finite_part(costs))
    if not bool(forbidden.any()):
        return means
    return torch.where(_product((probs > 0).to(probs.dtype), forbidden.to(probs.dtype)) > 0, torch.inf, means)


def _product(probs: Tensor, table: Tensor) -> Tensor:
    return probs @ table.mT if table.dim() == 2 else (table @ probs.unsqueeze(-1)).squeeze(-1)


def finite_part(costs: Tensor) -> Tensor:
    """The costs, with 0 in the place of infinity."""
    return torch.where(costs.isinf(), 0.0, costs)


def costs_of_rows(costs: Tensor, rows: slice | Tensor) -> Tensor:
    """The matrices of some rows: the one of all rows, or theirs."""
    return costs if costs.dim() == 2 else costs[rows]


def check_classes(predicted: Distribution, advice: str) -> None:
    """Raise a NotSupportedError unless the prediction is one choice among classes a row."""
    check_distribution(predicted)
    if kind(predicted) != "class":
        raise NotSupportedError(
            f"a cost matrix is for classes; a {type(predicted).__name__} is about a {kind(predicted)} target: {advice}"
        )
    if predicted.event_shape:
        raise NotSupportedError(
            f"a cost matrix needs one class a row; `predicted` has event_shape {tuple(predicted.event_shape)}: "
            "decide about each label by itself"
        )
    num_rows(predicted)


def check_costs(costs: ArrayLike, predicted: Distribution) -> Tensor:
    """The matrix in float64, on the device of the prediction, (acts, classes) or (rows, acts, classes)."""
    check_classes(predicted, "use grid_act")
    classes = class_log_probs(select(predicted, slice(0, 0))).shape[-1]
    matrix = as_tensor(costs, device=reference(predicted).device).to(torch.float64)
    rows = num_rows(predicted)
    fits = matrix.dim() == 2 or (matrix.dim() == 3 and len(matrix) == rows)
    if not fits or matrix.shape[-1] != classes or not matrix.shape[-2]:
        raise ShapeError(
            f"`costs` must have shape (acts, {classes}) or ({rows}, acts, {classes}), with one act or more; "
            f"got {tuple(matrix.shape)}"
        )
    return _checked_values("costs", matrix)


def _checked_values(name: str, values: Tensor) -> Tensor:
    if bool(values.isnan().any()):
        raise NotFiniteError(f"`{name}` must not be NaN; {int(values.isnan().sum())} of {values.numel()} values are")
    if bool(values.isneginf().any()):
        raise ValueError(f"`{name}` must not hold -infinity, a gain that outweighs everything; +infinity is allowed")
    return values


def numbers_of_rows(name: str, values: ArrayLike, like: Tensor) -> Tensor:
    """One number for all rows or one a row, as (rows,), float64, where `like` is (rows, ...).

    Raises:
        ShapeError: another shape.
        NotFiniteError: NaN.
        ValueError: -infinity.
    """
    numbers, rows = as_tensor(values, device=like.device).to(torch.float64), len(like)
    if numbers.shape not in ((), (rows,), (rows, 1)):
        raise ShapeError(f"`{name}` must be one number or have shape ({rows},); got {tuple(numbers.shape)}")
    return _checked_values(name, numbers.reshape(-1) if numbers.dim() else numbers).expand(rows)


def check_no_nan(log_probs: Tensor, first: int) -> Tensor:
    """The log probabilities (..., rows, classes) themselves, or an error that names the first row with NaN."""
    if bool(log_probs.sum().isnan()):
        bad = log_probs.isnan().any(-1)
        row = int(bad.reshape(-1, bad.shape[-1]).any(0).nonzero()[0]) + first
        raise NotFiniteError(f"`predicted` must have no NaN probabilities; the first is in row {row}")
    return log_probs


@runtime_checkable
class HasActs(Protocol):
    """What holds the act of every row, such as `Decisions`."""

    @property
    def acts(self) -> Tensor:
        """The act of each row, (rows,)."""


def acts_of(acts: ArrayLike | HasActs) -> ArrayLike:
    """The acts themselves, of decisions or as they were given."""
    return acts.acts if isinstance(acts, HasActs) else acts


def incurred_costs(
    acts: ArrayLike | HasActs, targets: ArrayLike, costs: ArrayLike, *, abstained: ArrayLike | None = None
) -> Tensor:
    """What the acts did cost, once the classes have come.

    Args:
        acts: what `bayes_act`, `abstain` or `defer` decided, or the act of each row, (rows,); -1 where nothing was
            done.
        targets: the class of each row, (rows,).
        costs: (acts, classes), or (rows, acts, classes).
        abstained: the cost of rows whose act is -1: one number, or one a row, (rows,).

    Returns:
        (rows,), float64.

    Raises:
        ShapeError: arguments of different lengths or of other shapes.
        SupportError: an act or a class that the costs do not have.
        NotFiniteError, ValueError: NaN costs, or costs of -infinity.
        ValueError: there are rows with act -1, and `abstained` was not given.
    """
    matrix = _checked_values("costs", as_tensor(costs).to(torch.float64))
    if matrix.dim() not in (2, 3):
        raise ShapeError(f"`costs` must have shape (acts, classes) or (rows, acts, classes); got {tuple(matrix.shape)}")
    chosen = _indices("acts", acts_of(acts), ABSTAINED, matrix.shape[-2], matrix.device)
    classes = _indices("targets", targets, 0, matrix.shape[-1], matrix.device)
    check_same_rows("targets", len(classes), "acts", len(chosen))
    silent = chosen == ABSTAINED
    if matrix.dim() == 3:
        check_same_rows("costs", len(matrix), "acts", len(chosen))
        came = matrix[torch.arange(len(chosen), device=matrix.device), chosen.clamp(min=0), classes]
    else:
        came = matrix[chosen.clamp(min=0), classes]
    if abstained is None:
        if bool(silent.any()):
            raise ValueError(f"`abstained` is needed: {int(silent.sum())} of {len(silent)} rows have the act -1")
        return came
    return torch.where(silent, numbers_of_rows("abstained", abstained, came), came)


def _indices(name: str, values: ArrayLike, lowest: int, count: int, device: torch.device) -> Tensor:
    given = as_tensor(values, device=device)
    if given.dim() == 2 and given.shape[1] == 1:
        given = given.squeeze(1)
    if given.dim() != 1:
        raise ShapeError(f"`{name}` must have shape (rows,); got {tuple(given.shape)}")
    whole = given.to(torch.int64)
    bad = (whole != given) | (whole < lowest) | (whole >= count)
    if bool(bad.any()):
        raise SupportError(f"`{name}` must be whole numbers from {lowest} to {count - 1}; got {given[bad][0].item():g}")
    return whole
