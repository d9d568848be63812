"""The objective of training weights: the log joint of a batch, per row of the training data."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from credibly.core.checks import as_tensor
from credibly.core.data import Data, Source
from credibly.core.errors import ShapeError
from credibly.core.params import module_device
from credibly.core.typing import Params
from credibly.likelihoods.base import Likelihood
from credibly.model import Model, weighted_rows
from credibly.training.losses import TrainingLoss, num_classes

__all__ = ["LogJoint", "mean_over_rows"]

_ROWS = 4096  # of validation data at a time


@dataclass(frozen=True, eq=False)
class LogJoint:
    """`(1/B) sum of log likelihoods + (1/N) log prior`: the log joint over N. It is to be raised.

    Attributes:
        likelihood: on the network's side of any standardisation.
        log_prior: of the weights; None for maximum likelihood.
        num_data: N, the number of training rows.
        log_scale: what a log density loses on the way back to the targets' units.
        loss: a training loss in place of minus the log density.
        class_weights: (classes,) factors by class.
    """

    likelihood: Likelihood
    log_prior: Callable[[Params], Tensor] | None
    num_data: int
    log_scale: float = 0.0
    loss: TrainingLoss | None = None
    class_weights: Tensor | None = None

    def mean_density(self, evaluate: Callable[[Data], dict[str, Tensor]], source: Source) -> Tensor:
        """The mean log density of the rows of a source, weighted and over those present: (*members,), float64.

        Args:
            evaluate: the likelihood's parameters of a batch, each (*members, rows, ...).
            source: on the network's side.
        """
        element, axes = self.likelihood.elements()

        def score(batch: Data) -> Tensor:
            unweighted = replace(batch, weights=None)
            return weighted_rows(element.training_score, evaluate(batch), unweighted, self.log_scale, axes)

        return mean_over_rows(score, source, _ROWS)

    @classmethod
    def of(
        cls, model: Model, num_data: int, *, with_prior: bool, loss: TrainingLoss | None, class_weights: object
    ) -> "LogJoint":
        """The objective of a model; class weights are checked against its classes."""
        weights = None
        if class_weights is not None:
            weights = as_tensor(class_weights, device=module_device(model))
            classes = num_classes(model.likelihood.elements()[0], "class_weights")
            if bool((weights < 0).any()) or not bool((weights > 0).any()):
                raise ValueError(f"`class_weights` must be 0 or above, and one above 0; got {weights.tolist()}")
            if weights.shape != (classes,):
                raise ShapeError(f"`class_weights` must have shape ({classes},); got {tuple(weights.shape)}")
        return cls(
            model.likelihood, model.log_prior if with_prior else None, num_data, model.log_scale(), loss, weights
        )

    def __call__(self, parameters: dict[str, Tensor], params: Params, batch: Data) -> Tensor:
        """The value for one batch: a scalar."""
        element, axes = self.likelihood.elements()
        density = functools.partial(self._density, element)
        value = weighted_rows(density, parameters, batch, self.log_scale, axes).mean()
        return value if self.log_prior is None else value + self.log_prior(params) / self.num_data

    def _density(self, likelihood: Likelihood, parameters: dict[str, Tensor], targets: Tensor) -> Tensor:
        if self.loss is None:
            density = likelihood.training_score(parameters, targets)
        else:
            density = -self.loss(likelihood, parameters, targets)
        if self.class_weights is not None:
            density = density * self.class_weights.to(density)[targets.long()]
        return density


def mean_over_rows(score: Callable[[Data], Tensor], source: Source, rows_at_once: int) -> Tensor:
    """The mean of what rows score, weighted and over those present: (*members,), float64.

    Args:
        score: of the rows of a batch, (*members, rows), without their weights.
        source: of the rows, on the network's side.
        rows_at_once: how many to evaluate together.

    Raises:
        ValueError: no row counts.
    """
    total, count = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    for batch in source.batches(rows_at_once):
        rows = score(batch).double()
        weights = batch.row_weights(rows)
        total = total + torch.where(weights > 0, rows * weights, 0.0).sum(-1).cpu()
        count = count + weights.sum().cpu()
    if not bool(count > 0):
        raise ValueError("the validation data have no present target with a weight above 0")
    return total / count
