"""Inference: recipes that turn a model and data into a posterior."""

from credibly.inference.base import InferenceMethod, Start
from credibly.inference.ensemble import Ensemble
from credibly.inference.map import MAP
from credibly.inference.mc_dropout import MCDropout
from credibly.inference.mle import MLE

__all__ = ["MAP", "MLE", "Ensemble", "InferenceMethod", "MCDropout", "Start"]
