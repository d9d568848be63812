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
from credibly.core.linalg.roots import root_of
from credibly.core.randomness import base_seed, seeded
from credibly.core.typing import ArrayLike
from credibly.distributions.drawing import sampled
from credibly.distributions.functions import icdf, safe_log_prob
from credibly.distributions.kinds import kind, reference
from credibly.distributions.special import ndtr
from credibly.distributions.targets import match_targets
from credibly.likelihoods.offsets import add_offset

__all__ = ["Likelihood"]


class Likelihood(nn.Module, ABC):
    """Network outputs in, a distribution over targets out.

    Attributes:
        num_outputs: the size of the last axis that the likelihood reads.
    """

    num_outputs: int
    needs_offset: bool = False
    """Whether part of what it reads comes through `Model(offset=...)` rather than from the network."""
    has_density: bool = True
    """False for a training head, which has a loss and no density."""

    def check_density(self) -> None:
        """What has no density has no posterior over weights.

        Raises:
            NotSupportedError: a training head.
        """
        if not self.has_density:
            raise NotSupportedError(
                f"{type(self.elements()[0]).__name__} is a training head without a density, and a posterior over "
                "weights needs one; use MAP, an Ensemble of it, or MCDropout"
            )

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

    def training_score(self, parameters: dict[str, Tensor], targets: Tensor) -> Tensor:
        """What training raises, by which it also scores validation data: the log density, of a head minus its loss."""
        return self.log_prob(parameters, targets)

    def fisher(self, outputs: Tensor) -> Tensor:
        """The expected outer product of the score in the outputs: (*batch, C, C) for outputs (*batch, C).

        By default an exact sum where the target has finitely many values, a sum over all but 1e-12 of the mass for
        counts, and otherwise quadrature over the quantile function: precise for densities of one mode, also with a
        kink at the median.
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

    def fisher_root(self, outputs: Tensor) -> Tensor:
        """Directions in the outputs whose outer products add up to the Fisher matrix: L with L L' = fisher.

        (*batch, C, J); by default J = C, by Cholesky.
        """
        return root_of(self.fisher(outputs))

    def sample_scores(self, outputs: Tensor, num_scores: int, *, seed: int | None = None) -> Tensor:
        """Scores in the outputs at targets drawn from the prediction: (num_scores, *batch, C).

        Their outer products average to the Fisher matrix; with many outputs that is cheaper than the matrix.
        """
        with seeded(base_seed(seed), "scores", device=outputs.device):
            targets = sampled(self(outputs), torch.Size([num_scores]))
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

    def with_offset(self, outputs: Tensor, offset: Tensor) -> Tensor:
        """The outputs with a known part added, such as a log exposure: by default to all of a row's outputs.

        A likelihood whose outputs are not all on the scale of the offset adds it to those that are.

        Args:
            outputs: (*batch, num_outputs).
            offset: (*batch,), or one for each output that takes it.

        Raises:
            ShapeError: another shape.
        """
        return add_offset(outputs, offset)

    def elements(self) -> tuple["Likelihood", int]:
        """The likelihood of one element, and how many axes of a target count its elements.

        Itself and 0, but for `PerElement`, whose parameters and targets have those axes after the batch.
        """
        return self, 0

    def possible_target(self, outputs: Tensor) -> Tensor:
        """A number that may be a target, to stand where one is missing: shape ()."""
        with seeded(0, "missing", device=outputs.device):
            targets = sampled(self(outputs[:1]))
        return targets.flatten()[0]

    def match_targets(self, targets: ArrayLike, outputs: Tensor) -> Tensor:
        """The targets in the shape and dtype that `log_prob` takes, after checking shape, values and support.

        Args:
            targets: one per row.
            outputs: (any rows, num_outputs) outputs of the network, as a template of dtype and device.
        """
        rows = len(targets)
        with torch.no_grad():
            template = self(outputs[:1].detach().expand(rows, *outputs.shape[1:]))
        matched = match_targets(template, targets)
        self.elements()[0].check_targets(matched)
        return matched

    def check_targets(self, targets: Tensor) -> None:
        """Raise a SupportError where a target of the right shape, inside the support, still cannot be learned from.

        By default everything in the support can be; a density that is 0 or infinite at the end of its support, whatever
        the outputs are, is a reason to refuse.
        """

    def check_offset(self, targets: Tensor, offset: Tensor) -> None:
        """Raise a SupportError where a target is impossible beside its row's offset. By default none is.

        Args:
            targets: present ones, as `match_targets` returns them.
            offset: of the same rows.
        """

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
    scores, masses = _normal_nodes()
    levels = ndtr(scores).to(reference(predicted).device).reshape(-1, *[1] * len(predicted.batch_shape))
    values = icdf(predicted, levels)
    return values, masses.to(values).reshape(levels.shape).expand_as(values)


def _normal_nodes() -> tuple[Tensor, Tensor]:
    """Points z and masses whose weighted sums are expectations under the standard normal: Gauss-Legendre by panels.

    0 is the end of a panel, so that a kink at the median costs nothing; beyond 8 the levels round to 1.
    """
    nodes, lengths = np.polynomial.legendre.leggauss(16)
    ends = np.array([-8.0, -5.0, -2.5, 0.0, 2.5, 5.0, 8.0])
    half = np.diff(ends)[:, None] / 2
    z = (ends[:-1, None] + half * (1 + nodes)).reshape(-1)
    masses = (half * lengths).reshape(-1) * np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
    return torch.as_tensor(z), torch.as_tensor(masses)
