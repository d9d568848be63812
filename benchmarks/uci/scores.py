"""What a prediction is worth, in the units of the targets."""

from torch import Tensor
from torch.distributions import Distribution

from credibly import metrics

__all__ = ["scores"]


def scores(predicted: Distribution, targets: Tensor) -> dict[str, float]:
    """Root mean squared error and mean log density."""
    return {
        "rmse": float(metrics.rmse(predicted, targets)),
        "log_prob": float(metrics.log_score(predicted, targets)),
    }
