"""A posterior is a result: what is believed about the network after seeing the data. It predicts, and never changes.

The one abstract method gives the likelihood's parameters at draws from the posterior; everything else follows.
One draw is one function: within a draw the same weights, or the same dropout mask, serve every row and every batch.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from credibly.core.checks import check_count
from credibly.core.copying import copied
from credibly.core.data import Data
from credibly.core.errors import NotSupportedError
from credibly.core.params import module_device, trainable_params
from credibly.core.randomness import base_seed, iterate, seeded
from credibly.core.typing import ArrayLike, Inputs, Params
from credibly.distributions.mixture import combined
from credibly.distributions.predictive import Predictive
from credibly.model import Model, Want
from credibly.posteriors.evaluation import concatenated
from credibly.posteriors.info import Info
from credibly.priors.base import Prior
from credibly.priors.gaussian import GaussianPrior
from credibly.standardization import same_transform

__all__ = ["DEFAULT_NUM_DRAWS", "Posterior", "WeightPosterior", "check_alike", "network_randomness", "stored_draws"]

DEFAULT_NUM_DRAWS = 100
_DATASET_ROWS = 1024


class Posterior(ABC):
    """What is believed after seeing the data.

    Args:
        model: the fitted model; a copy in evaluation mode is kept.
        info: how the posterior came to be.
    """

    def __init__(self, model: Model, info: Info) -> None:
        self._model = copied(model).eval()
        self._info = info

    @property
    def model(self) -> Model:
        """The fitted model, in evaluation mode."""
        return self._model

    @property
    def info(self) -> Info:
        """How the posterior came to be."""
        return self._info

    @property
    def num_stored(self) -> int | None:
        """The number of stored draws; None where draws are made as needed."""
        return None

    def __repr__(self) -> str:
        stored = "" if self.num_stored is None else f", {self.num_stored} stored draws"
        return f"{type(self).__name__}({self.info.method}{stored})"

    @abstractmethod
    def parameters(
        self, inputs: ArrayLike, *, num_draws: int | None = None, seed: int | None = None
    ) -> dict[str, Tensor]:
        """The likelihood's parameters at each draw, each (num_draws, rows, ...).

        They are on the network's side of any standardisation; `predict` brings them into the targets' units.

        Args:
            inputs: arrays or tensors of rows.
            num_draws: by default all stored draws, or 100 where draws are made as needed. Fewer than stored are
                evenly spaced; more are a ValueError.
            seed: of the draws.
        """

    def outputs(self, inputs: ArrayLike, *, num_draws: int | None = None, seed: int | None = None) -> Tensor:
        """The network's outputs at each draw: (num_draws, rows, num_outputs)."""
        raise NotSupportedError(f"{type(self).__name__} gives parameters only, not the outputs of a network")

    def predict(
        self,
        inputs: ArrayLike | DataLoader[Any] | Dataset[Any],
        *,
        num_draws: int | None = None,
        seed: int | None = None,
    ) -> Predictive:
        """The predictive distribution of each row, in the targets' units, rows in order.

        Args:
            inputs: arrays or tensors of rows; or a loader or dataset of inputs or of (inputs, targets).
            num_draws: as in `parameters`.
            seed: of the draws, shared by all rows and batches.
        """
        if isinstance(inputs, Dataset):
            inputs = DataLoader(inputs, batch_size=_DATASET_ROWS)
        if not isinstance(inputs, DataLoader):
            return self._predictive(self.parameters(inputs, num_draws=num_draws, seed=seed), num_draws)
        seed = base_seed(seed)
        parts = [self.parameters(batch.inputs, num_draws=num_draws, seed=seed) for batch in self._batches(inputs, seed)]
        if not parts:
            raise ValueError("the loader gave no batch; prediction needs at least one")
        return self._predictive(concatenated(parts, 1), num_draws)

    def predict_batches(
        self, loader: DataLoader[Any], *, num_draws: int | None = None, seed: int | None = None
    ) -> Iterator[tuple[Predictive, Tensor | None]]:
        """Pairs of prediction and targets, batch by batch; the draws are the same in every batch."""
        seed = base_seed(seed)
        for batch in self._batches(loader, seed):
            parameters = self.parameters(batch.inputs, num_draws=num_draws, seed=seed)
            yield self._predictive(parameters, num_draws), batch.targets

    def to_model(self, *, draw: int | None = None, prior: Prior | None = None) -> Model:
        """A copy of the fitted model to train on or to start from.

        Args:
            draw: which stored draw's weights it takes; by default the point.
            prior: in place of the model's own.
        """
        if draw is not None:
            raise NotSupportedError(f"{type(self).__name__} stores no draws of weights; leave `draw` out")
        return self._copy(prior)

    def as_prior(self, *, dense: bool = False) -> Prior:
        """This posterior as the prior of the next fit; see `WeightPosterior.as_prior`.

        Raises:
            NotSupportedError: the posterior is not one over weights.
        """
        raise NotSupportedError(
            f"as_prior is not available for {type(self).__name__}: there is no one Gaussian over weights in it; fit a "
            "method that ends in one, such as inference.Laplace, MeanField or SWAG, or in stored draws around one mode"
        )

    def _copy(self, prior: Prior | None) -> Model:
        model = copied(self.model)
        if prior is not None:
            model.prior = prior
        return model

    def _predictive(self, parameters: dict[str, Tensor], num_draws: int | None) -> Predictive:
        return combined(self.model.distribution(parameters), None)

    def _batches(self, loader: DataLoader[Any], seed: int) -> Iterator[Data]:
        for batch in iterate(loader, seed, "predict"):
            yield self.model.read(batch, need_targets=False)


class WeightPosterior(Posterior):
    """A posterior over the weights themselves."""

    @abstractmethod
    def sample(self, num_draws: int, *, seed: int | None = None) -> Params:
        """Draws of the random weights by name, each (num_draws, ...)."""

    @property
    def fixed(self) -> Params:
        """The weights that are the same in every draw (those that were frozen)."""
        random = trainable_params(self.model.core)
        return {name: p.detach() for name, p in self.model.core.named_parameters() if name not in random}

    def as_prior(self, *, dense: bool = False) -> Prior:
        """This posterior as the prior of the next fit: of stored draws, the Gaussian with their mean and variances.

        It covers the trained weights under `net.`; what the likelihood learned has a prior of its own
        (`Model(noise_prior=...)`). Weights mean the same only under the same standardisation, which a model carries:
        `model = posterior.to_model(draw=0, prior=posterior.as_prior())`. The moments describe draws around one
        solution; those of networks trained apart average over unlike ones.

        Args:
            dense: keep the covariances between weights as well; it takes more draws than there are weights.

        Raises:
            NotSupportedError: one set of weights, which has no spread; or no stored draws.
            ValueError: too few draws, or a weight that is the same in all of them.
        """
        if self.num_stored is None:
            raise NotSupportedError(f"{type(self).__name__} has no density over weights and cannot serve as a prior")
        if self.num_stored < 2:
            raise NotSupportedError(
                f"{type(self).__name__} holds one set of weights, which has no spread and cannot serve as a prior; fit "
                "a method that gives a spread, such as inference.Laplace, MeanField or SWAG"
            )
        draws = self.sample(self.num_stored)
        return GaussianPrior.from_draws({k: v for k, v in draws.items() if k.startswith("net.")}, dense=dense)

    @abstractmethod
    def _evaluate(self, inputs: Inputs, want: Want, num_draws: int | None, seed: int | None) -> Any:
        """The model's `call` at each draw, stacked on axis 0."""

    def parameters(
        self, inputs: ArrayLike, *, num_draws: int | None = None, seed: int | None = None
    ) -> dict[str, Tensor]:
        """The likelihood's parameters at each draw, each (num_draws, rows, ...)."""
        read = self.model.read_inputs(inputs)
        with network_randomness(self.model, seed):
            return cast("dict[str, Tensor]", self._evaluate(read, "parameters", num_draws, seed))

    def outputs(self, inputs: ArrayLike, *, num_draws: int | None = None, seed: int | None = None) -> Tensor:
        """The network's outputs at each draw: (num_draws, rows, num_outputs), on its side of any standardisation."""
        read = self.model.read_inputs(inputs)
        with network_randomness(self.model, seed):
            return cast("Tensor", self._evaluate(read, "outputs", num_draws, seed))


def check_alike(members: Sequence[Posterior]) -> None:
    """Whether parameters of all members mean the same: one kind of likelihood, and one standardisation.

    Raises:
        TypeError: one is no posterior.
        ValueError: they do not.
    """
    for member in members:
        if not isinstance(member, Posterior):
            raise TypeError(f"members must be posteriors; got {type(member).__name__}")
        model, first = member.model, members[0].model
        kinds = [(type(own), axes) for own, axes in (each.likelihood.elements() for each in (model, first))]
        if kinds[0] != kinds[1]:
            raise ValueError(
                f"members must have one kind of likelihood; got {type(first.likelihood).__name__} and "
                f"{type(model.likelihood).__name__}"
            )
        odd = [name for name in ("inputs", "targets") if not same_transform(getattr(model, name), getattr(first, name))]
        if odd:
            raise ValueError(
                f"members must share the standardisation of `{odd[0]}`, and these were fitted with different ones; fit "
                "them to one model with fitted transforms, Model(..., inputs=, targets=) of another's model"
            )


def network_randomness(model: Model, seed: int | None) -> AbstractContextManager[None]:
    """A context in which what a network draws by itself, also in evaluation mode, is keyed by the seed."""
    return nullcontext() if seed is None else seeded(seed, "network", device=module_device(model))


def stored_draws(num_draws: int | None, stored: int) -> Tensor:
    """Which of the stored draws are meant: all, or fewer, evenly spaced."""
    if num_draws is None:
        return torch.arange(stored)
    if not 1 <= check_count("num_draws", num_draws) <= stored:
        raise ValueError(f"`num_draws` must be between 1 and the {stored} stored draws; got {num_draws}")
    return torch.linspace(0, stored - 1, num_draws).round().long()
