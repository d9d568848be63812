"""Training one set of weights: maximum likelihood, and maximum a posteriori."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from credibly.core.copying import copied
from credibly.core.data import ArraySource
from credibly.core.errors import NotSupportedError
from credibly.core.params import load_params, network_buffers, trainable_params, training_mode
from credibly.core.randomness import base_seed, seeded
from credibly.core.typing import Params
from credibly.inference.base import InferenceMethod
from credibly.inference.members import one_by_one
from credibly.inference.problem import Problem, prepare
from credibly.inference.starts import Start, begin
from credibly.model import Model
from credibly.posteriors.base import Posterior, WeightPosterior
from credibly.posteriors.info import Info
from credibly.posteriors.point import PointPosterior
from credibly.training.averaging import Running
from credibly.training.dropout import TrainingDropout
from credibly.training.loop import Outcome, train
from credibly.training.objective import LogJoint
from credibly.training.options import TrainingOptions
from credibly.training.stacking import why_not_stacked
from credibly.training.trainee import Single, Stacked, Trainee

__all__ = ["PointMethod"]


@dataclass(frozen=True, eq=False, kw_only=True)
class PointMethod(TrainingOptions, InferenceMethod):
    """A method that trains one set of weights; its subclasses say whether the prior counts."""

    with_prior: ClassVar[bool]

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
        """Train a copy of the model; begins at its current weights unless `start` says otherwise.

        Raises:
            NotFiniteError: if a training loss is NaN or infinite. The error's `posterior` holds the best weights so
                far.
        """
        seed = base_seed(seed)
        options = {"validation": validation, "batch_size": self.batch_size, "seed": seed}
        return self._fit_alone(prepare(model, data, start=start, **options), seed, progress=bool(progress))

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
        """One posterior per start and seed, trained as one stack where that equals training each alone."""
        problem = prepare(model, data, validation=validation, batch_size=self.batch_size, seed=seeds[0])
        if rows is not None and not isinstance(problem.source, ArraySource):
            raise NotSupportedError("a bootstrap sample needs data in memory, as (inputs, targets); got a loader")
        states = [_state(problem.model, start) for start in starts]
        own_rows = [None] * len(seeds) if rows is None else list(rows)
        members = [_Member(*parts) for parts in zip(states, seeds, own_rows, strict=True)]
        training_mode(problem.model)
        dropout = self._dropout(problem, seeds)
        reason = why_not_stacked(
            problem.model,
            states,
            self._objective(problem),
            self,
            dropout,
            problem.source.first().take(slice(0, 2)),
            own_rows=isinstance(problem.source, ArraySource),
        )
        if reason is None and len(members) > 1:
            return self._fit_stacked(problem, members, dropout, progress=bool(progress))
        return self._fit_each(problem, members, reason or "", progress=bool(progress))

    def _fit_alone(
        self,
        problem: Problem,
        seed: int,
        *,
        rows: Tensor | None = None,
        reason: str | None = None,
        progress: bool = False,
    ) -> WeightPosterior:
        model = training_mode(problem.model)
        dropout = self._dropout(problem, [seed])
        trainee = Single(model, self._objective(problem), dropout if dropout.is_used else None, self.autocast)
        outcome = self._train(trainee, problem, [seed], None if rows is None else [rows], progress=progress)
        stacked = None if reason is None else False
        score = _score_name(model)
        info = Info(type(self).__name__, seed, outcome.histories, stacked=stacked, reason=reason or "", score=score)
        if outcome.failure is not None:
            outcome.failure.posterior = PointPosterior(model, info)
            raise outcome.failure
        return self._posterior(model, info, outcome.average, None)

    def _fit_each(
        self, problem: Problem, members: Sequence["_Member"], reason: str, *, progress: bool
    ) -> list[Posterior]:
        def fit(member: _Member) -> WeightPosterior:
            own = replace(problem, model=copied(problem.model))
            load_params(own.model.core, member.state)
            return self._fit_alone(own, member.seed, rows=member.rows, reason=reason, progress=progress)

        return one_by_one(partial(fit, member) for member in members)

    def _fit_stacked(
        self, problem: Problem, members: Sequence["_Member"], dropout: TrainingDropout, *, progress: bool
    ) -> list[Posterior]:
        in_memory = isinstance(problem.source, ArraySource)
        trainee = Stacked(
            problem.model,
            [member.state for member in members],
            self._objective(problem),
            dropout if dropout.is_used else None,
            self.autocast,
            own_rows=in_memory,
        )
        seeds = [member.seed for member in members]
        rows = [member.rows for member in members if member.rows is not None] or None
        outcome = self._train(trainee, problem, seeds, rows, progress=progress)
        reason = "" if in_memory else "the loader's batches and their order are shared by all members"
        posteriors: list[Posterior] = []
        for index, seed in enumerate(seeds):
            load_params(problem.model.core, trainee.member(index))
            history, score = outcome.histories[index], _score_name(problem.model)
            info = Info(type(self).__name__, seed, [history], stacked=True, reason=reason, score=score)
            failed = outcome.failure is not None
            posteriors.append(
                PointPosterior(problem.model, info)
                if failed
                else self._posterior(problem.model, info, outcome.average, index)
            )
        if outcome.failure is not None:
            outcome.failure.posterior = posteriors
            raise outcome.failure
        return posteriors

    def _posterior(self, model: Model, info: Info, average: Running | None, member: int | None) -> WeightPosterior:
        """What training ends in.

        Args:
            model: with the final weights.
            info: how it came to be.
            average: what followed the weights along the run, or None.
            member: whose they are; None where one network was trained, not a stack.
        """
        return PointPosterior(model, info)

    def _train(
        self,
        trainee: Trainee,
        problem: Problem,
        seeds: Sequence[int],
        rows: Sequence[Tensor] | None,
        *,
        progress: bool,
    ) -> Outcome:
        # what a layer draws beyond dropout comes from the global generator: seeded here, and left as found
        with torch.enable_grad(), seeded(seeds[0], "train", device=problem.source.device):
            return train(
                trainee,
                problem.source,
                self._options(),
                seeds=seeds,
                validation=problem.validation,
                rows=rows,
                model=problem.model,
                progress=progress,
            )

    def _options(self) -> TrainingOptions:
        """How to train."""
        return self

    def _objective(self, problem: Problem) -> LogJoint:
        return LogJoint.of(
            problem.model,
            problem.source.num_data,
            with_prior=self.with_prior,
            loss=self.loss,
            class_weights=self.class_weights,
        )

    def _dropout(self, problem: Problem, seeds: Sequence[int]) -> TrainingDropout:
        return TrainingDropout(problem.model.core, seeds, problem.source.first().inputs)


@dataclass(frozen=True, eq=False)
class _Member:
    state: Params
    seed: int
    rows: Tensor | None


def _score_name(model: Model) -> str:
    return "log_prob" if model.likelihood.has_density else "minus the training loss"


def _state(model: Model, start: Start) -> Params:
    """The weights and buffers a member begins with."""
    core = begin(copied(model), start).core
    return {**trainable_params(core), **network_buffers(core)}
