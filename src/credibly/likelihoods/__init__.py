"""Likelihoods: what turns the outputs of a network into a distribution over targets."""

from credibly.likelihoods.base import Likelihood
from credibly.likelihoods.bernoulli import Bernoulli
from credibly.likelihoods.beta import Beta
from credibly.likelihoods.binomial import Binomial
from credibly.likelihoods.categorical import Categorical
from credibly.likelihoods.censored import Censored
from credibly.likelihoods.dirichlet import Dirichlet
from credibly.likelihoods.gamma import Gamma
from credibly.likelihoods.gaussian import Gaussian
from credibly.likelihoods.heteroscedastic_gaussian import HeteroscedasticGaussian
from credibly.likelihoods.laplace import Laplace
from credibly.likelihoods.log_normal import LogNormal
from credibly.likelihoods.mixture_density import MixtureDensity
from credibly.likelihoods.multivariate_gaussian import MultivariateGaussian
from credibly.likelihoods.negative_binomial import NegativeBinomial
from credibly.likelihoods.ordinal import Ordinal
from credibly.likelihoods.per_element import PerElement
from credibly.likelihoods.poisson import Poisson
from credibly.likelihoods.quantile_head import QuantileHead
from credibly.likelihoods.student_t import StudentT
from credibly.likelihoods.weibull import Weibull
from credibly.likelihoods.zero_inflated import ZeroInflated

__all__ = [
    "Bernoulli",
    "Beta",
    "Binomial",
    "Categorical",
    "Censored",
    "Dirichlet",
    "Gamma",
    "Gaussian",
    "HeteroscedasticGaussian",
    "Laplace",
    "Likelihood",
    "LogNormal",
    "MixtureDensity",
    "MultivariateGaussian",
    "NegativeBinomial",
    "Ordinal",
    "PerElement",
    "Poisson",
    "QuantileHead",
    "StudentT",
    "Weibull",
    "ZeroInflated",
]
