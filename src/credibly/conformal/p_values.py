r"""Conformal p-values, and outliers found with them.

The p-value of a test score s among n calibration scores ("Algorithmic Learning in a Random World", Vovk, Gammerman,
Shafer, 2005) is

    (#{s_i >= s} + 1) / (n + 1),    or, smoothed with a uniform u,    (#{s_i > s} + u (#{s_i = s} + 1)) / (n + 1).

For a row exchangeable with the calibration rows the first is at most t with probability at most t, for every t, and the
second is uniform. The targets whose p-value exceeds 1 - coverage are those of the threshold rule, exactly: `retained`
compares as rationals. Counting is a sort and a binary search, never a table of all pairs.

Rows that are unlike the calibration rows have small p-values. "Testing for Outliers with Conformal p-values" (Bates,
Candes, Lei, Romano, Sesia, 2023): the p-values of several test rows share the calibration rows and depend on one
another positively, so the procedure of Benjamini and Hochberg bounds the expected fraction of inliers among the rows it
reports.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from credibly.conformal.comparisons import at_most
from credibly.conformal.multiple_testing import BenjaminiHochberg, MultipleTest, check_p_values
from credibly.conformal.rows import given_uniforms, row_uniforms
from credibly.core.checks import as_tensor, check_coverage, exact_level
from credibly.core.errors import NotFiniteError, ShapeError
from credibly.core.typing import ArrayLike

__all__ = ["OutlierTest", "Outliers", "conformal_p_values", "retained", "smoothed_p_values"]


def conformal_p_values(scores: ArrayLike, calibration_scores: ArrayLike) -> Tensor:
    """The p-value of every score, (#{s_i >= s} + 1) / (n + 1).

    Args:
        scores: scores of test rows, any shape: (rows,), or (rows, classes) for every class that a row might have.
        calibration_scores: scores of held-out rows, (n,), in any order; infinite ones count like others.

    Returns:
        The p-values, float64, in the shape of `scores`; all 1 without calibration scores.

    Raises:
        ShapeError: `calibration_scores` is not (n,).
        NotFiniteError: NaN scores.
    """
    values, ordered = _checked(scores, calibration_scores)
    below = torch.searchsorted(ordered, values)
    return (len(ordered) + 1 - below).to(torch.float64).div_(len(ordered) + 1)


def smoothed_p_values(
    scores: ArrayLike, calibration_scores: ArrayLike, *, u: ArrayLike | None = None, seed: int | None = None
) -> Tensor:
    """The smoothed p-value of every score, (#{s_i > s} + u (#{s_i = s} + 1)) / (n + 1).

    Args:
        scores: scores of test rows, (rows, ...); all numbers of a row share one u.
        calibration_scores: scores of held-out rows, (n,), in any order.
        u: numbers in [0, 1], (rows,); None draws them.
        seed: of the numbers that are drawn.

    Returns:
        The p-values, float64, in the shape of `scores`.

    Raises:
        ShapeError: `calibration_scores` is not (n,), or `scores` is a single number, or `u` is not one number a row.
        NotFiniteError: NaN scores.
        ValueError: `u` outside [0, 1].
    """
    values, ordered = _checked(scores, calibration_scores)
    if not values.dim():
        raise ShapeError("`scores` must have shape (rows, ...); got a single number")
    uniforms = _uniforms(u, len(values), seed, values.device).reshape(-1, *[1] * (values.dim() - 1))
    below = torch.searchsorted(ordered, values)
    up_to = torch.searchsorted(ordered, values, right=True)
    mass = (up_to - below + 1).to(torch.float64).mul_(uniforms)
    return mass.add_(len(ordered) - up_to).div_(len(ordered) + 1)


def retained(p_values: ArrayLike, coverage: float) -> Tensor:
    """Whether each p-value exceeds 1 - coverage, compared as rational numbers; bool, in the shape of `p_values`.

    Coverage 0 retains nothing, and coverage 1 every p-value above 0.

    Raises:
        NotFiniteError: NaN p-values.
        SupportError: p-values outside [0, 1].
        ValueError: coverage outside [0, 1].
    """
    p = as_tensor(p_values)
    checked = check_p_values(p.reshape(-1)).reshape(p.shape)
    return ~at_most(checked, 1 - exact_level(check_coverage(coverage)))


@dataclass(frozen=True, eq=False)
class Outliers:
    """What a test for outliers found.

    Attributes:
        p_values: of the hypothesis that the row is like the calibration rows, (rows,), float64.
        flagged: whether the row is reported as an outlier, (rows,), bool.
    """

    p_values: Tensor
    flagged: Tensor

    @property
    def indices(self) -> Tensor:
        """The reported rows, (number of outliers,), int64."""
        return self.flagged.nonzero().squeeze(-1)


@dataclass(frozen=True, kw_only=True)
class OutlierTest:
    """Report rows that are unlike the calibration rows, the more so the larger their scores.

    Args:
        level: the expected fraction of inliers among the reported rows, at most; in [0, 1]. For a `procedure` of the
            family-wise error, the probability of reporting any inlier.
        procedure: the multiple test.
    """

    level: float = 0.1
    procedure: MultipleTest = field(default_factory=BenjaminiHochberg)

    def __post_init__(self) -> None:
        if not 0 <= self.level <= 1:
            raise ValueError(f"`level` must lie in [0, 1]; got {self.level}")

    def detect(self, scores: ArrayLike, calibration_scores: ArrayLike) -> Outliers:
        """Test every row.

        With n calibration rows no p-value is below 1 / (n + 1): for a report of k among m rows, n must be at least
        m / (k level) - 1.

        Args:
            scores: how strange each row is, (rows,).
            calibration_scores: the same of rows without outliers, (n,), that the scorer was not trained on.

        Raises:
            ShapeError: the scores are not (rows,) and (n,).
            NotFiniteError: NaN scores.
        """
        p_values = conformal_p_values(scores, calibration_scores)
        if p_values.dim() != 1:
            raise ShapeError(f"`scores` must have shape (rows,); got {tuple(p_values.shape)}")
        return Outliers(p_values, self.procedure.reject(p_values, self.level))


def _checked(scores: ArrayLike, calibration_scores: ArrayLike) -> tuple[Tensor, Tensor]:
    """Both in one precision that holds either exactly, the calibration scores sorted."""
    values = as_tensor(scores).detach()
    reference = as_tensor(calibration_scores, device=values.device).detach()
    if reference.dim() != 1:
        raise ShapeError(f"`calibration_scores` must have shape (n,); got {tuple(reference.shape)}")
    for name, tensor in (("scores", values), ("calibration_scores", reference)):
        if tensor.is_floating_point() and bool(tensor.isnan().any()):
            raise NotFiniteError(f"`{name}` must not be NaN; {int(tensor.isnan().sum())} of {tensor.numel()} are")
    dtype = values.dtype if values.dtype == reference.dtype == torch.float32 else torch.float64
    return values.to(dtype).contiguous(), reference.to(dtype).contiguous().sort().values


def _uniforms(u: ArrayLike | None, rows: int, seed: int | None, device: torch.device) -> Tensor:
    return row_uniforms(rows, seed, "predict", device) if u is None else given_uniforms(u, rows, device)
