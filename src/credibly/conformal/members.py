"""Predictions by several models for the same rows: a stack of distributions, a list of them, or a mixture's parts."""

from collections.abc import Sequence
from typing import TypeAlias

from torch import Tensor
from torch.distributions import Distribution

from credibly.core.errors import ShapeError
from credibly.distributions.mixture import MixturePredictive
from credibly.distributions.operations import Operation
from credibly.distributions.rows import rebuild

__all__ = ["Members", "each_member", "stacked"]

Members: TypeAlias = Distribution | Sequence[Distribution]
"""One distribution with batch_shape (members, rows), a mixture of as many components, or a sequence."""


@Operation
def stacked(d: Distribution) -> Distribution:
    """The predictions of the single models: a mixture's components, else the distribution itself."""
    return d


@stacked.register(MixturePredictive)
def _(d: MixturePredictive) -> Distribution:
    return d.components


def each_member(name: str, members: Members, count: int) -> list[Distribution]:
    """The distribution of every model, in order.

    Args:
        name: what an error calls the argument.
        members: the predictions.
        count: how many models there must be.

    Raises:
        ShapeError: another number of models.
        TypeError: no distributions.
    """
    if isinstance(members, Distribution):
        table = stacked(members)
        if len(table.batch_shape) != 2 or table.batch_shape[0] != count:
            raise ShapeError(
                f"`{name}` must hold one prediction a fold, as batch_shape ({count}, rows) or a list of {count}; got "
                f"a {type(members).__name__} with batch_shape {tuple(table.batch_shape)}"
            )
        return [_member(table, index) for index in range(count)]
    if not isinstance(members, Sequence) or not all(isinstance(each, Distribution) for each in members):
        raise TypeError(f"`{name}` must be distributions, one a fold; got a {type(members).__name__}")
    if len(members) != count:
        raise ShapeError(f"`{name}` must hold one prediction a fold, {count}; got {len(members)}")
    return list(members)


def _member(table: Distribution, index: int) -> Distribution:
    def pick(tensors: Sequence[Tensor], event_dim: int | None) -> Tensor:
        return tensors[0] if event_dim is None else tensors[0][index]

    return rebuild(table, (), pick)
