"""The one training loop.

It knows members, objectives and scores, and nothing of what is trained. Each member is clipped, scored, stopped and
restored on its own: a stack of members follows the course that each would follow alone.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim.lr_scheduler import ReduceLROnPlateau
from tqdm import tqdm

from credibly.core.data import ArraySource, Data, Source
from credibly.core.dropout import OtherDropoutsError
from credibly.core.errors import NotFiniteError, NotSupportedError
from credibly.core.randomness import Stream
from credibly.training.averaged import Averaged
from credibly.training.averaging import Course, Running
from credibly.training.history import History
from credibly.training.options import Epoch, TrainingOptions
from credibly.training.trainee import Trainee

__all__ = ["Outcome", "train"]

_CHECK_EVERY = 256


@dataclass(frozen=True, eq=False)
class Outcome:
    """How training ended.

    Attributes:
        histories: one per member.
        failure: the error to raise, with the best weights already restored, or None.
        average: what followed the weights, or None.
    """

    histories: list[History]
    failure: NotFiniteError | None = None
    average: Running | None = None


def train(
    trainee: Trainee,
    source: Source,
    options: TrainingOptions,
    *,
    seeds: Sequence[int],
    validation: Source | None = None,
    rows: Sequence[Tensor] | None = None,
    model: object = None,
    progress: bool = False,
) -> Outcome:
    """Train until the epochs are over, every member has stopped, or a loss is not finite.

    Args:
        trainee: one or several members.
        source: training data on the network's side.
        options: how to train.
        seeds: one per member; key its data order.
        validation: data to score after each epoch.
        rows: for each member the rows it learns from, where these are not all rows once (a bootstrap sample).
        model: shown to callbacks.
        progress: show a bar on standard error.
    """
    if options.early_stopping is not None and validation is None:
        raise ValueError("early stopping needs validation data: fit(..., validation=(inputs, targets))")
    if not trainee.leaves:
        raise ValueError("the model has no weight that requires a gradient; there is nothing to train")
    num_steps = -(-source.num_steps(options.batch_size) // options.accumulate)
    course = Course(options.num_epochs, options.num_epochs * num_steps)
    orders = _Orders(source, seeds, rows, stacked=trainee.num_members > 1)

    def batches(epoch: int) -> Iterator[Data]:
        return source.batches(options.batch_size, orders.epoch(epoch))

    averaged = Averaged(options.average, trainee, course, batches)
    steps = _Steps(trainee, options, course.num_steps, averaged)
    keeper = _Keeper(trainee, options)
    bar = tqdm(range(options.num_epochs), desc="training", unit="epoch", disable=not progress)
    for epoch in bar:
        losses, rows_of = steps.run(batches(epoch), until=lambda recent: not keeper.finite(recent))
        failure = keeper.failure(losses, epoch)
        if failure is not None:
            keeper.restore()
            return Outcome(keeper.histories, failure, averaged.running)
        loss = (losses * rows_of).sum(0) / rows_of.sum()
        averaged.after_epoch(epoch)
        with nullcontext() if validation is None else averaged.in_place(epoch):
            scores = None if validation is None else trainee.scores(validation)
            keeper.record(epoch, loss, scores, steps.learning_rate, averaged.count)
        steps.end_epoch(loss if scores is None else -scores)
        if progress:
            bar.set_postfix(loss=f"{float(loss.mean()):.4g}")
        if keeper.all_stopped or _stopped_by(options, epoch, loss, scores, model):
            break
    averaged.put(epoch)
    keeper.finish()
    return Outcome(keeper.histories, None, averaged.running)


class _Steps:
    """Steps of the optimiser and its schedule."""

    def __init__(self, trainee: Trainee, options: TrainingOptions, num_steps: int, averaged: Averaged) -> None:
        self._trainee = trainee
        self._averaged = averaged
        self._together = options.accumulate
        self._batch = 0
        self._optimizer = options.optimizer(trainee.leaves, lr=options.learning_rate)
        if isinstance(self._optimizer, torch.optim.LBFGS):
            raise NotSupportedError(
                "LBFGS evaluates the loss several times a step, which this loop does not; use Adam or SGD"
            )
        self._schedule = None if options.schedule is None else options.schedule(self._optimizer, num_steps)
        self._by_score = isinstance(self._schedule, ReduceLROnPlateau)
        self._clip_norm = options.clip_norm
        self._step = 0
        members = () if trainee.num_members == 1 else (trainee.num_members,)
        self._down = torch.full(members, -1.0, dtype=trainee.leaves[0].dtype, device=trainee.leaves[0].device)

    @property
    def learning_rate(self) -> float:
        """The rate of the next step."""
        return float(self._optimizer.param_groups[0]["lr"])

    def run(self, batches: Iterator[Data], *, until: Callable[[Tensor], bool]) -> tuple[Tensor, Tensor]:
        """One step for every so many batches. Looks now and then whether to break off.

        Returns:
            The losses (batches, members) and the number of rows of each batch (batches, 1), both float64.
        """
        objectives: list[Tensor] = []
        rows: list[int] = []
        looked = 0
        try:
            while group := list(itertools.islice(batches, self._together)):
                sizes = [batch.targets.shape[self._trainee.row_axis] for batch in group]
                objectives += self._take(group, sizes)
                rows += sizes
                if len(objectives) - looked >= _CHECK_EVERY:
                    recent, looked = objectives[looked:], len(objectives)
                    if until(torch.stack(recent)):
                        break
        except ValueError as error:
            if "more than 1 value per channel" not in str(error):
                raise
            raise ValueError(
                "a batch of one row came, and BatchNorm cannot train on a single value per channel; choose a "
                "`batch_size` that does not leave one row over, or a loader with drop_last=True"
            ) from error
        if not objectives:
            raise ValueError("the loader gave no batch; training needs at least one")
        losses = -torch.stack(objectives).reshape(len(objectives), -1).cpu().double()
        return losses, torch.tensor(rows, dtype=torch.float64).unsqueeze(1)

    def _take(self, group: Sequence[Data], sizes: Sequence[int]) -> list[Tensor]:
        for leaf in self._trainee.leaves:
            leaf.grad = None
        taken = []
        for batch, size in zip(group, sizes, strict=True):
            objectives = self._objectives(batch)
            down = self._down if len(group) == 1 else self._down * (size / sum(sizes))
            objectives.backward(down)  # type: ignore[no-untyped-call]
            taken.append(objectives.detach())
            self._batch += 1
        if self._clip_norm is not None:
            _clip(self._trainee.gradient_views(), self._clip_norm)
        self._optimizer.step()
        if self._schedule is not None and not self._by_score:
            self._schedule.step()
        self._step += 1
        self._averaged.after_step(self._step)
        return taken

    def _objectives(self, batch: Data) -> Tensor:
        try:
            return self._trainee.objectives(batch, self._batch)
        except OtherDropoutsError:
            if self._trainee.dropout is None or not self._trainee.dropout.look_always():
                raise
            return self._trainee.objectives(batch, self._batch)

    def end_epoch(self, losses: Tensor) -> None:
        """Tell a schedule that follows the score."""
        if self._by_score and self._schedule is not None:
            self._schedule.step(losses.mean())  # type: ignore[arg-type]


def _clip(gradients: list[Tensor], clip_norm: float) -> None:
    """Shrink each member's gradient to the largest norm allowed, in place."""
    squares = torch.stack([gradient.reshape(len(gradient), -1).square().sum(1) for gradient in gradients]).sum(0)
    factors = (clip_norm / (squares.sqrt() + 1e-6)).clamp(max=1)
    for gradient in gradients:
        gradient.mul_(factors.reshape(-1, *[1] * (gradient.dim() - 1)))


def _stopped_by(options: TrainingOptions, epoch: int, loss: Tensor, scores: Tensor | None, model: object) -> bool:
    report = Epoch(epoch, float(loss[0]), None if scores is None else float(scores[0]), model)
    answers = [bool(callback(report)) for callback in options.callbacks]  # all are called, whatever the first says
    return any(answers)


class _Orders:
    """Each member's own order of the rows, epoch by epoch."""

    def __init__(self, source: Source, seeds: Sequence[int], rows: Sequence[Tensor] | None, *, stacked: bool) -> None:
        self._streams = [Stream(seed, "order") for seed in seeds]
        self._rows = rows
        self._stacked = stacked
        self._total = source.data.num_rows if isinstance(source, ArraySource) else 0
        self._device = source.device

    def epoch(self, epoch: int) -> Tensor | None:
        """(rows,) or (members, rows); None for a loader, whose order is its own."""
        if self._total == 0:
            return None
        orders = [torch.randperm(self._total, generator=stream.generator(epoch)) for stream in self._streams]
        if self._rows is not None:
            orders = [own[order] for own, order in zip(self._rows, orders, strict=True)]
        return (torch.stack(orders) if self._stacked else orders[0]).to(self._device)


class _Keeper:
    """Remembers each member's best state, decides who has stopped, and writes the histories."""

    def __init__(self, trainee: Trainee, options: TrainingOptions) -> None:
        members = trainee.num_members
        self._trainee = trainee
        self._stopping = options.early_stopping
        self._best = [view.clone() for view in trainee.state_views()]
        self._score = torch.full((members,), -torch.inf, dtype=torch.float64)
        self._waited = torch.zeros(members, dtype=torch.int64)
        self._active = torch.ones(members, dtype=torch.bool)
        self._averages = options.average is not None
        self._num_averaged = 0
        self.histories = [History() for _ in range(members)]

    @property
    def all_stopped(self) -> bool:
        return not bool(self._active.any())

    def finite(self, values: Tensor) -> bool:
        """Whether all values (steps, members) of members still in training are."""
        return bool(values.reshape(len(values), -1).cpu()[:, self._active].isfinite().all())

    def failure(self, losses: Tensor, epoch: int) -> NotFiniteError | None:
        """An error that names the first bad batch of a member still in training, or None."""
        if self.finite(losses):
            return None
        bad = ~losses.isfinite() & self._active
        batch = int(bad.any(1).nonzero()[0])
        who = "" if len(self.histories) == 1 else f" of member {int(bad[batch].nonzero()[0])}"
        return NotFiniteError(
            f"the training loss{who} is not finite in epoch {epoch}, batch {batch} (both counted from 0); the best "
            "weights so far are kept. A smaller `learning_rate`, `clip_norm` or standardised inputs often help"
        )

    def record(
        self, epoch: int, loss: Tensor, scores: Tensor | None, learning_rate: float, num_averaged: int = 0
    ) -> None:
        """One more epoch of the members still in training."""
        if num_averaged and not self._num_averaged:  # averages are compared with averages only
            self._score.fill_(-torch.inf)
        self._num_averaged = num_averaged
        score = -loss if scores is None else scores
        margin = 0.0 if self._stopping is None else self._stopping.min_delta
        better = self._active & (score > self._score + margin)
        for member in self._active.nonzero().flatten().tolist():
            history = self.histories[member]
            history.loss.append(float(loss[member]))
            history.learning_rate.append(learning_rate)
            if scores is not None:
                history.validation_log_prob.append(float(scores[member]))
            if better[member]:
                history.best_epoch = epoch
            if better[member] or self._stopping is None:
                history.num_averaged = num_averaged
        self._keep(better)
        self._score = torch.where(better, score, self._score)
        self._waited = torch.where(better, 0, self._waited + 1)
        if self._stopping is not None and (num_averaged or not self._averages):
            for member in (self._active & (self._waited >= self._stopping.patience)).nonzero().flatten().tolist():
                self.histories[member].stopped_early = True
                self._active[member] = False

    def _keep(self, members: Tensor) -> None:
        if bool(members.all()):
            torch._foreach_copy_(self._best, self._trainee.state_views())
        elif bool(members.any()):
            for best, view in zip(self._best, self._trainee.state_views(), strict=True):
                chosen = members.to(view.device)
                best[chosen] = view[chosen]

    def restore(self) -> None:
        """Every member back to its best state."""
        torch._foreach_copy_(self._trainee.state_views(), self._best)

    def finish(self) -> None:
        """With early stopping the best weights are final; without it, the last."""
        if self._stopping is not None:
            self.restore()
