r"""Training a Gaussian over the weights by improved variational online Newton.

Variational Learning is Effective for Large Deep Networks, Shen, Daheim, Cong, Nickl, Marconi, Bazan, Yokota, Gurevych,
Cremers, Khan and Moellenhoff 2024, Algorithm 1. With l the mean loss per row and weights w = m + s e, e standard
normal, a step is

    g^ = grad l(w),  h^ = g^ (w - m) / s^2                  estimates of the expected gradient and Hessian diagonal
    g <- b1 g + (1 - b1) g^
    h <- b2 h + (1 - b2) h^ + (1 - b2)^2 (h - h^)^2 / (2 (h + d))
    m <- m - a (g / (1 - b1^t) + d m) / (h + d)
    s <- 1 / sqrt(ess (h + d))

with all products by element. The correction keeps h + d above 0 whatever comes: with x = (1 - b2) (h^ - h) / (h + d) it
is multiplied by 1 + x + x^2 / 2. A prior Normal(0, p^2) over N rows has d = 1 / (N p^2); ess is N over the temperature.

The products with the noise come from the same backward pass as the gradients: w = m + r s e with r = 1 has the
derivative g^ s e in r.
"""

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from credibly.core.data import Data, Source
from credibly.core.params import buffers_of, evaluating
from credibly.core.randomness import Stream
from credibly.core.substitution import functional_call
from credibly.core.typing import Params
from credibly.model import Model
from credibly.training.dropout import TrainingDropout
from credibly.training.objective import LogJoint
from credibly.training.trainee import Trainee

__all__ = ["IVONOptimizer", "NewtonOptions", "PerturbedWeights", "update_hess_"]


@dataclass(frozen=True, eq=False, kw_only=True)
class NewtonOptions:
    """The constants of the algorithm.

    Attributes:
        num_samples: draws of the noise per step.
        ess: the number of rows over the temperature.
        weight_decay: d, (weights,): the prior precision of each weight over the number of rows.
        hess_init: the first h.
        beta1: b1.
        beta2: b2.
        clip_radius: the largest change of a weight over its rate; None does not bound it.
        noise_learning_rate: Adam's, for what the likelihood learns.
    """

    num_samples: int
    ess: float
    weight_decay: Tensor
    hess_init: float
    beta1: float
    beta2: float
    clip_radius: float | None
    noise_learning_rate: float


class PerturbedWeights(Trainee):
    """One model whose weights are the mean of a Gaussian, evaluated at draws from it.

    The module itself always holds the mean: draws are passed beside it.

    Args:
        model: a copy that may be changed.
        objective: the mean log likelihood of a batch, to be raised.
        dropout: the masks of each batch, or None where nothing is dropped.
        autocast: a lower precision for the forward pass.
        options: of the algorithm.
        seed: of the noise.
    """

    num_members = 1

    def __init__(
        self,
        model: Model,
        objective: LogJoint,
        dropout: TrainingDropout | None,
        autocast: torch.dtype | None,
        options: NewtonOptions,
        seed: int,
    ) -> None:
        self.core = model.core
        self._objective = objective
        self.dropout = dropout
        self._autocast = autocast
        self.options = options
        self.num_steps = 0  # taken by the optimiser
        own = {name: p for name, p in self.core.named_parameters() if p.requires_grad}
        self._random = {name: p for name, p in own.items() if name.startswith("net.")}
        self._noise: Params = {name: p for name, p in own.items() if name not in self._random}
        self.mean = torch.cat([p.detach().reshape(-1) for p in self._random.values()]).requires_grad_()
        self.stretch = torch.ones_like(self.mean, requires_grad=True)
        self.hess = torch.full_like(self.mean, options.hess_init, requires_grad=False)
        self.learned = list(self._noise.values())
        self.leaves = [self.mean, self.stretch, *self.learned]
        self._stream = Stream(seed, "perturb", self.mean.device)
        for name, view in self._named(self.mean.detach()).items():
            self._random[name].data = view  # the module sees every step of the mean

    @property
    def names(self) -> tuple[str, ...]:
        """The random weights."""
        return tuple(self._random)

    @property
    def variance(self) -> Tensor:
        """Of every weight."""
        return 1 / (self.options.ess * (self.hess + self.options.weight_decay))

    def detach(self) -> None:
        """Give every weight of the module memory of its own again."""
        for parameter in self._random.values():
            parameter.data = parameter.data.clone()

    def objectives(self, batch: Data, step: int) -> Tensor:
        """The mean over draws. The batches of one step share them."""
        first = self.num_steps * self.options.num_samples
        deviation = self.variance.sqrt()
        size = len(self.mean)
        values = []
        for index in range(self.options.num_samples):
            noise = self._stream.normal(size, first + index, first + index + 1, self.mean.dtype)[0] * deviation
            params = {**self._named(self.mean + self.stretch * noise), **self._noise}
            values.append(self._at(params, batch, step * self.options.num_samples + index))
        return torch.stack(values).mean()

    def _at(self, params: Params, batch: Data, number: int) -> Tensor:
        with nullcontext() if self.dropout is None else self.dropout.alone(batch.inputs, number):
            parameters = functional_call(self.core, params, (batch.inputs, "parameters", self._autocast))
        return self._objective(parameters, params, batch)

    def scores(self, source: Source) -> Tensor:
        """At the mean."""
        with torch.no_grad(), evaluating(self.core):
            return self._objective.mean_density(lambda batch: self.core(batch.inputs), source).reshape(1)

    def state_views(self) -> list[Tensor]:
        """The mean, its Hessian, what the likelihood learns and the buffers, with a member axis of size 1."""
        tensors = [self.mean, self.hess, *self.learned, *buffers_of(self.core).values()]
        return [tensor.detach().unsqueeze(0) for tensor in tensors]

    def gradient_views(self) -> list[Tensor]:
        """With a member axis of size 1."""
        return [leaf.grad.unsqueeze(0) for leaf in self.leaves if leaf.grad is not None]

    def _named(self, flat: Tensor) -> Params:
        parts = torch.split(flat, [p.numel() for p in self._random.values()])
        return {name: part.view(p.shape) for (name, p), part in zip(self._random.items(), parts, strict=True)}


class IVONOptimizer(torch.optim.Optimizer):
    """The step of the algorithm; what the likelihood learns takes a step of Adam.

    Args:
        trainee: whose mean and Hessian are updated, from the gradients of its leaves.
        lr: a, before it is scaled.
        scale: what the rate of each weight is multiplied by, (weights,).
    """

    def __init__(self, trainee: PerturbedWeights, lr: float, scale: Tensor) -> None:
        super().__init__([trainee.mean], {"lr": lr})
        self._scale = scale
        self._trainee = trainee
        self._first_rate = lr
        self._gradient = torch.zeros_like(trainee.mean, requires_grad=False)
        self._adam = torch.optim.Adam(trainee.learned) if trainee.learned else None

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One update."""
        trainee, options = self._trainee, self._trainee.options
        mean, hess, decay = trainee.mean, trainee.hess, options.weight_decay
        if mean.grad is None or trainee.stretch.grad is None:
            raise ValueError("the loss does not depend on any weight of the network; there is nothing to train")
        trainee.num_steps += 1
        self._gradient.lerp_(mean.grad, 1 - options.beta1)
        estimate = trainee.stretch.grad * (options.ess * (hess + decay))
        update_hess_(hess, estimate, decay, options.beta2)
        direction = self._gradient / (1 - options.beta1**trainee.num_steps)
        direction = direction.add_(decay * mean).div_(hess + decay)
        if options.clip_radius is not None:
            direction.clamp_(-options.clip_radius, options.clip_radius)
        mean.addcmul_(self._scale, direction, value=-self.param_groups[0]["lr"])
        self._step_of_noise()

    def _step_of_noise(self) -> None:
        if self._adam is not None:
            rate = self._trainee.options.noise_learning_rate
            self._adam.param_groups[0]["lr"] = rate * self.param_groups[0]["lr"] / self._first_rate
            self._adam.step()


def update_hess_(hess: Tensor, estimate: Tensor, weight_decay: Tensor, beta2: float) -> None:
    """The Hessian's running mean with the correction that keeps it above minus the weight decay, in place.

    Args:
        hess: h, changed.
        estimate: h^.
        weight_decay: d.
        beta2: b2.
    """
    gap = (1 - beta2) * (estimate - hess)
    hess.add_(gap + gap.square() / (2 * (hess + weight_decay)))
