"""One definition of a metric for whole data, for streams and for its own uncertainty.

What rows contribute is a *state* whose parts add up (or, where ranks count, are joined) over shards of the data; the
value is a function of the state alone. So a stream of batches, shards merged in any order and the whole data at once
give the same number, and a bootstrap (Efron, "Bootstrap Methods: Another Look at the Jackknife", 1979) resamples rows
without predicting again.

    Metric     a frozen recipe: `metric(predicted, targets)`, `metric.bootstrap(...)`, `metric.stream()`
    Streaming  `update`, `compute`, `merge`
    Estimate   a value with its interval
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TypeAlias

import torch
from torch import Tensor
from torch.distributions import Distribution

from credibly.core.errors import NotFiniteError, NotSupportedError, ShapeError
from credibly.core.randomness import Stream, base_seed
from credibly.core.typing import ArrayLike
from credibly.distributions.outcomes import outcome
from credibly.distributions.rows import num_rows
from credibly.distributions.targets import check_rows
from credibly.metrics.resampling import check_replicates, percentiles

__all__ = ["Estimate", "Metric", "State", "Streaming", "resampling_generator"]

State: TypeAlias = dict[str, Tensor]


@dataclass(frozen=True, eq=False)
class Estimate:
    """A value with the interval that resampling gives it.

    The interval is for what the value estimates on ever more rows, not for the value: an estimated error of calibration
    is too large on average, most of all for calibrated predictions, and may lie above its own interval.

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
        check_rows(predicted)
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
            coverage: of the interval, below 1.
            num_replicates: how many data sets are resampled; at least 2 / (1 - coverage).
            seed: of the resampling.

        Raises:
            ShapeError: one row, which tells nothing of how rows vary; a share has an interval nevertheless.
            ValueError: too few replicates for the coverage.
        """
        check_replicates(num_replicates, coverage)
        check_rows(predicted)
        state = self.resampling_state(predicted, targets)
        if self.num_rows(predicted, targets) == 1 and not self.is_exact(state):
            raise ShapeError(f"the interval of {type(self).__name__} needs at least 2 rows; got 1")
        return self.estimate(state, coverage, num_replicates, resampling_generator(state, seed))

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
        """The metric of one prediction less that of another of the same targets, with a paired interval.

        The same rows are resampled for both, so that what makes rows easy or hard for both cancels.

        Args:
            predicted: a distribution over rows that are independent of each other.
            other: a distribution over the same rows.
            targets: what came.
            coverage: of the interval, below 1.
            num_replicates: how many data sets are resampled; at least 2 / (1 - coverage).
            seed: of the resampling.

        Raises:
            NotSupportedError: the metric is no function of rows that both predictions share, or its estimates are
                biased, as errors of calibration are.
            ShapeError, ValueError: see `bootstrap`.
            NotFiniteError: both metrics are infinite.
        """
        raise NotSupportedError(
            f"{type(self).__name__} has no paired interval: errors of calibration are estimated with a bias, and two "
            "samples of scores share no rows; compare by a mean of scores, such as LogScore, Brier or CRPS"
        )

    def estimate(self, state: State, coverage: float, num_replicates: int, generator: torch.Generator) -> Estimate:
        """The value with its interval, from the state to resample from."""
        value = self.checked(state)
        replicates = self.replicates(state, num_replicates, generator)
        lower, upper = self.ends(state, value, replicates, coverage)
        return Estimate(value, lower, upper, coverage, replicates)

    def resampling_state(self, predicted: Distribution, targets: ArrayLike) -> State:
        """The state to resample from; by default the one that streams keep."""
        return self.state(predicted, targets)

    def num_rows(self, predicted: Distribution, targets: ArrayLike) -> int:
        """How many rows there are to resample."""
        return num_rows(predicted)

    def is_exact(self, state: State) -> bool:
        """Whether the interval is exact for any number of rows."""
        return False

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

    Attributes:
        metric: as given.
        state: what the rows so far add up to; None before the first batch.
        outcome: what one target is, in words, which all batches must agree in; None before the first batch.
    """

    def __init__(self, metric: Metric) -> None:
        self.metric = metric
        self.state: State | None = None
        self.outcome: str | None = None

    def update(self, predicted: Distribution, targets: ArrayLike) -> None:
        """Take another batch in.

        Raises:
            ShapeError: the stream has seen predictions of something else, such as another number of classes.
        """
        check_rows(predicted)
        state = self.metric.state(predicted, targets)
        self._add(state, outcome(predicted) if isinstance(predicted, Distribution) else "a score")

    def merge(self, other: "Streaming") -> "Streaming":
        """A stream that has seen what this one and the other have seen; neither is changed.

        Raises:
            ValueError: the other stream computes another metric.
            ShapeError: it has seen predictions of something else.
            TypeError: `other` is no stream.
        """
        if not isinstance(other, Streaming):
            raise TypeError(f"`other` must be a Streaming, as {self.metric}.stream() gives it; got {other!r}")
        if other.metric != self.metric:
            raise ValueError(f"only streams of one metric can be merged; got {self.metric} and {other.metric}")
        both = Streaming(self.metric)
        for part in (self, other):
            if part.state is not None and part.outcome is not None:
                both._add(part.state, part.outcome)
        return both

    def compute(self) -> Tensor:
        """The metric of all rows so far, a float64 scalar.

        Raises:
            ShapeError: nothing was taken in yet.
        """
        if self.state is None:
            raise ShapeError(f"{type(self.metric).__name__} needs at least one row; the stream has seen none")
        return self.metric.checked(self.state)

    def __repr__(self) -> str:
        return f"Streaming({self.metric}, {f'{self.outcome} a row' if self.outcome else 'no rows yet'})"

    def _add(self, state: State, seen: str) -> None:
        if self.outcome not in (None, seen):
            raise ShapeError(
                f"a stream scores one kind of prediction; this one of {type(self.metric).__name__} has seen "
                f"{self.outcome} a row, and now came {seen} a row: use a stream for each"
            )
        self.state = state if self.state is None else self.metric.merged(self.state, state)
        self.outcome = seen


def resampling_generator(state: State, seed: int | None) -> torch.Generator:
    """The random numbers of a bootstrap, on the device of the state."""
    device = next(iter(state.values())).device
    return Stream(base_seed(seed), "bootstrap", device).generator()
