"""A Gaussian over weights: what Laplace's method, variational methods and SWAG end in.

    w ~ Normal(mean, covariance)

over the flat vector of the random weights, one tensor after another in the order of their names. The mean is the
model's own weights; the covariance comes in one of the structures of `core.linalg`, also as the inverse of one. Other
weights, and what the likelihood learned, stay at their values in every draw.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from credibly.core.checks import check_count
from credibly.core.errors import NotSupportedError, ShapeError
from credibly.core.linalg.base import PositiveDefinite
from credibly.core.linalg.inverse import inverse
from credibly.core.linalg.selected import Selected
from credibly.core.params import check_params, network_weights, trainable_params
from credibly.core.randomness import Stream, base_seed
from credibly.core.typing import Inputs, Params
from credibly.model import Model, Want
from credibly.posteriors.base import DEFAULT_NUM_DRAWS, WeightPosterior
from credibly.posteriors.evaluation import Evaluator, grad_if_needed, joined
from credibly.posteriors.info import Info
from credibly.priors.base import Prior
from credibly.priors.gaussian import GaussianPrior

__all__ = ["GaussianPosterior"]

_CHUNK_WEIGHTS = 2**22  # numbers of the draws of weights held at once
_MADE_WEIGHTS = 2**19  # numbers of those that are scaled at once, while they sit in the cache


class GaussianPosterior(WeightPosterior):
    """A Gaussian around the fitted weights. Draws are made as needed.

    Args:
        model: the fitted model; its weights are the mean.
        info: how the posterior came to be.
        names: which weights are random, all under `net.`.
        covariance: of their flat vector.

    Raises:
        ValueError: unknown names.
        ShapeError: the matrix is over another number of weights.
    """

    def __init__(
        self,
        model: Model,
        info: Info,
        *,
        names: Sequence[str],
        covariance: PositiveDefinite,
    ) -> None:
        super().__init__(model, info)
        self.names = tuple(names)
        self.covariance = covariance
        weights = trainable_params(self.model.core)
        unknown = [name for name in self.names if name not in weights or not name.startswith("net.")]
        if unknown or not self.names:
            raise ValueError(f"`names` must be trainable weights of the network, at least one; got {unknown}")
        size = sum(weights[name].numel() for name in self.names)
        if covariance.size != size:
            raise ShapeError(f"`covariance` must be over the {size} weights that are named; got {covariance.size}")

    @property
    def mean(self) -> Params:
        """The mean of the random weights, by name: copies."""
        return {name: weight.clone() for name, weight in self._mean.items()}

    @property
    def _mean(self) -> Params:
        weights = trainable_params(self.model.core)
        return {name: weights[name].detach() for name in self.names}

    @property
    def fixed(self) -> Params:
        """The weights that are the same in every draw."""
        return {n: p.detach() for n, p in self.model.core.named_parameters() if n not in self.names}

    @property
    def variances(self) -> Params:
        """The marginal variance of each random weight, by name."""
        return self._named(self.covariance.diagonal())

    def sample(self, num_draws: int, *, seed: int | None = None) -> Params:
        """Draws of the random weights by name, each (num_draws, ...)."""
        table = self._table(check_count("num_draws", num_draws))
        self._fill(table, self._stream(seed), 0)
        return self._named(table)

    def log_prob(self, params: Params) -> Tensor:
        """The log density of the random weights, a scalar; -inf where one that is not random differs from its value."""
        mean = self._mean
        check_params(params, mean, "params")
        offset = torch.cat([(params[name].to(mean[name]) - mean[name]).flatten() for name in self.names])
        num_random = len(offset)
        if isinstance(self.covariance, Selected):
            mask = self.covariance.mask.bool()
            num_random = int(mask.sum())
            if bool(offset[~mask].any()):
                return offset.new_full((), -math.inf)
        constant = num_random * math.log(2 * math.pi)
        return -0.5 * (self.covariance.logdet() + offset.dot(self.covariance.solve(offset)) + constant)

    def as_prior(self, *, dense: bool = False) -> Prior:
        """This Gaussian as the prior of the next fit: yesterday's posterior is today's prior.

        Args:
            dense: write the structure out as a full matrix.

        Raises:
            NotSupportedError: weights of the network that are not random, for which there is no density.
        """
        left_out = [name for name in network_weights(self.model.core) if name not in self.names]
        if left_out:
            raise NotSupportedError(
                f"the posterior is over some of the network's weights only; {left_out} have no density. Fit it over "
                "all weights, or freeze the others (requires_grad_(False))"
            )
        precision = inverse(self.covariance)
        return GaussianPrior(self.mean, precision.dense() if dense else precision)

    def _evaluate(self, inputs: Inputs, want: Want, num_draws: int | None, seed: int | None) -> Any:
        num_draws = check_count("num_draws", DEFAULT_NUM_DRAWS if num_draws is None else num_draws)
        fixed = self.fixed  # detached: a graph towards the inputs leaves no gradient on them
        evaluator = Evaluator(
            lambda params, buffers, rows: self.model.call({**fixed, **params}, buffers, rows, want),
            self.model.net,
            inputs,
        )
        with grad_if_needed(inputs):
            parts = (evaluator(draws, {}, num_draws=size) for size, draws in self._chunks(num_draws, seed))
            return joined(parts, num_draws)

    def _chunks(self, num_draws: int, seed: int | None) -> Iterator[tuple[int, Params]]:
        """Draws in order, some at a time, all in one place, unless a graph may still need what stood there."""
        stream, some = self._stream(seed), min(self._at_once(_CHUNK_WEIGHTS), num_draws)
        table = self._table(some)
        for first in range(0, num_draws, some):
            part = table[: num_draws - first]
            self._fill(part, stream, first)
            yield len(part), self._named(part)
            if torch.is_grad_enabled():
                table = self._table(some)

    def _at_once(self, numbers: int) -> int:
        return max(1, numbers // self.covariance.size)

    def _table(self, num_draws: int) -> Tensor:
        return self.covariance.like.new_empty(num_draws, self.covariance.size)

    def _flat_mean(self) -> Tensor:
        return torch.cat([weight.flatten() for weight in self._mean.values()])

    def _stream(self, seed: int | None) -> Stream:
        return Stream(base_seed(seed), "weights", self.covariance.like.device)

    def _fill(self, table: Tensor, stream: Stream, first: int) -> None:
        """Write draws `first` and following, one a row."""
        mean = self._flat_mean()
        stream.normal_(table, first)
        for part in torch.split(table, self._at_once(_MADE_WEIGHTS)):
            torch.add(self.covariance.root(part), mean, out=part)

    def _named(self, flat: Tensor) -> Params:
        """A flat vector, (..., d), as weights by name, (..., *shape), in their precision."""
        mean = self._mean
        parts = torch.split(flat, [weight.numel() for weight in mean.values()], -1)
        pairs = zip(mean.items(), parts, strict=True)
        return {name: part.reshape((*flat.shape[:-1], *w.shape)).to(w.dtype) for (name, w), part in pairs}
