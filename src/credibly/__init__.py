"""Predictions that can be believed: probabilistic and Bayesian deep learning on torch.

A network becomes a `Model` with a likelihood and a prior; an inference method fits it to a posterior; the posterior
predicts a torch `Distribution`; metrics, calibration, conformal prediction and plots consume any such distribution,
wherever it came from.
"""

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from credibly import (
    calibration,
    conformal,
    distributions,
    inference,
    likelihoods,
    metrics,
    nets,
    posteriors,
    priors,
    training,
)
from credibly.model import Model
from credibly.serialization import load, save
from credibly.standardization import Standardization, Standardize

if TYPE_CHECKING:
    from credibly import interop, plots

__all__ = [
    "Model",
    "Standardization",
    "Standardize",
    "calibration",
    "conformal",
    "distributions",
    "inference",
    "interop",
    "likelihoods",
    "load",
    "metrics",
    "nets",
    "plots",
    "posteriors",
    "priors",
    "save",
    "training",
]

_ON_FIRST_USE = {"interop", "plots"}

try:
    __version__ = version("credibly")
except PackageNotFoundError:
    __version__ = "unknown"


def __getattr__(name: str) -> Any:
    if name in _ON_FIRST_USE:
        return import_module(f"credibly.{name}")
    raise AttributeError(f"module 'credibly' has no attribute '{name}'")


def __dir__() -> list[str]:
    return __all__
