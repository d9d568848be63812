"""Metrics of rows: means of a score, and functions of all rows.

    MeanMetric  a mean over rows, or a function of several means
    RowMetric   a function of all rows, such as one of their order

Two predictions of the same targets share their rows, so that both kinds compare them: `metric.compare(...)`.
"""

from abc import abstractmethod

import torch
from torch import Tensor
from torch.distributions import Distribution

from credibly.core.errors import NotFiniteError, ShapeError
from credibly.core.typing import ArrayLike
from credibly.distributions.targets import check_rows
from credibly.metrics.base import Estimate, Metric, State, resampling_generator
from credibly.metrics.mean_intervals import (
    are_shares,
    bounded_difference,
    influence,
    mean_interval,
    share_interval,
    two_valued,
)
from credibly.metrics.resampling import (
    check_replicates,
    has_spread,
    over_resamples,
    percentiles,
    resampled_means,
    resampled_moments,
    studentised,
)

__all__ = ["MeanMetric", "RowMetric"]


class _Paired(Metric):
    """A metric of rows that two predictions may share."""

    def compare(
        self,
        predicted: Distribution,
        other: Distribution,
        targets: ArrayLike,
        *,
        coverage: float = 0.95,
        num_replicates: int = 1000,
        seed: int | None = None,
    ) -> Estimate:
        """See `Metric.compare`."""
        check_replicates(num_replicates, coverage)
        for given in (predicted, other):
            check_rows(given)
        one, two = (self.resampling_state(d, targets) for d in (predicted, other))
        value = self.checked(one) - self.checked(two)
        if bool(value.isnan().any()):
            raise NotFiniteError(f"{type(self).__name__} is infinite for both predictions, which cannot be compared")
        if self.num_rows(predicted, targets) == 1 and not self.is_exact(one):
            raise ShapeError(f"the comparison by {type(self).__name__} needs at least 2 rows; got 1")
        generator = resampling_generator(one, seed)
        start = generator.get_state()
        replicates = self.replicates(one, num_replicates, generator)
        replicates = replicates - self.replicates(two, num_replicates, generator.set_state(start))
        lower, upper = self.difference_ends(one, two, value, replicates, coverage, generator)
        return Estimate(value, lower, upper, coverage, replicates)

    def difference_ends(
        self, one: State, two: State, value: Tensor, replicates: Tensor, coverage: float, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """The ends of the interval of a difference; by default the percentiles of those of the same resampled rows."""
        return percentiles(replicates, coverage)


class MeanMetric(_Paired):
    """A mean over rows of one score, or a function of the means of several."""

    @abstractmethod
    def rows(self, predicted: Distribution, targets: ArrayLike) -> Tensor:
        """What each row scores: (rows,), or (rows, k) for k scores, float64."""

    def of_means(self, means: Tensor) -> Tensor:
        """The metric from the mean of the score, (*batch,), or from k means, (*batch, k); of one mean it increases."""
        return means

    def state(self, predicted: Distribution, targets: ArrayLike) -> State:
        """The number of rows and the sum of their scores."""
        rows = self.rows(predicted, targets).to(torch.float64)
        return {"count": torch.tensor(len(rows), device=rows.device), "sum": rows.sum(0)}

    def merged(self, one: State, other: State) -> State:
        """The sums of both."""
        return {name: one[name] + other[name] for name in one}

    def value(self, state: State) -> Tensor:
        """The function of the means."""
        rows = state.get("rows")
        total, count = (state["sum"], state["count"]) if rows is None else (rows.sum(0), len(rows))
        if not count:
            raise ShapeError(f"{type(self).__name__} needs at least one row; `predicted` and `targets` are empty")
        return self.of_means(total / count)

    def resampling_state(self, predicted: Distribution, targets: ArrayLike) -> State:
        """The scores of all rows."""
        return {"rows": self.rows(predicted, targets).to(torch.float64)}

    def is_exact(self, state: State) -> bool:
        """A share has an exact interval."""
        return are_shares(state["rows"])

    def estimate(self, state: State, coverage: float, num_replicates: int, generator: torch.Generator) -> Estimate:
        """The value with a studentised interval for one mean, an exact one for a share, else with percentiles.

        Of more than 2^15 rows, random groups of rows are resampled, which takes the time of 8,192 rows and moves the
        ends by about a hundredth of the width.
        """
        rows = state["rows"]
        if not has_spread(rows):
            return super().estimate(state, coverage, num_replicates, generator)
        value = self.checked(state)
        moments = resampled_moments(rows, num_replicates, generator)
        lower, upper = studentised(rows, moments[:, 0], moments[:, 1], coverage)
        return Estimate(value, self.of_means(lower), self.of_means(upper), coverage, self.of_means(moments[:, 0]))

    def replicates(self, state: State, num_replicates: int, generator: torch.Generator) -> Tensor:
        """The metric of rows drawn with replacement."""
        rows = state["rows"]
        means = resampled_means(rows.reshape(len(rows), -1), num_replicates, generator)
        return self.of_means(means if rows.dim() > 1 else means[:, 0])

    def ends(self, state: State, value: Tensor, replicates: Tensor, coverage: float) -> tuple[Tensor, Tensor]:
        """Exact where rows take two values, such as 0 and 1: a bootstrap would call 100 hits out of 100 certain."""
        rows = state["rows"]
        if rows.dim() > 1 or not bool(rows.isfinite().all()):
            return super().ends(state, value, replicates, coverage)
        lower, upper = share_interval(rows, coverage) if are_shares(rows) else two_valued(rows, coverage)
        return self.of_means(lower), self.of_means(upper)

    def difference_ends(
        self, one: State, two: State, value: Tensor, replicates: Tensor, coverage: float, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """From the differences row by row, studentised or, for shares, exact; else percentiles."""
        rows = [state["rows"] for state in (one, two)]
        if all(are_shares(r) for r in rows):
            return bounded_difference(rows[0] - rows[1], len(replicates), coverage, generator)
        parts = [influence(r, self.of_means) for r in rows]
        if not all(bool(p.isfinite().all()) for p in parts):
            return super().difference_ends(one, two, value, replicates, coverage, generator)
        lower, upper = mean_interval(parts[0] - parts[1], len(replicates), coverage, generator)
        return value + lower, value + upper


class RowMetric(_Paired):
    """A function of all rows. Its streams keep a few numbers of every row."""

    @abstractmethod
    def rows(self, predicted: Distribution, targets: ArrayLike) -> Tensor:
        """What is kept of each row: (rows, k), float64."""

    @abstractmethod
    def of_rows(self, rows: Tensor) -> Tensor:
        """The metric of rows (*batch, rows, k): shape (*batch,), float64."""

    def state(self, predicted: Distribution, targets: ArrayLike) -> State:
        """The rows."""
        return {"rows": self.rows(predicted, targets).to(torch.float64)}

    def merged(self, one: State, other: State) -> State:
        """The rows of both."""
        return {"rows": torch.cat([one["rows"], other["rows"]])}

    def value(self, state: State) -> Tensor:
        """The function of the rows."""
        if not len(state["rows"]):
            raise ShapeError(f"{type(self).__name__} needs at least one row; `predicted` and `targets` are empty")
        return self.of_rows(state["rows"])

    def replicates(self, state: State, num_replicates: int, generator: torch.Generator) -> Tensor:
        """The metric of rows drawn with replacement."""
        rows = state["rows"]
        return over_resamples(len(rows), num_replicates, generator, lambda index: self.of_rows(rows[index]))
