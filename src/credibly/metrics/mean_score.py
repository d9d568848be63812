"""The mean of one score a row, where there are rows and scores."""

from torch import Tensor

from credibly.core.errors import NotFiniteError, ShapeError

__all__ = ["mean_score"]


def mean_score(rows: Tensor, name: str) -> Tensor:
    """The mean of the scores, a float64 scalar; infinite scores make it infinite.

    Args:
        rows: float64, of any shape.
        name: of the score.

    Raises:
        ShapeError: there are none.
        NotFiniteError: one is NaN.
    """
    if not rows.numel():
        raise ShapeError(f"{name} needs at least one row; `predicted` and `targets` are empty")
    value = rows.mean()
    if bool(value.isnan()):
        raise NotFiniteError(f"{name} is NaN; `predicted` holds NaN, or gives scores that cannot be added up")
    return value
