"""One of several classes, from logits."""

import torch
from torch import Tensor, distributions
from torch.distributions import Distribution

from credibly.core.errors import ShapeError
from credibly.distributions.shapes import broadcast_shape
from credibly.likelihoods.base import Likelihood
from credibly.likelihoods.offsets import add_offset

__all__ = ["Categorical"]


class Categorical(Likelihood):
    """`P(y = k) = softmax(outputs)_k`; targets are indices 0, ..., num_classes - 1.

    Args:
        num_classes: the number of classes, which is the number of outputs.
    """

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        if num_classes < 2:
            raise ValueError(f"`num_classes` must be 2 or more; got {num_classes}")
        self.num_classes = num_classes
        self.num_outputs = num_classes

    def parameters_of(self, outputs: Tensor) -> dict[str, Tensor]:
        """`logits`, (*batch, num_classes)."""
        return {"logits": outputs}

    def distribution(self, parameters: dict[str, Tensor]) -> Distribution:
        """A Categorical."""
        return distributions.Categorical(logits=parameters["logits"], validate_args=False)

    def log_prob(self, parameters: dict[str, Tensor], targets: Tensor) -> Tensor:
        """The log softmax at the class, -inf where there is no such class."""
        logits = parameters["logits"].log_softmax(-1)
        index = targets.long().clamp(0, self.num_classes - 1)
        batch = broadcast_shape(index.shape, logits.shape[:-1])
        density = logits.expand(*batch, -1).gather(-1, index.expand(batch).unsqueeze(-1)).squeeze(-1)
        return torch.where(index == targets, density, -torch.inf)

    def with_offset(self, outputs: Tensor, offset: Tensor) -> Tensor:
        """The outputs with an offset for each class.

        Raises:
            ShapeError: one number a row, which changes nothing.
        """
        if offset.shape != outputs.shape:
            raise ShapeError(
                f"the offset of Categorical must have one number a class, {tuple(outputs.shape)}: the same for all of "
                f"them changes nothing; got {tuple(offset.shape)}"
            )
        return add_offset(outputs, offset)

    def fisher(self, outputs: Tensor) -> Tensor:
        """`diag(p) - p p^T`."""
        p = outputs.softmax(-1)
        return torch.diag_embed(p) - p.unsqueeze(-1) * p.unsqueeze(-2)

    def fisher_root(self, outputs: Tensor) -> Tensor:
        r"""The triangular root in closed form, in one column less than there are classes.

            L_jj = sqrt(p_j q_j / q_(j-1)),   L_ij = -L_jj p_i / q_j for i > j,   q_j = sum over i > j of p_i

        (Tanabe and Sagae 1992, An Exact Cholesky Decomposition and the Generalized Inverse of the Variance-Covariance
        Matrix of the Multinomial Distribution). Where one class is all but certain, `diag(p) - p p^T` rounds to 0 and
        this does not.
        """
        p = outputs.softmax(-1)
        least = torch.finfo(p.dtype).tiny
        from_here = p.flip(-1).cumsum(-1).flip(-1).clamp(min=least)  # q_(j-1)
        after = from_here[..., 1:]
        diagonal = (p[..., :-1] * (after / from_here[..., :-1])).sqrt()
        below = (-p.unsqueeze(-1) / after.unsqueeze(-2)).tril(-1)
        return (below + torch.eye(self.num_classes, self.num_classes - 1).to(p)) * diagonal.unsqueeze(-2)
