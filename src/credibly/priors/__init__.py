"""Priors: distributions over the weights of a network."""

from credibly.priors.base import FactorisedPrior, Prior
from credibly.priors.by_name import ByName, WeightsOnly
from credibly.priors.flat import Flat
from credibly.priors.gaussian import GaussianPrior
from credibly.priors.laplace import Laplace
from credibly.priors.normal import Normal
from credibly.priors.scale_mixture import ScaleMixture
from credibly.priors.student_t import StudentT

__all__ = [
    "ByName",
    "FactorisedPrior",
    "Flat",
    "GaussianPrior",
    "Laplace",
    "Normal",
    "Prior",
    "ScaleMixture",
    "StudentT",
    "WeightsOnly",
]
