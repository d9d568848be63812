"""A joint Gaussian over named weights: what was learned from one data set, as the prior of the next.

log p(w) = -(w - m)' P (w - m) / 2 + log det(P) / 2 - (d/2) log(2 pi), over the d weights one after another in the order
of their names in the mean. The posterior of a first data set, as the prior of a second, gives the posterior of both;
exactly so where posteriors are Gaussian.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from credibly.core.errors import NotFiniteError, ShapeError
from credibly.core.linalg.base import PositiveDefinite
from credibly.core.linalg.dense import Dense
from credibly.core.linalg.diagonal import Diagonal
from credibly.core.params import check_params
from credibly.core.randomness import Stream, base_seed
from credibly.core.typing import Params
from credibly.priors.base import Prior

__all__ = ["GaussianPrior"]


class GaussianPrior(Prior):
    """`w ~ Normal(mean, precision^-1)` over exactly the named weights.

    Args:
        mean: of each weight, by name.
        precision: of the flat vector of all weights in this order: (d,) where they are independent; (d, d), symmetric
            and positive definite; or in a structure of `core.linalg`, as posteriors give it.

    Raises:
        ShapeError: the precision does not fit the mean.
        NotFiniteError: a mean that is NaN or infinite.
        ValueError: the precision is not positive definite, or the mean names nothing.
    """

    location: Tensor
    precision: PositiveDefinite

    def __init__(self, mean: Params, precision: Tensor | PositiveDefinite) -> None:
        super().__init__()
        if not mean:
            raise ValueError("`mean` must name at least one weight; got none")
        flat = torch.cat([value.detach().reshape(-1) for value in mean.values()])
        if not bool(flat.isfinite().all()):
            raise NotFiniteError("`mean` must be finite")
        structure = precision if isinstance(precision, PositiveDefinite) else _structure(precision, len(flat))
        if structure.size != len(flat):
            raise ShapeError(f"`precision` must be over {len(flat)} weights; got {structure.size}")
        self._shapes = {name: value.shape for name, value in mean.items()}
        self.register_buffer("location", flat.clone())
        self._log_det = float(structure.map(lambda part: part.detach().double()).logdet())
        self.precision = structure.map(lambda part: part.detach().to(flat, copy=True))

    @classmethod
    def from_draws(cls, draws: Params, *, dense: bool = False) -> "GaussianPrior":
        """The Gaussian with the mean and the (co)variance of draws, the latter unbiased (divided by draws - 1).

        Args:
            draws: each weight by name, (num_draws, ...).
            dense: keep the covariances between weights; it takes more draws than there are weights.

        Raises:
            ValueError: too few draws, or a weight that is the same in all of them.
        """
        table = torch.cat([value.detach().reshape(len(value), -1) for value in draws.values()], 1).double()
        num_draws, size = table.shape
        needed = size + 1 if dense else 2
        if num_draws < needed:
            raise ValueError(f"moments of {size} weights need at least {needed} draws; got {num_draws}")
        for name, value in draws.items():
            if bool((value == value[:1]).all(0).any()):
                raise ValueError(f"the weight `{name}` has entries that are the same in all draws; they have no spread")
        covariance = torch.cov(table.T).reshape(size, size) if dense else table.var(0)
        precision = torch.linalg.inv(covariance) if dense else 1 / covariance
        mean = {name: value.detach().double().mean(0).to(value.dtype) for name, value in draws.items()}
        return cls(mean, (precision + precision.T) / 2 if dense else precision)

    @property
    def mean(self) -> Params:
        """The mean of each weight, by name."""
        return self._named(self.location)

    @property
    def names(self) -> tuple[str, ...]:
        """The weights that it covers."""
        return tuple(self._shapes)

    def log_prob(self, params: Params) -> Tensor:
        """The joint log density.

        Raises:
            ValueError: other names than those of the mean.
            ShapeError: another shape.
        """
        if params.keys() > self._shapes.keys():
            others = [name for name in params if name not in self._shapes]
            raise ValueError(f"the prior has no density over {others}; it covers {list(self.names)}")
        check_params(params, self.mean, "params")
        flat = torch.cat([params[name].reshape(-1) for name in self.names])
        offset = flat - self.location.to(flat)
        squared = self._precision(flat).matmul(offset).dot(offset)
        return -0.5 * squared + 0.5 * self._log_det - 0.5 * len(flat) * math.log(2 * math.pi)

    def sample(self, like: Params, num_draws: int, *, seed: int | None = None) -> Params:
        """Joint draws of all weights by name, each (num_draws, ...), in the dtype and on the device of `like`."""
        check_params(like, self.mean, "like")
        weight = like[self.names[0]]
        noise = Stream(base_seed(seed), "prior", weight.device).normal(len(self.location), 0, num_draws, weight.dtype)
        return self._named(self.location.to(weight) + self._precision(weight).inverse_root(noise))

    def _precision(self, like: Tensor) -> PositiveDefinite:
        own = self.precision.like
        if (own.dtype, own.device) == (like.dtype, like.device):
            return self.precision
        return self.precision.map(lambda part: part.to(like))  # type: ignore[no-any-return]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "GaussianPrior":
        """Move the precision with the module."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.precision = self.precision.map(fn)
        return self

    def _named(self, flat: Tensor) -> Params:
        """A flat vector, (..., d), as weights by name, (..., *shape)."""
        parts = torch.split(flat, [shape.numel() for shape in self._shapes.values()], -1)
        pairs = zip(self._shapes.items(), parts, strict=True)
        return {name: part.reshape((*flat.shape[:-1], *shape)) for (name, shape), part in pairs}


def _structure(precision: Tensor, size: int) -> PositiveDefinite:
    if precision.shape not in ((size,), (size, size)):
        raise ShapeError(f"`precision` must have shape {(size,)} or {(size, size)}; got {(*precision.shape,)}")
    if precision.dim() == 1:
        if not bool(((precision > 0) & precision.isfinite()).all()):
            raise ValueError("`precision` must be finite and above 0")
        return Diagonal(precision)
    _, failed = torch.linalg.cholesky_ex(precision)
    if bool(failed) or not torch.allclose(precision, precision.T):
        raise ValueError("`precision` must be symmetric and positive definite")
    return Dense(precision)
