"""Mean field: independent Gaussian weights, by variational inference.

Weight Uncertainty in Neural Networks, Blundell, Cornebise, Kavukcuoglu and Wierstra 2015; Practical Variational
Inference for Neural Networks, Graves 2011. Its optimum under a Gaussian posterior has the posterior's mean, and as
variances the inverse diagonal of the posterior's precision: too small where weights are correlated.
"""

from dataclasses import dataclass, field

from credibly.core.typing import Params
from credibly.inference.base import check_precision
from credibly.inference.problem import Problem
from credibly.inference.variational import VariationalMethod
from credibly.training.variational import Noise, NoisyLayers
from credibly.training.variational_approximations import Independent
from credibly.training.variational_estimators import Estimator, LocalReparameterization
from credibly.training.variational_priors import FlatWeights, PriorTerm
from credibly.training.variational_uses import find_uses

__all__ = ["MeanField"]


@dataclass(frozen=True, eq=False, kw_only=True)
class MeanField(VariationalMethod):
    """Train an independent Gaussian for every weight.

    Attributes:
        estimator: how the noise of the weights reaches the rows of a batch: `LocalReparameterization()`, `Flipout()` or
            `WeightDraw()`. A layer for which it would be wrong is left to another, which `posterior.info.reason` tells.
    """

    estimator: Estimator = field(default_factory=LocalReparameterization)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.estimator, Estimator):
            raise TypeError(f"`estimator` must be an estimator such as Flipout(); got {self.estimator!r}")

    def _noise(self, problem: Problem, random: Params, prior: PriorTerm, layout: FlatWeights, seed: int) -> Noise:
        check_precision("MeanField", random, bfloat16=True)
        plan = self.estimator.plan(find_uses(problem.model.core, problem.source.first().inputs, random))
        q = Independent(layout.flat(random), self.initial_scale)
        return NoisyLayers(q, prior, layout, self.temperature, plan=plan)

    def _reason(self, noise: Noise) -> str:
        return noise.plan.reason if isinstance(noise, NoisyLayers) else ""
