r"""Conformal predictive systems: distribution functions that are calibrated for any number of rows.

"Nonparametric predictive distributions based on conformal prediction" (Vovk, Shen, Manokhin, Xie, 2017/2019), in the
split form of "Computationally efficient versions of conformal predictive distributions" (Vovk, Petej, Nouretdinov,
Manokhin, Gammerman, 2020). With the standardised errors a_i = (y_i - mean_i) / scale_i of n held-out rows, and
a = (y - mean) / scale,

    Q(y, u) = (#{a_i < a} + u (#{a_i = a} + 1)) / (n + 1).

If rows are exchangeable and u is uniform, Q at the true outcome is uniform: exactly, for every n. Between neighbouring
errors Q is known up to 1 / (n + 1), the thickness; the masses u / (n + 1) and (1 - u) / (n + 1) lie at minus and plus
infinity, for nothing is known beyond the errors seen.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

from credibly.calibration.base import Recalibration, Recalibrator
from credibly.calibration.report import FitReport, checked_targets
from credibly.core.checks import as_tensor, check_coverage
from credibly.core.errors import NotFiniteError, NotSupportedError, ShapeError
from credibly.core.typing import ArrayLike
from credibly.distributions.crps import crps
from credibly.distributions.cumulative import cdf, icdf
from credibly.distributions.density import safe_log_prob
from credibly.distributions.kinds import kind
from credibly.distributions.moments import mean, variance
from credibly.distributions.pit import cdf_below
from credibly.distributions.predictive import Predictive
from credibly.distributions.rows import Change, rebuild
from credibly.distributions.targets import inside_support
from credibly.metrics.coverage_law import rank

__all__ = ["ConformalPredictive", "ConformalPredictiveMap", "ConformalPredictiveSystem"]


class ConformalPredictive(Predictive):
    """The distribution Q(y, u) of every row.

    `cdf` is Q at the row's own u, `icdf` its generalised inverse. u = 1, the default of the map, is the upper edge of
    the band, and `metrics.pit` of it is Q at random u: exactly uniform. `interval` is conservative whatever u is. Mean,
    variance and CRPS are those of the errors seen, without the masses at infinity.

    Args:
        loc: (rows,).
        scale: (rows,), above 0.
        errors: standardised errors, (n,), increasing.
        u: (rows,), in [0, 1].
        num_fits: of how many equally large sets of rows these are the errors: the result is the mean of their Q, and
            the masses at infinity are those of one set. More than one has no guarantee.
    """

    def __init__(self, loc: Tensor, scale: Tensor, errors: Tensor, u: Tensor, num_fits: int = 1) -> None:
        super().__init__(loc.shape, torch.Size())
        self.loc, self.scale, self.errors, self.u, self.num_fits = loc, scale, errors, u, num_fits

    @property
    def size(self) -> int:
        """The denominator of Q: the errors and one new row for every fit."""
        return len(self.errors) + self.num_fits

    def bounds(self, value: ArrayLike) -> tuple[Tensor, Tensor]:
        """Q at u = 0 and at u = 1: the band in which the distribution function lies, each as `cdf`."""
        points = as_tensor(value, dtype=self.loc.dtype, device=self.loc.device).to(self.loc.dtype)
        below, tied = self.counts(points)
        return below / self.size, (below + tied + self.num_fits) / self.size

    def counts(self, value: Tensor) -> tuple[Tensor, Tensor]:
        """How many errors are smaller than, and equal to, the standardised values, (..., rows)."""
        standard = ((value.double() - self.loc.double()) / self.scale.double()).contiguous()
        below = torch.searchsorted(self.errors, standard)
        return below.double(), (torch.searchsorted(self.errors, standard, right=True) - below).double()

    def points(self) -> Tensor:
        """Where the distribution function rises: (n, rows)."""
        return (self.loc.double() + self.scale.double() * self.errors.unsqueeze(-1)).to(self.loc.dtype)

    def interval(self, coverage: float) -> tuple[Tensor, Tensor]:
        """The interval between two of the points, or infinity, that holds a new target with at least this probability.

        Equal-tailed: either tail has at most (1 - coverage) / 2. The ranks are exact.

        Raises:
            ValueError: the coverage lies outside [0, 1].
        """
        upper = rank(self.size - 1, (1 + check_coverage(coverage)) / 2)
        return self._at_rank(len(self.errors) + 1 - upper), self._at_rank(upper)

    def _at_rank(self, order: int) -> Tensor:
        if 1 <= order <= len(self.errors):
            return (self.loc.double() + self.scale.double() * self.errors[order - 1]).to(self.loc.dtype)
        return torch.full_like(self.loc, -math.inf if order < 1 else math.inf)

    def _element_support(self) -> Any:
        """All real numbers."""
        return constraints.real

    def _draw(self, shape: torch.Size) -> Tensor:
        """Draws of the points: the masses at infinity are left out."""
        chosen = torch.randint(len(self.errors), shape + self.batch_shape, device=self.loc.device)
        return (self.loc.double() + self.scale.double() * self.errors[chosen]).to(self.loc.dtype)


@inside_support.register(ConformalPredictive)
def _(d: ConformalPredictive, targets: Tensor) -> Tensor:  # noqa: ARG001
    return ~targets.isnan()


@rebuild.register(ConformalPredictive)
def _(d: ConformalPredictive, others: Sequence[Any], change: Change) -> Distribution:
    every = (d, *others)
    loc, scale = (change([getattr(e, name) for e in every], 0) for name in ("loc", "scale"))
    errors = change([e.errors.view(torch.int64) for e in every], None)  # no change of precision rounds whole numbers
    u = change([e.u for e in every], 0).double()
    return ConformalPredictive(loc, scale, errors.view(torch.float64), u, d.num_fits)


@cdf.register(ConformalPredictive)
def _(d: ConformalPredictive, value: Tensor) -> Tensor:
    below, tied = d.counts(value)
    return (below + d.u * (tied + d.num_fits)) / d.size


@cdf_below.register(ConformalPredictive)
def _(d: ConformalPredictive, value: Tensor) -> Tensor:
    """The lower edge of the band, so that the randomised PIT is exact."""
    return d.counts(value)[0] / d.size


@icdf.register(ConformalPredictive)
def _(d: ConformalPredictive, q: Tensor) -> Tensor:
    """The infimum of the y with Q(y, u) >= q; right of the k-th error Q is (k + u) / (n + 1)."""
    slack = 4 * torch.finfo(q.dtype).eps * d.size  # a level computed from a coverage is rounded
    order = torch.ceil(q.double() * d.size - d.u * d.num_fits - slack).long()
    table = torch.cat([d.errors.new_tensor([-math.inf]), d.errors, d.errors.new_tensor([math.inf])])
    errors = table[order.clamp(0, len(d.errors) + 1)]
    return (d.loc.double() + d.scale.double() * errors).to(d.loc.dtype)


@safe_log_prob.register(ConformalPredictive)
def _(d: ConformalPredictive, y: Tensor) -> NoReturn:  # noqa: ARG001
    raise NotSupportedError(
        "log_prob is not available for ConformalPredictive: it is a step function; score it with crps"
    )


@mean.register(ConformalPredictive)
def _(d: ConformalPredictive) -> Tensor:
    return (d.loc.double() + d.scale.double() * d.errors.mean()).to(d.loc.dtype)


@variance.register(ConformalPredictive)
def _(d: ConformalPredictive) -> Tensor:
    return (d.scale.double().square() * d.errors.var(correction=0)).to(d.loc.dtype)


@crps.register(ConformalPredictive)
def _(d: ConformalPredictive, y: Tensor) -> Tensor:
    """E|A - a| - E|A - A'|/2 times the scale, from running sums of the errors."""
    size, errors = len(d.errors), d.errors
    standard = (y.double() - d.loc.double()) / d.scale.double()
    sums = torch.cat([errors.new_zeros(1), errors.cumsum(0)])
    count = torch.searchsorted(errors, standard.contiguous(), right=True)
    distance = (standard * (2 * count - size) + sums[-1] - 2 * sums[count]) / size
    signs = torch.arange(1 - size, size, 2, dtype=torch.float64, device=errors.device)
    return (d.scale.double() * (distance - (signs @ errors) / size**2)).to(y.dtype)


@dataclass(frozen=True, eq=False)
class ConformalPredictiveMap(Recalibration):
    """Forecasts become conformal predictive distributions around their means.

    Attributes:
        errors: standardised errors of the fit, increasing, (n,), float64.
        normalized: whether errors are divided by each forecast's standard deviation.
        report: no densities, so no likelihoods.
    """

    errors: Tensor = field(repr=False)
    normalized: bool
    report: FitReport

    def __call__(self, predicted: Distribution, *, u: ArrayLike | None = None) -> ConformalPredictive:
        """The conformal predictive distributions.

        Args:
            predicted: forecasts with a mean (and a standard deviation, if `normalized`), one number a row.
            u: one number in [0, 1] for all rows or for each; None is 1, the upper edge.

        Raises:
            NotSupportedError: classes, or forecasts without a mean.
            ShapeError: several outputs.
            NotFiniteError: a standard deviation that is not finite and above 0.
        """
        loc, scale = _location_and_scale(predicted, normalized=self.normalized)
        chosen = as_tensor(1.0 if u is None else u, device=loc.device).double().expand(loc.shape)
        if not bool(((chosen >= 0) & (chosen <= 1)).all()):
            raise ValueError("`u` must lie in [0, 1]")
        return ConformalPredictive(loc, scale, self.errors.to(loc.device), chosen)


@dataclass(frozen=True, kw_only=True)
class ConformalPredictiveSystem(Recalibrator):
    """Split conformal predictive distributions, for real numbers and counts.

    Args:
        normalized: divide errors by each forecast's standard deviation, so that distributions differ in width.
    """

    normalized: bool = True

    def fit(self, predicted: Distribution, targets: ArrayLike) -> ConformalPredictiveMap:
        """The standardised errors of these rows.

        Args:
            predicted: forecasts with a mean (and a standard deviation, if `normalized`), one number a row.
            targets: what came, (rows,).

        Raises:
            NotSupportedError: classes, or forecasts without a mean.
            ShapeError: several outputs, or no rows.
            NotFiniteError: a standard deviation that is not finite and above 0.
        """
        if kind(predicted) == "class":
            raise NotSupportedError("ConformalPredictiveSystem is for numbers and counts, not for classes")
        targets = checked_targets("ConformalPredictiveSystem", predicted, targets)
        with torch.no_grad():
            loc, scale = _location_and_scale(predicted, normalized=self.normalized)
            errors = (targets.double() - loc.double()) / scale.double()
            return ConformalPredictiveMap(errors.sort().values, self.normalized, FitReport(None, None))


def _location_and_scale(predicted: Distribution, *, normalized: bool) -> tuple[Tensor, Tensor]:
    if predicted.event_shape:
        came = tuple(predicted.event_shape)
        raise ShapeError(f"conformal predictive distributions are for one number a row; got event_shape {came}")
    loc = mean(predicted).detach()
    scale = variance(predicted).detach().sqrt() if normalized else torch.ones_like(loc)
    if not bool((loc.isfinite() & scale.isfinite() & (scale > 0)).all()):
        raise NotFiniteError("`predicted` must have finite means, and standard deviations that are finite and above 0")
    return loc, scale
