"""Named constructors of everything that has a contract: a new method adds its row here and is tested by it."""

import importlib
import math

import torch
from torch import nn

from credibly import calibration, conformal, inference, likelihoods, metrics, priors
from credibly.calibration import TemperatureScaling
from credibly.training import SWA

DEVICE = torch.device("cpu")
"""Where the tests run: set by `pytest --device`."""

LIKELIHOODS = {
    "gaussian_fixed": lambda: likelihoods.Gaussian(scale=0.7),
    "gaussian_learned": lambda: likelihoods.Gaussian(),
    "gaussian_vector": lambda: likelihoods.Gaussian(3),
    "gaussian_vector_shared": lambda: likelihoods.Gaussian(3, per_output=False),
    "gaussian_vector_fixed": lambda: likelihoods.Gaussian(2, scale=[0.5, 2.0]),
    "heteroscedastic": lambda: likelihoods.HeteroscedasticGaussian(),
    "heteroscedastic_vector": lambda: likelihoods.HeteroscedasticGaussian(2),
    "laplace": lambda: likelihoods.Laplace(),
    "laplace_vector": lambda: likelihoods.Laplace(2),
    "student_t": lambda: likelihoods.StudentT(df=4.0),
    "student_t_learned": lambda: likelihoods.StudentT(initial_df=6.0),
    "student_t_vector": lambda: likelihoods.StudentT(2),
    "log_normal": lambda: likelihoods.LogNormal(),
    "log_normal_vector": lambda: likelihoods.LogNormal(2),
    "gamma": lambda: likelihoods.Gamma(),
    "gamma_vector": lambda: likelihoods.Gamma(2),
    "weibull": lambda: likelihoods.Weibull(),
    "weibull_vector": lambda: likelihoods.Weibull(2),
    "beta": lambda: likelihoods.Beta(),
    "beta_vector": lambda: likelihoods.Beta(2),
    "bernoulli": lambda: likelihoods.Bernoulli(),
    "bernoulli_vector": lambda: likelihoods.Bernoulli(3),
    "categorical": lambda: likelihoods.Categorical(4),
    "poisson": lambda: likelihoods.Poisson(),
    "poisson_vector": lambda: likelihoods.Poisson(2),
    "negative_binomial": lambda: likelihoods.NegativeBinomial(),
    "negative_binomial_vector": lambda: likelihoods.NegativeBinomial(2),
    "negative_binomial_predicted": lambda: likelihoods.NegativeBinomial(dispersion="predicted"),
    "negative_binomial_predicted_vector": lambda: likelihoods.NegativeBinomial(2, dispersion="predicted"),
    "binomial": lambda: likelihoods.Binomial(num_trials=7),
    "binomial_vector": lambda: likelihoods.Binomial(2, num_trials=5),
    "zero_inflated": lambda: likelihoods.ZeroInflated(likelihoods.Poisson()),
    "zero_inflated_vector": lambda: likelihoods.ZeroInflated(likelihoods.Poisson(2)),
    "zero_inflated_negative_binomial": lambda: likelihoods.ZeroInflated(
        likelihoods.NegativeBinomial(2, dispersion="predicted")
    ),
    "zero_inflated_binomial": lambda: likelihoods.ZeroInflated(likelihoods.Binomial(num_trials=6)),
    "ordinal": lambda: likelihoods.Ordinal(4),
    "multivariate_gaussian": lambda: likelihoods.MultivariateGaussian(3),
    "dirichlet": lambda: likelihoods.Dirichlet(4),
    "mixture_density": lambda: likelihoods.MixtureDensity(2),
    "mixture_density_vector": lambda: likelihoods.MixtureDensity(2, 2),
    "censored_weibull": lambda: likelihoods.Censored(likelihoods.Weibull()),
    "censored_gaussian": lambda: likelihoods.Censored(likelihoods.Gaussian()),
    "gaussian_elements": lambda: likelihoods.PerElement(likelihoods.Gaussian()),
    "categorical_elements": lambda: likelihoods.PerElement(likelihoods.Categorical(4), num_axes=2, axis=1),
    "poisson_elements": lambda: likelihoods.PerElement(likelihoods.Poisson(), axis=None),
}
"""They read outputs of `outputs_shape`, and have a density."""

HEADS = {
    "quantile_head": lambda: likelihoods.QuantileHead([0.1, 0.5, 0.9]),
}
"""Training heads, `has_density = False`: they take a likelihood's place, and refuse by name what needs a density."""


def outputs_shape(likelihood):
    """The shape of one row of outputs: (num_outputs,), and where elements have axes, these are 3, or 2 by 3."""
    elements = (2, 3)[2 - likelihood.elements()[1] :]
    axis = getattr(likelihood, "axis", -1)  # of PerElement, where an element's outputs lie
    if axis is None:
        return elements
    after = len(elements) + 1 + axis
    return (*elements[:after], likelihood.num_outputs, *elements[after:])


def linear(num_inputs, likelihood, *, bias=True):
    """A linear network, `[0]` of the sequence, that gives the outputs of a likelihood."""
    shape = outputs_shape(likelihood)
    return nn.Sequential(nn.Linear(num_inputs, math.prod(shape), bias=bias), nn.Unflatten(1, shape))


PRIORS = {
    "normal": lambda: priors.Normal(0.7),
    "normal_fan_in": lambda: priors.Normal(1.5, fan_in_scaled=True),
    "laplace": lambda: priors.Laplace(0.4),
    "student_t": lambda: priors.StudentT(4.0, 0.6),
    "scale_mixture": lambda: priors.ScaleMixture([1.5, 0.1], [0.25, 0.75]),
    "flat": lambda: priors.Flat(),
    "weights_only": lambda: priors.WeightsOnly(priors.Normal(2.0)),
    "by_name": lambda: priors.ByName({"*.bias": priors.Flat(), "net.0.*": priors.Laplace(), "*": priors.Normal(0.5)}),
}


def guide_of_draws(program):
    """One of Pyro's that is not known to be a Gaussian, so that its draws are kept. Pyro loads where it is used."""
    autoguide = importlib.import_module("pyro.infer.autoguide")
    guide = autoguide.AutoGuideList(program)
    guide.append(autoguide.AutoNormal(program))
    return guide


METHODS = {
    "mle": lambda: inference.MLE(num_epochs=2, batch_size=8),
    "map": lambda: inference.MAP(num_epochs=2, batch_size=8),
    "map_of_swa": lambda: inference.MAP(num_epochs=4, batch_size=8, average=SWA(start=0.5)),
    "mc_dropout": lambda: inference.MCDropout(train=inference.MAP(num_epochs=2, batch_size=8)),
    "mc_dropout_of_current": lambda: inference.MCDropout(),
    "ensemble": lambda: inference.Ensemble(of=inference.MAP(num_epochs=2, batch_size=8), num_members=4),
    "swag": lambda: inference.SWAG(train=inference.MAP(num_epochs=2, batch_size=8), num_epochs=3, batch_size=8),
    "ensemble_of_swag": lambda: inference.Ensemble(
        of=inference.SWAG(train=inference.MAP(num_epochs=2, batch_size=8), num_epochs=3, batch_size=8, rank=2),
        num_members=2,
    ),
    "ivon": lambda: inference.IVON(num_epochs=2, batch_size=8, hess_init=10.0),
    "ensemble_of_mc_dropout": lambda: inference.Ensemble(
        of=inference.MCDropout(train=inference.MLE(num_epochs=2, batch_size=8)), num_members=2
    ),
    "mean_field": lambda: inference.MeanField(num_epochs=2, batch_size=8),
    "mean_field_flipout": lambda: inference.MeanField(estimator=inference.Flipout(), num_epochs=2, batch_size=8),
    "mean_field_weight_draw": lambda: inference.MeanField(estimator=inference.WeightDraw(), num_epochs=2, batch_size=8),
    "mean_field_last_layer": lambda: inference.MeanField(subset=inference.LastLayer(), num_epochs=2, batch_size=8),
    "ensemble_of_mean_field": lambda: inference.Ensemble(
        of=inference.MeanField(num_epochs=2, batch_size=8), num_members=2
    ),
    "low_rank_gaussian": lambda: inference.LowRankGaussian(2, num_epochs=2, batch_size=8),
    "full_gaussian": lambda: inference.FullGaussian(num_epochs=2, batch_size=8),
    "laplace_kronecker": lambda: inference.Laplace(
        structure=inference.Kronecker(diagonal_for_others=True), train=inference.MAP(num_epochs=2, batch_size=8)
    ),
    "laplace_diagonal": lambda: inference.Laplace(
        structure=inference.Diagonal(), train=inference.MAP(num_epochs=2, batch_size=8), probit=False
    ),
    "laplace_dense": lambda: inference.Laplace(
        structure=inference.Dense(), train=inference.MAP(num_epochs=2, batch_size=8), linearized=False
    ),
    "laplace_last_layer": lambda: inference.Laplace(
        structure=inference.Dense(), subset=inference.LastLayer(), train=inference.MAP(num_epochs=2, batch_size=8)
    ),
    "laplace_low_rank": lambda: inference.Laplace(
        structure=inference.LowRank(5), train=inference.MAP(num_epochs=2, batch_size=8)
    ),
    "ensemble_of_laplace": lambda: inference.Ensemble(
        of=inference.Laplace(structure=inference.Diagonal(), train=inference.MAP(num_epochs=2, batch_size=8)),
        num_members=2,
    ),
    "concrete_dropout": lambda: inference.ConcreteDropout(before_linear=True, num_epochs=2, batch_size=8),
    "pyro_guide": lambda: inference.PyroGuide(num_epochs=2, batch_size=8),
    "pyro_guide_of_draws": lambda: inference.PyroGuide(guide=guide_of_draws, num_draws=4, num_epochs=2, batch_size=8),
}

RECALIBRATORS = {
    "temperature": lambda: TemperatureScaling(),
    "vector_scaling": lambda: calibration.VectorScaling(),
    "matrix_scaling": lambda: calibration.MatrixScaling(),
    "dirichlet": lambda: calibration.DirichletCalibration(),
    "platt": lambda: calibration.PlattScaling(),
    "beta": lambda: calibration.BetaCalibration(),
    "isotonic": lambda: calibration.Isotonic(),
    "centered_isotonic": lambda: calibration.CenteredIsotonic(),
    "histogram": lambda: calibration.HistogramBinning(num_bins=5),
    "histogram_equal_width": lambda: calibration.HistogramBinning(num_bins=5, equal_mass=False),
    "venn_abers": lambda: calibration.VennAbers(),
    "bootstrap": lambda: calibration.BayesianRecalibration(
        draws_of_map=calibration.Bootstrap(of=calibration.PlattScaling()), num_draws=4
    ),
    "laplace_temperature": lambda: calibration.BayesianRecalibration(
        draws_of_map=calibration.LaplaceTemperature(), num_draws=4
    ),
}
"""Of class probabilities."""

NUMBER_RECALIBRATORS = {
    "variance_scaling": lambda: calibration.VarianceScaling(),
    "quantile": lambda: calibration.QuantileRecalibration(),
    "quantile_knots": lambda: calibration.QuantileRecalibration(num_knots=5),
    "conformal_predictive": lambda: calibration.ConformalPredictiveSystem(),
    "conformal_predictive_plain": lambda: calibration.ConformalPredictiveSystem(normalized=False),
}
"""Of real numbers; all but the first also of counts."""

SCORES = {
    "lac": lambda: conformal.LAC(),
    "aps": lambda: conformal.APS(),
    "aps_deterministic": lambda: conformal.APS(randomized=False),
    "raps": lambda: conformal.RAPS(penalty=0.05, k_reg=1),
    "saps": lambda: conformal.SAPS(rank_weight=0.1),
    "top_k": lambda: conformal.TopK(),
    "top_k_randomized": lambda: conformal.TopK(randomized=True),
    "margin": lambda: conformal.Margin(),
    "absolute_residual": lambda: conformal.AbsoluteResidual(),
    "standardized_residual": lambda: conformal.StandardizedResidual(),
    "cqr": lambda: conformal.CQR(0.1, 0.9),
    "cqr_scaled": lambda: conformal.ScaledCQR(),
    "cqr_lower": lambda: conformal.OneSidedCQR(0.1, "lower"),
    "cqr_upper": lambda: conformal.OneSidedCQR(0.9, "upper"),
    "pit_score": lambda: conformal.PITScore(),
    "pit_score_randomized": lambda: conformal.PITScore(randomized=True),
    "highest_density": lambda: conformal.HighestDensity(),
    "box": lambda: conformal.Box(),
    "box_of_cqr": lambda: conformal.Box(conformal.CQR()),
    "one_of_several_targets": lambda: conformal.TargetScore(conformal.StandardizedResidual((1.0, 2.0)), 1),
    "ellipsoid": lambda: conformal.Ellipsoid(),
    "ellipsoid_given": lambda: conformal.Ellipsoid(((2.0, 0.5), (0.5, 1.0))),
}

NETWORKS = {
    "mlp": lambda: nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1)),
    "dropout": lambda: nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.2), nn.ReLU(), nn.Linear(8, 1)),
    "batch_norm": lambda: nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1)),
}

METRICS = {
    "log_score": ("classes", lambda: metrics.LogScore()),
    "log_score_of_reals": ("reals", lambda: metrics.LogScore()),
    "nll": ("events", lambda: metrics.NLL()),
    "brier": ("classes", lambda: metrics.Brier()),
    "brier_of_events": ("events", lambda: metrics.Brier()),
    "brier_of_labels": ("labels", lambda: metrics.Brier()),
    "brier_decomposition": ("classes", lambda: metrics.BrierDecomposition(num_bins=5)),
    "brier_decomposition_of_events": ("events", lambda: metrics.BrierDecomposition(num_bins=5)),
    "accuracy": ("classes", lambda: metrics.Accuracy()),
    "rmse": ("reals", lambda: metrics.RMSE()),
    "crps": ("reals", lambda: metrics.CRPS()),
    "ece_l1": ("classes", lambda: metrics.ECE(num_bins=5)),
    "ece_l2": ("events", lambda: metrics.ECE(num_bins=5, norm="l2")),
    "ece_max": ("labels", lambda: metrics.ECE(num_bins=5, norm="max")),
    "ece_debiased": ("classes", lambda: metrics.TopLabelECE(num_bins=5, norm="l2_debiased")),
    "ece_equal_mass": ("classes", lambda: metrics.ECE(num_bins=5, equal_mass=True)),
    "ece_classwise": ("classes", lambda: metrics.ClasswiseECE(num_bins=5)),
    "ece_classwise_equal_mass": ("classes", lambda: metrics.ClasswiseECE(num_bins=5, norm="l2", equal_mass=True)),
    "ece_of_event": ("events", lambda: metrics.EventECE(num_bins=5, norm="l2_debiased", equal_mass=True)),
    "smooth_ece": ("events", lambda: metrics.SmoothECE()),
    "smooth_ece_of_top_label": ("classes", lambda: metrics.SmoothECE()),
    "aurc": ("classes", lambda: metrics.AURC()),
    "e_aurc": ("events", lambda: metrics.EAURC()),
    "auroc": ("scores", lambda: metrics.AUROC()),
    "aupr": ("scores", lambda: metrics.AUPR()),
    "aupr_of_inside": ("scores", lambda: metrics.AUPR(positive="in")),
    "fpr95": ("scores", lambda: metrics.FPR()),
    "ranked_probability_score": ("classes", lambda: metrics.RankedProbabilityScore()),
    "pinball": ("reals", lambda: metrics.Pinball(levels=(0.1, 0.5, 0.8))),
    "interval_score": ("reals", lambda: metrics.IntervalScore(coverage=0.8)),
    "weighted_interval_score": ("reals", lambda: metrics.WeightedIntervalScore()),
    "energy_score": ("draws", lambda: metrics.EnergyScore()),
    "coverage": ("reals", lambda: metrics.Coverage(0.8)),
    "width": ("reals", lambda: metrics.Width(0.8)),
    "sharpness": ("reals", lambda: metrics.Sharpness()),
    "ence": ("reals", lambda: metrics.ENCE(num_bins=5)),
    "miscalibration_area": ("reals", lambda: metrics.MiscalibrationArea()),
    "miscalibration_area_of_central_intervals": ("reals", lambda: metrics.MiscalibrationArea(central=True)),
    "regression_calibration_error": ("reals", lambda: metrics.RegressionCalibrationError()),
}
"""The kind of data that a metric reads, and its recipe."""
