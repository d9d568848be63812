"""One definition of a metric for whole data, for streams and for its own uncertainty.

What rows contribute is a *state* whose parts add up (or, where ranks count, are joined) over shards of the data; the
value is a function of the state alone. So a stream of batches, shards merged in any order and the whole data at once
give the same number, and a bootstrap (Efron, "Bootstrap Methods: Another Look at the Jackknife", 1979) resamples rows
without predicting again.

    Metric      a frozen recipe: `metric(predicted, targets)`, `metric.bootstrap(...)`, `metric.stream()`
    MeanMetric  a mean over rows, or a function of several means
    RowMetric   a function of all rows, such as one of their order
    Streaming   `update`, `compute`, `merge`
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TypeAlias

import torch
from torch import Tensor
from torch.distributions import Distribution

from credibly.core.checks import check_count, check_coverage
from credibly.core.errors import NotFiniteError, ShapeError
from credibly.core.randomness import Stream, base_seed
from credibly.core.typing import ArrayLike
from credibly.metrics.coverage_law import clopper_pearson
from credibly.metrics.resampling import has_spread, over_resamples, percentiles, resampled_moments, studentised

__all__ = [
    "Estimate",
    "MeanMetric",
    "Metric",
    "RowMetric",
    "State",
    "Streaming",
]

State: TypeAlias = dict[str, Tensor]


@dataclass(frozen=True, eq=False)
class Estimate:
    """A value with the interval that resampling gives it.

    Attributes:
        value: of the data as they are, a float64 scalar.
        lower: the lower end of the interval.
        upper: the upper end.
        coverage: how often such an interval holds what the value estimates.
        replicates: the value of each resampled data set, (num_replicates,).
    """

    value: Tensor
    lower: Tensor
    upper: Tensor
    coverage: float
    replicates: Tensor = field(repr=False)


class Metric(ABC):
    """A frozen dataclass of options that maps predictions and targets to a number."""

    @abstractmethod
    def state(self, predicted: Distribution, targets: ArrayLike) -> State:
        """What these rows contribute, on their device."""

    @abstractmethod
    def merged(self, one: State, other: State) -> State:
        """The state of both parts of the data."""

    @abstractmethod
    def value(self, state: State) -> Tensor:
        """The metric, a float64 scalar."""

    @abstractmethod
    def replicates(self, state: State, num_replicates: int, generator: torch.Generator) -> Tensor:
        """The metric of resampled data, (num_replicates,), from the state that `bootstrap` was given."""

    def __call__(self, predicted: Distribution, targets: ArrayLike) -> Tensor:
        """The metric of these predictions, a float64 scalar."""
        return self.checked(self.state(predicted, targets))

    def stream(self) -> "Streaming":
        """An empty stream that computes the metric batch by batch."""
        return Streaming(self)

    def bootstrap(
        self,
        predicted: Distribution,
        targets: ArrayLike,
        *,
        coverage: float = 0.95,
        num_replicates: int = 1000,
        seed: int | None = None,
    ) -> Estimate:
        """The metric with a bootstrap interval for what it would be on ever more rows like these.

        Args:
            predicted: a distribution over rows that are independent of each other.
            targets: what came.
            coverage: of the interval.
            num_replicates: how many data sets are resampled.
            seed: of the resampling.
        """
        check_coverage(coverage)
        check_count("num_replicates", num_replicates)
        state = self.resampling_state(predicted, targets)
        device = next(iter(state.values())).device
        generator = Stream(base_seed(seed), "bootstrap", device).generator()
        return self.estimate(state, coverage, num_replicates, generator)

    def estimate(self, state: State, coverage: float, num_replicates: int, generator: torch.Generator) -> Estimate:
        """The value with its interval, from the state to resample from."""
        value = self.checked(state)
        replicates = self.replicates(state, num_replicates, generator)
        lower, upper = self.ends(state, value, replicates, coverage)
        return Estimate(value, lower, upper, coverage, replicates)

    def resampling_state(self, predicted: Distribution, targets: ArrayLike) -> State:
        """The state to resample from; by default the one that streams keep."""
        return self.state(predicted, targets)

    def ends(self, state: State, value: Tensor, replicates: Tensor, coverage: float) -> tuple[Tensor, Tensor]:
        """The ends of the interval; by default the percentiles of the replicates."""
        return percentiles(replicates, coverage)

    def checked(self, state: State) -> Tensor:
        """The value, which is never NaN.

        Raises:
            NotFiniteError: the rows add up to NaN.
        """
        value = self.value(state)
        if bool(value.isnan().any()):
            raise NotFiniteError(
                f"{type(self).__name__} is NaN; `predicted` holds NaN, or gives scores that cannot be added up"
            )
        return value


class Streaming:
    """A metric of data that come in batches. Batches may be of any size and come in any order.

    Args:
        metric: what to compute.
    """

    def __init__(self, metric: Metric) -> None:
        self.metric = metric
        self.state: State | None = None

    def update(self, predicted: Distribution, targets: ArrayLike) -> None:
        """Take another batch in."""
        self._add(self.metric.state(predicted, targets))

    def merge(self, other: "Streaming") -> "Streaming":
        """A stream that has seen what this one and the other have seen; neither is changed.

        Raises:
            ValueError: the other stream computes another metric.
        """
        if other.metric != self.metric:
            raise ValueError(f"only streams of one metric can be merged; got {self.metric} and {other.metric}")
        both = Streaming(self.metric)
        for part in (self, other):
            if part.state is not None:
                both._add(part.state)
        return both

    def compute(self) -> Tensor:
        """The metric of all rows so far, a float64 scalar.

        Raises:
            ShapeError: nothing was taken in yet.
        """
        if self.state is None:
            raise ShapeError(f"{type(self.metric).__name__} needs at least one row; the stream has seen none")
        return self.metric.checked(self.state)

    def _add(self, state: State) -> None:
        self.state = state if self.state is None else self.metric.merged(self.state, state)


class MeanMetric(Metric):
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

    def estimate(self, state: State, coverage: float, num_replicates: int, generator: torch.Generator) -> Estimate:
        """The value with a studentised interval for one mean, an exact one for a share, else with percentiles."""
        if not has_spread(state["rows"]):
            return super().estimate(state, coverage, num_replicates, generator)
        value = self.checked(state)
        moments = resampled_moments(state["rows"], num_replicates, generator)
        lower, upper = studentised(state["rows"], moments[:, 0], moments[:, 1], coverage)
        return Estimate(value, self.of_means(lower), self.of_means(upper), coverage, self.of_means(moments[:, 0]))

    def replicates(self, state: State, num_replicates: int, generator: torch.Generator) -> Tensor:
        """The metric of rows drawn with replacement."""
        rows = state["rows"]
        width = rows[0].numel() if len(rows) else 1

        def value(index: Tensor) -> Tensor:
            return self.of_means(rows[index].mean(1))

        return over_resamples(len(rows), num_replicates, generator, value, numbers_per_row=width)

    def ends(self, state: State, value: Tensor, replicates: Tensor, coverage: float) -> tuple[Tensor, Tensor]:
        """Exact where every row scores 0 or 1: a bootstrap would call 100 hits out of 100 certain."""
        rows = state["rows"]
        if rows.dim() > 1 or not 0 < coverage < 1 or not bool(((rows == 0) | (rows == 1)).all()):
            return super().ends(state, value, replicates, coverage)
        lower, upper = clopper_pearson(rows.sum().round().long(), torch.tensor(len(rows), device=rows.device), coverage)
        return self.of_means(lower), self.of_means(upper)


class RowMetric(Metric):
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
