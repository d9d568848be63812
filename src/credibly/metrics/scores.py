"""Scores of predictions against what came: means over rows, in the units of the targets.

The log score is proper and larger is better; `nll`, `brier`, `rmse` and `crps` are losses. See "Strictly
Proper Scoring Rules, Prediction, and Estimation" (Gneiting, Raftery, 2007) and, for the Brier score,
"Verification of Forecasts Expressed in Terms of Probability" (Brier, 1950).
"""

import torch
from torch import Tensor
from torch.distributions import Distribution

from credibly.core.errors import ShapeError
from credibly.core.typing import ArrayLike
from credibly.distributions import functions
from credibly.distributions.class_rows import is_binary
from credibly.distributions.classes import class_log_probs
from credibly.distributions.targets import match_targets
from credibly.distributions.top_label import event_probs, top_label

__all__ = ["accuracy", "brier", "crps", "log_score", "nll", "rmse"]


def _mean(values: Tensor) -> Tensor:
    if not values.numel():
        raise ShapeError("a mean score needs at least one row; `predicted` and `targets` are empty")
    return values.to(torch.float64).mean()


def log_score(predicted: Distribution, targets: ArrayLike) -> Tensor:
    """The mean over rows of the log density or log probability of what came; larger is better."""
    return _mean(functions.log_prob(predicted, targets))


def nll(predicted: Distribution, targets: ArrayLike) -> Tensor:
    """The mean negative log density or log probability of what came: `log_score` with its sign turned."""
    return -log_score(predicted, targets)


def brier(predicted: Distribution, targets: ArrayLike) -> Tensor:
    """The mean Brier score of class predictions.

    For a binary outcome (a Bernoulli) it is (p - y)^2, between 0 and 1; for a choice among classes (a
    Categorical, also with two classes) Brier's own sum over classes of (p_k - 1[y = k])^2, between 0 and 2.
    """
    if is_binary(predicted):
        error = event_probs(predicted) - match_targets(predicted, targets)
        return _mean(error.square())
    probs = class_log_probs(predicted).exp()
    of_target = probs.gather(-1, match_targets(predicted, targets).unsqueeze(-1)).squeeze(-1)
    return _mean(probs.square().sum(-1) - 2 * of_target + 1)


def accuracy(predicted: Distribution, targets: ArrayLike) -> Tensor:
    """The fraction of targets that are the most probable class; of equally probable ones the first counts."""
    return _mean(top_label(predicted, match_targets(predicted, targets))[1])


def rmse(predicted: Distribution, targets: ArrayLike) -> Tensor:
    """The root mean squared error of the predicted mean, over all rows and outputs."""
    error = functions.mean(predicted) - match_targets(predicted, targets)
    return _mean(error.to(torch.float64).square()).sqrt()


def crps(predicted: Distribution, targets: ArrayLike) -> Tensor:
    """The mean continuous ranked probability score over all rows and outputs."""
    return _mean(functions.crps(predicted, targets))
