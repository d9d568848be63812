"""The waist: predictions as torch distributions, and all that is asked of them."""

from credibly.distributions.affine import AffineView, affine
from credibly.distributions.censored import Censored
from credibly.distributions.class_predictive import ClassPredictive
from credibly.distributions.empirical import Empirical, fair_crps
from credibly.distributions.entry import from_draws, from_logits, from_probs, from_quantiles
from credibly.distributions.functions import (
    cdf,
    class_draw_log_probs,
    class_log_probs,
    concatenate,
    crps,
    entropy,
    icdf,
    kind,
    log_prob,
    match_targets,
    mean,
    safe_log_prob,
    select,
    survival,
    to,
    variance,
)
from credibly.distributions.gaussian import GaussianPredictive
from credibly.distributions.joint import elements
from credibly.distributions.marginal import MarginalPredictive
from credibly.distributions.mixture import MixturePredictive
from credibly.distributions.mixture_cumulative import gaussian_parameters
from credibly.distributions.mixture_same_family import component_log_weights
from credibly.distributions.multivariate_predictive import MultivariateGaussianPredictive
from credibly.distributions.observed import observed
from credibly.distributions.ordinal import Ordinal
from credibly.distributions.predictive import Predictive
from credibly.distributions.quantiles import QuantileForecast
from credibly.distributions.rows import rebuild
from credibly.distributions.zero_inflated import ZeroInflated

__all__ = [
    "AffineView",
    "Censored",
    "ClassPredictive",
    "Empirical",
    "GaussianPredictive",
    "MarginalPredictive",
    "MixturePredictive",
    "MultivariateGaussianPredictive",
    "Ordinal",
    "Predictive",
    "QuantileForecast",
    "ZeroInflated",
    "affine",
    "cdf",
    "class_draw_log_probs",
    "class_log_probs",
    "component_log_weights",
    "concatenate",
    "crps",
    "elements",
    "entropy",
    "fair_crps",
    "from_draws",
    "from_logits",
    "from_probs",
    "from_quantiles",
    "gaussian_parameters",
    "icdf",
    "kind",
    "log_prob",
    "match_targets",
    "mean",
    "observed",
    "rebuild",
    "safe_log_prob",
    "select",
    "survival",
    "to",
    "variance",
]
