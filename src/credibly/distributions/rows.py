"""Row operations: select rows, concatenate rows, move between devices and precisions.

All three are one table, `rebuild`: a distribution is taken apart into its parameter tensors, each is
changed by a function that knows how many of its trailing axes belong to one row, and the same kind of
distribution is built from the results. Rows are the last batch axis; the components of a mixture have the
draws before it.
"""

import copy
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.distributions import Categorical, Distribution, Independent, constraints
from torch.distributions.utils import lazy_property

from credibly.core.checks import as_tensor
from credibly.core.errors import NotSupportedError, ShapeError
from credibly.core.typing import ArrayLike
from credibly.distributions.operations import Operation, check_distribution

__all__ = ["Change", "concatenate", "num_rows", "rebuild", "select", "to"]

Change: TypeAlias = Callable[[Sequence[Tensor], int | None], Tensor]
"""Makes one parameter of the same parameter of several distributions.

The second argument counts the axes after the rows; None is a tensor without rows, such as mixture weights.
"""


@Operation
def rebuild(d: Distribution, others: Sequence[Distribution], change: Change) -> Distribution:
    """A distribution of the same type as `d`, made of the changed parameters of `d` and `others`.

    The general entry serves every class whose constructor takes the parameters that `arg_constraints` names:
    they are expanded to the batch shape and changed; other constructor arguments are passed on as they are.

    Raises:
        NotSupportedError: a constructor argument cannot be read back from the distribution, or is a tensor that
            `arg_constraints` does not name.
    """
    shared = _stored_arguments(d)
    arguments = {}
    for name, value in shared.items():
        constraint = d.arg_constraints.get(name)
        if constraint is None and isinstance(value, Tensor) and value.dim() > 0:
            raise NotSupportedError(
                f"the tensor `{name}` of {type(d).__name__} is not named in its `arg_constraints`, so its rows "
                f"cannot be told; name it there, or register the type: rebuild.register({type(d).__name__})"
            )
        if constraint is None or not isinstance(value, Tensor):
            arguments[name] = value
        else:
            arguments[name] = change([_expanded(e, name, constraint) for e in (d, *others)], constraint.event_dim)
    if "validate_args" in _constructor(_class_of(d)):
        arguments["validate_args"] = False
    return type(d)(**arguments)


def _class_of(d: Any) -> Any:
    return type(d)


@functools.cache
def _constructor(cls: Any) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(cls).parameters)


def _stored_arguments(d: Distribution) -> dict[str, Any]:
    """The constructor arguments of a distribution, read from its attributes."""
    stored: dict[str, Any] = {}
    for name, parameter in _constructor(_class_of(d)).items():
        if name == "validate_args":
            continue
        if name in vars(d):
            stored[name] = vars(d)[name]
        elif parameter.default is inspect.Parameter.empty:
            stored[name] = _read(d, name)
    for name in _derived(d, stored):
        del stored[name]
    return stored


def _read(d: Distribution, name: str) -> Any:
    try:
        return getattr(d, name)
    except AttributeError:
        raise NotSupportedError(
            f"{type(d).__name__} does not keep its constructor argument `{name}` as an attribute; "
            f"keep it, or register the type: rebuild.register({type(d).__name__})"
        ) from None


def _derived(d: Distribution, stored: dict[str, Any]) -> list[str]:
    """Alternative parameters (logits beside probs) that torch computed and cached on first use."""
    every = [n for n in vars(d) if n in stored]  # in the order in which they were set
    lazy = [n for n in every if isinstance(inspect.getattr_static(type(d), n, None), lazy_property)]
    given = [n for n in lazy if stored[n] is getattr(d, "_param", None)] or lazy[:1]
    return [n for n in lazy if n not in given]


def _expanded(d: Distribution, name: str, constraint: constraints.Constraint) -> Tensor:
    value: Tensor = getattr(d, name)
    trailing = value.shape[value.dim() - constraint.event_dim :]
    return value.expand(d.batch_shape + trailing)


@rebuild.register(Independent)
def _(d: "Independent[Any]", others: Sequence[Distribution], change: Change) -> Distribution:
    extra = d.reinterpreted_batch_ndims
    bases = [_like(d, e).base_dist for e in others]

    def change_base(tensors: Sequence[Tensor], event_dim: int | None) -> Tensor:
        return change(tensors, None if event_dim is None else event_dim + extra)

    return Independent(rebuild(d.base_dist, bases, change_base), extra, validate_args=False)


@rebuild.register(Categorical)
def _(d: Categorical, others: Sequence[Distribution], change: Change) -> Distribution:
    # torch's constructor normalises again and moves the last bit; the parameter is kept as it is instead.
    every = [d, *(_like(d, e) for e in others)]
    name = "probs" if all("probs" in vars(e) and e._param is e.probs for e in every) else "logits"
    value = change([getattr(e, name).expand((*e.batch_shape, -1)) for e in every], 1)
    new = copy.copy(d)
    for stale in ("probs", "logits"):
        vars(new).pop(stale, None)
    vars(new)[name] = new._param = value
    new._num_events = value.shape[-1]
    new._batch_shape = value.shape[:-1]
    return new


def _like(d: Distribution, other: Distribution) -> Any:
    if type(other) is not type(d):
        raise TypeError(f"cannot combine a {type(d).__name__} with a {type(other).__name__}")
    return other


def num_rows(d: Distribution) -> int:
    """The number of rows: the size of the last batch axis.

    Raises:
        ShapeError: the distribution has no batch axis.
    """
    check_distribution(d)
    if not d.batch_shape:
        raise ShapeError(f"a {type(d).__name__} with batch_shape () has no rows; it needs (rows,)")
    return d.batch_shape[-1]


def select(d: Distribution, rows: ArrayLike | slice) -> Distribution:
    """The given rows, in the given order.

    Args:
        d: a distribution with rows on its last batch axis.
        rows: indices, a boolean mask over all rows, one index, or a slice. The row axis stays in any case.

    Raises:
        ShapeError: the mask has another length than the rows, or the indices more than one axis.
        IndexError: an index is out of range.
    """
    index = rows if isinstance(rows, slice) else _row_index(rows, num_rows(d))

    def pick(tensors: Sequence[Tensor], event_dim: int | None) -> Tensor:
        if event_dim is None:
            return tensors[0]
        where = index if isinstance(index, slice) else index.to(tensors[0].device)
        return tensors[0][(..., where, *(slice(None),) * event_dim)]

    return rebuild(d, (), pick)


def _row_index(rows: ArrayLike, count: int) -> Tensor:
    index = as_tensor(rows).reshape(-1) if as_tensor(rows).dim() == 0 else as_tensor(rows)
    if index.dim() != 1 or (index.dtype == torch.bool and len(index) != count):
        raise ShapeError(f"`rows` must be a list of indices or a mask of shape ({count},); got {tuple(index.shape)}")
    if index.dtype == torch.bool:
        return index.nonzero().squeeze(1)
    if len(index) == 0:
        return index.long()
    if index.is_floating_point():
        raise TypeError(f"`rows` must be integers or booleans; got {index.dtype}")
    if int(index.max()) >= count or int(index.min()) < -count:
        raise IndexError(f"`rows` must lie in [{-count}, {count - 1}]; got {int(index.min())} to {int(index.max())}")
    return index.long() % count


def concatenate(ds: Sequence[Distribution]) -> Distribution:
    """One distribution with the rows of all, in order.

    Raises:
        ValueError: nothing was given, or parts without rows (mixture weights, quantile levels) differ.
        TypeError: the distributions are of different types.
        ShapeError: they differ in more than their rows.
    """
    if not ds:
        raise ValueError("`ds` must hold at least one distribution; got none")
    first, *others = ds
    for other in others:
        _like(first, other)
        if other.batch_shape[:-1] != first.batch_shape[:-1] or other.event_shape != first.event_shape:
            raise ShapeError(
                "distributions must agree but for their rows; got batch_shape and event_shape "
                f"{tuple(first.batch_shape)}, {tuple(first.event_shape)} and "
                f"{tuple(other.batch_shape)}, {tuple(other.event_shape)}"
            )
    num_rows(first)
    return rebuild(first, others, _join) if others else first


def _join(tensors: Sequence[Tensor], event_dim: int | None) -> Tensor:
    if event_dim is not None:
        return torch.cat(tuple(tensors), dim=-1 - event_dim)
    for other in tensors[1:]:
        if not torch.equal(tensors[0], other):
            raise ValueError("mixture weights and quantile levels must be the same in all concatenated parts")
    return tensors[0]


def to(
    d: Distribution,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> Distribution:
    """The same distribution on another device or in another precision; integers keep their dtype."""

    def move(tensors: Sequence[Tensor], event_dim: int | None) -> Tensor:  # noqa: ARG001
        (value,) = tensors
        return value.to(device=device, dtype=dtype if value.is_floating_point() else None)

    return rebuild(d, (), move)
