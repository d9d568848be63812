"""Likelihoods: what turns the outputs of a network into a distribution over targets."""

from credibly.likelihoods.base import Likelihood
from credibly.likelihoods.bernoulli import Bernoulli
from credibly.likelihoods.categorical import Categorical
from credibly.likelihoods.gaussian import Gaussian
from credibly.likelihoods.heteroscedastic_gaussian import HeteroscedasticGaussian
from credibly.likelihoods.poisson import Poisson

__all__ = ["Bernoulli", "Categorical", "Gaussian", "HeteroscedasticGaussian", "Likelihood", "Poisson"]
