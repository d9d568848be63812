"""Posteriors: what inference ends in, and what predicts."""

from credibly.posteriors.base import Posterior, WeightPosterior
from credibly.posteriors.draws import DrawPosterior
from credibly.posteriors.dropout import DropoutPosterior
from credibly.posteriors.gaussian import GaussianPosterior
from credibly.posteriors.info import Info
from credibly.posteriors.laplace import LaplacePosterior
from credibly.posteriors.linearised import LinearizedPosterior
from credibly.posteriors.mixture import MixturePosterior
from credibly.posteriors.point import PointPosterior
from credibly.posteriors.prior_predictive import prior_predictive

__all__ = [
    "DrawPosterior",
    "DropoutPosterior",
    "GaussianPosterior",
    "Info",
    "LaplacePosterior",
    "LinearizedPosterior",
    "MixturePosterior",
    "PointPosterior",
    "Posterior",
    "WeightPosterior",
    "prior_predictive",
]
