"""Counts whose rate is the exponential of the output. A log exposure enters as `Model(..., offset=...)`."""

import torch
from torch import Tensor, distributions
from torch.distributions import Distribution, Independent

from credibly.core.checks import check_count
from credibly.likelihoods.base import Likelihood
from credibly.likelihoods.elements import bounded

__all__ = ["Poisson"]


class Poisson(Likelihood):
    """`y ~ Poisson(exp(output))`; rows observed for different times have `offset = log(time)` in the model.

    Rates are kept within exp(-60) and exp(60).

    Args:
        num_outputs: the number of counts per row; with 1 a target is a number, otherwise a vector.
    """

    def __init__(self, num_outputs: int = 1) -> None:
        super().__init__()
        self.num_outputs = check_count("num_outputs", num_outputs)

    def parameters_of(self, outputs: Tensor) -> dict[str, Tensor]:
        """`log_rate`, (*batch,) or (*batch, num_outputs)."""
        log_rate = bounded(outputs)
        return {"log_rate": log_rate if self.num_outputs > 1 else log_rate.squeeze(-1)}

    def distribution(self, parameters: dict[str, Tensor]) -> Distribution:
        """A Poisson; over several counts, an Independent of them."""
        counts = distributions.Poisson(parameters["log_rate"].exp(), validate_args=False)
        return Independent(counts, 1, validate_args=False) if self.num_outputs > 1 else counts

    def log_prob(self, parameters: dict[str, Tensor], targets: Tensor) -> Tensor:
        """`y log_rate - rate - log y!`, -inf for negative and broken counts."""
        log_rate = parameters["log_rate"]
        is_count = (targets >= 0) & (targets == targets.floor()) & targets.isfinite()
        counts = torch.where(is_count, targets, 0).to(log_rate.dtype)
        expected = torch.where(counts > 0, counts * log_rate, 0.0)  # 0 log 0 = 0
        density = expected - log_rate.exp() - torch.lgamma(counts + 1)
        density = density.masked_fill(~is_count, -torch.inf)
        return density.sum(-1) if self.num_outputs > 1 else density

    def fisher(self, outputs: Tensor) -> Tensor:
        """`diag(rate)`."""
        return torch.diag_embed(outputs.exp())
