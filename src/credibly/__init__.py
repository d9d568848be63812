"""Predictions that can be believed: probabilistic and Bayesian deep learning on torch.

A network becomes a `Model` with a likelihood and a prior; an inference method fits it to a posterior; the posterior
predicts a torch `Distribution`; metrics, calibration, conformal prediction and plots consume any such distribution,
wherever it came from.

Every part loads on first use, so that importing the library costs no more than what is used of it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from credibly import (
        bridges,
        calibration,
        conformal,
        decision,
        diagnostics,
        distributions,
        inference,
        interop,
        likelihoods,
        metrics,
        nets,
        plots,
        posteriors,
        priors,
        training,
    )
    from credibly.core.data import Data
    from credibly.model import Model
    from credibly.serialization import load, save
    from credibly.standardization import Standardization, Standardize

__all__ = [
    "Data",
    "Model",
    "Standardization",
    "Standardize",
    "bridges",
    "calibration",
    "conformal",
    "decision",
    "diagnostics",
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

_DEFINED_IN = {
    "Data": "core.data",
    "Model": "model",
    "Standardization": "standardization",
    "Standardize": "standardization",
    "load": "serialization",
    "save": "serialization",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("importlib.metadata").version("credibly")
    if name not in __all__:
        raise AttributeError(f"module 'credibly' has no attribute '{name}'")
    if name not in _DEFINED_IN:
        return import_module(f"credibly.{name}")
    found = getattr(import_module(f"credibly.{_DEFINED_IN[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
