"""The methods of the table, each with the grid that is searched on the validation rows.

All share one hidden layer of 50 ReLU units and Adam in batches of 128, whose rate falls from 0.01 along half a cosine.
MC dropout trains for 1600 epochs, in place of the 4000 at a constant 0.001 of its paper's published code; its grid of
dropout rates by noise precisions, in the units of the targets, and the length scale 0.01 are those of that code. The
others train for 400 epochs, learn the noise, and choose the scale of the weights' prior.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

from torch import nn

from benchmarks.uci.splits import Rows
from credibly import Model, Standardize, inference, likelihoods, priors
from credibly.training import cosine

__all__ = ["METHODS", "Candidate", "Method", "candidates"]

HIDDEN = 50
BATCH_SIZE, NUM_EPOCHS, LEARNING_RATE = 128, 400, 0.01
NUM_EPOCHS_MC_DROPOUT = 1600
DROPOUT_RATES = (0.005, 0.01, 0.05, 0.1)
NOISE_PRECISIONS = {"boston": (0.1, 0.15, 0.2), "concrete": (0.025, 0.05, 0.075)}
LENGTH_SCALE = 0.01
PRIOR_SCALES = (0.1, 0.3, 1.0)

Options = dict[str, float]
Method = Callable[[Rows, Options], tuple[Model, inference.InferenceMethod]]


@dataclass(frozen=True)
class Candidate:
    """One point of a grid.

    Attributes:
        options: by name.
        num_draws: of a prediction, where draws are made as needed.
    """

    options: Options
    num_draws: int = 500


def _net(num_features: int, dropout: float = 0.0) -> nn.Sequential:
    if not dropout:
        return nn.Sequential(nn.Linear(num_features, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 1))
    return nn.Sequential(
        nn.Dropout(dropout), nn.Linear(num_features, HIDDEN), nn.ReLU(), nn.Dropout(dropout), nn.Linear(HIDDEN, 1)
    )


def _model(rows: Rows, options: Options) -> Model:
    prior = priors.Normal(options["prior_scale"])
    return Model(_net(rows[0].shape[1]), likelihoods.Gaussian(), prior, inputs=Standardize(), targets=Standardize())


def _map(num_epochs: int = NUM_EPOCHS) -> inference.MAP:
    return inference.MAP(num_epochs=num_epochs, batch_size=BATCH_SIZE, learning_rate=LEARNING_RATE, schedule=cosine)


def _mc_dropout(rows: Rows, options: Options) -> tuple[Model, inference.InferenceMethod]:
    """The penalty l^2 (1 - p) / (2 N tau) on the mean squared error of standardised targets, said as a prior.

    With targets of standard deviation s that is a precision of s^2 l^2 (1 - p) / 2 for every weight but the biases.
    """
    rate, precision = options["dropout"], options["noise_precision"]
    spread = float(rows[1].std(correction=0))
    scale = math.sqrt(2 / (1 - rate)) / (LENGTH_SCALE * spread)
    model = Model(
        _net(rows[0].shape[1], rate),
        likelihoods.Gaussian(scale=precision**-0.5),
        priors.WeightsOnly(priors.Normal(scale)),
        inputs=Standardize(),
        targets=Standardize(),
    )
    return model, inference.MCDropout(train=_map(NUM_EPOCHS_MC_DROPOUT))


def _ensemble(rows: Rows, options: Options) -> tuple[Model, inference.InferenceMethod]:
    return _model(rows, options), inference.Ensemble(of=_map(), num_members=5)


def _mean_field(rows: Rows, options: Options) -> tuple[Model, inference.InferenceMethod]:
    recipe = inference.MeanField(
        num_epochs=NUM_EPOCHS, batch_size=BATCH_SIZE, learning_rate=LEARNING_RATE, schedule=cosine
    )
    return _model(rows, options), recipe


def _swag(rows: Rows, options: Options) -> tuple[Model, inference.InferenceMethod]:
    recipe = inference.SWAG(train=_map(), num_epochs=100, batch_size=BATCH_SIZE, learning_rate=options["learning_rate"])
    return _model(rows, options), recipe


def _laplace_last_layer(rows: Rows, options: Options) -> tuple[Model, inference.InferenceMethod]:
    recipe = inference.Laplace(structure=inference.Dense(), subset=inference.LastLayer(), train=_map())
    return _model(rows, options), recipe


def _laplace_kronecker(rows: Rows, options: Options) -> tuple[Model, inference.InferenceMethod]:
    return _model(rows, options), inference.Laplace(structure=inference.Kronecker(), train=_map())


METHODS: dict[str, Method] = {
    "mc_dropout": _mc_dropout,
    "ensemble": _ensemble,
    "mean_field": _mean_field,
    "swag": _swag,
    "laplace_last_layer": _laplace_last_layer,
    "laplace_kronecker": _laplace_kronecker,
}


def candidates(method: str, dataset: str) -> list[Candidate]:
    """The whole grid of a method."""
    if method == "mc_dropout":
        grid = product(DROPOUT_RATES, NOISE_PRECISIONS[dataset])
        return [Candidate({"dropout": rate, "noise_precision": tau}, num_draws=2000) for rate, tau in grid]
    if method == "swag":
        grid = product(PRIOR_SCALES, (0.001, 0.01))
        return [Candidate({"prior_scale": scale, "learning_rate": rate}) for scale, rate in grid]
    return [Candidate({"prior_scale": scale}) for scale in PRIOR_SCALES]
