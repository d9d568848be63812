"""What the training loop trains: one network, or a stack of members trained as one.

Both show the loop the same face: leaf tensors for the optimiser, an objective per member for a batch, a validation
score per member, and views of all state with the member axis first, by which the loop clips, keeps and restores.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from credibly.core.data import Data, Source
from credibly.core.inputs import map_inputs
from credibly.core.params import buffers_of, evaluating, stack, trainable_params
from credibly.core.substitution import functional_call
from credibly.core.typing import Inputs, Params
from credibly.model import Core, Model
from credibly.training.dropout import TrainingDropout
from credibly.training.objective import LogJoint

__all__ = ["Single", "Stacked", "Trainee"]


class Trainee(ABC):
    """One or several members in training.

    Attributes:
        num_members: the size of the leading axis of `state_views` and scores.
        leaves: what the optimiser updates.
        core: network and likelihood; its training flags say which parts train.
        row_axis: the axis of a batch along which its rows lie.
        dropout: the masks of each step, or None where nothing is dropped.
    """

    num_members: int
    leaves: list[Tensor]
    core: Core
    row_axis: int = 0
    dropout: TrainingDropout | None = None

    @abstractmethod
    def objectives(self, batch: Data, step: int) -> Tensor:
        """What each member is to raise, on a batch: (members,), or () where there is one; with its graph."""

    @abstractmethod
    def scores(self, source: Source) -> Tensor:
        """The mean log density of each member over a source, in evaluation mode: (members,)."""

    @abstractmethod
    def state_views(self) -> list[Tensor]:
        """All weights and buffers, each with the member axis first, sharing memory with what is trained."""

    @abstractmethod
    def gradient_views(self) -> list[Tensor]:
        """All gradients, each with the member axis first."""


class Single(Trainee):
    """One model, trained in place.

    Args:
        model: a copy that may be changed; its modules' training flags say which parts train.
        objective: what is to be raised.
        dropout: the masks of each step, or None where nothing is dropped.
        autocast: a lower precision for the forward pass.
    """

    num_members = 1

    def __init__(
        self, model: Model, objective: LogJoint, dropout: TrainingDropout | None, autocast: torch.dtype | None
    ) -> None:
        self.core = model.core
        self._objective = objective
        self.dropout = dropout
        self._autocast = autocast
        self._params: Params = {name: p for name, p in self.core.named_parameters() if p.requires_grad}
        self.leaves = list(self._params.values())

    def objectives(self, batch: Data, step: int) -> Tensor:
        """One value."""
        with nullcontext() if self.dropout is None else self.dropout.alone(batch.inputs, step):
            parameters = self.core(batch.inputs, "parameters", self._autocast)
        return self._objective(parameters, self._params, batch)

    def scores(self, source: Source) -> Tensor:
        """One score."""
        with torch.no_grad(), evaluating(self.core):
            return self._objective.mean_density(lambda batch: self.core(batch.inputs), source).reshape(1)

    def state_views(self) -> list[Tensor]:
        """With a member axis of size 1."""
        tensors = [*self._params.values(), *buffers_of(self.core).values()]
        return [tensor.detach().unsqueeze(0) for tensor in tensors]

    def gradient_views(self) -> list[Tensor]:
        """With a member axis of size 1."""
        return [leaf.grad.unsqueeze(0) for leaf in self.leaves if leaf.grad is not None]


class Stacked(Trainee):
    """Members of one architecture, their weights stacked, evaluated by `vmap`.

    Args:
        model: a copy that may be changed; gives the architecture and the frozen weights.
        starts: the weights, and any buffers, each member begins with.
        objective: what is to be raised.
        dropout: the masks of each step, or None where nothing is dropped.
        autocast: a lower precision for the forward pass.
        own_rows: whether batches have a member axis, each member's own rows, or are shared.
    """

    def __init__(
        self,
        model: Model,
        starts: Sequence[Params],
        objective: LogJoint,
        dropout: TrainingDropout | None,
        autocast: torch.dtype | None,
        *,
        own_rows: bool,
    ) -> None:
        self.core = model.core
        self.own_rows = own_rows
        self.row_axis = int(own_rows)
        self.num_members = len(starts)
        own = {**trainable_params(self.core), **buffers_of(self.core)}
        state = stack([{name: start.get(name, value) for name, value in own.items()} for start in starts])
        self.params = {name: state[name].requires_grad_() for name in trainable_params(self.core)}
        self.buffers = {name: state[name] for name in buffers_of(self.core)}
        self.leaves = list(self.params.values())
        self._objective = objective
        self.dropout = dropout
        self._autocast = autocast

    def objectives(self, batch: Data, step: int) -> Tensor:
        """A value per member. The batch has a member axis where members have their own rows."""
        dropout, own_rows = self.dropout, self.own_rows
        example = map_inputs(lambda value: value[0], batch.inputs) if own_rows else batch.inputs
        sites = [] if dropout is None else dropout.sites(example)
        masks = None if dropout is None else dropout.masks(sites, step)

        def objective(params: Params, buffers: Params, rows: dict[str, Any], masks: list[Tensor] | None) -> Tensor:
            data = Data(**rows)
            context = nullcontext() if dropout is None else dropout.active(sites, masks)
            with context:
                arguments = (data.inputs, "parameters", self._autocast)
                parameters = functional_call(self.core, {**params, **buffers}, arguments)
            return self._objective(parameters, params, data)

        # vmap takes no None among mapped arguments
        rows = {name: value for name, value in vars(batch).items() if value is not None}
        in_dims = (0, 0, 0 if own_rows else None, None if masks is None else 0)
        return vmap(objective, in_dims=in_dims, randomness="different")(self.params, self.buffers, rows, masks)

    def scores(self, source: Source) -> Tensor:
        """A score per member."""

        def evaluate(params: Params, buffers: Params, inputs: Inputs) -> dict[str, Tensor]:
            return functional_call(self.core, {**params, **buffers}, (inputs,))  # type: ignore[no-any-return]

        def parameters(batch: Data) -> dict[str, Tensor]:
            return vmap(evaluate, in_dims=(0, 0, None))(self.params, self.buffers, batch.inputs)

        with torch.no_grad(), evaluating(self.core):
            return self._objective.mean_density(parameters, source)

    def state_views(self) -> list[Tensor]:
        """Weights, then buffers."""
        return [value.detach() for value in (*self.params.values(), *self.buffers.values())]

    def gradient_views(self) -> list[Tensor]:
        """The stacked gradients."""
        return [leaf.grad for leaf in self.leaves if leaf.grad is not None]

    def member(self, index: int) -> Params:
        """One member's weights and buffers."""
        return {name: value[index].detach().clone() for name, value in (self.params | self.buffers).items()}
