"""Where the squared error of a method comes from: noise, bias and variance over repeated training data.

Neural Networks and the Bias/Variance Dilemma (Geman, Bienenstock, Doursat, 1992). Let p be the mean that a method
predicts at x after training on a random data set, f the true mean of the targets there and m = E p. Then

    E (y - p)^2 = Var(y) + (m - f)^2 + Var(p) = noise + bias + variance.

With D data sets the squared distance of the average prediction from f exceeds the bias by Var(p)/D. Here the bias is
the mean of (p_d - f)(p_e - f) over pairs of different data sets, which has no such excess and may, where the bias is
small, come out below 0. The three parts add up to the error exactly. Standard errors are those of the jackknife over
data sets.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.distributions import Distribution

from credibly.core.checks import check_count
from credibly.core.errors import ShapeError
from credibly.core.params import module_device
from credibly.core.randomness import base_seed, derived_seed, seeded
from credibly.core.typing import ArrayLike
from credibly.distributions.functions import mean, variance
from credibly.distributions.operations import check_distribution
from credibly.inference.base import InferenceMethod
from credibly.model import Model

__all__ = ["BiasVariance", "ErrorParts", "ModelSource", "Simulator", "bias_variance"]

Simulator: TypeAlias = Callable[[int], Any]
"""From a seed to training data of any form that `fit` takes."""

ModelSource: TypeAlias = Model | Callable[[], Model]
"""One model for all data sets, or a function that makes one for each."""

_MIN_DATASETS = 3


@dataclass(frozen=True, eq=False)
class ErrorParts:
    """An expected squared error and its parts, in float64.

    Attributes:
        noise: the variance of the targets, which no prediction removes.
        bias: the squared distance of the expected prediction from the targets' mean.
        variance: of the prediction over training data sets.
        error: their sum.
    """

    noise: Tensor
    bias: Tensor
    variance: Tensor
    error: Tensor


@dataclass(frozen=True, eq=False)
class BiasVariance(ErrorParts):
    """The parts of the error as means over the inputs, with their Monte Carlo errors.

    Attributes:
        standard_error: of each part, over data sets; that of the noise, which is known, is 0.
        rows: the parts at each input, (rows, *event).
        means: (num_datasets, rows, *event) what was predicted after training on each data set.
    """

    standard_error: ErrorParts
    rows: ErrorParts
    means: Tensor


def bias_variance(
    method: InferenceMethod,
    model: ModelSource,
    simulate: Simulator,
    inputs: ArrayLike,
    *,
    truth: Distribution,
    num_datasets: int = 50,
    num_draws: int | None = None,
    seed: int | None = None,
) -> BiasVariance:
    """Train a method again and again on simulated data, and take its squared error apart.

    Args:
        method: the recipe.
        model: a model, from whose weights every fit begins; or a function that makes a fresh one for each data set,
            with torch's global generator seeded, so that the variance is also over initialisations.
        simulate: makes a training data set from a seed.
        inputs: where to look: rows of inputs.
        truth: the true distribution of the targets at `inputs`, with batch_shape (rows,), for its mean and variance.
        num_datasets: how many data sets, 3 or more.
        num_draws: of each posterior, as in `predict`.
        seed: of data sets, initialisations and fits.

    Raises:
        ValueError: fewer than 3 data sets.
        ShapeError: `truth` and the predictions disagree in shape.
    """
    check_distribution(truth)
    if check_count("num_datasets", num_datasets) < _MIN_DATASETS:
        raise ValueError(f"`num_datasets` must be {_MIN_DATASETS} or more; got {num_datasets}")
    base = base_seed(seed)
    fits = (_predicted_mean(method, model, simulate, inputs, num_draws, base, k) for k in range(num_datasets))
    means = torch.stack(list(fits))
    expected, noise = mean(truth).double().to(means.device), variance(truth).double().to(means.device)
    if expected.shape != means.shape[1:]:
        raise ShapeError(
            f"`truth` must have targets of shape {tuple(means.shape[1:])}, as predicted; got {tuple(expected.shape)}"
        )
    return _decompose(means, expected, noise)


def _predicted_mean(
    method: InferenceMethod,
    model: ModelSource,
    simulate: Simulator,
    inputs: ArrayLike,
    num_draws: int | None,
    seed: int,
    index: int,
) -> Tensor:
    own = model if isinstance(model, Model) else _made(model, seed, index)
    with seeded(seed, "simulate", index, device=module_device(own)):
        data = simulate(derived_seed(seed, "simulate", index))
    fitted = method.fit(own, data, seed=derived_seed(seed, "fit", index))
    predicted = fitted.predict(inputs, num_draws=num_draws, seed=derived_seed(seed, "draws", index))
    return mean(predicted).detach().double()


def _made(make: Callable[[], Model], seed: int, index: int) -> Model:
    with seeded(seed, "init", index, device=torch.get_default_device()):
        return make()


def _decompose(means: Tensor, expected: Tensor, noise: Tensor) -> BiasVariance:
    errors = means - expected
    bias, excess = _pair_mean(errors.sum(0), (errors**2).sum(0), len(errors)), (errors**2).mean(0)
    rows = ErrorParts(noise, bias, excess - bias, noise + excess)
    return BiasVariance(
        noise=rows.noise.mean(),
        bias=rows.bias.mean(),
        variance=rows.variance.mean(),
        error=rows.error.mean(),
        standard_error=_standard_error(errors),
        rows=rows,
        means=means,
    )


def _pair_mean(total: Tensor, squares: Tensor, count: int) -> Tensor:
    """The mean product of two different ones of `count` values, from their sum and sum of squares."""
    return (total**2 - squares) / (count * (count - 1))


def _standard_error(errors: Tensor) -> ErrorParts:
    """By leaving out one data set at a time."""
    count = len(errors)
    total, squares = errors.sum(0), (errors**2).sum(0)
    left_squares = squares - errors**2
    bias = _pair_mean(total - errors, left_squares, count - 1).reshape(count, -1).mean(-1)
    error = (left_squares / (count - 1)).reshape(count, -1).mean(-1)
    return ErrorParts(torch.zeros_like(error[0]), _jackknife(bias), _jackknife(error - bias), _jackknife(error))


def _jackknife(left_out: Tensor) -> Tensor:
    count = len(left_out)
    return ((count - 1) * left_out.var(correction=0)).sqrt()
