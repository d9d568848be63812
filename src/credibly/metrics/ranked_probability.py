"""The ranked probability score: how far, in ordered classes, the forecast mass lies from the class that came.

    RPS = sum over k = 0, ..., K - 2 of (P(Y <= k) - 1{y <= k})^2

(A Scoring System for Probability Forecasts of Ranked Categories, Epstein 1969; A Note on the Ranked Probability Score,
Murphy 1971.) The sum is not divided by K - 1: it lies between 0 and K - 1, smaller is better, and with two classes it
is the Brier score of the event. It needs an order of the classes and no distances between them, and equals the CRPS of
the class index as a number. Strictly proper.
"""

import torch
from torch import Tensor
from torch.distributions import Distribution

from credibly.core.typing import ArrayLike
from credibly.distributions.class_rows import class_log_prob_blocks
from credibly.distributions.targets import check_rows, match_targets
from credibly.metrics.mean_score import mean_score

__all__ = ["ranked_probability_rows", "ranked_probability_score"]


def ranked_probability_rows(predicted: Distribution, targets: ArrayLike) -> Tensor:
    """The ranked probability score of every row, float64, (rows, *event_shape).

    Args:
        predicted: over classes whose indices are in order: Ordinal, Categorical, Bernoulli, mixtures of them.
        targets: class indices, one per row.

    Raises:
        ShapeError, SupportError: see `match_targets`.
        NotSupportedError: the distribution is not over classes; counts have `crps`, which is the same sum.
    """
    check_rows(predicted)
    classes = match_targets(predicted, targets)
    parts = [_rows(log_probs, classes[rows]) for rows, log_probs in class_log_prob_blocks(predicted)]
    return torch.cat(parts)


def ranked_probability_score(predicted: Distribution, targets: ArrayLike) -> Tensor:
    """The mean ranked probability score, between 0 and the number of classes minus 1; smaller is better."""
    return mean_score(ranked_probability_rows(predicted, targets), "ranked_probability_score")


def _rows(log_probs: Tensor, targets: Tensor) -> Tensor:
    at_most = log_probs[..., :-1].exp().cumsum(-1)
    came = targets.unsqueeze(-1) <= torch.arange(at_most.shape[-1], device=targets.device)
    return (at_most - came.to(at_most.dtype)).square().sum(-1)
