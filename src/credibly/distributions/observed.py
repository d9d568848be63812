"""Predictions of several elements a row, of which some targets are missing, as predictions of single elements.

A sequence, an image or a row of several outputs is one target; whatever scores or calibrates rows counts it as one. Its
observed elements, taken as rows of their own, can be given to everything that takes rows. Elements that are independent
given the network's outputs, under each draw by itself, lose nothing by that; what draws make them share is left out, so
that the log score of the elements is that of each by itself. Where the elements depend on each other in one draw
already, as in a multivariate normal, they are no rows.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, Independent

from credibly.core.checks import as_tensor
from credibly.core.errors import ShapeError
from credibly.core.typing import ArrayLike
from credibly.distributions.affine import AffineView
from credibly.distributions.empirical import Empirical
from credibly.distributions.gaussian import GaussianPredictive
from credibly.distributions.kinds import reference
from credibly.distributions.marginal import MarginalPredictive
from credibly.distributions.mixture import MixturePredictive
from credibly.distributions.operations import Operation, check_distribution
from credibly.distributions.rows import Change, rebuild, select
from credibly.distributions.targets import target_shape

__all__ = ["observed"]


def observed(predicted: Distribution, targets: ArrayLike, mask: ArrayLike) -> tuple[Distribution, Tensor]:
    """The observed elements of every row, each as a row of its own, for anything that takes predictions and targets.

        metrics.crps(*observed(predicted, targets, mask))

    Args:
        predicted: a prediction whose elements are independent in every draw, as `PerElement` and likelihoods of several
            targets make it, and mixtures of such over draws, which keep their draws.
        targets: (rows, *event_shape); what stands where the mask is False is not looked at, and may be NaN.
        mask: booleans, True where a target is known: (rows,), or (rows, *elements) for the first axes of the event.

    Returns:
        The prediction of the known elements, in the order of `mask.nonzero()`, and their targets. A mask over all axes
        of the event leaves numbers; of (rows, steps) against targets (rows, steps, 2) it leaves vectors of 2.

    Raises:
        ShapeError: the shapes do not fit each other, or the mask is not boolean.
        NotSupportedError: the elements of a row depend on each other.
    """
    check_distribution(predicted)
    like, expected = reference(predicted), target_shape(predicted)
    known = as_tensor(mask, device=like.device)
    values = as_tensor(targets, dtype=like.dtype, device=like.device)
    if known.dtype != torch.bool or not known.dim() or known.shape != expected[: known.dim()]:
        raise ShapeError(
            f"`mask` must be booleans of shape {tuple(expected)}, or of the first of these axes; "
            f"got {known.dtype} of shape {tuple(known.shape)}"
        )
    if values.shape != expected:
        raise ShapeError(f"`targets` must have shape {tuple(expected)}; got {tuple(values.shape)}")
    axes = known.dim() - 1
    if not axes:
        return select(predicted, known), values[known]
    index = known.flatten().nonzero().squeeze(1)

    def pick(tensors: Sequence[Tensor], event_dim: int | None) -> Tensor:
        (value,) = tensors
        if event_dim is None:
            return value
        rows = value.dim() - 1 - event_dim - axes
        return value.flatten(rows, rows + axes).index_select(rows, index.to(value.device))

    return elements_as_rows(predicted, axes, pick), values[known]


@Operation
def elements_as_rows(d: Distribution, axes: int, change: Change) -> Distribution:  # noqa: ARG001
    """The distribution made of the changed parameters of `d`, whose first axes of the event have become rows.

    Args:
        d: whose elements are independent.
        axes: how many axes of the event.
        change: sees all of these axes, and those that became rows before, right after the rows.
    """
    elements_as_rows.refuse(d, "the elements of a row depend on each other there, and are no rows of their own")


@elements_as_rows.register(Independent)
def _(d: "Independent[Any]", axes: int, change: Change) -> Distribution:
    kept = d.reinterpreted_batch_ndims - axes
    if kept < 0:
        return elements_as_rows.formula(d.base_dist, -kept, change)
    return rebuild(Independent(d.base_dist, kept, validate_args=False) if kept else d.base_dist, (), change)


@elements_as_rows.register(MixturePredictive)
def _(d: MixturePredictive, axes: int, change: Change) -> Distribution:
    new = MixturePredictive(elements_as_rows.formula(d.components, axes, change))
    new.log_weights = d.log_weights  # normalised already
    return new


@elements_as_rows.register(MarginalPredictive)
def _(d: MarginalPredictive, axes: int, change: Change) -> Distribution:
    return MarginalPredictive(elements_as_rows.formula(d.marginal, axes, change))


@elements_as_rows.register(GaussianPredictive)
def _(d: GaussianPredictive, axes: int, change: Change) -> Distribution:  # noqa: ARG001
    parts = (d.mean, d.function_variance, d.noise_variance)
    return GaussianPredictive(*(change([part], 0) for part in parts))


@elements_as_rows.register(AffineView)
def _(d: AffineView, axes: int, change: Change) -> Distribution:
    left = len(d.event_shape) - axes
    base = elements_as_rows.formula(d.base, axes, change)
    return AffineView(base, change([d.loc], left), change([d.scale], left))


@elements_as_rows.register(Empirical)
def _(d: Empirical, axes: int, change: Change) -> Distribution:
    new = Empirical(change([d.draws], len(d.event_shape) - axes))
    new.log_weights, new.equal_weights = d.log_weights, d.equal_weights
    return new
