"""Maximum likelihood: the weights under which the data are most probable."""

from dataclasses import dataclass
from typing import ClassVar

from credibly.inference.point import PointMethod

__all__ = ["MLE"]


@dataclass(frozen=True, eq=False, kw_only=True)
class MLE(PointMethod):
    """Train one set of weights on the likelihood alone. The options are those of training."""

    with_prior: ClassVar[bool] = False
