r"""Recalibration that knows what it does not know: a mixture over draws of the map.

A map fitted on few rows is itself uncertain. Any callable that gives draws of the map, from a posterior or from refits,
makes a recalibration whose forecasts average over them,

    p(y | x) = sum_j w_j p(y | map_j(forecast)).

The mutual information or the epistemic variance of the result is the part of the doubt that comes from the calibration,
and from the draws of the forecast itself if it keeps them. Two sources of draws are here. The bootstrap refits on rows
drawn with replacement (Efron, "Bootstrap Methods: Another Look at the Jackknife", 1979). Laplace's approximation of the
posterior of log T is Gaussian about the maximum, with the inverse of the summed curvature as variance (with a flat
prior on log T).
"""

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from torch import Tensor
from torch.distributions import Distribution

from credibly.calibration.base import Recalibration, Recalibrator
from credibly.calibration.mixed import mixture_of
from credibly.calibration.report import FitReport, checked_targets, report_of
from credibly.calibration.temperature import TemperatureScaling, TemperedClasses
from credibly.calibration.tempering import OddsBlocks, tempered_pass
from credibly.core.checks import check_count
from credibly.core.errors import ConvergenceWarning, ShapeError
from credibly.core.randomness import Stream, base_seed
from credibly.core.typing import ArrayLike
from credibly.distributions.predictive import Predictive
from credibly.distributions.rows import num_rows, select

__all__ = ["BayesianRecalibration", "Bootstrap", "DrawsOfMap", "LaplaceTemperature", "MixedRecalibration"]

DrawsOfMap: TypeAlias = Callable[[Distribution, Tensor, int, int], Sequence[Recalibration]]
"""Gives draws of the map: `draws_of_map(predicted, targets, num_draws, seed)`."""


@dataclass(frozen=True, eq=False)
class MixedRecalibration(Recalibration):
    """Forecasts become mixtures of what several maps make of them.

    The mixture is a MixturePredictive (of class probabilities, of families, and of mixtures, whose draws times the maps
    are its draws), an Empirical of draws, or a MixedPredictive of anything else.

    Attributes:
        maps: the draws of the map.
        report: likelihoods before and after, on the rows of the fit.
    """

    maps: tuple[Recalibration, ...]
    report: FitReport

    def __call__(self, predicted: Distribution) -> Predictive:
        """The mixture over draws of the map.

        Raises:
            TypeError: the maps give distributions of different types.
            NotSupportedError: the maps give a type that cannot be mixed, such as a QuantileForecast.
        """
        first, *others = (each(predicted) for each in self.maps)
        return mixture_of(first, others)


@dataclass(frozen=True, kw_only=True)
class BayesianRecalibration(Recalibrator):
    """A recalibration with the uncertainty of the calibration itself.

    Args:
        draws_of_map: gives draws of the map from forecasts, targets, a number of draws and a seed: `Bootstrap(of=...)`,
            `LaplaceTemperature()` or a callable of your own.
        num_draws: how many.
        seed: equal seeds give equal maps; None takes a number from torch's global generator.
    """

    draws_of_map: DrawsOfMap
    num_draws: int = 50
    seed: int | None = 0

    def __post_init__(self) -> None:
        check_count("num_draws", self.num_draws)

    def fit(self, predicted: Distribution, targets: ArrayLike) -> MixedRecalibration:
        """Draw the maps.

        Args:
            predicted: what the draws' own recalibrator reads.
            targets: what came, (rows, *event_shape).

        Raises:
            ShapeError: no rows, or `draws_of_map` gave no maps.
        """
        targets = checked_targets("BayesianRecalibration", predicted, targets)
        maps = tuple(self.draws_of_map(predicted, targets, self.num_draws, base_seed(self.seed)))
        if not maps:
            raise ShapeError("`draws_of_map` must give at least one map; got none")
        mixed = MixedRecalibration(maps, FitReport(None, None))
        return replace(mixed, report=report_of(predicted, mixed(predicted), targets))


@dataclass(frozen=True, kw_only=True)
class Bootstrap:
    """Maps fitted to rows drawn with replacement; warnings of single refits are not repeated.

    Args:
        of: what is refitted.
    """

    of: Recalibrator

    def __call__(self, predicted: Distribution, targets: Tensor, num_draws: int, seed: int) -> Sequence[Recalibration]:
        """One map for each resampled set of rows."""
        rows = num_rows(predicted)
        stream = Stream(seed, "recalibration", targets.device)
        maps = []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            for draw in range(num_draws):
                index = torch.randint(rows, (rows,), generator=stream.generator(draw), device=targets.device)
                maps.append(self.of.fit(select(predicted, index), targets[index]))
        return maps


@dataclass(frozen=True, kw_only=True)
class LaplaceTemperature:
    """Temperatures from Laplace's approximation of the posterior of log T.

    Args:
        of: how the maximum is found; draws stay within its bounds.
    """

    of: TemperatureScaling = TemperatureScaling()  # noqa: RUF009

    def __call__(self, predicted: Distribution, targets: Tensor, num_draws: int, seed: int) -> Sequence[Recalibration]:
        """Maps with temperatures drawn around the best one; all at the bound if that is where it lies."""
        best = self.of.fit(predicted, targets)
        with torch.no_grad():
            curvature = tempered_pass(OddsBlocks(predicted, targets), 1 / best.temperature).curvature
        precision = targets.numel() * curvature / best.temperature**2
        noise = Stream(seed, "recalibration").normal(1, 0, num_draws, torch.float64).squeeze(-1)
        scale = 0.0 if best.report.at_bound or precision <= 0 else precision**-0.5
        bounds = math.log(self.of.min_temperature), math.log(self.of.max_temperature)
        temperatures = (math.log(best.temperature) + scale * noise).clamp(*bounds).exp().tolist()
        return [TemperedClasses(temperature, best.report) for temperature in temperatures]
