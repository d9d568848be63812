"""Yes or no, once or several times per row, from logits."""

import torch
import torch.nn.functional as F
from torch import Tensor, distributions
from torch.distributions import Distribution, Independent

from credibly.core.checks import check_count
from credibly.likelihoods.base import Likelihood

__all__ = ["Bernoulli"]


class Bernoulli(Likelihood):
    """`P(y = 1) = sigmoid(output)`.

    Args:
        num_outputs: the number of labels per row; with 1 a target is a number, otherwise a vector of 0s and 1s.
    """

    def __init__(self, num_outputs: int = 1) -> None:
        super().__init__()
        self.num_outputs = check_count("num_outputs", num_outputs)

    def parameters_of(self, outputs: Tensor) -> dict[str, Tensor]:
        """`logits`, (*batch,) or (*batch, num_outputs)."""
        return {"logits": outputs if self.num_outputs > 1 else outputs.squeeze(-1)}

    def distribution(self, parameters: dict[str, Tensor]) -> Distribution:
        """A Bernoulli; over several labels, an Independent of them."""
        labels = distributions.Bernoulli(logits=parameters["logits"], validate_args=False)
        return Independent(labels, 1, validate_args=False) if self.num_outputs > 1 else labels

    def log_prob(self, parameters: dict[str, Tensor], targets: Tensor) -> Tensor:
        """`log sigmoid(+-logit)`, -inf for anything but 0 and 1."""
        logits = parameters["logits"]
        density = F.logsigmoid(torch.where(targets > 0.5, logits, -logits))
        density = density.masked_fill((targets != 0) & (targets != 1), -torch.inf)
        return density.sum(-1) if self.num_outputs > 1 else density

    def fisher(self, outputs: Tensor) -> Tensor:
        """`diag(p (1 - p))`."""
        return torch.diag_embed(torch.sigmoid(outputs) * torch.sigmoid(-outputs))
