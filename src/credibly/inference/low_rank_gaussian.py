"""A Gaussian over weights whose covariance is a diagonal plus a product of low rank, by variational inference.

SLANG: Fast Structured Covariance Approximations for Bayesian Deep Learning with Natural Gradient, Mishkin, Kunstner,
Nielsen, Schmidt and Khan 2018, has this family; here it is trained by the gradient of the evidence lower bound at one
draw of the weights per step.
"""

from dataclasses import dataclass, field

from credibly.core.checks import check_count
from credibly.core.params import module_device
from credibly.core.randomness import Stream
from credibly.core.typing import Params
from credibly.inference.base import check_precision
from credibly.inference.problem import Problem
from credibly.inference.variational import VariationalMethod
from credibly.training.variational import DrawnWeights
from credibly.training.variational_approximations import LowRankCovariance
from credibly.training.variational_priors import FlatWeights, PriorTerm

__all__ = ["LowRankGaussian"]


@dataclass(frozen=True, eq=False, kw_only=True)
class LowRankGaussian(VariationalMethod):
    """Train a Gaussian with the covariance D + F F', D diagonal and F of `rank` columns.

    Attributes:
        rank: the number of columns.
        path_gradient: train by the gradient without the score of q (Sticking the Landing, Roeder, Wu and Duvenaud
            2017), whose noise vanishes as q comes close to the posterior.
    """

    rank: int = field(kw_only=False)
    path_gradient: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("rank", self.rank)

    def _noise(
        self, problem: Problem, random: Params, prior: PriorTerm, layout: FlatWeights, seed: int
    ) -> DrawnWeights:
        check_precision("LowRankGaussian", random)
        mean = layout.flat(random)
        noise = Stream(seed, "init", module_device(problem.model)).normal(len(mean), 0, self.rank, mean.dtype)
        q = LowRankCovariance(mean, self.initial_scale, self.rank, noise.mT.contiguous())
        return DrawnWeights(q, prior, layout, self.temperature, path_gradient=self.path_gradient)
