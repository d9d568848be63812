"""An average in the place of the weights: to be scored for a while, and at the end for good."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from credibly.core.data import Data
from credibly.training.averaging import Average, Course, Running
from credibly.training.batch_norm import has_statistics, refresh_statistics
from credibly.training.trainee import Trainee

__all__ = ["Averaged"]


class Averaged:
    """The average of a run, or nothing where none was asked for.

    Args:
        average: which one, or None.
        trainee: whose weights are averaged.
        course: of the run.
        batches: those of an epoch, counted from 0; BatchNorm statistics are gathered from them.
    """

    def __init__(
        self,
        average: Average | None,
        trainee: Trainee,
        course: Course,
        batches: Callable[[int], Iterator[Data]],
    ) -> None:
        self.running: Running | None = None if average is None else average.follow(trainee.leaves, course)
        self._trainee = trainee
        self._batches = batches

    @property
    def count(self) -> int:
        """How many states of the weights it holds."""
        return 0 if self.running is None else self.running.count

    def after_step(self, number: int) -> None:
        """Step `number` of the optimiser, counted from 1, is done."""
        if self.running is not None:
            self.running.after_step(number)

    def after_epoch(self, epoch: int) -> None:
        """An epoch, counted from 0, is done."""
        if self.running is not None:
            self.running.after_epoch(epoch + 1)

    def put(self, epoch: int) -> None:
        """Make the average, where there is one, the weights, with statistics of its own."""
        if self.running is not None and self.count:
            self.running.put()
            if has_statistics(self._trainee.core):
                refresh_statistics(self._trainee, self._batches(epoch))

    @contextmanager
    def in_place(self, epoch: int) -> Iterator[None]:
        """The average as the weights for a while; then training goes on from its own."""
        if not self.count:
            yield
            return
        views = self._trainee.state_views()
        kept = [view.clone() for view in views]
        try:
            self.put(epoch)
            yield
        finally:
            for view, value in zip(views, kept, strict=True):
                view.copy_(value)
