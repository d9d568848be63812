"""Class probabilities without draws, as a probit approximation gives them.

There is nothing to compare the marginal prediction with, so that mutual information is refused by name.
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Distribution

from credibly.core.errors import ShapeError
from credibly.distributions.marginal import MarginalPredictive
from credibly.distributions.rows import Change, rebuild

__all__ = ["ClassPredictive"]


class ClassPredictive(MarginalPredictive):
    """Class probabilities of every row.

    Args:
        logits: (batch,), the log odds of an event, or (batch, classes), log probabilities up to a constant.

    Raises:
        ShapeError: another number of axes, or a single class.
    """

    def __init__(self, logits: Tensor) -> None:
        if logits.dim() not in (1, 2) or (logits.dim() == 2 and logits.shape[-1] < 2):
            raise ShapeError(f"`logits` must have shape (batch,) or (batch, classes >= 2); got {tuple(logits.shape)}")
        family = Bernoulli if logits.dim() == 1 else Categorical
        super().__init__(family(logits=logits, validate_args=False))
        self.logits = logits


@rebuild.register(ClassPredictive)
def _(d: ClassPredictive, others: Sequence[Any], change: Change) -> Distribution:
    return ClassPredictive(change([e.logits for e in (d, *others)], d.logits.dim() - 1))
