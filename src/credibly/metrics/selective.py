r"""Selective prediction: what is gained by answering only where one is confident.

Rows are sorted by confidence. The risk at coverage i / n is the mean loss of the i most confident rows, and

    AURC = (1 / n) sum_i risk(i / n)

("Selective Classification for Deep Neural Networks", Geifman, El-Yaniv, 2017). Among rows of one confidence there is no
order: each counts with the mean loss of all of them. With L_g the sum of losses of such a group of m_g rows, C_g rows
and S_g losses before it and H the harmonic numbers, the group adds

    sum_j (S_g + j L_g / m_g) / (C_g + j) = L_g + (S_g - C_g L_g / m_g) (H_{C_g + m_g} - H_{C_g}).

E-AURC is the excess over the best order, by the losses themselves ("Bias-Reduced Uncertainty Estimation for Deep Neural
Classifiers", Geifman, Uziel, El-Yaniv, 2019, where that is an approximation for losses of 0 and 1; here it is exact,
for any loss).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor
from torch.distributions import Distribution

from credibly.core.checks import check_finite
from credibly.core.errors import ShapeError
from credibly.core.typing import ArrayLike
from credibly.distributions.class_rows import class_log_prob_blocks
from credibly.distributions.targets import match_targets
from credibly.distributions.top_label import top_label
from credibly.metrics.base import RowMetric, State
from credibly.metrics.resampling import over_resamples
from credibly.metrics.scores import row_means

__all__ = ["AURC", "EAURC", "RiskCoverage", "aurc", "e_aurc", "largest_prob", "risk_coverage", "zero_one_loss"]

Loss: TypeAlias = Callable[[Distribution, ArrayLike], Tensor]
"""The loss of each row, (rows,)."""

Confidence: TypeAlias = Callable[[Distribution], Tensor]
"""The confidence in each row, (rows,)."""


def zero_one_loss(predicted: Distribution, targets: ArrayLike) -> Tensor:
    """1 where the most probable class did not come, else 0; the mean over the labels of a row."""
    return 1 - row_means(top_label(predicted, match_targets(predicted, targets))[1])


def largest_prob(predicted: Distribution) -> Tensor:
    """The largest class probability of each row; the mean over the labels of a row."""
    return torch.cat([row_means(log_probs.amax(-1).exp()) for _, log_probs in class_log_prob_blocks(predicted)])


@dataclass(frozen=True)
class AURC(RowMetric):
    """The area under the risk-coverage curve: the mean over i of the risk among the i most confident rows.

    Args:
        loss: of each row. Any function of the prediction and the targets; `zero_one_loss` needs classes.
        confidence: in each row, by which rows are sorted. Any function of the prediction.
    """

    loss: Loss = zero_one_loss
    confidence: Confidence = largest_prob

    def rows(self, predicted: Distribution, targets: ArrayLike) -> Tensor:
        """Confidence and loss, (rows, 2)."""
        columns = (("confidence", self.confidence(predicted)), ("loss", self.loss(predicted, targets)))
        for name, column in columns:
            if column.dim() != 1 or column.shape[0] != predicted.batch_shape[-1]:
                raise ShapeError(f"`{name}` must give one number a row; got shape {tuple(column.shape)}")
            check_finite(name, column)
        return torch.stack([column.detach().to(torch.float64) for _, column in columns], -1)

    def of_rows(self, rows: Tensor) -> Tensor:
        """The area of rows (rows, 2), a scalar."""
        curve = self.curve(rows)
        return curve(torch.arange(len(rows), device=rows.device).unsqueeze(0))[0]

    def replicates(self, state: State, num_replicates: int, generator: torch.Generator) -> Tensor:
        """The area of rows drawn with replacement: they are sorted once."""
        return over_resamples(len(state["rows"]), num_replicates, generator, self.curve(state["rows"]))

    def curve(self, rows: Tensor) -> Callable[[Tensor], Tensor]:
        """A function of indices of rows, (some, rows), that gives the metric of each choice."""
        return _area_of(-rows[:, 0], rows[:, 1])


@dataclass(frozen=True)
class EAURC(AURC):
    """The excess of the area under the risk-coverage curve over the best order of the rows; 0 is perfect.

    Args:
        loss: of each row; see `AURC`.
        confidence: in each row, by which rows are sorted.
    """

    def curve(self, rows: Tensor) -> Callable[[Tensor], Tensor]:
        """The area less that of the rows sorted by their losses."""
        area, best = _area_of(-rows[:, 0], rows[:, 1]), _area_of(rows[:, 1], rows[:, 1])
        return lambda index: (area(index) - best(index)).clamp(min=0)


def _area_of(order: Tensor, losses: Tensor) -> Callable[[Tensor], Tensor]:
    """The area, of any choice of rows, when they are sorted by `order`, smallest first."""
    distinct, group = order.unique(return_inverse=True)  # type: ignore[no-untyped-call]
    num_groups, num_rows = len(distinct), len(order)
    steps = torch.arange(1, num_rows + 1, dtype=torch.float64, device=order.device)
    harmonic = torch.cat([steps.new_zeros(1), steps.reciprocal().cumsum(0)])

    def area(index: Tensor) -> Tensor:
        some = len(index)
        where = (group[index] + torch.arange(some, device=index.device).unsqueeze(1) * num_groups).flatten()
        counts = torch.bincount(where, minlength=some * num_groups).view(some, num_groups)
        sums = torch.bincount(where, weights=losses[index].flatten(), minlength=some * num_groups).view(some, -1)
        after = counts.cumsum(-1)
        before = after - counts
        earlier = sums.cumsum(-1) - sums
        excess = earlier - before * (sums / counts.clamp(min=1))
        return (sums + excess * (harmonic[after] - harmonic[before])).sum(-1) / num_rows

    return area


@dataclass(frozen=True, eq=False)
class RiskCoverage:
    """The risk-coverage table: one entry a distinct confidence, the highest first.

    Attributes:
        threshold: rows at or above this confidence are answered, (k,), float64.
        coverage: the share of rows answered, (k,), float64.
        risk: the mean loss of the rows answered, (k,), float64.
    """

    threshold: Tensor
    coverage: Tensor
    risk: Tensor


def risk_coverage(
    predicted: Distribution,
    targets: ArrayLike,
    *,
    loss: Loss = zero_one_loss,
    confidence: Confidence = largest_prob,
) -> RiskCoverage:
    """The risk-coverage table.

    Args:
        predicted: a distribution over rows.
        targets: what came.
        loss: of each row.
        confidence: in each row.

    Raises:
        ShapeError: there are no rows, or `loss` or `confidence` give another number than one a row.
    """
    rows = AURC(loss, confidence).rows(predicted, targets)
    if not len(rows):
        raise ShapeError("risk_coverage needs at least one row; `predicted` and `targets` are empty")
    order, group = (-rows[:, 0]).unique(return_inverse=True)  # type: ignore[no-untyped-call]
    answered = torch.bincount(group).cumsum(0)
    losses = torch.bincount(group, weights=rows[:, 1]).cumsum(0)
    return RiskCoverage(-order, answered.double() / len(rows), losses / answered)


def aurc(
    predicted: Distribution,
    targets: ArrayLike,
    *,
    loss: Loss = zero_one_loss,
    confidence: Confidence = largest_prob,
) -> Tensor:
    """The area under the risk-coverage curve, a float64 scalar; see `AURC`."""
    return AURC(loss, confidence)(predicted, targets)


def e_aurc(
    predicted: Distribution,
    targets: ArrayLike,
    *,
    loss: Loss = zero_one_loss,
    confidence: Confidence = largest_prob,
) -> Tensor:
    """The excess area over the best order, a float64 scalar; see `EAURC`."""
    return EAURC(loss, confidence)(predicted, targets)
