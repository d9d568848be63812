r"""Acts about numbers: how much to order, what to charge, when to leave.

For a target with distribution F and a cost function of act and target, the Bayes act minimises E cost(act, Y). On a
grid of acts the expectation is a sum over quantiles, counts or draws (`credibly.decision.nodes`), without a mass at
infinity, as in the mean of a conformal predictive distribution. Three costs need no
grid: squared error, whose act is the mean; absolute error, whose act is the median; and

    cost(a, y) = u (y - a)^+ + o (a - y)^+,   whose act is the quantile F^-1(u / (u + o)),

the newsvendor who pays u for each copy that is missing and o for each that is left ("Optimal Inventory Policy",
Arrow, Harris, Marschak, 1951).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor
from torch.distributions import Distribution

from credibly.core.checks import as_tensor, check_count, check_finite
from credibly.core.errors import NotFiniteError, NotSupportedError, ShapeError
from credibly.core.typing import ArrayLike
from credibly.decision.nodes import integration_nodes
from credibly.distributions.cumulative import icdf
from credibly.distributions.kinds import kind, reference
from credibly.distributions.operations import check_distribution
from credibly.distributions.rows import num_rows, select, to

__all__ = ["CostFunction", "GridDecisions", "grid_act", "newsvendor_act"]

CostFunction: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""The cost of acts where targets come, element by element: two tensors that broadcast, one of their common shape."""

_CHUNK = 2**20  # costs held at once


@dataclass(frozen=True, eq=False)
class GridDecisions:
    """The act of every row, out of a grid.

    Attributes:
        acts: the act itself, in the units of the grid, (rows,), float64.
        indices: its place in the grid, (rows,), int64.
        expected_costs: of all acts of the grid, (rows, acts), float64.
    """

    acts: Tensor
    indices: Tensor
    expected_costs: Tensor

    @property
    def expected_cost(self) -> Tensor:
        """The expected cost of the act that was taken, (rows,), float64."""
        return self.expected_costs.gather(-1, self.indices.unsqueeze(-1)).squeeze(-1)


def grid_act(predicted: Distribution, cost: CostFunction, acts: ArrayLike, *, num_points: int = 501) -> GridDecisions:
    """The act of a grid with the least expected cost for every row; the first of those that tie.

    Args:
        predicted: a distribution over one real number or count a row, with quantiles; a prediction of draws counts as
            its draws.
        cost: of act and target, element by element, in float64. It may be negative, and +infinity forbids an act
            where the target has mass. Its expectation must exist: of a tail so heavy that it does not, the far
            quantiles give some number. A mass of the forecast at infinity is left out.
        acts: the grid, (acts,), or one a row, (rows, acts).
        num_points: how many quantiles stand for a continuous distribution. With 501 an expected |act - y| of a Normal
            variable is off by 6e-5 of its standard deviation at most. One that jumps takes 16 times as many.

    Raises:
        NotSupportedError: `predicted` is over classes (see `bayes_act`), over several numbers a row, or has no
            quantiles.
        ShapeError: `acts` or what `cost` gives has another shape.
        NotFiniteError: NaN acts or costs; a row without finite quantiles, or one in which every act costs infinity.
        ValueError: a cost of -infinity.
    """
    check_count("num_points", num_points)
    rows = _check_numbers(predicted)
    exact = to(predicted, dtype=torch.float64)
    grid = _grid(acts, rows, reference(predicted).device)
    size = max(1, _CHUNK // (num_points * grid.shape[-1]))
    with torch.no_grad():
        starts = range(0, max(rows, 1), size)
        some = [slice(start, min(start + size, rows)) for start in starts]
        means = torch.cat([_expected(select(exact, own), cost, grid[own], num_points) for own in some])
    indices = _check_some_finite(means).argmin(-1)
    return GridDecisions(grid.gather(-1, indices.unsqueeze(-1)).squeeze(-1), indices, means)


def _check_some_finite(means: Tensor) -> Tensor:
    none = means.isinf().all(-1).nonzero().squeeze(1)
    if len(none):
        raise NotFiniteError(
            f"every act of the grid has an infinite expected cost in {len(none)} rows, first row {int(none[0])}: no "
            "act is better than another; `acts` must hold one that `cost` allows wherever the target has mass"
        )
    return means


def _check_numbers(predicted: Distribution) -> int:
    check_distribution(predicted)
    if kind(predicted) != "class" and predicted.event_shape:
        raise NotSupportedError(
            f"a cost function needs one number a row; `predicted` has event_shape {tuple(predicted.event_shape)}: "
            "decide about each output by itself"
        )
    return num_rows(predicted)


def _grid(acts: ArrayLike, rows: int, device: torch.device) -> Tensor:
    grid = as_tensor(acts, device=device).to(torch.float64)
    if grid.dim() not in (1, 2) or not grid.shape[-1] or (grid.dim() == 2 and len(grid) != rows):
        raise ShapeError(f"`acts` must have shape (acts,) or ({rows}, acts), of at least one; got {tuple(grid.shape)}")
    return check_finite("acts", grid).expand(rows, -1)


def _expected(predicted: Distribution, cost: CostFunction, acts: Tensor, num_points: int) -> Tensor:
    """Expected costs (rows, acts) of acts (rows, acts)."""
    values, weights = integration_nodes(predicted, num_points)
    targets, share = values.mT.unsqueeze(1), weights.mT.unsqueeze(1)
    some = max(1, _CHUNK // max(targets.numel(), 1))  # wide counts and many draws take more points than were foreseen
    parts = []
    for own in torch.split(acts, some, dim=-1):
        each = _checked(cost(own.unsqueeze(-1), targets), (*own.shape, targets.shape[-1]))
        parts.append(torch.where(share > 0, share * each, 0.0).sum(-1))
    return torch.cat(parts, -1)


def _checked(each: Tensor, shape: tuple[int, ...]) -> Tensor:
    """What the cost function gave, if it may be used."""
    if each.shape != shape:
        raise ShapeError(f"`cost` must work element by element and give shape {shape} here; got {tuple(each.shape)}")
    if bool(each.isnan().any()):
        raise NotFiniteError(f"`cost` must not give NaN; {int(each.isnan().sum())} of {each.numel()} values are")
    if bool(each.isneginf().any()):
        raise ValueError("`cost` must not give -infinity, a gain that outweighs everything; +infinity is allowed")
    return each


def newsvendor_act(predicted: Distribution, *, underage: ArrayLike, overage: ArrayLike) -> Tensor:
    """The quantile at underage / (underage + overage): exactly the act of least expected cost.

    Of a count it is the smallest count that reaches the level.

    Args:
        predicted: a distribution over numbers, with quantiles.
        underage: the cost of a unit too few, above 0: one number, or one a row, (rows,).
        overage: the cost of a unit too many, likewise.

    Returns:
        (rows, *event_shape), in the dtype of `predicted`.

    Raises:
        NotSupportedError: `predicted` is over classes, or its quantiles are not known.
        ShapeError: costs of another shape.
        ValueError: a cost that is not a finite number above 0.
        NotFiniteError: the quantile is not finite, where the forecast has that much mass at infinity.
    """
    check_distribution(predicted)
    if kind(predicted) == "class":
        raise NotSupportedError(f"a {type(predicted).__name__} is about classes: use bayes_act with a cost matrix")
    rows, like = num_rows(predicted), reference(predicted)
    costs = {"underage": underage, "overage": overage}
    under, over = (_positive(name, value, rows, like.device) for name, value in costs.items())
    level = (under / (under + over)).to(like.dtype)
    return check_finite("predicted", icdf(predicted, level.reshape(-1, *(1,) * len(predicted.event_shape))))


def _positive(name: str, values: ArrayLike, rows: int, device: torch.device) -> Tensor:
    numbers = as_tensor(values, device=device).to(torch.float64)
    if numbers.shape not in ((), (rows,), (rows, 1)):
        raise ShapeError(f"`{name}` must be one number or have shape ({rows},); got {tuple(numbers.shape)}")
    if not bool(((numbers > 0) & numbers.isfinite()).all()):
        raise ValueError(f"`{name}` must be a finite number above 0")
    return numbers.reshape(-1).expand(rows)
