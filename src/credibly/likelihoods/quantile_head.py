"""A training head that predicts quantiles by the pinball loss: no distribution is assumed, and none is made.

The loss of a quantile at level q is max(q e, (q - 1) e) for the error e = y - quantile; its expectation is smallest at
the true quantile ("Regression Quantiles", Koenker and Bassett, 1978). It is no likelihood: the loss has no normalising
constant and no unit-free scale, so there is neither a posterior over weights nor a log score.
"""

from collections.abc import Sequence
from typing import NoReturn

import torch
from torch import Tensor
from torch.distributions import Distribution

from credibly.core.errors import NotSupportedError
from credibly.distributions.quantiles import QuantileForecast, pinball_loss
from credibly.likelihoods.base import Likelihood

__all__ = ["QuantileHead"]


class QuantileHead(Likelihood):
    """One output a level: `QuantileForecast(levels, outputs)`, trained by the mean pinball loss over the levels.

    It takes the place of a likelihood in `Model` for MLE, MAP, MC dropout and ensembles, and refuses by name whatever
    needs a density. Outputs may cross while training; the forecast sorts them. Members of an ensemble combine by
    averaging their quantiles.

    Where targets are standardised, the loss is counted in their standard deviations, in training and in the scores of
    validation data, which are minus the loss.

    Args:
        levels: of the quantiles, increasing, strictly between 0 and 1.
    """

    grid: Tensor
    has_density = False

    def __init__(self, levels: Sequence[float]) -> None:
        super().__init__()
        given = torch.as_tensor(levels, dtype=torch.float64).flatten()
        QuantileForecast(given, torch.zeros(1, len(given), dtype=torch.float64))  # checks the levels
        self.levels = tuple(given.tolist())
        self.num_outputs = len(self.levels)
        self.register_buffer("grid", given, persistent=False)

    def parameters_of(self, outputs: Tensor) -> dict[str, Tensor]:
        """`quantiles`, (*batch, levels), as they come."""
        return {"quantiles": outputs}

    def distribution(self, parameters: dict[str, Tensor]) -> Distribution:
        """A QuantileForecast."""
        return QuantileForecast(self.grid, parameters["quantiles"])

    def training_score(self, parameters: dict[str, Tensor], targets: Tensor) -> Tensor:
        """Minus the mean pinball loss over the levels: (*batch,)."""
        quantiles = parameters["quantiles"]
        return -pinball_loss(self.grid.to(quantiles.dtype), quantiles, targets)

    def possible_target(self, outputs: Tensor) -> Tensor:
        """A predicted quantile."""
        return outputs.detach().flatten()[0]

    def log_prob(self, parameters: dict[str, Tensor], targets: Tensor) -> Tensor:
        """Refused: quantiles have no density."""
        self._refuse("log_prob")

    def fisher(self, outputs: Tensor) -> Tensor:
        """Refused: a loss has no Fisher information."""
        self._refuse("fisher")

    def sample_scores(self, outputs: Tensor, num_scores: int, *, seed: int | None = None) -> Tensor:
        """Refused: nothing can be drawn from quantiles."""
        self._refuse("sample_scores")

    def standardized(self, loc: Tensor, scale: Tensor) -> "QuantileHead":
        """Itself: quantiles are predicted on the network's side."""
        return QuantileHead(self.levels)

    def _refuse(self, name: str) -> NoReturn:
        raise NotSupportedError(
            f"{name} is not available for QuantileHead, which is a training loss and no likelihood: it serves MLE, "
            "MAP, MCDropout and Ensemble; score its forecasts with crps"
        )
