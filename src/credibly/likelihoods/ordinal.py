"""Ordered classes (ratings, grades, stages) by proportional odds.

    P(y <= k) = sigmoid(c_k - output),   c_0 < c_1 < ... learned along with the weights

(Regression Models for Ordinal Data, McCullagh 1980.) The output moves all cumulative odds by the same factor. The
Fisher information in it is the sum over classes of P(y = k) (P(y < k) - P(y > k))^2.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Distribution

from credibly.distributions.ordinal import Ordinal as OrderedClasses
from credibly.distributions.ordinal import gather_class, ordered_log_probs
from credibly.likelihoods.base import Likelihood

__all__ = ["Ordinal"]

_FLOOR = 1e-4


class Ordinal(Likelihood):
    """`P(y <= k) = sigmoid(cutpoint_k - output)`; targets are indices 0, ..., num_classes - 1, in order.

    The cutpoints are parameters, `first_cutpoint` and `raw_gaps`: each of the others lies `softplus(raw_gap) + 1e-4`
    above the one before it. They begin where all classes are equally probable at output 0. A shift of all cutpoints
    and one of the output are the same: without a prior, give the network's last layer no bias.

    Args:
        num_classes: the number of classes, 2 or more.
    """

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        if num_classes < 2:
            raise ValueError(f"`num_classes` must be 2 or more; got {num_classes}")
        self.num_classes = num_classes
        self.num_outputs = 1
        self.first_cutpoint = nn.Parameter(torch.empty(()))
        self.raw_gaps = nn.Parameter(torch.empty(num_classes - 2))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Put the cutpoints back to their start."""
        levels = torch.arange(1, self.num_classes, dtype=torch.float64) / self.num_classes
        start = torch.logit(levels)
        gaps = start.diff() - _FLOOR
        with torch.no_grad():
            self.first_cutpoint.fill_(-math.log(self.num_classes - 1))
            self.raw_gaps.copy_(gaps + torch.log(-torch.expm1(-gaps)))  # the inverse of softplus

    def cutpoints(self) -> Tensor:
        """The cutpoints, (num_classes - 1,), increasing."""
        gaps = F.softplus(self.raw_gaps) + _FLOOR
        return torch.cat([self.first_cutpoint.unsqueeze(0), self.first_cutpoint + gaps.cumsum(0)])

    def parameters_of(self, outputs: Tensor) -> dict[str, Tensor]:
        """`loc`, (*batch,), and `cutpoints`, (*batch, num_classes - 1)."""
        loc = outputs.squeeze(-1)
        return {"loc": loc, "cutpoints": self.cutpoints().to(loc.dtype).expand(*loc.shape, -1)}

    def distribution(self, parameters: dict[str, Tensor]) -> Distribution:
        """A distribution over ordered classes."""
        return OrderedClasses(parameters["loc"], parameters["cutpoints"])

    def log_prob(self, parameters: dict[str, Tensor], targets: Tensor) -> Tensor:
        """The log probability of the class, -inf where there is no such class."""
        return gather_class(ordered_log_probs(parameters["loc"], parameters["cutpoints"]), targets)

    def fisher(self, outputs: Tensor) -> Tensor:
        """The sum over classes of `P(y = k) (P(y < k) - P(y > k))^2`."""
        parameters = self.parameters_of(outputs.double())
        probs = ordered_log_probs(parameters["loc"], parameters["cutpoints"]).exp()
        distance = parameters["cutpoints"] - outputs.double()
        below = F.pad(torch.sigmoid(distance), (1, 0))  # P(y < k)
        above = F.pad(torch.sigmoid(-distance), (0, 1))  # P(y > k)
        information = (probs * (below - above).square()).sum(-1)
        return information.to(outputs.dtype).unsqueeze(-1).unsqueeze(-1)
