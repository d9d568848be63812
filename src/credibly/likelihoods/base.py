"""A likelihood turns the outputs of a network into a distribution over targets.

Two steps, so that draws, members and masks stay a tensor axis: `parameters_of` maps outputs to named tensors and
passes through `vmap`; `distribution` wraps them, with whatever leading axes they have, as a torch Distribution.

A new likelihood needs those two methods. Everything else has a default that is right for any likelihood and may be
overridden by something faster: the log density, the Fisher information in the outputs, sampled scores.
"""

import math
from abc import ABC, abstractmethod

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from credibly.core.errors import NotSupportedError, ShapeError
from credibly.core.randomness import base_seed, seeded
from credibly.core.typing import ArrayLike
from credibly.distributions.functions import icdf, safe_log_prob
from credibly.distributions.kinds import kind
from credibly.distributions.special import ndtr
from credibly.distributions.targets import match_targets

__all__ = ["Likelihood"]


class Likelihood(nn.Module, ABC):
    """Network outputs in, a distribution over targets out.

    Attributes:
        num_outputs: the size of the last axis that the likelihood reads.
    """

    num_outputs: int

    @abstractmethod
    def parameters_of(self, outputs: Tensor) -> dict[str, Tensor]:
        """The distribution's parameters, each with the leading axes of `outputs` (*batch, num_outputs)."""

    @abstractmethod
    def distribution(self, parameters: dict[str, Tensor]) -> Distribution:
        """The distribution whose batch shape is the parameters' leading axes."""

    def forward(self, outputs: Tensor) -> Distribution:
        """The distribution for outputs (*batch, num_outputs), with batch_shape `batch`."""
        self.check_outputs(outputs)
        return self.distribution(self.parameters_of(outputs))

    def log_prob(self, parameters: dict[str, Tensor], targets: Tensor) -> Tensor:
        """The log density of targets (*batch, *event): shape (*batch,), -inf outside the support.

        All normalising constants are kept. Passes through `vmap`.
        """
        return safe_log_prob(self.distribution(parameters), targets)

    def fisher(self, outputs: Tensor) -> Tensor:
        """The expected outer product of the score in the outputs: (*batch, C, C) for outputs (*batch, C).

        By default an exact sum where the target has finitely many values, a sum over all but 1e-12 of the mass for
        counts, and otherwise Gauss-Hermite quadrature over the quantile function.
        """
        wide = outputs.detach().double()  # levels this close to 1 do not exist in single precision
        predicted = self(wide)
        if predicted.event_shape:
            raise NotSupportedError(
                f"{type(self).__name__} has several outputs and no Fisher matrix of its own; override `fisher`"
            )
        values, weights = _expectation_nodes(predicted)
        scores = self._scores(wide, values)
        return torch.einsum("k...,k...c,k...d->...cd", weights, scores, scores).to(outputs.dtype)

    def sample_scores(self, outputs: Tensor, num_scores: int, *, seed: int | None = None) -> Tensor:
        """Scores in the outputs at targets drawn from the prediction: (num_scores, *batch, C).

        Their outer products average to the Fisher matrix; with many outputs that is cheaper than the matrix.
        """
        with seeded(base_seed(seed), "scores", device=outputs.device):
            targets = self(outputs).sample(torch.Size([num_scores]))
        return self._scores(outputs, targets)

    def standardized(self, loc: Tensor, scale: Tensor) -> "Likelihood":
        """The same likelihood for (target - loc) / scale: constants in the targets' units are divided.

        Raises:
            NotSupportedError: where such targets cannot be shifted (counts, classes, positive targets).
        """
        raise NotSupportedError(
            f"targets of {type(self).__name__} cannot be standardised: they would leave its support; "
            "use Model(..., targets=None)"
        )

    def match_targets(self, targets: ArrayLike, outputs: Tensor) -> Tensor:
        """The targets in the shape and dtype that `log_prob` takes, after checking shape, values and support.

        Args:
            targets: one per row.
            outputs: (any rows, num_outputs) outputs of the network, as a template of dtype and device.
        """
        rows = len(targets)
        with torch.no_grad():
            template = self(outputs[:1].detach().expand(rows, -1))
        return match_targets(template, targets)

    def check_outputs(self, outputs: Tensor) -> None:
        """Raise a ShapeError unless the last axis has `num_outputs` entries."""
        if outputs.dim() == 0 or outputs.shape[-1] != self.num_outputs:
            raise ShapeError(
                f"{type(self).__name__} reads outputs of shape (..., {self.num_outputs}); the network gave "
                f"{tuple(outputs.shape)}"
            )

    def _scores(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Gradients of log p(target | outputs) in the outputs, for targets (K, *batch, *event)."""
        with torch.enable_grad():
            repeated = outputs.detach().expand(targets.shape[0], *outputs.shape).clone().requires_grad_()
            total = self.log_prob(self.parameters_of(repeated), targets).sum()
            return torch.autograd.grad(total, repeated)[0]


def _expectation_nodes(predicted: Distribution) -> tuple[Tensor, Tensor]:
    """Values (K, *batch) and weights (K, *batch) whose weighted sums are expectations."""
    if getattr(predicted, "has_enumerate_support", False):
        values = predicted.enumerate_support()
        return values, predicted.log_prob(values).exp()
    if kind(predicted) == "count":
        last = int(icdf(predicted, 1 - 1e-12).max()) + 1
        counts = torch.arange(last + 1, dtype=torch.get_default_dtype())
        mean = predicted.mean
        values = counts.to(mean).reshape(-1, *[1] * mean.dim()).expand(-1, *mean.shape)
        return values, safe_log_prob(predicted, values).exp()
    nodes, masses = np.polynomial.hermite_e.hermegauss(60)
    inside = np.abs(nodes) < 8  # beyond, the standard normal's cdf rounds to 1
    levels = ndtr(torch.as_tensor(nodes[inside]))
    values = torch.stack([icdf(predicted, float(level)) for level in levels])
    weights = torch.as_tensor(masses[inside] / math.sqrt(2 * math.pi), device=values.device)
    return values, weights.reshape(-1, *[1] * (values.dim() - 1)).expand_as(values)
