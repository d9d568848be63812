"""Scores of unfamiliarity, one a row and larger the less familiar, read off predictions.

Entropy is the whole uncertainty of a prediction; mutual information is the part that comes from not knowing the
function ("Understanding Measures of Uncertainty for Adversarial Example Detection", Smith, Gal, 2018); one minus the
largest class probability is the baseline of Hendrycks and Gimpel (2017). Minus the log density of the inputs needs a
density of the inputs. Several outputs of a row are added up.
"""

import torch
from torch import Tensor
from torch.distributions import Distribution

from credibly.core.typing import ArrayLike
from credibly.distributions import functions
from credibly.distributions.class_rows import class_log_prob_blocks
from credibly.distributions.operations import Operation
from credibly.distributions.predictive import Predictive

__all__ = ["entropy_score", "least_confidence_score", "mutual_information_score", "negative_log_density_score"]


def entropy_score(predicted: Distribution) -> Tensor:
    """The entropy of each row in nats, (rows,), float64."""
    return _per_row(functions.entropy(predicted))


def mutual_information_score(predicted: Distribution) -> Tensor:
    """The mutual information of each row in nats, (rows,), float64.

    Raises:
        NotSupportedError: the prediction keeps no draws of class probabilities.
    """
    return _per_row(mutual_information(predicted))


def least_confidence_score(predicted: Distribution) -> Tensor:
    """One minus the largest class probability of each row, (rows,), float64.

    It is the sum of the others, which tells rows near certainty apart.

    Raises:
        NotSupportedError: the distribution is not over classes.
    """
    return torch.cat([_per_row(_other_classes(log_probs)) for _, log_probs in class_log_prob_blocks(predicted)])


def negative_log_density_score(density: Distribution, points: ArrayLike) -> Tensor:
    """Minus the log density of each point under a density of inputs or features, (rows,), float64.

    Args:
        density: a distribution whose rows are the points', such as `flow()` or a Gaussian expanded to `(rows,)`.
        points: (rows, *event).
    """
    return _per_row(-functions.log_prob(density, points))


@Operation
def mutual_information(d: Distribution) -> Tensor:
    """The mutual information of each row and output.

    Raises:
        NotSupportedError: the prediction keeps no draws of class probabilities.
    """
    mutual_information.refuse(d, "it needs draws of class probabilities, as a mixture over draws keeps them")


@mutual_information.register(Predictive)
def _(d: Predictive) -> Tensor:
    return d.mutual_information()


def _other_classes(log_probs: Tensor) -> Tensor:
    top = log_probs.argmax(-1, keepdim=True)
    return log_probs.exp().scatter(-1, top, 0.0).sum(-1)


def _per_row(values: Tensor) -> Tensor:
    wide = values.detach().to(torch.float64)
    return wide.flatten(1).sum(1) if wide.dim() > 1 else wide
