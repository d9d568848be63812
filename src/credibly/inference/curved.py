"""The curvature of the likelihood over the random weights, and what it is with a prior: the posterior's covariance."""

import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

from credibly.core.errors import ConvergenceWarning, NotFiniteError
from credibly.core.linalg.base import PositiveDefinite
from credibly.core.linalg.blocks import Blocks
from credibly.core.linalg.dense import Dense
from credibly.core.linalg.inverse import inverse
from credibly.core.linalg.kronecker import Kronecker
from credibly.core.linalg.low_rank import LowRankPlusDiagonal
from credibly.core.linalg.selected import Selected
from credibly.core.params import network_weights
from credibly.core.typing import Params
from credibly.inference.gaussian_prior import PriorTerm, added, prior_term
from credibly.model import Model

__all__ = ["Curved"]

_ROUNDED = 0.05  # a share of rounding in a variance that is worth a word
_UNDETERMINED = 0.005  # one that, under a flat prior, a direction has that the data say nothing about


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
        term = prior_term(model.prior, network_weights(model.core), self.names)
        return term if self.mask is None else term.at(self.mask.nonzero().squeeze(-1))

    def covariance(self, prior: PriorTerm, *, warn: bool = True) -> PositiveDefinite:
        """The inverse of the curvature of the log joint.

        Args:
            prior: of the random weights.
            warn: of variances that rounding has a part in.
        """
        precision = added(self.matrix, prior.precision)
        _check_determined(precision, prior)
        if warn:
            _warn_of_rounding(precision)
        return inverse(precision) if self.mask is None else Selected(inverse(precision), self.mask)


def _check_determined(precision: PositiveDefinite, prior: PriorTerm) -> None:
    """Where the prior is flat, the data must say something about every direction."""
    by_factor = isinstance(precision, LowRankPlusDiagonal) and prior.is_flat_somewhere  # which never spans all weights
    logdet = precision.like.new_tensor(torch.nan) if by_factor else precision.logdet()
    determined = bool(logdet.isfinite())
    if determined and prior.is_flat_somewhere:
        determined = _share_of_rounding(precision) < _UNDETERMINED
    if not determined:
        what = "and the prior is flat, so" if prior.is_flat_somewhere else "so"
        raise NotFiniteError(
            f"the data do not determine all of the {precision.size} random weights {what} the posterior is no "
            "Gaussian; give all weights a proper prior, such as priors.Normal, or fewer of them a spread "
            "(subset=LastLayer())"
        )


def _warn_of_rounding(precision: PositiveDefinite) -> None:
    """Where the prior is so weak that the rounding of the curvature is a part of it."""
    if isinstance(precision, Dense):  # which fails
        return
    share = _share_of_rounding(precision)
    if share > _ROUNDED:
        warnings.warn(
            f"rounding has a share of some {share:.0%} or more in the variance of a weight, because the prior "
            "is weak beside the curvature: use a stronger prior, or a network of float64",
            ConvergenceWarning,
            stacklevel=2,
        )


def _share_of_rounding(precision: PositiveDefinite) -> float:
    """Of a variance, roughly: of the largest it times the rounding of the largest eigenvalue.

    Of a sum with a matrix of low rank it is the least variance that suffers.
    """
    if isinstance(precision, LowRankPlusDiagonal):
        return precision.share_of_rounding()
    if isinstance(precision, Dense):
        variance = precision.factor.diagonal().min() ** -2
    else:
        variance = precision.inverse_diagonal().max()
    return float(variance * _largest_eigenvalue(precision)) * torch.finfo(precision.like.dtype).eps


def _largest_eigenvalue(matrix: PositiveDefinite) -> Tensor:
    """Or a little more; of a structure without eigenvalues the largest entry of the diagonal, which is less."""
    if isinstance(matrix, Blocks):
        return torch.stack([_largest_eigenvalue(block) for block in matrix.blocks]).max()
    if isinstance(matrix, Kronecker):
        return matrix.values.max()
    return matrix.matrix.norm() if isinstance(matrix, Dense) else matrix.diagonal().max()
