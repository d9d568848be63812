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

Intervals weight rows at random, uniformly on the simplex ("The Bayesian Bootstrap", Rubin, 1981), with one row more, of
the largest loss for the upper end and of the least for the lower end, as confident as a row drawn at random. So the
interval has a width also where no row was wrong, as that of Clopper and Pearson has: the extra row stands for losses
that were not seen, which are taken to be no more frequent among confident rows than among others. The largest loss is 1
where all losses are 0 or 1, else the largest that was seen.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor
from torch.distributions import Distribution

from credibly.core.checks import as_tensor, check_finite
from credibly.core.errors import NotSupportedError, ShapeError
from credibly.core.typing import ArrayLike
from credibly.distributions.class_rows import class_log_prob_blocks
from credibly.distributions.kinds import base_of, kind, reference
from credibly.distributions.operations import check_distribution
from credibly.distributions.targets import match_targets
from credibly.distributions.top_label import top_label
from credibly.metrics.base import Estimate, State
from credibly.metrics.mean_intervals import are_shares
from credibly.metrics.resampling import dirichlet_weights, over_resamples, percentiles
from credibly.metrics.risk_areas import area_of, weighted_area
from credibly.metrics.row_metrics import RowMetric
from credibly.metrics.scores import row_means

__all__ = ["AURC", "EAURC", "RiskCoverage", "aurc", "e_aurc", "largest_prob", "risk_coverage", "zero_one_loss"]

Loss: TypeAlias = Callable[[Distribution, ArrayLike], ArrayLike]
"""The loss of each row, (rows,)."""

_CHUNK_NUMBERS = 2**22

Confidence: TypeAlias = Callable[[Distribution], ArrayLike]
"""The confidence in each row, (rows,)."""


def zero_one_loss(predicted: Distribution, targets: ArrayLike) -> Tensor:
    """1 where the most probable class did not come, else 0; the mean over the labels of a row."""
    _require_classes(predicted, "loss")
    return 1 - row_means(top_label(predicted, match_targets(predicted, targets))[1])


def largest_prob(predicted: Distribution) -> Tensor:
    """The largest class probability of each row; the mean over the labels of a row."""
    _require_classes(predicted, "confidence")
    return torch.cat([row_means(log_probs.amax(-1).exp()) for _, log_probs in class_log_prob_blocks(predicted)])


def _require_classes(predicted: Distribution, role: str) -> None:
    check_distribution(predicted)
    if kind(predicted) != "class":
        raise NotSupportedError(
            f"{type(base_of(predicted)).__name__} is not a prediction of classes, for which the default `{role}` is; "
            "pass loss= and confidence=, such as the squared error and minus the standard deviation"
        )


@dataclass(frozen=True)
class AURC(RowMetric):
    """The area under the risk-coverage curve: the mean over i of the risk among the i most confident rows.

    Its interval takes errors that were not seen to be as confident as other rows: where they are the most confident
    ones, its upper end is too low. Losses that are neither 0 nor 1 and all equal leave a point.

    Args:
        loss: of each row. Any function of the prediction and the targets; `zero_one_loss` needs classes.
        confidence: in each row, by which rows are sorted. Any function of the prediction.
    """

    loss: Loss = zero_one_loss
    confidence: Confidence = largest_prob

    def rows(self, predicted: Distribution, targets: ArrayLike) -> Tensor:
        """Confidence and loss, (rows, 2)."""
        found = {"confidence": self.confidence(predicted), "loss": self.loss(predicted, targets)}
        columns = [(name, as_tensor(column, device=reference(predicted).device)) for name, column in found.items()]
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
        return area_of(-rows[:, 0], rows[:, 1])

    def estimate(self, state: State, coverage: float, num_replicates: int, generator: torch.Generator) -> Estimate:
        """The area with the interval of rows weighted at random, and the areas of resampled rows."""
        value = self.checked(state)
        replicates = self.replicates(state, num_replicates, generator)
        low, high = self._weighted_areas([state["rows"]], num_replicates, generator)[0]
        lower, upper = percentiles(low, coverage)[0], percentiles(high, coverage)[1]
        return Estimate(value, lower.minimum(value), upper.maximum(value), coverage, replicates)

    def difference_ends(
        self, one: State, two: State, value: Tensor, replicates: Tensor, coverage: float, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """From rows weighted alike for both, with a row more on which either prediction is the worse one."""
        rows = [state["rows"] for state in (one, two)]
        (low, high), (other_low, other_high) = self._weighted_areas(rows, len(replicates), generator)
        lower, upper = percentiles(low - other_high, coverage)[0], percentiles(high - other_low, coverage)[1]
        return lower.minimum(value), upper.maximum(value)

    def weighted(self, rows: Tensor, weights: Tensor, loss: Tensor, place: Tensor) -> Tensor:
        """The area of weighted rows and one more.

        Args:
            rows: confidence and loss, (rows, 2).
            weights: (some, rows + 1); the last is that of the row more.
            loss: of the row more, a scalar.
            place: the row whose confidence it has, (some,).
        """
        distinct, group = (-rows[:, 0]).unique(return_inverse=True)  # type: ignore[no-untyped-call]
        return weighted_area(weights, torch.cat([rows[:, 1], loss[None]]), group, group[place], len(distinct))

    def _weighted_areas(
        self, rows: list[Tensor], num_replicates: int, generator: torch.Generator
    ) -> list[tuple[Tensor, Tensor]]:
        """For each prediction of the same rows: the areas with a row more of the least and of the largest loss."""
        num_rows = len(rows[0])
        some = max(1, _CHUNK_NUMBERS // num_rows)
        parts: list[list[tuple[Tensor, Tensor]]] = [[] for _ in rows]
        for start in range(0, num_replicates, some):
            size = min(some, num_replicates - start)
            weights = dirichlet_weights(num_rows + 1, size, generator)
            for of_one, found in zip(rows, parts, strict=True):
                place = torch.randint(num_rows, (size,), generator=generator, device=generator.device)
                least, most = _range_of_losses(of_one[:, 1])
                found.append(
                    (self.weighted(of_one, weights, least, place), self.weighted(of_one, weights, most, place))
                )
        return [(torch.cat([low for low, _ in found]), torch.cat([high for _, high in found])) for found in parts]


@dataclass(frozen=True)
class EAURC(AURC):
    """The excess of the area under the risk-coverage curve over the best order of the rows; 0 is perfect.

    Args:
        loss: of each row; see `AURC`.
        confidence: in each row, by which rows are sorted.
    """

    def curve(self, rows: Tensor) -> Callable[[Tensor], Tensor]:
        """The area less that of the rows sorted by their losses."""
        area, best = area_of(-rows[:, 0], rows[:, 1]), area_of(rows[:, 1], rows[:, 1])
        return lambda index: (area(index) - best(index)).clamp(min=0)

    def weighted(self, rows: Tensor, weights: Tensor, loss: Tensor, place: Tensor) -> Tensor:
        """The area of weighted rows and one more, less that of their best order."""
        losses = torch.cat([rows[:, 1], loss[None]])
        distinct, group = losses.unique(return_inverse=True)  # type: ignore[no-untyped-call]
        last = group[-1].expand(len(weights))
        best = weighted_area(weights, losses, group[:-1], last, len(distinct))
        return (super().weighted(rows, weights, loss, place) - best).clamp(min=0)


def _range_of_losses(losses: Tensor) -> tuple[Tensor, Tensor]:
    """The least and the largest loss: 0 and 1 where all are 0 or 1, else those seen."""
    low, high = losses.aminmax()
    return (torch.zeros_like(low), torch.ones_like(high)) if are_shares(losses) else (low, high)


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

    def __repr__(self) -> str:
        return (
            f"RiskCoverage({len(self.risk)} thresholds; risk {float(self.risk[0]):.4g} at coverage "
            f"{float(self.coverage[0]):.4g}, {float(self.risk[-1]):.4g} at 1)"
        )


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
