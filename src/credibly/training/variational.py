"""Variational training: a Gaussian q over weights that comes as close to the posterior as it can.

It raises, per row of the training data,

    (1/B) sum of E log p(y | x, w)  +  (E log p(w) + T H(q)) / N

the evidence lower bound over N at temperature T = 1: the expected log likelihood of the batch stands for that of all
rows, and the divergence KL(q || prior) = -H(q) - E log p(w) is counted once. Expectations under the prior are in closed
form where it is Gaussian, otherwise at the step's own draw. What the likelihood learns, and weights that are not
random, are trained along as points.
"""

import math
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from credibly.core.data import Data, Source
from credibly.core.params import buffers_of, evaluating, module_device, stack
from credibly.core.randomness import Stream
from credibly.core.substitution import Substitution
from credibly.core.typing import Params
from credibly.model import Model, weighted_rows
from credibly.training.dropout import TrainingDropout
from credibly.training.objective import LogJoint, mean_over_rows
from credibly.training.trainee import Trainee
from credibly.training.variational_approximations import Approximation, Independent, scales_and_penalty
from credibly.training.variational_estimators import LayerNoise, Plan, UnplannedUseError
from credibly.training.variational_priors import DrawnPrior, FlatWeights, IndependentGaussian, PriorTerm

__all__ = ["DrawnWeights", "Noise", "NoisyLayers", "Step", "Variational"]

_SCORE_DRAWS = 8  # the same after every epoch, so that scores move by what was learned
_SCORE_ROWS = 4096  # of validation data at a time


@dataclass(frozen=True, eq=False)
class Step:
    """What one step runs the network with.

    Attributes:
        params: the random weights by name.
        context: in which the network is called.
        value: E log p(w) + T H(q), or an estimate of it.
    """

    params: Params
    context: AbstractContextManager[object]
    value: Tensor


class Noise(ABC):
    """How draws from q reach the network in training.

    Args:
        q: the approximation.
        prior: of the weights.
        layout: of the random weights.
        temperature: T.
    """

    def __init__(self, q: Approximation, prior: PriorTerm, layout: FlatWeights, temperature: float) -> None:
        self.q = q
        self.prior = prior
        self.layout = layout
        self.temperature = temperature

    @abstractmethod
    def step(self, generator: torch.Generator, points: Params, rows: int) -> Step:
        """The draws of one step, for a batch of so many rows."""

    def change(self, found: UnplannedUseError) -> None:
        """Treat a layer as it turned out to act."""
        raise found

    def normal(self, generator: torch.Generator) -> Tensor:
        """The noise of one draw from q."""
        like = self.q.mean
        return torch.randn(self.q.num_noise, generator=generator, dtype=like.dtype, device=like.device)


class DrawnWeights(Noise):
    """One draw of all weights per step.

    Args:
        q: the approximation.
        prior: of the weights.
        layout: of the random weights.
        temperature: T.
        path_gradient: leave out of the gradient of the draw's log q(w) what has expectation 0, the score (Sticking the
            Landing, Roeder, Wu, Duvenaud 2017): where q is the posterior itself, no noise is left.
    """

    def __init__(
        self, q: Approximation, prior: PriorTerm, layout: FlatWeights, temperature: float, *, path_gradient: bool
    ) -> None:
        super().__init__(q, prior, layout, temperature)
        self._path_gradient = path_gradient

    def step(self, generator: torch.Generator, points: Params, rows: int) -> Step:
        """The value is in closed form where it has one, whatever its gradient."""
        weights = self.q.draw(self.normal(generator))
        at_draw = self.prior.log_prob(weights, points)
        expected = self.prior.expected(self.q.mean, *self.q.parts(), points)
        value = (at_draw if expected is None else expected) + self.temperature * self.q.entropy()
        if self._path_gradient:
            path = at_draw + self.temperature * self.q.score(weights).dot(weights)
            value = value.detach() + path - path.detach()
        return Step(self.layout.named(weights), nullcontext(), value)


class NoisyLayers(Noise):
    """Independent weights, whose layers take noise by a plan and whose other weights are drawn.

    Args:
        q: the approximation.
        prior: of the weights.
        layout: of the random weights.
        temperature: T.
        plan: which layers take which noise.
    """

    q: Independent

    def __init__(
        self, q: Independent, prior: PriorTerm, layout: FlatWeights, temperature: float, *, plan: Plan
    ) -> None:
        super().__init__(q, prior, layout, temperature)
        zero = torch.zeros((), dtype=q.mean.dtype, device=q.mean.device)
        self._closed = (prior.loc, prior.precision) if isinstance(prior, IndependentGaussian) else (None, zero)
        self._constant = temperature * q.entropy_constant
        self._follow(plan)

    def _follow(self, plan: Plan) -> None:
        self.plan = plan
        self._drawn_names = [name for name in self.layout.shapes if name not in plan.local_names | plan.flipped_names]
        self._draws = bool(plan.flipped or self._drawn_names) or isinstance(self.prior, DrawnPrior)

    def change(self, found: UnplannedUseError) -> None:
        """One draw of the layer's weights from now on."""
        self._follow(self.plan.without(found.weight, found.why))

    def step(self, generator: torch.Generator, points: Params, rows: int) -> Step:
        """Scales and divergence in one pass over the vectors, and no noise where no weight is drawn."""
        scales, value = scales_and_penalty(self.q.mean, self.q.log_scale, *self._closed, self.temperature)
        params, deviations = self.layout.named(self.q.mean), {}
        deviation = scales * self.normal(generator) if self._draws else None
        if deviation is not None:
            deviations = self.layout.named(deviation)
        if deviation is not None and self._drawn_names:
            drawn = self.layout.named(self.q.mean + deviation)
            params |= {name: drawn[name] for name in self._drawn_names}
        variances = self.layout.named(scales.square()) if self.plan.local else {}
        noise = LayerNoise(self.plan, params, variances, deviations, rows, generator)
        value = value + self._constant + self._rest_of_prior(scales, deviation, points)
        return Step(params, noise, value)

    def _rest_of_prior(self, scales: Tensor, deviation: Tensor | None, points: Params) -> Tensor | float:
        """What the pass over the vectors left out of the expected log prior."""
        if isinstance(self.prior, IndependentGaussian):
            return self.prior.constant + self.prior.of_points(points)
        expected = self.prior.expected(self.q.mean, scales.square(), None, points)
        if expected is None:
            return self.prior.log_prob(self.q.mean if deviation is None else self.q.mean + deviation, points)
        return expected


class Variational(Trainee):
    """One network whose weights, or some of them, are a Gaussian in training.

    Args:
        model: a copy that may be changed; its random weights become views of the mean.
        noise: how draws reach the network.
        objective: of the likelihood, without a prior.
        dropout: the masks of each step, or None where nothing is dropped.
        autocast: a lower precision for the forward pass.
        seed: of all draws.
    """

    num_members = 1

    def __init__(
        self,
        model: Model,
        noise: Noise,
        objective: LogJoint,
        dropout: TrainingDropout | None,
        autocast: torch.dtype | None,
        seed: int,
    ) -> None:
        self.core = model.core
        self.noise = noise
        self._noise_prior = model.noise_prior
        self._objective = objective
        self.dropout = dropout
        self._autocast = autocast
        device = module_device(self.core)
        self._steps, self._scores = (Stream(seed, name, device) for name in ("noise", "scores"))
        self._weights = Substitution(self.core)
        own = {name: p for name, p in self.core.named_parameters() if p.requires_grad}
        for name, mean in noise.layout.named(noise.q.mean.detach()).items():
            own.pop(name).data = mean
        self._points: Params = {name: p for name, p in own.items() if name.startswith("net.")}
        self._learned: Params = {name: p for name, p in own.items() if name.startswith("likelihood.")}
        self.leaves = [*noise.q.leaves, *own.values()]

    def objectives(self, batch: Data, step: int) -> Tensor:
        """One value."""
        drawn = self.noise.step(self._steps.generator(step), self._points, batch.num_rows)
        try:
            with self._dropout_of(batch, step), self._weights.of(drawn.params), drawn.context:
                parameters = self.core(batch.inputs, "parameters", self._autocast)
        except UnplannedUseError as found:
            self.noise.change(found)
            return self.objectives(batch, step)
        value = drawn.value + self._noise_prior.log_prob(self._learned) if self._learned else drawn.value
        return self._objective(parameters, {}, batch) + value / self._objective.num_data

    def _dropout_of(self, batch: Data, step: int) -> AbstractContextManager[object]:
        if self.dropout is None:
            return nullcontext()
        return self.dropout.alone(batch.inputs, step)

    def scores(self, source: Source) -> Tensor:
        """The mean log density of the mixture of a few draws: (1,)."""
        element, axes = self._objective.likelihood.elements()

        def score(batch: Data) -> Tensor:
            parameters = stack([self._at_draw(batch, index) for index in range(_SCORE_DRAWS)])
            unweighted = replace(batch, weights=None)
            rows = weighted_rows(element.log_prob, parameters, unweighted, self._objective.log_scale, axes)
            return rows.double().logsumexp(0) - math.log(_SCORE_DRAWS)

        with torch.no_grad(), evaluating(self.core):
            return mean_over_rows(score, source, _SCORE_ROWS).reshape(1)

    def _at_draw(self, batch: Data, index: int) -> dict[str, Tensor]:
        q = self.noise.q
        noise = self._scores.normal(q.num_noise, index, index + 1, q.mean.dtype)[0]
        with self._weights.of(self.noise.layout.named(q.draw(noise))):
            return self.core(batch.inputs, "parameters")  # type: ignore[no-any-return]

    def state_views(self) -> list[Tensor]:
        """With a member axis of size 1."""
        tensors = [*self.leaves, *buffers_of(self.core).values()]
        return [tensor.detach().unsqueeze(0) for tensor in tensors]

    def gradient_views(self) -> list[Tensor]:
        """With a member axis of size 1."""
        return [leaf.grad.unsqueeze(0) for leaf in self.leaves if leaf.grad is not None]
