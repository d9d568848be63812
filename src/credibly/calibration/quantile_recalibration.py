r"""Quantile recalibration: the distribution function of forecasts corrected by that of their own PIT.

"Accurate Uncertainties for Deep Learning Using Calibrated Regression" (Kuleshov, Fenner, Ermon, 2018). If u_i =
F_i(y_i) are the probability integral transforms of held-out outcomes and R is their distribution function, then
R(F(y)) is calibrated. R is the empirical one: k / (n + 1) at the k-th smallest u, linear in between, from (0, 0) to
(1, 1); or, with `num_knots`, linear between so many of its quantiles, for a density that is not all noise. Outcomes
with equal u share the mean of their k. Where F jumps u is randomised.

The result has the density R'(F(y)) f(y), the mass R(F(y)) - R(F(y-)) of a count, and the quantiles F^-1(R^-1(q)). Both
F and 1 - F are kept (`tails`), in float64 whatever the precision of the forecasts, so that outcomes far outside
overconfident forecasts stay apart on either side. A tail of exactly 0 counts as 2.2e-308, the smallest normal number:
of a Gaussian that is 37.5 standard deviations.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.distributions import Distribution

from credibly.calibration.base import Recalibration, Recalibrator
from credibly.calibration.piecewise import interpolate_tails, padded
from credibly.calibration.recalibrated import RecalibratedPredictive
from credibly.calibration.report import FitReport, checked_targets, report_of, warn_unless
from credibly.calibration.tails import TINY, Tails, limit_tails, place
from credibly.core.checks import check_count, check_finite
from credibly.core.errors import NotSupportedError
from credibly.core.randomness import Stream, base_seed
from credibly.core.typing import ArrayLike
from credibly.distributions.kinds import kind
from credibly.distributions.rows import to

__all__ = ["QuantileRecalibration", "RecalibratedQuantiles"]


@dataclass(frozen=True, eq=False)
class RecalibratedQuantiles(Recalibration):
    """F becomes R(F).

    Attributes:
        levels: F and 1 - F at the knots, one curve for every output, (outputs, knots, 2), float64.
        recalibrated: R and 1 - R there.
        report: how the fit went.
    """

    levels: Tensor = field(repr=False)
    recalibrated: Tensor = field(repr=False)
    report: FitReport

    def __call__(self, predicted: Distribution) -> RecalibratedPredictive:
        """The recalibrated forecasts.

        Raises:
            ShapeError: `predicted` has another number of outputs.
            NotSupportedError: classes.
        """
        return RecalibratedPredictive(predicted, self.levels, self.recalibrated)


@dataclass(frozen=True, kw_only=True)
class QuantileRecalibration(Recalibrator):
    """The distribution function of the PIT, for real numbers and counts; each output has its own.

    Args:
        num_knots: linear pieces of R, of equally many outcomes each; None is one between any two outcomes.
        seed: of the random numbers where F jumps.
    """

    num_knots: int | None = None
    seed: int | None = 0

    def __post_init__(self) -> None:
        if self.num_knots is not None:
            check_count("num_knots", self.num_knots)

    def fit(self, predicted: Distribution, targets: ArrayLike) -> RecalibratedQuantiles:
        """The distribution function of the PIT of these rows; exact.

        Args:
            predicted: a distribution of real numbers or counts with a cdf.
            targets: what came, (rows, *event_shape).

        Raises:
            NotSupportedError: classes, or a distribution without a cdf.

        Warns:
            ConvergenceWarning: outcomes where the forecasts' distribution function is 0 or 1 in float64. How far out
                they lie cannot be told, and quantiles do not reach them.
        """
        if kind(predicted) == "class":
            raise NotSupportedError(
                "QuantileRecalibration is for numbers and counts; recalibrate classes with TemperatureScaling"
            )
        targets = checked_targets("QuantileRecalibration", predicted, targets)
        with torch.no_grad():
            values = self._transforms(to(predicted, dtype=torch.float64), targets.double())
            outside = int(((values.lower <= 0) | (values.upper <= 0)).sum())
            where = (
                f"{outside} of {values.lower.numel()} outcomes lie where the forecasts' distribution function is 0 or 1"
            )
            reason = f"{where} to all digits, and quantiles do not reach them; VarianceScaling does"
            warn_unless(not outside, "QuantileRecalibration", reason)
            curves = [self._curve(Tails(*each)) for each in zip(*values.at_least(TINY), strict=True)]
            levels, recalibrated = (
                torch.stack([padded(tail) for tail in zip(*side, strict=True)], -1)
                for side in zip(*curves, strict=True)
            )
            after = RecalibratedPredictive(predicted, levels, recalibrated)
            return RecalibratedQuantiles(levels, recalibrated, report_of(predicted, after, targets))

    def _transforms(self, predicted: Distribution, targets: Tensor) -> Tails:
        """Both tails at every outcome, (outputs, rows), with the random numbers of `metrics.pit` where F jumps."""
        below, at = limit_tails(predicted, targets)
        check_finite("predicted", at.lower)
        stream = Stream(base_seed(self.seed), "pit", targets.device)
        u = torch.rand(len(targets), generator=stream.generator(), dtype=torch.float64, device=targets.device)
        u = u.reshape(-1, *(1,) * (targets.dim() - 1))
        lower = below.lower + u * (at.lower - below.lower).clamp(min=0)
        upper = at.upper + (1 - u) * (below.upper - at.upper).clamp(min=0)
        return Tails(*(tail.clamp(0, 1).reshape(len(targets), -1).t() for tail in (lower, upper)))

    def _curve(self, values: Tails) -> tuple[Tails, Tails]:
        """Knots of R for one output, both coordinates strictly increasing from 0 to 1."""
        size = len(values.lower)
        keys, order = place(values).sort()
        last = torch.cat([keys.diff() != 0, keys.new_ones(1, dtype=torch.bool)])
        ends = last.nonzero().squeeze(1).double() + 1
        starts = torch.cat([ends.new_zeros(1), ends[:-1]]) + 1
        ranks = (starts + ends) / 2
        levels = _with_ends(Tails(*(tail[order][last] for tail in values)))
        recalibrated = _with_ends(Tails(ranks / (size + 1), (size + 1 - ranks) / (size + 1)))
        if self.num_knots is None or self.num_knots >= len(levels.lower) - 1:
            return levels, recalibrated
        steps = torch.arange(self.num_knots + 1, dtype=torch.float64, device=ends.device)
        grid = Tails(steps / self.num_knots, steps.flip(0) / self.num_knots)
        rows = (Tails(*(tail.unsqueeze(0) for tail in each)) for each in (recalibrated, levels, grid))
        return Tails(*(tail[0] for tail in interpolate_tails(*rows))), grid


def _with_ends(inner: Tails) -> Tails:
    """The levels 0 and 1 around others."""
    nothing, everything = inner.lower.new_zeros(1), inner.lower.new_ones(1)
    return Tails(
        torch.cat([nothing, inner.lower, everything]),
        torch.cat([everything, inner.upper, nothing]),
    )
