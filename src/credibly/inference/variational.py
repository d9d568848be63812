"""What variational methods have in common: a Gaussian over weights, trained to come close to the posterior.

They raise the evidence lower bound (see `training/variational.py`): the likelihood of a batch of B rows counts N / B
times, the divergence from the prior once. There is no other weight on the divergence; the one knob is `temperature`,
under which the Gaussian approximates the posterior density to the power 1 / temperature, and it is recorded.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from credibly.core.checks import check_positive
from credibly.core.errors import NotSupportedError
from credibly.core.params import trainable_params, training_mode
from credibly.core.randomness import base_seed, seeded
from credibly.core.typing import Params
from credibly.inference.base import InferenceMethod
from credibly.inference.members import data_of_members, one_by_one
from credibly.inference.problem import Problem, prepare
from credibly.inference.starts import Start
from credibly.inference.subsets import AllWeights, Subset
from credibly.model import Model
from credibly.posteriors.base import Posterior
from credibly.posteriors.gaussian import GaussianPosterior
from credibly.posteriors.info import Info
from credibly.training.dropout import TrainingDropout
from credibly.training.loop import train
from credibly.training.objective import LogJoint
from credibly.training.options import TrainingOptions
from credibly.training.variational import Noise, Variational
from credibly.training.variational_priors import FlatWeights, PriorTerm, prior_term

__all__ = ["VariationalMethod"]

_WHY_LOOPED = "variational members train one by one"


@dataclass(frozen=True, eq=False, kw_only=True)
class VariationalMethod(TrainingOptions, InferenceMethod):
    """A method that trains a Gaussian over weights. The options beyond those here are those of training.

    Training begins at the start's weights, or the model's own, as the mean. Weights that are not random, and what the
    likelihood learns, are trained along as points. Validation scores are mean log densities of a mixture of 8 draws.

    Attributes:
        subset: which weights are random.
        initial_scale: the standard deviation of every weight to begin with.
        temperature: T, for the posterior density to the power 1/T: 1 is the Bayesian posterior, below 1 it is sharper.
    """

    subset: Subset = field(default_factory=AllWeights)
    initial_scale: float = 0.03
    temperature: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("initial_scale", self.initial_scale)
        check_positive("temperature", self.temperature)
        if not isinstance(self.subset, Subset):
            raise TypeError(f"`subset` must be a subset such as AllWeights(); got {self.subset!r}")
        if self.subset.most is not None:
            raise NotSupportedError(
                f"{type(self.subset).__name__} chooses single weights by a posterior that is known already; name whole "
                "tensors (Named, LastLayer), or use Laplace"
            )
        if self.loss is not None:
            raise NotSupportedError(
                f"`loss={self.loss!r}` is no likelihood, and a posterior needs one; leave it out, or use MAP"
            )

    @abstractmethod
    def _noise(self, problem: Problem, random: Params, prior: PriorTerm, layout: FlatWeights, seed: int) -> Noise:
        """The Gaussian, and how its draws reach the network."""

    def _reason(self, noise: Noise) -> str:
        """What is to be told about how it was trained."""
        return ""

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
        """Train the Gaussian on a copy of the model.

        Raises:
            NotFiniteError: if a training loss is NaN or infinite. The error's `posterior` holds the best state so far.
            NotSupportedError: if the likelihood has no density.
        """
        return self._fit(model, data, validation, start, base_seed(seed), progress=bool(progress))

    def fit_members(
        self,
        model: Model,
        data: Any,
        starts: Sequence[Start],
        seeds: Sequence[int],
        *,
        rows: Sequence[Tensor] | None = None,
        validation: Any = None,
        progress: bool | None = None,
    ) -> list[Posterior]:
        """One posterior per start and seed, by a loop, which the posteriors' `info` tells."""
        members = zip(data_of_members(model, data, rows, len(seeds)), starts, seeds, strict=True)
        return one_by_one(
            partial(self._fit, model, part, validation, start, seed, looped=True, progress=bool(progress))
            for part, start, seed in members
        )

    def _fit(
        self,
        model: Model,
        data: Any,
        validation: Any,
        start: Start,
        seed: int,
        *,
        looped: bool = False,
        progress: bool = False,
    ) -> GaussianPosterior:
        problem = prepare(model, data, validation=validation, start=start, batch_size=self.batch_size, seed=seed)
        own = training_mode(problem.model)
        own.likelihood.check_density()
        names = self.subset.names(own, problem.first_inputs)
        random = {name: weight for name, weight in trainable_params(own.core).items() if name in names}
        layout = FlatWeights(random)
        noise = self._noise(problem, random, prior_term(own.prior, random, layout), layout, seed)
        dropout = TrainingDropout(own.core, [seed], problem.source.first().inputs)
        trainee = Variational(
            own, noise, self._objective(problem), dropout if dropout.is_used else None, self.autocast, seed
        )
        with torch.enable_grad(), seeded(seed, "train", device=problem.source.device):
            outcome = train(
                trainee,
                problem.source,
                self,
                seeds=[seed],
                validation=problem.validation,
                model=own,
                progress=progress,
            )
        reasons = [_WHY_LOOPED if looped else "", self._reason(noise)]
        info = Info(
            type(self).__name__,
            seed,
            outcome.histories,
            temperature=self.temperature,
            stacked=False if looped else None,
            reason="; ".join(filter(None, reasons)),
        )
        posterior = GaussianPosterior(own, info, names=names, covariance=noise.q.covariance())
        if outcome.failure is not None:
            outcome.failure.posterior = posterior
            raise outcome.failure
        return posterior

    def _objective(self, problem: Problem) -> LogJoint:
        return LogJoint.of(
            problem.model, problem.source.num_data, with_prior=False, loss=None, class_weights=self.class_weights
        )
