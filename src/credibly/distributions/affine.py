"""Predictions in other units: y = loc + scale * z, with z as the base predicts it.

Densities follow the change of variables, log p(y) = log p_z((y - loc)/scale) - log scale; quantiles and
means are mapped, variances and scores multiplied. Families closed under the map stay what they are.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributions import (
    Distribution,
    Independent,
    Laplace,
    Normal,
    StudentT,
    Uniform,
    constraints,
)

from credibly.core.checks import as_tensor
from credibly.core.errors import NotSupportedError, ShapeError
from credibly.core.typing import ArrayLike
from credibly.distributions.crps import crps
from credibly.distributions.cumulative import cdf, icdf
from credibly.distributions.density import element_log_prob, safe_log_prob
from credibly.distributions.kinds import base_of, kind, reference
from credibly.distributions.moments import entropy, mean, variance
from credibly.distributions.operations import Operation
from credibly.distributions.predictive import Predictive
from credibly.distributions.rows import Change, rebuild
from credibly.distributions.targets import any_draw, inside_support, match_targets

__all__ = ["AffineView", "affine"]


class AffineView(Predictive):
    """The distribution of loc + scale * z for z from the base.

    Args:
        base: a distribution of real numbers.
        loc: shift in the new units; broadcasts to (rows, *event_shape).
        scale: new units per old unit, above 0; broadcasts likewise.

    Raises:
        NotSupportedError: the base is over counts or classes.
        ShapeError: loc or scale does not broadcast.
        ValueError: a scale is not finite and above 0, or a shift not finite.
    """

    def __init__(self, base: Distribution, loc: ArrayLike, scale: ArrayLike) -> None:
        _require_real(base)
        self.base = base
        self.loc, self.scale = _units(base, loc, scale)
        super().__init__(base.batch_shape, base.event_shape)

    @property
    def has_rsample(self) -> bool:  # type: ignore[override]
        """Whether the base's draws carry gradients."""
        return bool(self.base.has_rsample)

    @property
    def aleatoric_variance(self) -> Tensor:
        """The base's, in squared new units."""
        return self.scale**2 * self._predicted("aleatoric_variance").aleatoric_variance

    @property
    def epistemic_variance(self) -> Tensor:
        """The base's, in squared new units."""
        return self.scale**2 * self._predicted("epistemic_variance").epistemic_variance

    def joint_log_prob(self, value: ArrayLike) -> Tensor:
        """The base's, by the change of variables."""
        base = self._predicted("joint_log_prob")
        standard = self.standard(match_targets(self, value))
        return base.joint_log_prob(standard) - torch.log(self.scale).sum()

    def _element_support(self) -> Any:
        """The base's, in the new units."""
        support: Any = base_of(self.base).support
        lower: Any = getattr(support, "lower_bound", None)
        upper: Any = getattr(support, "upper_bound", None)
        if lower is None and upper is None:
            return support
        if upper is None:
            return constraints.greater_than_eq(self.loc + self.scale * lower)  # type: ignore[no-untyped-call]
        if lower is None:
            return constraints.less_than(self.loc + self.scale * upper)  # type: ignore[no-untyped-call]
        return constraints.interval(self.loc + self.scale * lower, self.loc + self.scale * upper)  # type: ignore[no-untyped-call]

    def standard(self, value: Tensor) -> Tensor:
        """The values in the base's units."""
        return (value - self.loc) / self.scale

    def _predicted(self, name: str) -> Predictive:
        if not isinstance(self.base, Predictive):
            self._refuse(name)
        return self.base

    def _draw(self, shape: torch.Size) -> Tensor:
        draws = self.base.rsample(shape) if self.has_rsample else self.base.sample(shape)
        return self.loc + self.scale * draws


def _require_real(d: Distribution) -> None:
    if kind(d) != "real":
        raise NotSupportedError(
            f"{type(base_of(d)).__name__} is over {'classes' if kind(d) == 'class' else 'counts'}, "
            "which have no other units"
        )


def _units(d: Distribution, loc: ArrayLike, scale: ArrayLike) -> tuple[Tensor, Tensor]:
    like = reference(d)
    pair = []
    for name, value in (("loc", loc), ("scale", scale)):
        tensor = as_tensor(value, dtype=like.dtype, device=like.device).to(like.dtype)
        try:
            pair.append(tensor.expand(d.batch_shape + d.event_shape))
        except RuntimeError:
            needed, came = tuple(d.batch_shape + d.event_shape), tuple(tensor.shape)
            raise ShapeError(f"`{name}` must broadcast to {needed}; got {came}") from None
    if not bool((torch.isfinite(pair[0]) & torch.isfinite(pair[1]) & (pair[1] > 0)).all()):
        raise ValueError("`loc` must be finite and `scale` finite and above 0")
    return pair[0], pair[1]


class _Affine(Operation[[Any, Any], Distribution]):
    """Checks the units once, at the outermost distribution; the entries meet tensors that broadcast to it."""

    def __call__(self, d: Distribution, loc: ArrayLike, scale: ArrayLike) -> Distribution:
        _require_real(d)
        return self.formula(d, *_units(d, loc, scale))


@_Affine
def affine(d: Distribution, loc: Tensor, scale: Tensor) -> Distribution:
    """The distribution of loc + scale * z for z from `d`: the same family where it is closed, else a view.

    A type of your own is made closed with `affine.register(MyDistribution)`.

    Args:
        d: a distribution of real numbers.
        loc: shift, broadcasts to (rows, *event_shape).
        scale: factor above 0, broadcasts likewise.

    Raises:
        NotSupportedError, ShapeError, ValueError: see `AffineView`.
    """
    return AffineView(d, loc, scale)


@affine.register(Normal)
def _(d: Normal, loc: Tensor, scale: Tensor) -> Distribution:
    return Normal(loc + scale * d.loc, scale * d.scale, validate_args=False)


@affine.register(Laplace)
def _(d: Laplace, loc: Tensor, scale: Tensor) -> Distribution:
    return Laplace(loc + scale * d.loc, scale * d.scale, validate_args=False)


@affine.register(StudentT)
def _(d: StudentT, loc: Tensor, scale: Tensor) -> Distribution:
    return StudentT(d.df, loc + scale * d.loc, scale * d.scale, validate_args=False)


@affine.register(Uniform)
def _(d: Uniform, loc: Tensor, scale: Tensor) -> Distribution:
    return Uniform(loc + scale * d.low, loc + scale * d.high, validate_args=False)


@affine.register(Independent)
def _(d: "Independent[Any]", loc: Tensor, scale: Tensor) -> Distribution:
    return Independent(affine.formula(d.base_dist, loc, scale), d.reinterpreted_batch_ndims, validate_args=False)


@affine.register(AffineView)
def _(d: AffineView, loc: Tensor, scale: Tensor) -> Distribution:
    return AffineView(d.base, loc + scale * d.loc, scale * d.scale)


@base_of.register(AffineView)
def _(d: AffineView) -> Distribution:
    return base_of(d.base)


@rebuild.register(AffineView)
def _(d: AffineView, others: Sequence[Any], change: Change) -> Distribution:
    every, trailing = (d, *others), len(d.event_shape)
    return AffineView(
        rebuild(d.base, [e.base for e in others], change),
        change([e.loc for e in every], trailing),
        change([e.scale for e in every], trailing),
    )


@inside_support.register(AffineView)
def _(d: AffineView, targets: Tensor) -> Tensor:
    return any_draw(inside_support(d.base, d.standard(targets)), targets.dim())


@safe_log_prob.register(AffineView)
def _(d: AffineView, y: Tensor) -> Tensor:
    log_scale = torch.log(d.scale)
    axes = tuple(range(-len(d.event_shape), 0))
    return safe_log_prob(d.base, d.standard(y)) - (log_scale.sum(axes) if axes else log_scale)


@element_log_prob.register(AffineView)
def _(d: AffineView, y: Tensor) -> Tensor:
    return element_log_prob(d.base, d.standard(y)) - torch.log(d.scale)


@cdf.register(AffineView)
def _(d: AffineView, value: Tensor) -> Tensor:
    return cdf.formula(d.base, d.standard(value))


@icdf.register(AffineView)
def _(d: AffineView, q: Tensor) -> Tensor:
    return d.loc + d.scale * icdf.formula(d.base, q)


@crps.register(AffineView)
def _(d: AffineView, y: Tensor) -> Tensor:
    return d.scale * crps.formula(d.base, d.standard(y))


@mean.register(AffineView)
def _(d: AffineView) -> Tensor:
    return d.loc + d.scale * mean(d.base)


@variance.register(AffineView)
def _(d: AffineView) -> Tensor:
    return d.scale**2 * variance(d.base)


@entropy.register(AffineView)
def _(d: AffineView) -> Tensor:
    if d.event_shape and not isinstance(d.base, Predictive | Independent):
        entropy.refuse(d, "the base's entropy is joint over its event")
    return torch.log(d.scale) + entropy(d.base)
