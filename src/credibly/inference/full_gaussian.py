"""A Gaussian over weights with all covariances, by variational inference: for few weights.

Doubly Stochastic Variational Bayes for non-Conjugate Inference, Titsias and Lazaro-Gredilla 2014. It is trained by the
Cholesky factor of the covariance and one draw of the weights per step. Where the posterior is Gaussian, the result is
the posterior; but steps by gradients take long where weights are strongly correlated a posteriori, so standardise the
inputs, start from trained weights and let the learning rate fall (`schedule=training.linear`).
"""

from dataclasses import dataclass

from credibly.core.checks import check_positive
from credibly.core.errors import NotSupportedError
from credibly.core.typing import Params
from credibly.inference.base import check_precision
from credibly.inference.problem import Problem
from credibly.inference.variational import VariationalMethod
from credibly.training.variational import DrawnWeights
from credibly.training.variational_approximations import FullCovariance
from credibly.training.variational_priors import FlatWeights, PriorTerm

__all__ = ["FullGaussian"]

_TABLES = 6  # the factor, its gradient, two running means of Adam, the best state so far, and one at work


@dataclass(frozen=True, eq=False, kw_only=True)
class FullGaussian(VariationalMethod):
    """Train a Gaussian with a full covariance matrix.

    Attributes:
        path_gradient: train by the gradient without the score of q (Sticking the Landing, Roeder, Wu and Duvenaud
            2017), whose noise vanishes as q comes close to the posterior.
        max_bytes: more memory than this for the covariance and what its training holds is refused.
    """

    path_gradient: bool = True
    max_bytes: float = 4 * 2**30

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("max_bytes", self.max_bytes)

    def _noise(
        self, problem: Problem, random: Params, prior: PriorTerm, layout: FlatWeights, seed: int
    ) -> DrawnWeights:
        check_precision("FullGaussian", random)
        mean = layout.flat(random)
        needed = _TABLES * len(mean) ** 2 * mean.element_size()
        if needed > self.max_bytes:
            raise NotSupportedError(
                f"a full covariance of {len(mean)} weights takes {needed / 2**30:.3g} GiB in training, more than the "
                f"{self.max_bytes / 2**30:.3g} GiB of `max_bytes`; use LowRankGaussian(rank), MeanField, or fewer "
                "random weights (subset=LastLayer())"
            )
        q = FullCovariance(mean, self.initial_scale)
        return DrawnWeights(q, prior, layout, self.temperature, path_gradient=self.path_gradient)
