"""Averages of the weights along the course of training.

Averaging Weights Leads to Wider Optima and Better Generalization, Izmailov, Podoprikhin, Garipov, Vetrov and Wilson
2018: the equal average of weights that a constant or cyclical learning rate visits (`SWA`). Acceleration of Stochastic
Approximation by Averaging, Polyak and Juditsky 1992. The exponential one (`EMA`),

    m_t = sum over s <= t of (1 - decay) decay^(t - s) w_s / (1 - decay^t),

forgets the beginning of training; its weights add up to 1 at every step, so that it does not lean on where training
began.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from credibly.core.checks import check_count, exact_level

__all__ = ["EMA", "SWA", "Average", "Course", "Running", "Snapshots"]


@dataclass(frozen=True)
class Course:
    """How long a run is, when it is planned.

    Attributes:
        num_epochs: passes over the data.
        num_steps: of the optimiser, in all epochs.
    """

    num_epochs: int
    num_steps: int


class Running(ABC):
    """An average being taken. It follows the weights, which others change.

    Args:
        weights: what is averaged.
        precision: of the average, where the weights have less.

    Attributes:
        weights: likewise, without gradients.
        count: how many states of the weights it holds so far.
        mean: one tensor per weight; of no meaning while the count is 0.
    """

    def __init__(self, weights: Sequence[Tensor], precision: torch.dtype = torch.float32) -> None:
        self.weights = [weight.detach() for weight in weights]
        self.count = 0
        kinds = [torch.promote_types(weight.dtype, precision) for weight in self.weights]
        self.mean = [torch.zeros_like(weight, dtype=kind) for weight, kind in zip(self.weights, kinds, strict=True)]

    @abstractmethod
    def after_step(self, number: int) -> None:
        """Step `number` of the optimiser, counted from 1, is done."""

    @abstractmethod
    def after_epoch(self, number: int) -> None:
        """Epoch `number`, counted from 1, is done."""

    @torch.no_grad()
    def put(self) -> None:
        """Write the average where the weights are."""
        torch._foreach_copy_(self.weights, self.mean)

    def move(self, share: float) -> None:
        """Bring the mean a share of the way to the weights."""
        weights = [weight.to(mean.dtype) for weight, mean in zip(self.weights, self.mean, strict=True)]
        torch._foreach_lerp_(self.mean, weights, share)
        self.count += 1


class Average(ABC):
    """Which average of the weights training ends in."""

    @abstractmethod
    def follow(self, weights: Sequence[Tensor], course: Course) -> Running:
        """Begin to follow the weights."""


@dataclass(frozen=True)
class Snapshots:
    """When to look at the weights.

    Attributes:
        start: the share of the run that is over before the first look.
        every: how many steps apart; None looks at the end of each epoch.
    """

    start: Fraction
    every: int | None

    def due_after_step(self, number: int, course: Course) -> bool:
        """Whether to look after step `number`, counted from 1."""
        past = number - int(self.start * course.num_steps)
        return self.every is not None and past > 0 and past % self.every == 0

    def due_after_epoch(self, number: int, course: Course) -> bool:
        """Whether to look after epoch `number`, counted from 1."""
        return self.every is None and number > self.start * course.num_epochs

    def count(self, course: Course) -> int:
        """How many looks the whole run gives."""
        if self.every is None:
            return course.num_epochs - int(self.start * course.num_epochs)
        return (course.num_steps - int(self.start * course.num_steps)) // self.every

    def check(self, course: Course, *, least: int) -> None:
        """Raise a ValueError where the run gives fewer looks than are needed."""
        if self.count(course) < least:
            raise ValueError(
                f"the average needs at least {least} snapshots of the weights; {course.num_epochs} epochs of "
                f"{course.num_steps} steps together give {self.count(course)}. Train for more epochs, or take "
                "snapshots more often"
            )


@dataclass(frozen=True)
class SWA(Average):
    """Stochastic weight averaging: the equal average of snapshots from the last part of training.

    Attributes:
        start: the share of the run that comes before it, in [0, 1). What the learning rate does from there on is the
            schedule's affair; the paper keeps it high.
        every: how many steps lie between snapshots; None takes one at the end of each epoch.
    """

    start: float = 0.75
    every: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.start < 1:
            raise ValueError(f"`start` must lie in [0, 1); got {self.start}")
        if self.every is not None:
            check_count("every", self.every)

    def follow(self, weights: Sequence[Tensor], course: Course) -> Running:
        """Begin to follow the weights."""
        snapshots = Snapshots(exact_level(self.start), self.every)
        snapshots.check(course, least=1)
        return _EqualAverage(weights, course, snapshots)


class _EqualAverage(Running):
    def __init__(self, weights: Sequence[Tensor], course: Course, snapshots: Snapshots) -> None:
        super().__init__(weights)
        self._course = course
        self._snapshots = snapshots

    def after_step(self, number: int) -> None:
        """A snapshot, where one is due."""
        if self._snapshots.due_after_step(number, self._course):
            self.move(1 / (self.count + 1))

    def after_epoch(self, number: int) -> None:
        """A snapshot, where one is due."""
        if self._snapshots.due_after_epoch(number, self._course):
            self.move(1 / (self.count + 1))


@dataclass(frozen=True)
class EMA(Average):
    """An exponential moving average over the steps of the optimiser.

    Attributes:
        decay: what is kept at each step, in (0, 1); it remembers about 1 / (1 - decay) steps.
    """

    decay: float = 0.999

    def __post_init__(self) -> None:
        if not 0 < self.decay < 1:
            raise ValueError(f"`decay` must lie in (0, 1); got {self.decay}")

    def follow(self, weights: Sequence[Tensor], course: Course) -> Running:
        """Begin to follow the weights."""
        return _ExponentialAverage(weights, self.decay)


class _ExponentialAverage(Running):
    def __init__(self, weights: Sequence[Tensor], decay: float) -> None:
        super().__init__(weights)
        self._decay = decay

    def after_step(self, number: int) -> None:
        """A little of the way to the weights; at the first step all of it."""
        self.move((1 - self._decay) / (1 - self._decay ** (self.count + 1)))

    def after_epoch(self, number: int) -> None:
        """Nothing: steps count."""
