"""Maximum a posteriori: the most probable weights given the data. The prior is the regulariser.

With a Normal prior this is L2 regularisation (ridge regression for a linear network), with a Laplace prior L1.
"""

from dataclasses import dataclass
from typing import ClassVar

from credibly.inference.point import PointMethod

__all__ = ["MAP"]


@dataclass(frozen=True, eq=False, kw_only=True)
class MAP(PointMethod):
    """Train one set of weights on likelihood and prior. The options are those of training."""

    with_prior: ClassVar[bool] = True
