r"""SWAG: the Gaussian that the course of SGD draws around its average.

A Simple Baseline for Bayesian Uncertainty in Deep Learning, Maddox, Izmailov, Garipov, Vetrov and Wilson 2019. After
training, SGD goes on at a constant rate and snapshots w_1, ..., w_T of the weights are taken. With their running means
m_t, their variances v about m_T, and the K last deviations as columns, D = (w_t - m_t),

    w ~ Normal(m_T, diag(v) / 2 + D D' / (2 (K - 1)))

Without the low-rank part the covariance is diag(v). Multi-SWAG (Bayesian Deep Learning and a Probabilistic Perspective
of Generalization, Wilson and Izmailov 2020) is `Ensemble(of=SWAG(train=MAP()))`.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from typing import Any, ClassVar, cast

import torch
from torch import Tensor
from torch.optim import SGD, Optimizer

from credibly.core.checks import check_count, check_positive
from credibly.core.errors import NotSupportedError
from credibly.core.linalg.base import PositiveDefinite
from credibly.core.linalg.diagonal import Diagonal
from credibly.core.linalg.low_rank import LowRankPlusDiagonal
from credibly.core.params import network_weights, trainable_params
from credibly.core.randomness import base_seed, derived_seed
from credibly.inference.base import InferenceMethod, check_begins, check_precision, check_recipe
from credibly.inference.point import PointMethod
from credibly.inference.problem import Problem
from credibly.inference.starts import Start
from credibly.model import Model
from credibly.posteriors.base import Posterior, WeightPosterior
from credibly.posteriors.gaussian import GaussianPosterior
from credibly.posteriors.info import Info
from credibly.training.averaging import Average, Course, Running, Snapshots
from credibly.training.history import joined
from credibly.training.objective import LogJoint
from credibly.training.options import TrainingOptions

__all__ = ["SWAG"]


def _momentum(params: Iterable[Tensor], lr: float) -> Optimizer:
    return SGD(params, lr=lr, momentum=0.9)


@dataclass(frozen=True, eq=False, kw_only=True)
class SWAG(PointMethod):
    """Follow SGD after training, and take the Gaussian of where it goes.

    The objective of the tail is the log joint, prior included. Its learning rate matters, for it sets the spread: high
    enough to move between solutions, and low enough to stay among them. The mean's BatchNorm statistics are gathered
    anew, in a pass over the training data, and serve every draw; `inference.refreshed_draws(posterior, data)` gives
    each draw its own, as the paper does.

    Attributes:
        train: how to train first, for example `MAP()`. None does not: then `fit` needs a `start`.
        num_epochs: passes over the data in the tail.
        learning_rate: of the tail.
        optimizer: of the tail; SGD with momentum 0.9.
        rank: K, how many deviations are kept, 2 or more; 0 keeps the variances alone.
        every: how many steps lie between snapshots; None takes one at the end of each epoch.
        min_variance: variances below it are raised to it.
    """

    with_prior: ClassVar[bool] = True

    train: InferenceMethod | None = None
    num_epochs: int = 40
    learning_rate: float = 0.01
    optimizer: Callable[..., Optimizer] = _momentum
    rank: int = 20
    every: int | None = None
    min_variance: float = 1e-30

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("rank", self.rank, least=0)
        if self.rank == 1:
            raise ValueError("`rank` must be 0, or 2 and more: one deviation gives no covariance; got 1")
        if self.every is not None:
            check_count("every", self.every)
        check_positive("min_variance", self.min_variance)
        for name in ("early_stopping", "average", "loss"):
            if getattr(self, name) is not None:
                raise NotSupportedError(
                    f"SWAG has no `{name}`: its tail follows the log joint to the end and averages by itself; give it "
                    "to the recipe that trains before, SWAG(train=MAP(...))"
                )
        check_recipe("SWAG", self.train)

    @property
    def trains(self) -> bool:
        """Whether there is a recipe to train by."""
        return self.train is not None

    def fit(
        self,
        model: Model,
        data: Any,
        *,
        validation: Any = None,
        start: Start = None,
        seed: int | None = None,
        progress: bool | None = None,
    ) -> WeightPosterior:
        """Train, if asked to, and follow SGD from there.

        Raises:
            ValueError: if there is neither a `start` nor a recipe to train by, or the tail gives fewer than 2
                snapshots.
            NotFiniteError: if a training loss is NaN or infinite. The error's `posterior` holds the best weights so
                far.
        """
        seed = base_seed(seed)
        if self.train is None:
            check_begins("SWAG", start)
            return super().fit(model, data, validation=validation, start=start, seed=seed, progress=progress)
        own = {"validation": validation, "progress": progress}
        trained = self.train.fit(model, data, start=start, seed=seed, **own)
        fitted = super().fit(model, data, start=trained, seed=derived_seed(seed, "tail"), **own)
        return _told(fitted, trained, seed)

    def fit_members(
        self,
        model: Model,
        data: Any,
        starts: Sequence[Start],
        seeds: Sequence[int],
        *,
        rows: Sequence[Tensor] | None = None,
        validation: Any = None,
        progress: bool | None = None,
    ) -> list[Posterior]:
        """The members are trained, and followed, together where that equals each alone."""
        options: dict[str, Any] = {"rows": rows, "validation": validation, "progress": progress}
        if self.train is None:
            return super().fit_members(model, data, starts, seeds, **options)
        trained = self.train.fit_members(model, data, starts, seeds, **options)
        tails = [derived_seed(seed, "tail") for seed in seeds]
        fitted = super().fit_members(model, data, trained, tails, **options)
        return [_told(one, before, seed) for one, before, seed in zip(fitted, trained, seeds, strict=True)]

    def _objective(self, problem: Problem) -> LogJoint:
        """The log joint; what has no density has none."""
        problem.model.likelihood.check_density()
        check_precision("SWAG", network_weights(problem.model.core), bfloat16=True)
        return super()._objective(problem)

    def _options(self) -> TrainingOptions:
        """The tail's, with snapshots."""
        own = {option.name: getattr(self, option.name) for option in fields(TrainingOptions)}
        return TrainingOptions(**{**own, "average": _Moments(self.rank, self.every)})

    def _posterior(self, model: Model, info: Info, average: Running | None, member: int | None) -> WeightPosterior:
        """The Gaussian of the snapshots."""
        if not isinstance(average, _RunningMoments) or average.count < 2:
            raise ValueError("SWAG needs at least 2 snapshots of the weights; the tail ended before")
        weights = network_weights(model.core)
        names = list(weights)
        own = [index for index, name in enumerate(trainable_params(model.core)) if name in weights]
        covariance = average.covariance(own, member, self.min_variance)
        dtype = weights[names[0]].dtype
        return GaussianPosterior(model, info, names=names, covariance=covariance.map(lambda part: part.to(dtype)))


def _told(fitted: Posterior, trained: Posterior, seed: int) -> GaussianPosterior:
    """The posterior with the course of all its training."""
    histories = [joined([*trained.info.histories[:1], *fitted.info.histories])]
    info = replace(fitted.info, seed=seed, histories=histories)
    own = cast("GaussianPosterior", fitted)
    return GaussianPosterior(own.model, info, names=own.names, covariance=own.covariance)


@dataclass(frozen=True)
class _Moments(Average):
    """The equal average of snapshots from the whole run, with their spread.

    Attributes:
        rank: how many deviations are kept.
        every: how many steps lie between snapshots; None takes one at the end of each epoch.
    """

    rank: int
    every: int | None

    def follow(self, weights: Sequence[Tensor], course: Course) -> Running:
        """Begin to follow the weights."""
        snapshots = Snapshots(Fraction(0), self.every)
        snapshots.check(course, least=2)
        return _RunningMoments(weights, course, snapshots, self.rank)


class _RunningMoments(Running):
    """Mean and squared deviations by Welford's recursion, in float64, and the last deviations."""

    def __init__(self, weights: Sequence[Tensor], course: Course, snapshots: Snapshots, rank: int) -> None:
        super().__init__(weights, torch.float64)  # variances are small beside the weights
        self._course = course
        self._snapshots = snapshots
        self._rank = rank
        self.squares = [torch.zeros_like(mean) for mean in self.mean]
        self.deviations: list[list[Tensor]] = []

    def after_step(self, number: int) -> None:
        """A snapshot, where one is due."""
        if self._snapshots.due_after_step(number, self._course):
            self._take()

    def after_epoch(self, number: int) -> None:
        """A snapshot, where one is due."""
        if self._snapshots.due_after_epoch(number, self._course):
            self._take()

    def _take(self) -> None:
        before = [weight - mean for weight, mean in zip(self.weights, self.mean, strict=True)]
        self.move(1 / (self.count + 1))
        after = [weight - mean for weight, mean in zip(self.weights, self.mean, strict=True)]
        torch._foreach_addcmul_(self.squares, before, after)
        if self._rank:
            columns = [part.to(weight.dtype) for part, weight in zip(after, self.weights, strict=True)]
            self.deviations = [*self.deviations, columns][-self._rank :]

    def covariance(self, tensors: Sequence[int], member: int | None, min_variance: float) -> PositiveDefinite:
        """Of the flat vector of the chosen tensors.

        Args:
            tensors: which, by number.
            member: whose, of a stack.
            min_variance: variances below it are raised to it.
        """

        def flat(parts: Sequence[Tensor]) -> Tensor:
            chosen = [parts[index] for index in tensors]
            return torch.cat([(part if member is None else part[member]).reshape(-1) for part in chosen]).double()

        variances = (flat(self.squares) / self.count).clamp(min=min_variance)
        if not self._rank:
            return Diagonal(variances)
        table = torch.stack([flat(columns) for columns in self.deviations], -1)
        return LowRankPlusDiagonal(variances / 2, table / (2 * (table.shape[-1] - 1)) ** 0.5)
