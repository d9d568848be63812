"""How a fit went, and what every fit checks first."""

import math
import warnings
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributions import Distribution

from credibly.core.errors import ConvergenceWarning, NotSupportedError, ShapeError, SupportError
from credibly.core.typing import ArrayLike
from credibly.distributions.classes import class_log_probs
from credibly.distributions.density import log_prob
from credibly.distributions.kinds import kind
from credibly.distributions.targets import match_targets

__all__ = ["FitReport", "checked_targets", "mean_nll", "report_of", "warn_unless"]


@dataclass(frozen=True)
class FitReport:
    """How a recalibration was found.

    Attributes:
        nll_before: mean negative log likelihood of the forecasts that were given; None where they have no density.
        nll_after: the same after recalibration, on the rows of the fit.
        gradient_norm: Euclidean norm of the gradient of what was minimised, at the end; the largest, if several maps
            were fitted. 0 for what is found in closed form.
        num_iterations: steps of the solver, the most of any map; 0 for what is found in closed form.
        converged: whether the gradient norm reached the tolerance.
    """

    nll_before: float | None
    nll_after: float | None
    gradient_norm: float = 0.0
    num_iterations: int = 0
    converged: bool = True


def checked_targets(name: str, predicted: Distribution, targets: ArrayLike) -> Tensor:
    """The targets, matched to the forecasts.

    Args:
        name: what is fitted, for the message.
        predicted: the forecasts.
        targets: what came.

    Raises:
        ShapeError: no rows, or shapes that do not fit.
    """
    matched = match_targets(predicted, targets)
    if not matched.numel():
        raise ShapeError(f"{name} needs at least one row; `predicted` and `targets` are empty")
    return matched


def mean_nll(predicted: Distribution, targets: Tensor) -> float | None:
    """Mean negative log likelihood over rows, over all labels of classes; None where there is no density.

    It is infinite where a target lies outside the support, which a map may have moved.
    """
    if kind(predicted) == "class":
        return float(-class_log_probs(predicted).gather(-1, targets.long().unsqueeze(-1)).mean())
    try:
        return float(-log_prob(predicted, targets).detach().double().mean())
    except NotSupportedError:
        return None
    except SupportError:
        return math.inf


def report_of(before: Distribution, after: Distribution, targets: Tensor) -> FitReport:
    """The report of a map that was found in closed form."""
    with torch.no_grad():
        return FitReport(mean_nll(before, targets), mean_nll(after, targets))


def warn_unless(converged: bool, name: str, reason: str, *, stacklevel: int = 4) -> None:
    """A ConvergenceWarning, unless all went well."""
    if not converged:
        warnings.warn(f"{name}: {reason}", ConvergenceWarning, stacklevel=stacklevel)
