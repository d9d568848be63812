"""Priors: distributions over the weights of a network."""

from credibly.priors.base import FactorisedPrior, Prior
from credibly.priors.by_name import ByName, WeightsOnly
from credibly.priors.flat import Flat
from credibly.priors.laplace import Laplace
from credibly.priors.normal import Normal

__all__ = ["ByName", "FactorisedPrior", "Flat", "Laplace", "Normal", "Prior", "WeightsOnly"]
