"""Compositions: shares of a whole, which are above 0 and sum to 1.

Concentrations that depend on inputs: "Multivariate Methods for Proportional Shape", Campbell and Mosimann, 1987.
"""

import torch
from torch import Tensor, distributions
from torch.distributions import Distribution

from credibly.core.checks import check_positive
from credibly.core.errors import ShapeError, SupportError
from credibly.core.typing import ArrayLike
from credibly.distributions.joint import dirichlet_log_prob
from credibly.likelihoods.base import Likelihood
from credibly.likelihoods.elements import shape_of
from credibly.likelihoods.offsets import add_offset

__all__ = ["Dirichlet"]


class Dirichlet(Likelihood):
    """`y ~ Dirichlet(exp(outputs) + min_concentration)`, with mean softmax(outputs); a target is a row of shares.

    Args:
        num_classes: the number of shares, which is the number of outputs.
        min_concentration: the floor of the concentrations.
    """

    def __init__(self, num_classes: int, *, min_concentration: float = 1e-3) -> None:
        super().__init__()
        if num_classes < 2:
            raise ValueError(f"`num_classes` must be 2 or more; got {num_classes}")
        self.num_classes = num_classes
        self.num_outputs = num_classes
        self.min_concentration = check_positive("min_concentration", min_concentration)

    def parameters_of(self, outputs: Tensor) -> dict[str, Tensor]:
        """`concentration`, (*batch, num_classes)."""
        return {"concentration": shape_of(outputs) + self.min_concentration}

    def distribution(self, parameters: dict[str, Tensor]) -> Distribution:
        """A Dirichlet."""
        return distributions.Dirichlet(parameters["concentration"], validate_args=False)

    def log_prob(self, parameters: dict[str, Tensor], targets: Tensor) -> Tensor:
        """The joint log density, -inf off the open simplex."""
        return dirichlet_log_prob(parameters["concentration"], targets)

    def with_offset(self, outputs: Tensor, offset: Tensor) -> Tensor:
        """The outputs with an offset for each class.

        Raises:
            ShapeError: one number a row, which moves no share.
        """
        if offset.shape != outputs.shape:
            raise ShapeError(
                f"the offset of Dirichlet must have one number a class, {tuple(outputs.shape)}: the same for all of "
                f"them moves no share; got {tuple(offset.shape)}"
            )
        return add_offset(outputs, offset)

    def fisher(self, outputs: Tensor) -> Tensor:
        """`diag(trigamma(a)) - trigamma(sum a)`, times the slopes of the concentrations a on both sides."""
        concentration = self.parameters_of(outputs)["concentration"]
        slope = shape_of(outputs)
        shared = torch.special.polygamma(1, concentration.sum(-1))[..., None, None]
        own = torch.diag_embed(torch.special.polygamma(1, concentration))
        information: Tensor = slope.unsqueeze(-1) * (own - shared) * slope.unsqueeze(-2)
        return information

    def possible_target(self, outputs: Tensor) -> Tensor:
        """Equal shares."""
        return outputs.new_full((), 1 / self.num_classes)

    def match_targets(self, targets: ArrayLike, outputs: Tensor) -> Tensor:
        """As for every likelihood; a refusal says what to do about zeros."""
        try:
            return super().match_targets(targets, outputs)
        except SupportError as error:
            raise SupportError(
                f"{error}; zeros have no density: put a small share in their place and divide each row by its sum, "
                "y = (y + e) / (1 + e * num_classes)"
            ) from None
