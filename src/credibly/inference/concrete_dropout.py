"""Dropout at rates that are learned, and with them how uncertain the network is.

Concrete Dropout, Gal, Hron, Kendall 2017; the objective is that of `training/concrete.py`. The rate of Monte Carlo
dropout is a part of its posterior: a rate chosen by hand has an uncertainty chosen by hand, which no number of rows
brings down. Here the evidence lower bound chooses it, and it falls as rows come in.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from credibly.core.checks import check_positive
from credibly.core.dropout_rates import DROPOUT_LAYERS, learned_rates, set_rates, without_input_dropout
from credibly.core.errors import NotSupportedError
from credibly.core.params import network_weights, training_mode
from credibly.core.randomness import base_seed, seeded
from credibly.inference.base import InferenceMethod
from credibly.inference.mc_dropout import check_dropout
from credibly.inference.problem import Problem, prepare
from credibly.inference.starts import Start
from credibly.model import Model
from credibly.posteriors.dropout import DropoutPosterior
from credibly.posteriors.info import Info
from credibly.priors.base import FactorisedPrior
from credibly.training.concrete import Concrete, Plan, record
from credibly.training.loop import train
from credibly.training.objective import LogJoint
from credibly.training.options import TrainingOptions

__all__ = ["ConcreteDropout"]


@dataclass(frozen=True, eq=False, kw_only=True)
class ConcreteDropout(TrainingOptions, InferenceMethod):
    """Train weights and dropout rates together; the posterior is over masks at the learned rates.

    Every layer `nn.Dropout`, `nn.Dropout1d`, `nn.Dropout2d` and `nn.Dropout3d` learns its rate, beginning at its own.
    Its units count with the weights of the layer that the network calls next. Dropout that is written out in `forward`,
    and that of attention weights, keeps its rate. `posterior.info.dropout_rates` tells the rates; the posterior's
    network holds them. The other options are those of training.

    Attributes:
        before_linear: also drop what every `nn.Linear` reads that no dropout layer feeds: for networks without dropout.
        initial_rate: of those, and of layers whose rate is 0 or 1.
        relaxation: how far masks in training are from 0 and 1; the paper's 0.1.
    """

    before_linear: bool = False
    initial_rate: float = 0.1
    relaxation: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("relaxation", self.relaxation)
        if not 0 < check_positive("initial_rate", self.initial_rate) < 1:
            raise ValueError(f"`initial_rate` must lie between 0 and 1; got {self.initial_rate}")
        if self.loss is not None:
            raise NotSupportedError(
                f"`loss={self.loss!r}` is no likelihood, and a posterior needs one; leave it out, or use MCDropout"
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
    ) -> DropoutPosterior:
        """Train weights and rates on a copy of the model.

        Raises:
            NotFiniteError: if a training loss is NaN or infinite. The error's `posterior` holds the best state so far.
            NotSupportedError: no rate to learn, dropout that cannot be reached, a prior under which weights are not
                independent, or a likelihood without a density.
        """
        seed = base_seed(seed)
        problem = prepare(model, data, validation=validation, start=start, batch_size=self.batch_size, seed=seed)
        own = training_mode(problem.model)
        _check(own)
        plan, rates = self._planned(problem)
        with torch.enable_grad(), seeded(seed, "train", device=problem.source.device):
            trainee = Concrete(
                own,
                self._objective(problem),
                plan,
                rates,
                example=problem.source.first().inputs,
                relaxation=self.relaxation,
                seed=seed,
                autocast=self.autocast,
            )
            outcome = train(
                trainee,
                problem.source,
                self,
                seeds=[seed],
                validation=problem.validation,
                model=own,
                progress=bool(progress),
            )
        learned = trainee.rates()
        set_rates(own.net, learned)
        info = Info(type(self).__name__, seed, outcome.histories, dropout_rates=learned)
        posterior = DropoutPosterior(own, info)
        if outcome.failure is not None:
            outcome.failure.posterior = posterior
            raise outcome.failure
        return posterior

    def _objective(self, problem: Problem) -> LogJoint:
        weights = self.class_weights
        return LogJoint.of(problem.model, problem.source.num_data, with_prior=False, loss=None, class_weights=weights)

    def _planned(self, problem: Problem) -> tuple[Plan, Mapping[str, float]]:
        """The dropouts to learn, at their first rates, which are set in the problem's own network."""
        own, inputs = problem.model, problem.source.first().inputs
        parts = {name: part for name, part in own.net.named_modules() if isinstance(part, DROPOUT_LAYERS)}
        rates = {name: part.p if 0 < part.p < 1 else self.initial_rate for name, part in parts.items()}
        rates |= {name: rate for name, rate in learned_rates(own.net).items() if name not in rates}
        set_rates(own.net, rates)
        if self.before_linear:
            fed = record(own.core, inputs).layers
            linear = [name for name, part in own.net.named_modules() if isinstance(part, nn.Linear)]
            added = [name for name in linear if name not in fed and name not in rates]
            rates |= dict.fromkeys(added, self.initial_rate)
            set_rates(own.net, rates)
        plan = record(own.core, inputs)
        for name in set(rates) - set(plan.names):
            without_input_dropout(own.net.get_submodule(name))  # of a layer that is never called, or frozen
        if not plan.names:
            way_out = "" if self.before_linear else ", or use ConcreteDropout(before_linear=True)"
            raise NotSupportedError(
                f"the network ({type(own.net).__name__}) has no dropout layer whose rate could be learned; add "
                f"nn.Dropout{way_out}"
            )
        check_dropout(own, problem.first_inputs)
        return plan, {name: rates[name] for name in plan.names}


def _check(model: Model) -> None:
    model.likelihood.check_density()
    network_weights(model.core)  # one at least
    if not isinstance(model.prior, FactorisedPrior):
        raise NotSupportedError(
            f"{type(model.prior).__name__} is a joint prior, under which the masks' divergence has no closed form; use "
            "a prior of independent weights such as priors.Normal, or MCDropout"
        )
