"""The curvature of the likelihood over the random weights, and what it is with a prior: the posterior's covariance."""

from dataclasses import dataclass

import torch
from torch import Tensor

from credibly.core.errors import NotFiniteError
from credibly.core.linalg.base import PositiveDefinite
from credibly.core.linalg.inverse import inverse
from credibly.core.linalg.low_rank import LowRankPlusDiagonal
from credibly.core.linalg.selected import Selected
from credibly.core.params import trainable_params
from credibly.core.typing import Params
from credibly.inference.gaussian_prior import PriorTerm, added, prior_term
from credibly.model import Model

__all__ = ["Curved", "network_weights"]


@dataclass(frozen=True, eq=False)
class Curved:
    """The curvature of the likelihood over random weights: all of some tensors, or some of their entries.

    Attributes:
        matrix: over the random weights.
        names: of the tensors.
        mask: which entries of their flat vector are random; None for all.
    """

    matrix: PositiveDefinite
    names: tuple[str, ...]
    mask: Tensor | None = None

    def at(self, every: list[str]) -> list[str]:
        """What belongs to the random weights, of one for each weight of the named tensors."""
        return every if self.mask is None else [every[k] for k in self.mask.nonzero().flatten().tolist()]

    def flat(self, weights: Params) -> Tensor:
        """The random weights."""
        whole = torch.cat([weights[name].flatten() for name in self.names])
        return whole if self.mask is None else whole[self.mask.nonzero().squeeze(-1)]

    def prior(self, model: Model) -> PriorTerm:
        """Of the random weights."""
        term = prior_term(model.prior, network_weights(model), self.names)
        return term if self.mask is None else term.at(self.mask.nonzero().squeeze(-1))

    def covariance(self, model: Model) -> PositiveDefinite:
        """The inverse of the curvature of the log joint."""
        prior = self.prior(model)
        precision = added(self.matrix, prior.precision)
        _check_determined(precision, prior)
        return inverse(precision) if self.mask is None else Selected(inverse(precision), self.mask)


def network_weights(model: Model) -> Params:
    """All trainable weights of the network."""
    return {name: value for name, value in trainable_params(model.core).items() if name.startswith("net.")}


def _check_determined(precision: PositiveDefinite, prior: PriorTerm) -> None:
    """Where the prior is flat, the data must say something about every direction."""
    by_factor = isinstance(precision, LowRankPlusDiagonal) and prior.is_flat  # which never spans all weights
    logdet = precision.like.new_tensor(torch.nan) if by_factor else precision.logdet()
    size, rounding = precision.size, torch.finfo(precision.like.dtype).eps
    determined = bool(logdet.isfinite())
    if determined and prior.is_flat:
        variances = precision.inverse_diagonal()
        determined = bool(variances.max() * precision.diagonal().max() * size * rounding < 1)
    if not determined:
        what = "and the prior is flat, so" if prior.is_flat else "so"
        raise NotFiniteError(
            f"the data do not determine all of the {size} random weights {what} the posterior is no Gaussian; give all "
            "weights a proper prior, such as priors.Normal, or fewer of them a spread (subset=LastLayer())"
        )
