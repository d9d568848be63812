r"""Vector scaling, matrix scaling and Dirichlet calibration: the log probabilities of all classes mapped together.

Vector and matrix scaling ("On Calibration of Modern Neural Networks", Guo, Pleiss, Sun, Weinberger, 2017) map logits
linearly, z = w * x + b and z = W x + b. A distribution knows its logits only up to a number a row, so x are the log
probabilities less their mean over classes. Dirichlet calibration ("Beyond temperature scaling: Obtaining
well-calibrated multiclass probabilities with Dirichlet calibration", Kull, Perello-Nieto, Kangsepp, Silva Filho,
Song, Flach, 2019) maps the log probabilities themselves, z = W log p + b, which is what Bayes' rule gives for
probability vectors with a Dirichlet distribution in each class.

With K classes there are K^2 + K parameters, which K^2 rows do not determine. Off-diagonal and intercept
regularisation (ODIR, the same paper) adds

    lambda / (K (K - 1)) sum_{i != j} W_ij^2 + mu / K sum_i b_i^2.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.distributions import Distribution

from credibly.calibration.base import Recalibration, Recalibrator
from credibly.calibration.events import check_num_classes, finite_log_probs
from credibly.calibration.report import FitReport, checked_targets, mean_nll, warn_unless
from credibly.calibration.softmax_regression import Diagonal, Full, LinearLogits, SoftmaxFit, fit_softmax
from credibly.core.checks import check_count, check_nonnegative, check_positive
from credibly.core.typing import ArrayLike
from credibly.distributions.class_rows import class_distribution

__all__ = [
    "DirichletCalibratedClasses",
    "DirichletCalibration",
    "MatrixScaledClasses",
    "MatrixScaling",
    "VectorScaledClasses",
    "VectorScaling",
]


def _centred(predicted: Distribution) -> Tensor:
    """Log probabilities less their mean over classes, (rows, *event_shape, classes)."""
    log_probs = finite_log_probs(predicted)
    return log_probs - log_probs.mean(-1, keepdim=True)


@dataclass(frozen=True, eq=False)
class VectorScaledClasses(Recalibration):
    """Centred log probabilities x become the logits weight * x + intercept.

    Attributes:
        weight: (classes,), float64; of a binary outcome (does not happen, happens).
        intercept: (classes,).
        report: how the fit went.
    """

    weight: Tensor = field(repr=False)
    intercept: Tensor = field(repr=False)
    report: FitReport

    def __call__(self, predicted: Distribution) -> Distribution:
        """The recalibrated forecasts, a plain Bernoulli or Categorical in float64.

        Raises:
            NotSupportedError: `predicted` is not a distribution over classes.
            ShapeError: another number of classes than that of the fit.
        """
        features = _centred(predicted)
        check_num_classes(len(self.intercept), features)
        return class_distribution(
            predicted, features * self.weight.to(features.device) + self.intercept.to(features.device)
        )


@dataclass(frozen=True, eq=False)
class MatrixScaledClasses(Recalibration):
    """Centred log probabilities x become the logits weight x + intercept.

    Attributes:
        weight: (classes, classes), float64.
        intercept: (classes,).
        report: how the fit went.
    """

    weight: Tensor = field(repr=False)
    intercept: Tensor = field(repr=False)
    report: FitReport

    def __call__(self, predicted: Distribution) -> Distribution:
        """The recalibrated forecasts, a plain Bernoulli or Categorical in float64.

        Raises:
            NotSupportedError: `predicted` is not a distribution over classes.
            ShapeError: another number of classes than that of the fit.
        """
        return _mapped(predicted, _centred(predicted), self.weight, self.intercept)


@dataclass(frozen=True, eq=False)
class DirichletCalibratedClasses(Recalibration):
    """Log probabilities become the logits weight log p + intercept.

    Attributes:
        weight: (classes, classes), float64.
        intercept: (classes,).
        report: how the fit went.
    """

    weight: Tensor = field(repr=False)
    intercept: Tensor = field(repr=False)
    report: FitReport

    def __call__(self, predicted: Distribution) -> Distribution:
        """The recalibrated forecasts, a plain Bernoulli or Categorical in float64.

        Raises:
            NotSupportedError: `predicted` is not a distribution over classes.
            ShapeError: another number of classes than that of the fit.
        """
        return _mapped(predicted, finite_log_probs(predicted), self.weight, self.intercept)


def _mapped(predicted: Distribution, features: Tensor, weight: Tensor, intercept: Tensor) -> Distribution:
    check_num_classes(len(intercept), features)
    return class_distribution(predicted, features @ weight.to(features.device).t() + intercept.to(features.device))


@dataclass(frozen=True, kw_only=True)
class VectorScaling(Recalibrator):
    """A weight and an intercept for every class, of maximal likelihood; several labels of a row share them.

    Args:
        tolerance: the gradient norm of the mean loss at which the search stops.
        max_iterations: most Newton steps.
    """

    tolerance: float = 1e-8
    max_iterations: int = 100

    def __post_init__(self) -> None:
        check_positive("tolerance", self.tolerance)
        check_count("max_iterations", self.max_iterations)

    def fit(self, predicted: Distribution, targets: ArrayLike) -> VectorScaledClasses:
        """The weights and intercepts under which the outcomes are most probable.

        Args:
            predicted: a distribution over classes; a mixture counts as its mean probabilities.
            targets: the observed classes, (rows, *event_shape).

        Raises:
            NotSupportedError: `predicted` is not a distribution over classes.
            NotFiniteError: NaN probabilities.

        Warns:
            ConvergenceWarning: the gradient norm is above the tolerance.
        """
        targets = checked_targets("VectorScaling", predicted, targets)
        with torch.no_grad():
            features = _centred(predicted)
            found = _fit(self, Diagonal(), features, targets, features.new_zeros(()))
            weight, intercept = (column.contiguous() for column in found.theta.unbind(-1))
            after = VectorScaledClasses(weight, intercept, FitReport(None, None))(predicted)
            return VectorScaledClasses(weight, intercept, _report(self, found, predicted, after, targets))


@dataclass(frozen=True, kw_only=True)
class _RegularisedMap(Recalibrator):
    """The options of both maps with a full matrix."""

    off_diagonal: float = 1e-2
    intercept: float = 1e-2
    tolerance: float = 1e-8
    max_iterations: int = 100

    def __post_init__(self) -> None:
        check_nonnegative("off_diagonal", self.off_diagonal)
        check_nonnegative("intercept", self.intercept)
        check_positive("tolerance", self.tolerance)
        check_count("max_iterations", self.max_iterations)

    def _penalty(self, features: Tensor) -> Tensor:
        """ODIR, as the factor of every squared parameter."""
        size = features.shape[-1]
        weights = torch.full((size, size), self.off_diagonal / (size * (size - 1)), dtype=features.dtype)
        weights.fill_diagonal_(0.0)
        column = torch.full((size, 1), self.intercept / size, dtype=features.dtype)
        return torch.cat([weights, column], -1).to(features.device)


@dataclass(frozen=True, kw_only=True)
class MatrixScaling(_RegularisedMap):
    """A matrix and intercepts for centred log probabilities, of maximal likelihood with ODIR.

    Args:
        off_diagonal: lambda, the weight of the squared entries off the diagonal.
        intercept: mu, the weight of the squared intercepts.
        tolerance: the gradient norm of the penalised mean loss at which the search stops.
        max_iterations: most Newton steps.
    """

    def fit(self, predicted: Distribution, targets: ArrayLike) -> MatrixScaledClasses:
        """The matrix and intercepts of least penalised loss; arguments and errors as in `VectorScaling.fit`."""
        targets = checked_targets("MatrixScaling", predicted, targets)
        with torch.no_grad():
            features = _centred(predicted)
            found = _fit(self, Full(), features, targets, self._penalty(features))
            weight, intercept = found.theta[:, :-1].contiguous(), found.theta[:, -1].contiguous()
            after = _mapped(predicted, features, weight, intercept)
            return MatrixScaledClasses(weight, intercept, _report(self, found, predicted, after, targets))


@dataclass(frozen=True, kw_only=True)
class DirichletCalibration(_RegularisedMap):
    """A matrix and intercepts for log probabilities, of maximal likelihood with ODIR.

    Args:
        off_diagonal: lambda, the weight of the squared entries off the diagonal.
        intercept: mu, the weight of the squared intercepts.
        tolerance: the gradient norm of the penalised mean loss at which the search stops.
        max_iterations: most Newton steps.
    """

    def fit(self, predicted: Distribution, targets: ArrayLike) -> DirichletCalibratedClasses:
        """The matrix and intercepts of least penalised loss; arguments and errors as in `VectorScaling.fit`."""
        targets = checked_targets("DirichletCalibration", predicted, targets)
        with torch.no_grad():
            features = finite_log_probs(predicted)
            found = _fit(self, Full(), features, targets, self._penalty(features))
            weight, intercept = found.theta[:, :-1].contiguous(), found.theta[:, -1].contiguous()
            after = _mapped(predicted, features, weight, intercept)
            return DirichletCalibratedClasses(weight, intercept, _report(self, found, predicted, after, targets))


_Options = VectorScaling | _RegularisedMap


def _fit(options: _Options, form: LinearLogits, features: Tensor, targets: Tensor, penalty: Tensor) -> SoftmaxFit:
    return fit_softmax(
        form,
        features.flatten(0, -2),
        targets.long().reshape(-1),
        penalty,
        tolerance=options.tolerance,
        max_iterations=options.max_iterations,
    )


def _report(
    options: _Options, found: SoftmaxFit, predicted: Distribution, after: Distribution, targets: Tensor
) -> FitReport:
    converged = found.gradient_norm <= options.tolerance
    reason = f"gradient norm {found.gradient_norm:.2e}; `tolerance` is {options.tolerance:g}"
    warn_unless(converged, type(options).__name__, reason)
    before, later = mean_nll(predicted, targets), mean_nll(after, targets)
    return FitReport(before, later, found.gradient_norm, found.num_iterations, converged)
