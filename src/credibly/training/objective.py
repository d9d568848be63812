"""The objective of training weights: the log joint of a batch, per row of the training data."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from credibly.core.data import Data
from credibly.core.errors import NotSupportedError, ShapeError
from credibly.core.typing import Params
from credibly.likelihoods.base import Likelihood
from credibly.likelihoods.categorical import Categorical
from credibly.model import Model, weighted_rows
from credibly.training.losses import TrainingLoss

__all__ = ["LogJoint"]


@dataclass(frozen=True, eq=False)
class LogJoint:
    """`(1/B) sum of log likelihoods + (1/N) log prior`: the log joint over N. It is to be raised.

    Attributes:
        likelihood: on the network's side of any standardisation.
        log_prior: of the weights; None for maximum likelihood.
        num_data: N, the number of training rows.
        loss: a training loss in place of minus the log density.
        class_weights: (classes,) factors by class.
    """

    likelihood: Likelihood
    log_prior: Callable[[Params], Tensor] | None
    num_data: int
    loss: TrainingLoss | None = None
    class_weights: Tensor | None = None

    @classmethod
    def of(
        cls, model: Model, num_data: int, *, with_prior: bool, loss: TrainingLoss | None, class_weights: object
    ) -> "LogJoint":
        """The objective of a model; class weights are checked against its classes."""
        weights = None
        if class_weights is not None:
            weights = torch.as_tensor(class_weights)
            classes = 2 if model.likelihood.num_outputs == 1 else model.likelihood.num_outputs
            if not isinstance(model.likelihood, Categorical) and classes != 2:
                raise NotSupportedError("`class_weights` need one label per row (Categorical, Bernoulli)")
            if weights.shape != (classes,):
                raise ShapeError(f"`class_weights` must have shape ({classes},); got {tuple(weights.shape)}")
        return cls(model.likelihood, model.log_prior if with_prior else None, num_data, loss, weights)

    def __call__(self, parameters: dict[str, Tensor], params: Params, batch: Data) -> Tensor:
        """The value for one batch: a scalar."""
        value = weighted_rows(self._row_density, parameters, batch).mean()
        return value if self.log_prior is None else value + self.log_prior(params) / self.num_data

    def _row_density(self, parameters: dict[str, Tensor], targets: Tensor) -> Tensor:
        if self.loss is None:
            rows = self.likelihood.log_prob(parameters, targets)
        else:
            rows = -self.loss(self.likelihood, parameters, targets)
        if self.class_weights is not None:
            rows = rows * self.class_weights.to(rows)[targets.long()]
        return rows
