"""IVON: a mean-field Gaussian over the weights at about the cost of training by Adam.

Variational Learning is Effective for Large Deep Networks, Shen et al. 2024. The variances come from a running estimate
of the diagonal of the expected Hessian, which costs no derivative beyond the gradient: 1 / (ess (h + d)). The steps are
those of `training.ivon`. Like every mean-field method it gives each weight about the variance that it has when the
others are known, which is less than its own.
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, distributions
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from credibly.core.checks import check_count, check_nonnegative, check_positive
from credibly.core.errors import ConvergenceWarning, NotSupportedError
from credibly.core.linalg.diagonal import Diagonal
from credibly.core.params import network_weights, training_mode
from credibly.core.randomness import base_seed, seeded
from credibly.core.typing import Params
from credibly.inference.base import InferenceMethod, check_precision
from credibly.inference.problem import Problem, prepare
from credibly.inference.starts import Start
from credibly.model import Model
from credibly.posteriors.gaussian import GaussianPosterior
from credibly.posteriors.info import Info
from credibly.priors.base import FactorisedPrior, Prior
from credibly.priors.flat import Flat
from credibly.training.dropout import TrainingDropout
from credibly.training.ivon import IVONOptimizer, NewtonOptions, PerturbedWeights
from credibly.training.loop import Outcome, train
from credibly.training.objective import LogJoint
from credibly.training.options import EarlyStopping, Epoch, TrainingOptions
from credibly.training.schedules import cosine

__all__ = ["IVON"]


@dataclass(frozen=True, eq=False, kw_only=True)
class IVON(InferenceMethod):
    """Improved variational online Newton.

    The recorded loss is minus the mean log density at draws of the weights, without the prior; validation is scored at
    the mean. What the likelihood learns is trained along, by Adam, and is the same in every draw.

    Attributes:
        num_epochs: passes over the data.
        batch_size: rows per batch for data in memory; None takes all. A loader brings its own.
        accumulate: how many batches make one step, at the same draws, as if they were one batch.
        learning_rate: of the Newton steps; see `rescale`. Where targets have little noise, curvatures are large, and
            it must be smaller by their size: with noise 0.1, say, 1e-3 and `hess_init=100`. A loss that more than
            doubles is warned of.
        schedule: a factory `(optimizer, num_steps) -> LRScheduler`; None keeps the rate.
        num_samples: draws of the weights per step; more make the estimates steadier.
        temperature: T, for the posterior density to the power 1/T: 1 is the Bayesian posterior, below 1 it is sharper.
        hess_init: the Hessian's diagonal, per row, at the beginning; about what it will be is best.
        beta1: what is kept of the gradient's running mean at each step.
        beta2: likewise of the Hessian's. It remembers about 1 / (1 - beta2) steps; the paper takes 0.99999 for runs of
            hundreds of thousands of steps.
        rescale: multiply the rate by `hess_init` plus the weight decay, so that it means what a rate of SGD means while
            the Hessian is as at the beginning.
        clip_radius: the largest step of a weight over the rate; None does not bound it.
        noise_learning_rate: Adam's, for what the likelihood learns.
        early_stopping: needs validation data.
        autocast: a lower precision for the network's forward pass: `torch.bfloat16`.
        callbacks: called with an `Epoch` after each one, at the mean weights; a true answer stops training.
    """

    num_epochs: int = 100
    batch_size: int | None = 32
    accumulate: int = 1
    learning_rate: float = 0.1
    schedule: Callable[[Optimizer, int], LRScheduler] | None = cosine
    num_samples: int = 1
    temperature: float = 1.0
    hess_init: float = 1.0
    beta1: float = 0.9
    beta2: float = 0.999
    rescale: bool = True
    clip_radius: float | None = None
    noise_learning_rate: float = 0.01
    early_stopping: EarlyStopping | None = None
    autocast: torch.dtype | None = None
    callbacks: Sequence[Callable[[Epoch], object]] = ()

    def __post_init__(self) -> None:
        self._training(Optimizer)  # its options are checked there
        check_count("num_samples", self.num_samples)
        for name in ("temperature", "hess_init", "noise_learning_rate"):
            check_positive(name, getattr(self, name))
        if self.clip_radius is not None:
            check_positive("clip_radius", self.clip_radius)
        for name in ("beta1", "beta2"):
            if check_nonnegative(name, getattr(self, name)) >= 1:
                raise ValueError(f"`{name}` must lie in [0, 1); got {getattr(self, name)}")

    def fit(
        self,
        model: Model,
        data: Any,
        *,
        validation: Any = None,
        start: Start = None,
        seed: int | None = None,
        progress: bool | None = None,
    ) -> GaussianPosterior:
        """Train mean and variances; the mean begins at the model's weights unless `start` says otherwise.

        Raises:
            NotSupportedError: a prior that is not Normal for every weight, or weights of less than single precision.
            NotFiniteError: if a training loss is NaN or infinite. The error's `posterior` holds the best so far.
        """
        seed = base_seed(seed)
        problem = prepare(model, data, validation=validation, start=start, batch_size=self.batch_size, seed=seed)
        trainee = self._trainee(problem, seed)
        outcome = self._train(trainee, problem, seed, progress=bool(progress))
        trainee.detach()
        info = Info("IVON", seed, outcome.histories, temperature=self.temperature)
        covariance = Diagonal(trainee.variance.detach())
        posterior = GaussianPosterior(problem.model, info, names=trainee.names, covariance=covariance)
        if outcome.failure is not None:
            outcome.failure.posterior = posterior
            raise outcome.failure
        _check_progress(info.history.loss)
        return posterior

    def _trainee(self, problem: Problem, seed: int) -> PerturbedWeights:
        model = training_mode(problem.model)
        model.likelihood.check_density()
        weights = network_weights(model.core)
        check_precision("IVON", weights)
        num_data = problem.source.num_data
        options = NewtonOptions(
            num_samples=self.num_samples,
            ess=num_data / self.temperature,
            weight_decay=_prior_precision(model.prior, weights) / num_data,
            hess_init=self.hess_init,
            beta1=self.beta1,
            beta2=self.beta2,
            clip_radius=self.clip_radius,
            noise_learning_rate=self.noise_learning_rate,
        )
        dropout = TrainingDropout(model.core, [seed], problem.source.first().inputs)
        used = dropout if dropout.is_used else None
        return PerturbedWeights(model, _objective(model, num_data), used, self.autocast, options, seed)

    def _train(self, trainee: PerturbedWeights, problem: Problem, seed: int, *, progress: bool) -> Outcome:
        scale = self.hess_init + trainee.options.weight_decay if self.rescale else torch.ones_like(trainee.hess)
        options = self._training(lambda _, lr: IVONOptimizer(trainee, lr, scale))
        with torch.enable_grad(), seeded(seed, "train", device=problem.source.device):
            return train(
                trainee,
                problem.source,
                options,
                seeds=[seed],
                validation=problem.validation,
                model=problem.model,
                progress=progress,
            )

    def _training(self, optimizer: Callable[..., Optimizer]) -> TrainingOptions:
        return TrainingOptions(
            num_epochs=self.num_epochs,
            batch_size=self.batch_size,
            accumulate=self.accumulate,
            learning_rate=self.learning_rate,
            optimizer=optimizer,
            schedule=self.schedule,
            early_stopping=self.early_stopping,
            autocast=self.autocast,
            callbacks=self.callbacks,
        )


def _check_progress(losses: Sequence[float]) -> None:
    """Say so where training ended further from the data than it began."""
    if len(losses) > 1 and losses[-1] - losses[0] > 1 + abs(losses[0]):
        warnings.warn(
            f"IVON: the loss rose from {losses[0]:.4g} to {losses[-1]:.4g} nats a row; use a smaller `learning_rate`, "
            "and for `hess_init` about the curvature of a row's loss in a weight",
            ConvergenceWarning,
            stacklevel=3,
        )


def _objective(model: Model, num_data: int) -> LogJoint:
    """The mean log likelihood, and the prior of what the likelihood learns; that of the weights is in the steps."""

    def log_prior(params: Params) -> Tensor:
        return model.noise_prior.log_prob({k: v for k, v in params.items() if k.startswith("likelihood.")})

    objective = LogJoint.of(model, num_data, with_prior=False, loss=None, class_weights=None)
    has_prior = not isinstance(model.noise_prior, Flat)
    return LogJoint(objective.likelihood, log_prior if has_prior else None, num_data, objective.log_scale)


def _prior_precision(prior: Prior, weights: Params) -> Tensor:
    """The precision of every weight, (weights,), under a prior that is Normal around 0."""
    found = prior.distributions(weights) if isinstance(prior, FactorisedPrior) else {}
    odd = [name for name in weights if not _is_centered_normal(found.get(name))]
    if odd:
        raise NotSupportedError(
            f"IVON needs a prior priors.Normal(...) over every weight, by itself or in ByName; {type(prior).__name__} "
            f"is none over {odd}. inference.MeanField takes any prior"
        )
    return torch.cat([found[name].variance.reciprocal().reshape(-1) for name in weights])


def _is_centered_normal(distribution: distributions.Distribution | None) -> bool:
    return isinstance(distribution, distributions.Normal) and not bool(distribution.loc.any())
