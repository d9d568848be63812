"""Mixtures of Gaussians, for targets of which several values are plausible.

The network gives weights, locations and scales of every row ("Mixture Density Networks", Bishop, 1994).
"""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import Categorical, Distribution, Independent, MixtureSameFamily, Normal

from credibly.core.checks import check_count, check_positive
from credibly.core.errors import NotSupportedError
from credibly.likelihoods.base import Likelihood
from credibly.likelihoods.gaussian import gaussian_log_prob
from credibly.likelihoods.offsets import add_offset

__all__ = ["MixtureDensity"]

# breakpoints of the panels of quadrature about every component, in its scales; beyond 9 lies less than 1e-18
_KNOTS = (-9.0, -6.0, -4.5, -3.5, -2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 3.5, 4.5, 6.0, 9.0)
_NODES = 12


class MixtureDensity(Likelihood):
    """`p(y) = sum_k w_k Normal(y; loc_k, scale_k)`, with `w = softmax(raw)` and `scale = softplus(raw) + min_scale`.

    The components have no order: equally good networks differ by a permutation.

    Args:
        num_components: K. The network gives K raw weights, then the locations and the raw scales, component by
            component.
        num_targets: D, the number of targets per row; with 1 a target is a number. The components of a vector have
            independent elements, which depend on each other through the component that they share.
        min_scale: the floor of the scales, on the network's side of any standardisation: without it a component may
            collapse onto one row.
    """

    def __init__(self, num_components: int, num_targets: int = 1, *, min_scale: float = 1e-3) -> None:
        super().__init__()
        self.num_components = check_count("num_components", num_components)
        self.num_targets = check_count("num_targets", num_targets)
        self.num_outputs = num_components * (1 + 2 * num_targets)
        self.min_scale = check_positive("min_scale", min_scale)

    def parameters_of(self, outputs: Tensor) -> dict[str, Tensor]:
        """`logits` (*batch, K), `loc` and `scale`, each (*batch, K) or (*batch, K, D)."""
        logits, loc, raw = self._parts(outputs)
        return {"logits": logits, "loc": loc, "scale": F.softplus(raw) + self.min_scale}

    def _parts(self, outputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        count = self.num_components
        size = count * self.num_targets
        logits, loc, raw = torch.split(outputs, [count, size, size], -1)
        if self.num_targets > 1:
            shape = (count, self.num_targets)
            loc, raw = (part.reshape(part.shape[:-1] + shape) for part in (loc, raw))
        return logits, loc, raw

    def distribution(self, parameters: dict[str, Tensor]) -> Distribution:
        """A MixtureSameFamily of Normals; over vectors, of Independents of them."""
        components: Distribution = Normal(parameters["loc"], parameters["scale"], validate_args=False)
        if self.num_targets > 1:
            components = Independent(components, 1, validate_args=False)
        weights = Categorical(logits=parameters["logits"], validate_args=False)
        return MixtureSameFamily(weights, components, validate_args=False)

    def log_prob(self, parameters: dict[str, Tensor], targets: Tensor) -> Tensor:
        """The log density of the mixture, joint over a vector."""
        return torch.logsumexp(self._joint(parameters, targets), -1)

    def _joint(self, parameters: dict[str, Tensor], targets: Tensor) -> Tensor:
        """The log density of target and component: (*batch, K)."""
        event = self.num_targets > 1
        spread = targets.unsqueeze(-2 if event else -1)
        each = gaussian_log_prob(parameters["loc"], parameters["scale"], spread, event=event)
        return parameters["logits"].log_softmax(-1) + each

    def fisher(self, outputs: Tensor) -> Tensor:
        """By Gauss-Legendre quadrature on panels that follow the components; of one target only.

        Raises:
            NotSupportedError: vectors, whose expectation is an integral over as many dimensions; outer products of
                `sample_scores` have it as their mean.
        """
        if self.num_targets > 1:
            raise NotSupportedError(
                f"the Fisher matrix of MixtureDensity is for one target; with {self.num_targets}, use sample_scores"
            )
        wide = outputs.detach().double()
        parameters = self.parameters_of(wide)
        values, widths = _panels(parameters["loc"], parameters["scale"])
        joint = self._joint({name: value.unsqueeze(-2) for name, value in parameters.items()}, values)
        scores = self._scores_at(wide.unsqueeze(-2), values, joint.softmax(-1))
        masses = widths * joint.logsumexp(-1).exp()
        return torch.einsum("...k,...kc,...kd->...cd", masses, scores, scores).to(outputs.dtype)

    def _scores_at(self, outputs: Tensor, values: Tensor, shares: Tensor) -> Tensor:
        """Gradients in the outputs, for the share of each component in each value: (*batch, nodes, num_outputs)."""
        logits, loc, raw = self._parts(outputs)
        scale = F.softplus(raw) + self.min_scale
        z = (values.unsqueeze(-1) - loc) / scale
        of_scale = shares * (z.square() - 1) / scale * torch.sigmoid(raw)
        return torch.cat([shares - logits.softmax(-1), shares * z / scale, of_scale], -1)

    def with_offset(self, outputs: Tensor, offset: Tensor) -> Tensor:
        """The outputs with the offset added to the locations of all components, not to weights and raw scales."""
        count, size = self.num_components, self.num_components * self.num_targets
        before, loc, after = torch.split(outputs, [count, size, size], -1)
        return torch.cat([before, add_offset(loc, offset), after], -1)

    def standardized(self, loc: Tensor, scale: Tensor) -> "MixtureDensity":
        """Itself: all parameters are predicted on the network's side."""
        return MixtureDensity(self.num_components, self.num_targets, min_scale=self.min_scale)


def _panels(loc: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Nodes (*batch, nodes) and the width that each stands for, between the sorted knots of all components."""
    knots = loc.new_tensor(_KNOTS)
    ends = (loc.unsqueeze(-1) + scale.unsqueeze(-1) * knots).flatten(-2).sort(-1).values
    nodes, weights = (loc.new_tensor(part) for part in np.polynomial.legendre.leggauss(_NODES))
    half, middle = ends.diff(dim=-1) / 2, (ends[..., 1:] + ends[..., :-1]) / 2
    values = middle.unsqueeze(-1) + half.unsqueeze(-1) * nodes
    return values.flatten(-2), (half.unsqueeze(-1) * weights).flatten(-2)
