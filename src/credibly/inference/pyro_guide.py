"""Any guide of Pyro's, trained by stochastic variational inference.

Stochastic Variational Inference, Hoffman, Blei, Wang, Paisley 2013; Automatic Differentiation Variational Inference,
Kucukelbir, Tran, Ranganath, Gelman, Blei 2017. The evidence lower bound

    E_q [(N/B) sum log p(y | x, w) + log p(w) - log q(w)]

is Pyro's `Trace_ELBO` of the model as a program (`bridges.to_pyro`) and of the guide q, by one or more draws of all
weights a step. Guides that are Gaussians end in a `GaussianPosterior` of their structure, any other in stored draws.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import singledispatch
from operator import attrgetter
from typing import Any

import pyro
import torch
from pyro import poutine
from pyro.infer import Trace_ELBO
from pyro.infer.autoguide import (
    AutoDelta,
    AutoDiagonalNormal,
    AutoLaplaceApproximation,
    AutoLowRankMultivariateNormal,
    AutoMessenger,
    AutoMultivariateNormal,
    AutoNormal,
)
from pyro.infer.autoguide.initialization import InitMessenger, init_to_value
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from credibly.bridges.pyro import PyroProgram
from credibly.core.checks import check_count
from credibly.core.data import Data, Source
from credibly.core.errors import NotSupportedError
from credibly.core.linalg.base import PositiveDefinite
from credibly.core.linalg.dense import Dense
from credibly.core.linalg.diagonal import Diagonal
from credibly.core.linalg.low_rank import LowRankPlusDiagonal
from credibly.core.params import load_params, module_device, network_weights, stack
from credibly.core.randomness import base_seed, seeded
from credibly.core.typing import Params
from credibly.inference.base import InferenceMethod, check_precision
from credibly.inference.problem import prepare
from credibly.inference.starts import Start
from credibly.model import Model, weighted_rows
from credibly.posteriors.base import WeightPosterior
from credibly.posteriors.draws import DrawPosterior
from credibly.posteriors.gaussian import GaussianPosterior
from credibly.posteriors.info import Info
from credibly.training.loop import Outcome, train
from credibly.training.objective import mean_over_rows
from credibly.training.optimizers import fused_adam
from credibly.training.options import EarlyStopping, TrainingOptions
from credibly.training.trainee import Trainee

__all__ = ["PyroGuide"]

_SCORE_DRAWS = 8  # the same after every epoch, so that scores move by what was learned
_SCORE_ROWS = 4096  # of validation data at a time


@dataclass(frozen=True, eq=False, kw_only=True)
class PyroGuide(InferenceMethod):
    """Train a guide of Pyro's on the model as a Pyro program.

    The guide begins at the start's weights, or the model's own, whatever initialisation it would choose. The network
    runs in evaluation mode: dropout is off, and BatchNorm keeps the statistics of the start. What the likelihood learns
    is trained along as a point. Pyro's parameter store is left as it was found. Validation scores are mean log
    densities of a mixture of 8 draws.

    Attributes:
        guide: a class of Pyro's autoguides, a `functools.partial` of one, or any function from a Pyro model to a guide;
            it is called with one argument, a batch. Guides that run inside of the model (`AutoMessenger`) are refused.
        num_draws: how many draws of the weights are kept of a guide that is not a Gaussian.
        num_particles: how many draws of the weights a step takes, side by side: above 1 the guide must broadcast under
            Pyro's plates, as its autoguides do, and the network must go through `torch.func.vmap`.
        num_epochs: passes over the data.
        batch_size: rows per step for data in memory; None takes all. A loader brings its own.
        learning_rate: given to the optimiser as `lr`.
        optimizer: a factory `(params, lr=...) -> Optimizer` from torch.
        schedule: a factory `(optimizer, num_steps) -> LRScheduler`, such as `training.cosine`.
        clip_norm: the largest norm of the gradient of the loss per row.
        early_stopping: needs validation data.
    """

    guide: Callable[..., Any] = AutoMultivariateNormal
    num_draws: int = 100
    num_particles: int = 1
    num_epochs: int = 100
    batch_size: int | None = 32
    learning_rate: float = 1e-2
    optimizer: Callable[..., Optimizer] = fused_adam
    schedule: Callable[[Optimizer, int], LRScheduler] | None = None
    clip_norm: float | None = None
    early_stopping: EarlyStopping | None = None

    def __post_init__(self) -> None:
        check_count("num_draws", self.num_draws)
        check_count("num_particles", self.num_particles)
        if not callable(self.guide):
            raise TypeError(f"`guide` must be callable, such as pyro.infer.autoguide.AutoNormal; got {self.guide!r}")
        self._training()

    def _training(self) -> TrainingOptions:
        return TrainingOptions(
            num_epochs=self.num_epochs,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            optimizer=self.optimizer,
            schedule=self.schedule,
            clip_norm=self.clip_norm,
            early_stopping=self.early_stopping,
        )

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
        """Train the guide.

        Raises:
            NotFiniteError: if a training loss is NaN or infinite. The error's `posterior` holds the best state so far.
            NotSupportedError: a likelihood without a density, or a guide that has no spread or leaves weights out.
        """
        seed = base_seed(seed)
        problem = prepare(model, data, validation=validation, start=start, batch_size=self.batch_size, seed=seed)
        own = problem.model
        own.likelihood.check_density()
        check_precision("PyroGuide", network_weights(own.core))
        program = PyroProgram(own, problem.source.num_data)
        device = problem.source.device
        with pyro.get_param_store().scope(), torch.enable_grad():
            with seeded(seed, "train", device=device):
                trainee = _Guided(program, self.guide, problem.source.first(), self.num_particles, seed)
                with pyro.validation_enabled(
                    False
                ):  # a loss that is not finite is reported by the loop, with its place
                    outcome = train(
                        trainee,
                        problem.source,
                        self._training(),
                        seeds=[seed],
                        validation=problem.validation,
                        model=own,
                        progress=bool(progress),
                    )
            return self._result(trainee, outcome, seed)

    def _result(self, trainee: "_Guided", outcome: Outcome, seed: int) -> WeightPosterior:
        program = trainee.program
        info = Info(type(self).__name__, seed, outcome.histories)
        load_params(program.model.core, trainee.learned())
        posterior: WeightPosterior
        with torch.no_grad():
            found = gaussian_of(trainee.guide)
        if found is not None:
            mean, covariance = found
            sizes = [value.numel() for value in program.start.values()]
            parts = zip(program.start.items(), mean.split(sizes), strict=True)  # type: ignore[no-untyped-call]
            load_params(program.model.core, {name: part.reshape(value.shape) for (name, value), part in parts})
            posterior = GaussianPosterior(program.model, info, names=tuple(program.start), covariance=covariance)
        else:
            draws = [trainee.draw("weights", index) for index in range(self.num_draws)]
            posterior = DrawPosterior(program.model, info, stack(draws))
        if outcome.failure is not None:
            outcome.failure.posterior = posterior
            raise outcome.failure
        return posterior


@singledispatch
def gaussian_of(guide: object) -> tuple[Tensor, PositiveDefinite] | None:  # noqa: ARG001 (it is dispatched on)
    """Mean and covariance of the flat vector of all weights, where the guide is a Gaussian; otherwise None."""
    return None


@gaussian_of.register
def _(guide: AutoNormal) -> tuple[Tensor, PositiveDefinite]:
    sites: Any = guide.prototype_trace
    names = [name for name, _ in sites.iter_stochastic_nodes()]
    mean, scale = (
        torch.cat([attrgetter(name)(part).flatten() for name in names]) for part in (guide.locs, guide.scales)
    )
    return mean, Diagonal(scale.square())


@gaussian_of.register
def _(guide: AutoDiagonalNormal) -> tuple[Tensor, PositiveDefinite]:
    posterior = guide.get_posterior()  # type: ignore[no-untyped-call]
    return posterior.mean.clone(), Diagonal(posterior.variance.clone())


@gaussian_of.register
def _(guide: AutoMultivariateNormal) -> tuple[Tensor, PositiveDefinite]:
    posterior = guide.get_posterior()  # type: ignore[no-untyped-call]
    return posterior.loc.clone(), Dense(posterior.scale_tril @ posterior.scale_tril.mT)


@gaussian_of.register
def _(guide: AutoLowRankMultivariateNormal) -> tuple[Tensor, PositiveDefinite]:
    posterior = guide.get_posterior()  # type: ignore[no-untyped-call]
    return posterior.loc.clone(), LowRankPlusDiagonal(posterior.cov_diag.clone(), posterior.cov_factor.clone())


_WITHOUT_SPREAD = {AutoDelta: "MAP", AutoLaplaceApproximation: "Laplace"}
"""Guides that SVI trains as points, and what to use in their place."""


class _Guided(Trainee):
    """A guide in training.

    Args:
        program: the model.
        make: makes the guide.
        example: a batch, on the network's side.
        num_particles: draws of the weights a step.
        seed: of the draws for scores and of the stored ones.
    """

    num_members = 1

    def __init__(
        self, program: PyroProgram, make: Callable[..., Any], example: Data, num_particles: int, seed: int
    ) -> None:
        self.program = program
        self.core = program.model.core
        self._seed = seed
        self._example = example
        self._elbo = Trace_ELBO(  # type: ignore[no-untyped-call]
            num_particles=num_particles, max_plate_nesting=1, vectorize_particles=num_particles > 1
        )
        begin = InitMessenger(init_to_value(values=program.start))  # type: ignore[no-untyped-call]
        self.guide = make(begin(program.on_network_side))
        self._check_guide()
        with poutine.trace(param_only=True) as capture:
            self._loss(example)
        values: list[Any] = [site["value"] for site in capture.trace.nodes.values()]
        leaves = [value.unconstrained() for value in values]
        self.leaves = list({id(leaf): leaf for leaf in leaves}.values())

    def _check_guide(self) -> None:
        name = type(self.guide).__name__
        if isinstance(self.guide, AutoMessenger):
            raise NotSupportedError(
                f"{name} runs inside of the model, where it cannot begin at given weights; use AutoNormal or another "
                "autoguide, or train it by Pyro's SVI on bridges.to_pyro(model, data)"
            )
        for kind, other in _WITHOUT_SPREAD.items():
            if isinstance(self.guide, kind):
                raise NotSupportedError(f"{name} is trained as a point, which has no spread; use inference.{other}")
        sites = poutine.trace(self.guide).get_trace(self._example).nodes
        missing = [site for site in self.program.start if site not in sites]
        if missing:
            raise NotSupportedError(f"the guide ({name}) must have a sample site for every weight; missing {missing}")

    def objectives(self, batch: Data, step: int) -> Tensor:
        """An estimate of the evidence lower bound per row."""
        return -self._loss(batch) / self.program.num_data

    def _loss(self, batch: Data) -> Tensor:
        program = self.program.on_network_side
        loss: Tensor = self._elbo.differentiable_loss(program, self.guide, batch)  # type: ignore[no-untyped-call]
        return loss

    def draw(self, stream: str, index: int) -> Params:
        """Draw `index` of all weights."""
        with torch.no_grad(), seeded(self._seed, stream, index, device=module_device(self.core)):
            nodes = poutine.trace(self.guide).get_trace(self._example).nodes
        return {name: nodes[name]["value"].detach().reshape(like.shape) for name, like in self.program.start.items()}

    def learned(self) -> Params:
        """What the likelihood has learned."""
        store = pyro.get_param_store()
        return {name: store[name].detach().clone() for name in self.program.learned}

    def scores(self, source: Source) -> Tensor:
        """The mean log density of the mixture of a few draws: (1,)."""
        model = self.program.model
        draws = [{**self.draw("scores", index), **self.learned()} for index in range(_SCORE_DRAWS)]
        element, axes = model.likelihood.elements()

        def score(batch: Data) -> Tensor:
            parameters = stack([self.program.parameters(draw, batch.inputs) for draw in draws])
            unweighted = replace(batch, weights=None)
            rows = weighted_rows(element.log_prob, parameters, unweighted, model.log_scale(), axes)
            return rows.double().logsumexp(0) - math.log(_SCORE_DRAWS)

        with torch.no_grad():
            return mean_over_rows(score, source, _SCORE_ROWS).reshape(1)

    def state_views(self) -> list[Tensor]:
        """With a member axis of size 1."""
        return [leaf.detach().unsqueeze(0) for leaf in self.leaves]

    def gradient_views(self) -> list[Tensor]:
        """With a member axis of size 1."""
        return [leaf.grad.unsqueeze(0) for leaf in self.leaves if leaf.grad is not None]
