"""What comes beside the predictions, one number a row: weights, difficulty, uniform numbers, thresholds."""

import math

import torch
from torch import Tensor

from credibly.core.checks import as_tensor, check_finite
from credibly.core.errors import ShapeError
from credibly.core.randomness import Stream, base_seed
from credibly.core.typing import ArrayLike

__all__ = [
    "check_agreement",
    "given_uniforms",
    "one_a_row",
    "row_difficulty",
    "row_thresholds",
    "row_uniforms",
    "row_weights",
    "scaled_thresholds",
]


def check_agreement(name: str, given: bool, calibrated: bool) -> None:
    """Raise a ValueError unless prediction and calibration were both given the argument, or neither was."""
    if given and not calibrated:
        raise ValueError(f"`{name}` was given to predict, but not to calibrate")
    if calibrated and not given:
        raise ValueError(f"`{name}` was given to calibrate, so predict needs it too")


def one_a_row(name: str, values: ArrayLike, rows: int, device: torch.device) -> Tensor:
    """Finite numbers, (rows,)."""
    tensor = as_tensor(values, device=device).detach()
    if tensor.shape not in ((rows,), (rows, 1)):
        raise ShapeError(f"`{name}` must have shape ({rows},); got {tuple(tensor.shape)}")
    return check_finite(name, tensor.reshape(rows))


def row_weights(weights: ArrayLike, rows: int, device: torch.device) -> Tensor:
    """The weight of each row, (rows,), float64, 0 or above."""
    given = one_a_row("weights", weights, rows, device).to(torch.float64)
    if bool((given < 0).any()):
        raise ValueError(f"`weights` must be 0 or above; got {given.min().item():g}")
    return given


def row_difficulty(difficulty: ArrayLike, rows: int, device: torch.device) -> Tensor:
    """The difficulty of each row, (rows,), float64, above 0."""
    given = one_a_row("difficulty", difficulty, rows, device).to(torch.float64)
    if bool((given <= 0).any()):
        raise ValueError(f"`difficulty` must be above 0; got {given.min().item():g}")
    return given


def row_uniforms(rows: int, seed: int | None, name: str, device: torch.device) -> Tensor:
    """One number a row, uniform on [0, 1), (rows,), float64."""
    return Stream(base_seed(seed), name, device).uniform(rows, 0, 1, torch.float64)[0]


def given_uniforms(u: ArrayLike, rows: int, device: torch.device) -> Tensor:
    """The caller's own numbers, one a row in [0, 1], as (rows,), float64.

    Raises:
        ShapeError: another shape.
        ValueError: numbers outside [0, 1], or NaN.
    """
    given = as_tensor(u, device=device).detach().to(torch.float64)
    if given.shape not in ((rows,), (rows, 1)):
        raise ShapeError(f"`u` must have shape ({rows},), one number a row; got {tuple(given.shape)}")
    outside = ~((given >= 0) & (given <= 1))
    if bool(outside.any()):
        raise ValueError(f"`u` must lie in [0, 1]; got {given[outside][0].item():g}")
    return given.reshape(rows)


def row_thresholds(thresholds: ArrayLike, rows: int, device: torch.device) -> Tensor:
    """Thresholds, float64, that broadcast to (rows, classes): one number a row becomes a column."""
    given = as_tensor(thresholds, device=device).to(torch.float64)
    if bool(given.isnan().any()):
        raise ValueError("`thresholds` must not be NaN")
    if given.dim() > 2 or (given.dim() and given.shape[0] not in (1, rows)):
        raise ShapeError(f"`thresholds` must broadcast to ({rows}, classes); got {tuple(given.shape)}")
    return given.unsqueeze(-1) if given.dim() == 1 else given


def scaled_thresholds(thresholds: Tensor, difficulty: Tensor) -> Tensor:
    """The largest t with t / difficulty <= threshold in floating point.

    Then score / difficulty <= threshold exactly when score <= t. The rounded product lies within a few
    units in the last place of it.
    """
    scaled = thresholds * difficulty
    below, above = (scaled.new_tensor(end) for end in (-math.inf, math.inf))
    for _ in range(3):
        scaled = torch.where(scaled / difficulty > thresholds, torch.nextafter(scaled, below), scaled)
    for _ in range(3):
        higher = torch.nextafter(scaled, above)
        scaled = torch.where(higher / difficulty <= thresholds, higher, scaled)
    return torch.where(thresholds.isinf(), thresholds, scaled)
