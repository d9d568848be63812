"""Conformal prediction: regions that hold the target with a guaranteed probability."""

from credibly.conformal.aps import APS
from credibly.conformal.base import ConformalPredictor, Score
from credibly.conformal.class_score import ClassScore
from credibly.conformal.intervals import Intervals
from credibly.conformal.lac import LAC
from credibly.conformal.ranks import rank, threshold, weighted_threshold
from credibly.conformal.region import Region
from credibly.conformal.residual import AbsoluteResidual
from credibly.conformal.sets import PredictionSets

__all__ = [
    "APS",
    "LAC",
    "AbsoluteResidual",
    "ClassScore",
    "ConformalPredictor",
    "Intervals",
    "PredictionSets",
    "Region",
    "Score",
    "rank",
    "threshold",
    "weighted_threshold",
]
