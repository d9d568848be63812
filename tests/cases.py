"""Named constructors of everything that has a contract: a new method adds its row here and is tested by it."""

import torch
from torch import nn

from credibly import conformal, inference, likelihoods, priors
from credibly.calibration import TemperatureScaling

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
    "bernoulli": lambda: likelihoods.Bernoulli(),
    "bernoulli_vector": lambda: likelihoods.Bernoulli(3),
    "categorical": lambda: likelihoods.Categorical(4),
    "poisson": lambda: likelihoods.Poisson(),
    "poisson_vector": lambda: likelihoods.Poisson(2),
}

PRIORS = {
    "normal": lambda: priors.Normal(0.7),
    "normal_fan_in": lambda: priors.Normal(1.5, fan_in_scaled=True),
    "laplace": lambda: priors.Laplace(0.4),
    "flat": lambda: priors.Flat(),
    "weights_only": lambda: priors.WeightsOnly(priors.Normal(2.0)),
    "by_name": lambda: priors.ByName({"*.bias": priors.Flat(), "net.0.*": priors.Laplace(), "*": priors.Normal(0.5)}),
}

METHODS = {
    "mle": lambda: inference.MLE(num_epochs=2, batch_size=8),
    "map": lambda: inference.MAP(num_epochs=2, batch_size=8),
    "mc_dropout": lambda: inference.MCDropout(train=inference.MAP(num_epochs=2, batch_size=8)),
    "mc_dropout_of_current": lambda: inference.MCDropout(),
    "ensemble": lambda: inference.Ensemble(of=inference.MAP(num_epochs=2, batch_size=8), num_members=4),
    "ensemble_of_mc_dropout": lambda: inference.Ensemble(
        of=inference.MCDropout(train=inference.MLE(num_epochs=2, batch_size=8)), num_members=2
    ),
}

RECALIBRATORS = {"temperature": lambda: TemperatureScaling()}

SCORES = {
    "lac": lambda: conformal.LAC(),
    "aps": lambda: conformal.APS(),
    "aps_deterministic": lambda: conformal.APS(randomized=False),
    "absolute_residual": lambda: conformal.AbsoluteResidual(),
}

NETWORKS = {
    "mlp": lambda: nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1)),
    "dropout": lambda: nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.2), nn.ReLU(), nn.Linear(8, 1)),
    "batch_norm": lambda: nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1)),
}
