"""How wide predictions are, and whether their spread is that of their errors.

Sharpness is the mean standard deviation of the predictions; of two calibrated forecasters the sharper one is better
(Gneiting, Balabdaoui, Raftery, "Probabilistic Forecasts, Calibration and Sharpness", 2007).

The expected normalised calibration error (Levi, Gispan, Giladi, Fetaya, "Evaluating and Calibrating Uncertainty
Prediction in Regression Tasks", 2022) sorts rows into K bins of equal numbers by predicted variance and compares in
each the root mean variance (RMV) with the root mean squared error (RMSE):

    ENCE = sum_b (n_b / n) |RMV_b - RMSE_b| / RMV_b.

With n_b = n / K it is the mean over bins of the paper. Rows of equal variance stay in one bin, whatever their order;
where that makes bins unequal, they count by their rows.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributions import Distribution

from credibly.core.checks import check_count
from credibly.core.errors import NotFiniteError, ShapeError
from credibly.core.typing import ArrayLike
from credibly.distributions import functions
from credibly.distributions.targets import check_rows, match_targets
from credibly.metrics.base import State
from credibly.metrics.gap_metric import GapMetric
from credibly.metrics.row_metrics import MeanMetric

__all__ = ["ENCE", "ErrorSpread", "Sharpness", "error_spread", "sharpness"]

_CHUNK_NUMBERS = 2**21


def sharpness(predicted: Distribution) -> Tensor:
    """The mean standard deviation over rows and outputs, in the units of the targets: a float64 scalar.

    Raises:
        NotFiniteError: a variance is NaN. Infinite ones make it infinite.
        ShapeError: there are no rows.
    """
    spread = _variance(predicted).sqrt()
    if not spread.numel():
        raise ShapeError("sharpness needs at least one row; got none")
    return spread.mean()


def _variance(predicted: Distribution) -> Tensor:
    check_rows(predicted)
    variance = functions.variance(predicted).double()
    num_bad = int((variance.isnan() | (variance < 0)).sum())
    if num_bad:
        raise NotFiniteError(f"`predicted` must have variances; {num_bad} of {variance.numel()} are NaN or below 0")
    return variance


@dataclass(frozen=True)
class Sharpness(MeanMetric):
    """The mean standard deviation of the predictions, as a recipe. It takes targets, and only checks them."""

    def rows(self, predicted: Distribution, targets: ArrayLike) -> Tensor:
        """The mean standard deviation of each row's outputs."""
        match_targets(predicted, targets)
        spread = _variance(predicted).sqrt()
        return spread.reshape(len(spread), spread.shape[1:].numel()).mean(-1)


@dataclass(frozen=True, eq=False)
class ErrorSpread:
    """Predicted spread against error, bin by bin, in the order of the predicted variance.

    Attributes:
        counts: values in each bin, (num_bins,), int64; bins that equal variances leave empty are left out.
        root_mean_variance: of each bin, (num_bins,), float64, in the units of the targets.
        rmse: root mean squared error of the predicted mean, likewise.
    """

    counts: Tensor
    root_mean_variance: Tensor
    rmse: Tensor


def error_spread(predicted: Distribution, targets: ArrayLike, *, num_bins: int = 10) -> ErrorSpread:
    """The table behind ENCE; outputs of one row count as so many values.

    Args:
        predicted: a distribution with means and finite variances above 0.
        targets: what came.
        num_bins: of equal numbers.

    Raises:
        ShapeError: there are no rows.
        ValueError: a variance is 0 or infinite.
        NotFiniteError: a mean or a variance is NaN.
    """
    rows = _variance_and_error(predicted, targets)
    if not len(rows):
        raise ShapeError("error_spread needs at least one row; `predicted` and `targets` are empty")
    counts, variance, error = _bin_sums(rows, check_count("num_bins", num_bins))
    used = counts > 0
    counts, variance, error = counts[used], variance[used], error[used]
    return ErrorSpread(counts.round().long(), (variance / counts).sqrt(), (error / counts).sqrt())


def _variance_and_error(predicted: Distribution, targets: ArrayLike) -> Tensor:
    """Variance and squared error of every value, (rows, 2, elements), float64."""
    matched = match_targets(predicted, targets)
    variance = _variance(predicted)
    if not bool(((variance > 0) & variance.isfinite()).all()):
        raise ValueError("`predicted` must have finite variances above 0: the error is compared with them")
    error = (functions.mean(predicted).double() - matched.double()).square()
    if bool(error.isnan().any()):
        raise NotFiniteError(f"`predicted` must have means; {int(error.isnan().sum())} of {error.numel()} are NaN")
    shape = (len(error), error.shape[1:].numel())
    return torch.stack([variance.reshape(shape), error.reshape(shape)], 1)


def _bin_sums(rows: Tensor, num_bins: int) -> tuple[Tensor, Tensor, Tensor]:
    """Per bin: number of values, sum of variances, sum of squared errors; rows (*batch, rows, 2, elements)."""
    variance, error = (part.flatten(-2).contiguous() for part in rows.unbind(-2))
    total = variance.shape[-1]
    last = [-(-total * j // num_bins) - 1 for j in range(1, num_bins)]  # rank of the last value of each bin but one
    edges = variance.sort(-1).values[..., last].contiguous()
    bins = torch.searchsorted(edges, variance)
    zeros = variance.new_zeros(*variance.shape[:-1], num_bins)
    counts, variances, errors = (
        zeros.scatter_add(-1, bins, values) for values in (torch.ones_like(variance), variance, error)
    )
    return counts, variances, errors


@dataclass(frozen=True)
class ENCE(GapMetric):
    """The expected normalised calibration error, as a recipe. Its streams keep two numbers of every value.

    Args:
        num_bins: of equal numbers, by predicted variance.
    """

    num_bins: int = 10

    def __post_init__(self) -> None:
        check_count("num_bins", self.num_bins)

    def state(self, predicted: Distribution, targets: ArrayLike) -> State:
        """Variance and squared error of every value."""
        return {"rows": _variance_and_error(predicted, targets)}

    def merged(self, one: State, other: State) -> State:
        """The rows of both."""
        return {"rows": torch.cat([one["rows"], other["rows"]])}

    def gaps(self, state: State) -> Tensor:
        """(n_b / n) (1 - RMSE_b / RMV_b)."""
        if not len(state["rows"]):
            raise ShapeError("ENCE needs at least one row; `predicted` and `targets` are empty")
        return self._gaps(state["rows"])

    def norm(self, gaps: Tensor) -> Tensor:
        """The sum of the absolute gaps."""
        return gaps.abs().sum(-1)

    def resampled_gaps(self, state: State, num_replicates: int, generator: torch.Generator) -> Tensor:
        """The gaps of rows drawn with replacement and binned anew."""
        rows = state["rows"]
        some = max(1, _CHUNK_NUMBERS // rows[:, 0].numel())
        parts = []
        for start in range(0, num_replicates, some):
            shape = (min(some, num_replicates - start), len(rows))
            drawn = torch.randint(len(rows), shape, generator=generator, device=rows.device)
            parts.append(self._gaps(rows[drawn]))
        return torch.cat(parts)

    def _gaps(self, rows: Tensor) -> Tensor:
        counts, variances, errors = _bin_sums(rows, self.num_bins)
        used = counts > 0
        ratio = errors.sqrt() / torch.where(used, variances, 1.0).sqrt()
        return torch.where(used, counts / counts.sum(-1, keepdim=True) * (1 - ratio), 0.0)
