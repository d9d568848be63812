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
from credibly.core.inputs import num_rows
from credibly.core.linalg.base import PositiveDefinite
from credibly.core.linalg.inverse import inverse
from credibly.core.params import check_params, trainable_params
from credibly.core.randomness import Stream, base_seed
from credibly.core.typing import Inputs, Params
from credibly.model import Model, Want
from credibly.posteriors.base import DEFAULT_NUM_DRAWS, WeightPosterior
from credibly.posteriors.evaluation import concatenate, evaluate_draws, grad_if_needed
from credibly.posteriors.info import Info
from credibly.priors.base import Prior
from credibly.priors.gaussian import GaussianPrior

__all__ = ["GaussianPosterior"]

_CHUNK_WEIGHTS = 2**25  # numbers of the draws of weights held at once


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
        """The mean of the random weights, by name."""
        weights = trainable_params(self.model.core)
        return {name: weights[name] for name in self.names}

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
        check_count("num_draws", num_draws)
        return self._drawn(self._stream(seed), 0, num_draws)

    def log_prob(self, params: Params) -> Tensor:
        """The log density of the random weights, a scalar."""
        mean = self.mean
        check_params(params, mean, "params")
        offset = torch.cat([(params[name] - mean[name]).flatten() for name in self.names])
        constant = len(offset) * math.log(2 * math.pi)
        return -0.5 * (self.covariance.logdet() + offset.dot(self.covariance.solve(offset)) + constant)

    def as_prior(self, *, dense: bool = False) -> Prior:
        """This Gaussian as the prior of the next fit: yesterday's posterior is today's prior.

        Args:
            dense: write the structure out as a full matrix.

        Raises:
            NotSupportedError: weights of the network that are not random, for which there is no density.
        """
        left_out = [n for n in trainable_params(self.model.core) if n.startswith("net.") and n not in self.names]
        if left_out:
            raise NotSupportedError(
                f"the posterior is over some of the network's weights only; {left_out} have no density. Fit it over "
                "all weights, or freeze the others (requires_grad_(False))"
            )
        precision = inverse(self.covariance)
        return GaussianPrior(self.mean, precision.dense() if dense else precision)

    def _evaluate(self, inputs: Inputs, want: Want, num_draws: int | None, seed: int | None) -> Any:
        num_draws = check_count("num_draws", DEFAULT_NUM_DRAWS if num_draws is None else num_draws)
        with grad_if_needed(inputs):
            parts = [
                evaluate_draws(
                    lambda params, buffers: self.model.call(params, buffers, inputs, want),
                    self.model.net,
                    draws,
                    {},
                    num_draws=size,
                    rows=num_rows(inputs),
                )
                for size, draws in self._chunks(num_draws, seed)
            ]
        return concatenate(parts)

    def _chunks(self, num_draws: int, seed: int | None) -> Iterator[tuple[int, Params]]:
        """Some draws at a time, of as many weights as may be held at once."""
        stream = self._stream(seed)
        some = max(1, _CHUNK_WEIGHTS // sum(weight.numel() for weight in self.mean.values()))
        for first in range(0, num_draws, some):
            last = min(first + some, num_draws)
            yield last - first, self._drawn(stream, first, last)

    def _stream(self, seed: int | None) -> Stream:
        return Stream(base_seed(seed), "weights", self.covariance.like.device)

    def _drawn(self, stream: Stream, first: int, last: int) -> Params:
        """Draws `first` to `last - 1`."""
        noise = stream.normal(self.covariance.size, first, last, self.covariance.like.dtype)
        offsets = self.covariance.root(noise)
        return {name: self.mean[name] + offset for name, offset in self._named(offsets).items()}

    def _named(self, flat: Tensor) -> Params:
        """A flat vector, (..., d), as weights by name, (..., *shape)."""
        shapes = {name: weight.shape for name, weight in self.mean.items()}
        parts = torch.split(flat, [shape.numel() for shape in shapes.values()], -1)
        pairs = zip(shapes.items(), parts, strict=True)
        return {name: part.reshape((*flat.shape[:-1], *shape)) for (name, shape), part in pairs}
