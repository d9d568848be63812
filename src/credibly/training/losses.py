"""Training losses that are not likelihoods: they shape training and are never reported as densities."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from credibly.core.checks import check_nonnegative
from credibly.core.errors import NotSupportedError
from credibly.core.params import module_device
from credibly.distributions.classes import class_log_probs
from credibly.distributions.kinds import kind
from credibly.likelihoods.base import Likelihood
from credibly.likelihoods.gaussian import gaussian_log_prob
from credibly.likelihoods.heteroscedastic_gaussian import HeteroscedasticGaussian

__all__ = ["BetaNLL", "FocalLoss", "LabelSmoothing", "TrainingLoss", "num_classes"]


class TrainingLoss(Protocol):
    """A loss per row in place of minus the log density."""

    def __call__(self, likelihood: Likelihood, parameters: dict[str, Tensor], targets: Tensor) -> Tensor:
        """The loss of each row: shape (*batch,). Passes through `vmap`."""


@dataclass(frozen=True)
class BetaNLL:
    """`variance^beta (-log p(y))` with the first factor held constant, for a predicted Gaussian scale.

    On the Pitfalls of Heteroscedastic Uncertainty Estimation with Probabilistic Neural Networks, Seitzer, Tavakoli,
    Antic and Martius 2022. Under the likelihood itself, rows that are fitted badly get a large scale, which then makes
    their location learn slowly; the factor gives them back their weight.

    Attributes:
        beta: 0 is minus the log density; at 1 locations learn as under half the squared error.
    """

    beta: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.beta <= 1:
            raise ValueError(f"`beta` must lie in [0, 1]; got {self.beta}")

    def __call__(self, likelihood: Likelihood, parameters: dict[str, Tensor], targets: Tensor) -> Tensor:
        """The loss of each row, each target with a factor of its own."""
        if not isinstance(likelihood, HeteroscedasticGaussian):
            raise NotSupportedError(
                f"`BetaNLL` is for HeteroscedasticGaussian, whose scale is predicted; got {type(likelihood).__name__}"
            )
        loc, scale = parameters["loc"], parameters["scale"]
        loss = -gaussian_log_prob(loc, scale, targets, event=False) * scale.detach() ** (2 * self.beta)
        return loss.sum(-1) if likelihood.num_targets > 1 else loss


@dataclass(frozen=True)
class FocalLoss:
    """`-(1 - p_y)^gamma log p_y` (Focal Loss for Dense Object Detection, Lin et al. 2017).

    Attributes:
        gamma: how strongly rows that are already right are discounted; 0 is the cross entropy.
    """

    gamma: float = 2.0

    def __post_init__(self) -> None:
        check_nonnegative("gamma", self.gamma)

    def __call__(self, likelihood: Likelihood, parameters: dict[str, Tensor], targets: Tensor) -> Tensor:
        """The loss of each row."""
        num_classes(likelihood, type(self).__name__)
        log_p = likelihood.log_prob(parameters, targets)
        # 1 - p through expm1, and kept off 0, where a power below 1 has no gradient
        missing = (-torch.expm1(log_p)).clamp_min(torch.finfo(log_p.dtype).tiny)
        return -(missing**self.gamma) * log_p


@dataclass(frozen=True)
class LabelSmoothing:
    """Cross entropy against the label with probability `1 - amount` and any class with the rest.

    Rethinking the Inception Architecture, Szegedy et al. 2016: the amount is spread evenly over all classes.

    Attributes:
        amount: the share of mass that is spread, in [0, 1).
    """

    amount: float = 0.1

    def __post_init__(self) -> None:
        if not 0 <= self.amount < 1:
            raise ValueError(f"`amount` must lie in [0, 1); got {self.amount}")

    def __call__(self, likelihood: Likelihood, parameters: dict[str, Tensor], targets: Tensor) -> Tensor:
        """The loss of each row."""
        classes = num_classes(likelihood, type(self).__name__)
        sure = likelihood.log_prob(parameters, targets)
        every = [likelihood.log_prob(parameters, torch.full_like(targets, label)) for label in range(classes)]
        return -(1 - self.amount) * sure - self.amount * torch.stack(every).mean(0)


def num_classes(likelihood: Likelihood, needed_by: str) -> int:
    """The number of classes of a likelihood with one label per row; any other is refused by name."""
    example = likelihood(torch.zeros(1, likelihood.num_outputs, device=module_device(likelihood)))
    if kind(example) == "class" and not example.event_shape:
        return class_log_probs(example).shape[-1]
    raise NotSupportedError(
        f"`{needed_by}` is for one label per row (Categorical, Bernoulli); "
        f"got {type(likelihood).__name__} with {likelihood.num_outputs} outputs"
    )
