"""Independent weights from a mixture of Gaussians around 0: a spike of small weights and a slab of large ones.

Weight Uncertainty in Neural Networks, Blundell, Cornebise, Kavukcuoglu, Wierstra 2015:

    log p(w) = log sum_k pi_k Normal(w; 0, s_k).

It is evaluated by a logsumexp of the components' log densities, so that a weight far out in all of them, where the
densities themselves are 0 in floating point, keeps its finite pull -w / max(s)^2.
"""

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, distributions
from torch.distributions import Distribution

from credibly.core.checks import check_positive
from credibly.core.errors import ShapeError
from credibly.core.typing import Params
from credibly.priors.base import FactorisedPrior

__all__ = ["ScaleMixture"]


class ScaleMixture(FactorisedPrior):
    """`w ~ sum_k weights[k] Normal(0, scales[k])` for every weight.

    Args:
        scales: standard deviations of the components.
        weights: their probabilities, above 0, adding up to 1; equal if left out.
    """

    def __init__(self, scales: Sequence[float], weights: Sequence[float] | None = None) -> None:
        super().__init__()
        for name, values in (("scales", scales), ("weights", weights)):
            if values is not None and not isinstance(values, Iterable):
                raise TypeError(f"`{name}` must be a list of numbers, one a component; got {values!r}")
        self.scales = tuple(check_positive("scales", float(scale)) for scale in scales)
        if not self.scales:
            raise ValueError("`scales` must hold at least one standard deviation; got none")
        given = (1 / len(self.scales),) * len(self.scales) if weights is None else weights
        self.weights = tuple(check_positive("weights", float(weight)) for weight in given)
        if len(self.weights) != len(self.scales):
            raise ShapeError(f"`weights` must be as many as `scales`, {len(self.scales)}; got {len(self.weights)}")
        if not math.isclose(sum(self.weights), 1, abs_tol=1e-6):
            raise ValueError(f"`weights` must add up to 1; got {sum(self.weights):g}")

    def log_prob(self, params: Params) -> Tensor:
        """The joint log density."""
        if not params:
            return torch.zeros(())
        flat = torch.cat([weight.reshape(-1) for weight in params.values()])
        constants = [
            math.log(weight) - math.log(scale) - 0.5 * math.log(2 * math.pi)
            for weight, scale in zip(self.weights, self.scales, strict=True)
        ]
        parts = [
            constant - 0.5 * (flat / scale).square() for constant, scale in zip(constants, self.scales, strict=True)
        ]
        return torch.logsumexp(torch.stack(parts), 0).sum()

    def distributions(self, like: Params) -> dict[str, Distribution]:
        """A mixture of Normals per weight."""
        return {name: self._mixture(weight) for name, weight in like.items()}

    def _mixture(self, weight: Tensor) -> Distribution:
        shape = (*weight.shape, len(self.scales))
        probs, scales = (weight.new_tensor(values).expand(shape) for values in (self.weights, self.scales))
        return distributions.MixtureSameFamily(
            distributions.Categorical(probs=probs, validate_args=False),
            distributions.Normal(torch.zeros_like(scales), scales, validate_args=False),
            validate_args=False,
        )
