"""Members of an ensemble that are fitted one by one: what each learns from, and what is kept where one fails."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from credibly.core.data import ArraySource
from credibly.core.errors import NotFiniteError, NotSupportedError
from credibly.core.params import module_device
from credibly.inference.problem import read
from credibly.model import Model
from credibly.posteriors.base import Posterior

__all__ = ["data_of_members", "one_by_one"]


def data_of_members(model: Model, data: Any, rows: Sequence[Tensor] | None, num_members: int) -> list[Any]:
    """What each member learns from: all of the data, or the rows of its sample."""
    return [data] * num_members if rows is None else [_rows_of(model, data, index) for index in rows]


def one_by_one(fits: Iterable[Callable[[], Posterior]]) -> list[Posterior]:
    """The posteriors of members; where one fails, its error holds those before it and what there is of its own."""
    done: list[Posterior] = []
    for fit in fits:
        try:
            done.append(fit())
        except NotFiniteError as error:
            error.posterior = [*done, *([] if error.posterior is None else [error.posterior])]
            raise
    return done


def _rows_of(model: Model, data: Any, index: Tensor) -> Any:
    """The chosen rows of data in memory."""
    source = read(model, data)
    if not isinstance(source, ArraySource):
        raise NotSupportedError("a bootstrap sample needs data in memory, as (inputs, targets); got a loader")
    some = source.data.take(index.to(module_device(model)))
    return replace(some, num_data=source.data.num_data)
