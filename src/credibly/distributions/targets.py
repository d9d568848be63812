"""Targets at the boundary: their shape, their dtype, their support.

Torch broadcasts a target of shape (n,) against outputs of shape (n, 1) to (n, n), and scores an Exponential
at -5 above one at 0. Here both stop with an error that names what was expected and what came.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Binomial, Categorical, Distribution, Independent, constraints

from credibly.core.checks import as_tensor, check_finite
from credibly.core.errors import ShapeError, SupportError
from credibly.core.typing import ArrayLike
from credibly.distributions.kinds import base_of, kind, reference
from credibly.distributions.operations import Operation
from credibly.distributions.shapes import broadcast_shape

__all__ = [
    "any_draw",
    "check_rows",
    "inside_support",
    "match_levels",
    "match_observed",
    "match_targets",
    "match_values",
    "outside_trials",
    "refusal",
    "target_shape",
]


def check_rows(d: object) -> None:
    """Raise a ShapeError if it is a distribution with another number of batch axes than one, the rows."""
    if isinstance(d, Distribution) and len(d.batch_shape) != 1:
        raise ShapeError(f"`predicted` must have batch_shape (rows,); got {_batch(d)}")


def _batch(d: Distribution) -> str:
    """The batch shape and, unless it is the rows, what to do."""
    batch = f"{type(d).__name__} with batch_shape {tuple(d.batch_shape)}"
    if not d.batch_shape:
        return f"{batch}: expand((rows,)) gives every row the same prediction"
    return f"{batch}: the outputs of a row belong to its event, Independent(predicted, {len(d.batch_shape) - 1})"


def target_shape(d: Distribution) -> torch.Size:
    """The shape of one target a row: (rows, *event_shape). Axes of draws before the rows do not count."""
    return d.batch_shape[-1:] + d.event_shape


@Operation
def inside_support(d: Distribution, targets: Tensor) -> Tensor:
    """Where the targets lie in the support, element by element; no data-dependent control flow.

    A target counts as inside when any draw gives it mass.
    """
    support: Any = d.support
    if not targets.numel():  # torch's own check of vectors fails without rows
        return torch.ones_like(targets, dtype=torch.bool)
    inside: Tensor = support.check(targets)
    return any_draw(inside, targets.dim() - support.event_dim)


def any_draw(inside: Tensor, dims: int) -> Tensor:
    """Whether any of the leading axes beyond `dims` says so."""
    return inside.flatten(0, -dims - 1).any(0) if inside.dim() > dims else inside


@inside_support.register(Independent)
def _(d: "Independent[Any]", targets: Tensor) -> Tensor:
    return inside_support(d.base_dist, targets)


@inside_support.register(Categorical)
def _(d: Categorical, targets: Tensor) -> Tensor:  # torch's own check divides, and takes ten times as long
    return (targets >= 0) & (targets < d._num_events)


@Operation
def target_dtype(d: Distribution) -> torch.dtype:
    """The dtype in which a distribution reads integer targets."""
    base = base_of(d)
    return reference(d).dtype if base is d else target_dtype(base)


@target_dtype.register(Categorical)
def _(d: Categorical) -> torch.dtype:  # noqa: ARG001
    return torch.int64


@Operation
def match_targets(d: Distribution, y: ArrayLike) -> Tensor:
    """The targets as a tensor of shape (rows, *event_shape), checked.

    (n,) is taken for (n, 1) and (n, 1) for (n,); nothing else is reshaped, nothing is broadcast. Integers and
    booleans are cast to the distribution's dtype; class targets become int64. Arrays take the distribution's
    dtype and device, tensors keep their dtype.

    Raises:
        ShapeError: another shape; one-hot rows for a Categorical.
        NotFiniteError: NaN or infinite targets.
        SupportError: a target to which the distribution gives no mass wherever its parameters lie.
    """
    like = reference(d)
    targets = as_tensor(y, dtype=like.dtype, device=like.device)
    targets = check_finite("targets", _shaped("targets", targets, d))
    dtype = target_dtype(d)
    if dtype == torch.int64:
        targets = _class_indices(targets, d)
    elif not targets.is_floating_point():
        targets = targets.to(dtype)
    _check_support(d, targets)
    return targets


@Operation
def match_observed(d: Distribution, y: ArrayLike) -> Tensor:
    """What was observed of the targets, in the form that log densities take: the targets, checked.

    Of a censored prediction it may be pairs of bounds, (rows, 2).

    Raises:
        ShapeError, NotFiniteError, SupportError: see `match_targets`.
    """
    return match_targets(d, y)


def _shaped(name: str, values: Tensor, d: Distribution, *, grids: bool = False) -> Tensor:
    expected = target_shape(d)
    if values.shape == expected:
        return values
    if values.shape == (*expected, 1) or (*values.shape, 1) == expected:
        return values.reshape(expected)
    advice = ""
    if values.shape[:-1] == expected and kind(d) == "class":
        advice = "; class targets are indices, not one-hot rows or probabilities: pass argmax(-1)"
    alternatives = f"{tuple(expected)}" + (f" or {(*expected, 1)}" if len(expected) == 1 else "")
    if grids:
        ones, whole = (", ".join(str(size) for size in sizes) for sizes in ((1,) * len(expected), expected))
        advice += f"; a grid of k values has shape (k, {ones}), the same for all rows, or (k, {whole})"
    if not grids and len(d.batch_shape) != 1:
        advice += f"; the prediction is a {_batch(d)}"
    raise ShapeError(f"`{name}` must have shape {alternatives}; got {tuple(values.shape)}{advice}")


def _class_indices(targets: Tensor, d: Distribution) -> Tensor:
    whole = targets.to(torch.int64)
    if targets.is_floating_point() and bool((whole != targets).any()):
        raise SupportError(_describe_refusal(d, float(targets[whole != targets][0])))
    return whole


def _check_support(d: Distribution, targets: Tensor) -> None:
    inside = inside_support(d, targets)
    if not bool(inside.all()):
        raise SupportError(refusal(d, targets, inside))


@Operation
def refusal(d: Distribution, targets: Tensor, inside: Tensor) -> str:
    """What to say of targets of which some lie outside the support."""
    return _describe_refusal(d, targets[~inside].reshape(-1)[0].item())


@refusal.register(Independent)
def _(d: "Independent[Any]", targets: Tensor, inside: Tensor) -> str:
    return refusal(d.base_dist, targets, inside)


@refusal.register(Binomial)
def _(d: Binomial, targets: Tensor, inside: Tensor) -> str:
    """Bounds that depend on the row are named with it."""
    place = tuple((~inside.broadcast_to(targets.shape)).nonzero()[0].tolist())
    total = d.total_count.broadcast_to(broadcast_shape(d.total_count.shape, targets.shape))
    total = total.reshape(-1, *targets.shape).amax(0)
    return outside_trials(float(targets[place]), place[0], float(total[place]))


def outside_trials(value: float, row: int, total: float) -> str:
    """What to say of a target that cannot be a number of successes out of `total`, which is infinite if not known."""
    last = "" if math.isinf(total) else f" to {total:g}, its number of trials"
    advice = "; pass successes, not proportions" if 0 < value < 1 else ""
    return f"target {value:g} in row {row} lies outside the support of Binomial: whole numbers from 0{last}{advice}"


def _describe_refusal(d: Distribution, value: float) -> str:
    advice = "; classes are indices, and interop.ClassLabels maps other labels to them" if kind(d) == "class" else ""
    name = type(base_of(d)).__name__
    return f"target {value:g} lies outside the support of {name}: {_describe(d.support)}{advice}"


def _describe(support: Any) -> str:
    element = getattr(support, "base_constraint", support)
    if element is constraints.boolean:
        return "0 and 1"
    noun = "whole numbers" if element.is_discrete else "numbers"
    bounds = [getattr(element, name, None) for name in ("lower_bound", "upper_bound")]
    if any(isinstance(bound, Tensor) and bound.numel() > 1 for bound in bounds):
        return f"{noun} within bounds that depend on the row"
    if isinstance(element, constraints.greater_than):
        return f"{noun} above {bounds[0]:g}"
    lower, upper = (None if bound is None else f"{float(bound):g}" for bound in bounds)
    if lower is not None and upper is not None:
        return f"{noun} from {lower} to {upper}"
    return f"{noun} of {lower} or more" if lower is not None else str(element)


def match_values(d: Distribution, y: ArrayLike) -> Tensor:
    """Points at which a cumulative function is asked for: any real numbers, also outside the support.

    Args:
        d: the distribution.
        y: one number for all rows; one for every row, as in `match_targets`; or a grid (..., rows, *event_shape).
            The rows, or all axes of a grid's rows, may be of size 1: (k, 1) asks every one of n rows for k values.
            (n, 1) against n rows is one value a row.

    Raises:
        ShapeError: another shape.
        NotFiniteError: NaN. Infinite points are fine.
    """
    like = reference(d)
    values = as_tensor(y, dtype=like.dtype, device=like.device)
    values = values if values.is_floating_point() else values.to(like.dtype)
    check_finite("values", torch.where(values.isinf(), 0.0, values))
    expected = target_shape(d)
    if values.dim() == 0:
        return values.expand(expected)
    tail = values.shape[values.dim() - len(expected) :] if values.dim() > len(expected) else None
    if tail == expected:
        return values
    for_all_rows = tail is not None and tail == (1,) * len(expected) and values.shape != (*expected, 1)
    if for_all_rows:
        return values.expand(*values.shape[: values.dim() - len(expected)], *expected)
    return _shaped("values", values, d, grids=True)


def match_levels(d: Distribution, q: ArrayLike) -> Tensor:
    """Probability levels in [0, 1], one for all rows, one a row, or anything that broadcasts to the targets.

    Raises:
        ValueError: a level outside [0, 1], or NaN.
        ShapeError: a shape that does not broadcast against (rows, *event_shape).
    """
    like = reference(d)
    levels = as_tensor(q, dtype=like.dtype, device=like.device)
    levels = levels if levels.is_floating_point() else levels.to(like.dtype)
    if not bool(((levels >= 0) & (levels <= 1)).all()):
        raise ValueError(f"`q` must lie in [0, 1]; got values from {float(levels.min())} to {float(levels.max())}")
    expected = target_shape(d)
    if levels.dim() == 1 and levels.shape == d.batch_shape[-1:]:
        levels = levels.reshape(-1, *(1,) * len(d.event_shape))
    try:
        shape = broadcast_shape(levels.shape, expected)
    except RuntimeError:
        raise ShapeError(
            f"`q` must broadcast against {tuple(expected)}, for example (levels, *{(1,) * len(expected)}); "
            f"got {tuple(levels.shape)}"
        ) from None
    return levels.expand(shape)
