"""Inference: recipes that turn a model and data into a posterior."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from credibly.curvature.kinds import GGN, EmpiricalFisher
from credibly.curvature.structures import Dense, Diagonal, Kronecker, LowRank
from credibly.inference.base import InferenceMethod
from credibly.inference.concrete_dropout import ConcreteDropout
from credibly.inference.ensemble import Ensemble
from credibly.inference.full_gaussian import FullGaussian
from credibly.inference.ivon import IVON
from credibly.inference.laplace import Laplace
from credibly.inference.low_rank_gaussian import LowRankGaussian
from credibly.inference.map import MAP
from credibly.inference.mc_dropout import MCDropout
from credibly.inference.mean_field import MeanField
from credibly.inference.mle import MLE
from credibly.inference.refreshed_draws import refreshed_draws
from credibly.inference.starts import Start
from credibly.inference.subsets import AllWeights, LargestVariance, LastLayer, Named, Subset
from credibly.inference.swag import SWAG
from credibly.inference.tuning import Evidence, ValidationLogScore
from credibly.training.variational_estimators import Estimator, Flipout, LocalReparameterization, WeightDraw

if TYPE_CHECKING:
    from credibly.inference.pyro_guide import PyroGuide

__all__ = [
    "GGN",
    "IVON",
    "MAP",
    "MLE",
    "SWAG",
    "AllWeights",
    "ConcreteDropout",
    "Dense",
    "Diagonal",
    "EmpiricalFisher",
    "Ensemble",
    "Estimator",
    "Evidence",
    "Flipout",
    "FullGaussian",
    "InferenceMethod",
    "Kronecker",
    "Laplace",
    "LargestVariance",
    "LastLayer",
    "LocalReparameterization",
    "LowRank",
    "LowRankGaussian",
    "MCDropout",
    "MeanField",
    "Named",
    "PyroGuide",
    "Start",
    "Subset",
    "ValidationLogScore",
    "WeightDraw",
    "refreshed_draws",
]


def __getattr__(name: str) -> Any:
    if name != "PyroGuide":  # it brings Pyro with it, and so loads on first use
        raise AttributeError(f"module 'credibly.inference' has no attribute '{name}'")
    return import_module("credibly.inference.pyro_guide").PyroGuide


def __dir__() -> list[str]:
    return list(__all__)
