"""Data as methods see it: a batch is a `Data`, and a source yields batches in a given order.

Everything that a user may pass, arrays, `Data`, a `Dataset` or a `DataLoader`, becomes one of two sources here.
Arrays sit on the device and are indexed; loaders are iterated as they are.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, TensorDataset, WeightedRandomSampler

from credibly.core.checks import as_tensor, check_finite, check_same_rows
from credibly.core.errors import NotFiniteError, ShapeError
from credibly.core.inputs import as_inputs, leaves, map_inputs, num_rows, split_inputs, take_rows
from credibly.core.randomness import iterate
from credibly.core.typing import ArrayLike

__all__ = ["ArraySource", "Data", "LoaderSource", "Source", "as_source", "read_batch"]

_ROWS_TO_LOOK_AT = 8
_GATHER_BYTES = 2**22  # of inputs gathered at once: many small batches in one go, without a copy of all data


@dataclass(frozen=True, eq=False)
class Data:
    """Rows to learn from, or one batch of them.

    Attributes:
        inputs: what the network reads: a tensor, a tuple or a dict of tensors that share axis 0. A `Dataset` or
            `DataLoader` is taken as well, to give it a `num_data`.
        targets: one row per row of the inputs; None where a loader brings its own.
        weights: (rows,) how much each row's log likelihood counts.
        mask: (rows,) False where a target is missing; or the targets' shape, where rows are whole or missing, or single
            elements where the likelihood is `PerElement`.
        num_data: the number of training rows, where it cannot be read from the data (a stream).
    """

    inputs: Any
    targets: Any = None
    weights: Any = None
    mask: Any = None
    num_data: int | None = None

    def map_inputs(self, function: Callable[[Tensor], Tensor]) -> "Data":
        """The same rows with the function applied to every input tensor."""
        return replace(self, inputs=map_inputs(function, self.inputs))

    def take(self, rows: Tensor | slice) -> "Data":
        """The chosen rows, without `num_data`; an index (members, batch) gives every tensor a leading member axis."""

        def pick(values: Tensor | None) -> Tensor | None:
            return None if values is None else values[rows]

        return Data(take_rows(self.inputs, rows), pick(self.targets), pick(self.weights), pick(self.mask))

    def row_weights(self, like: Tensor) -> Tensor:
        """How much each row counts, (rows,), in the precision of a tensor: its weight, or 0 where nothing is there."""
        weights = like.new_ones(self.num_rows) if self.weights is None else self.weights.to(like)
        return weights if self.mask is None else weights * self.mask.reshape(len(weights), -1).any(-1)

    def split(self, size: int, axis: int = 0) -> "list[Data]":
        """The rows, which lie along `axis`, in batches of that size, as views."""
        columns: dict[str, Sequence[Any]] = {"inputs": split_inputs(self.inputs, size, axis)}
        for name in ("targets", "weights", "mask"):
            values = getattr(self, name)
            if values is not None:
                columns[name] = values.split(size, axis)
        return [Data(**dict(zip(columns, parts, strict=True))) for parts in zip(*columns.values(), strict=True)]

    @property
    def num_rows(self) -> int:
        """The number of rows."""
        return num_rows(self.inputs)


class Source(ABC):
    """Where batches come from.

    Attributes:
        num_data: the number of training rows N, which scales the likelihood of a batch.
        device: where batches lie.
    """

    num_data: int
    device: torch.device

    @abstractmethod
    def batches(self, batch_size: int | None, order: Tensor | None = None) -> Iterator[Data]:
        """Batches of `batch_size` rows. `order` (rows,) or (members, rows) indexes data in memory."""

    @abstractmethod
    def first(self) -> Data:
        """Some rows to look at: nothing is lost of a stream."""

    @abstractmethod
    def num_steps(self, batch_size: int | None) -> int:
        """How many batches one pass has."""

    @abstractmethod
    def map(self, function: Callable[[Data], Data]) -> "Source":
        """A source of the mapped data: arrays are mapped once, a loader's batches one by one."""


class ArraySource(Source):
    """Data in memory, on the device."""

    def __init__(self, data: Data) -> None:
        self.data = data
        self.num_data = data.num_data or data.num_rows
        self.device = leaves(data.inputs)[0].device

    def batches(self, batch_size: int | None, order: Tensor | None = None) -> Iterator[Data]:
        """Batches by index, the last one possibly shorter. Several are gathered at once and handed out as views."""
        total = self.data.num_rows if order is None else order.shape[-1]
        size = batch_size or total
        if order is None:
            yield from (self.data.take(slice(start, start + size)) for start in range(0, total, size))
            return
        axis = order.dim() - 1
        together = size * max(1, _GATHER_BYTES // (size * self._bytes_per_row() * (order.numel() // total)))
        for start in range(0, total, together):
            yield from self.data.take(order[..., start : start + together]).split(size, axis)

    def first(self) -> Data:
        """Up to eight rows, spread over all."""
        some = min(self.data.num_rows, _ROWS_TO_LOOK_AT)
        return self.data.take(torch.linspace(0, self.data.num_rows - 1, some, device=self.device).long())

    def num_steps(self, batch_size: int | None) -> int:
        """The rows over the batch size, rounded up."""
        rows = self.data.num_rows
        return -(-rows // (batch_size or rows))

    def _bytes_per_row(self) -> int:
        return max(1, sum(leaf[:1].nbytes for leaf in leaves(self.data.inputs)))

    def map(self, function: Callable[[Data], Data]) -> "ArraySource":
        """The mapped data."""
        return ArraySource(replace(function(self.data), num_data=self.num_data))


class LoaderPasses:
    """Passes over a loader, each with random numbers of its own, keyed by the seed and the pass.

    A batch that was looked at is the first of the next pass, so that a stream loses nothing.

    Args:
        loader: what is iterated.
        seed: the base seed.
    """

    def __init__(self, loader: Any, seed: int) -> None:
        self.loader = loader
        self._seed = seed
        self._number = 0
        self._waiting: tuple[Any, Iterator[Any]] | None = None

    def first(self) -> Any:
        """The first batch of the next pass."""
        if self._waiting is None:
            rest = self._start()
            batch = next(rest, None)
            if batch is None:
                raise ValueError("the loader gave no batch; at least one is needed")
            self._waiting = batch, rest
        return self._waiting[0]

    def __iter__(self) -> Iterator[Any]:
        self.first()
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            yield waiting[0]
            yield from waiting[1]

    def _start(self) -> Iterator[Any]:
        self._number += 1
        return iterate(self.loader, self._seed, "order", self._number)


class LoaderSource(Source):
    """A `DataLoader`, whose batches and order are its own."""

    def __init__(self, passes: LoaderPasses, num_data: int, device: torch.device, read: Callable[[Any], Data]) -> None:
        self.device = device
        self.num_data = num_data
        self._passes = passes
        self._read = read

    def batches(self, batch_size: int | None, order: Tensor | None = None) -> Iterator[Data]:
        """The loader's batches, on the device."""
        for batch in self._passes:
            yield self._read(batch)

    def first(self) -> Data:
        """The loader's next batch, which stays the next."""
        return self._read(self._passes.first())

    def num_steps(self, batch_size: int | None) -> int:
        """The length of the loader; of a stream, the number of training rows over those of its next batch."""
        try:
            return len(self._passes.loader)
        except TypeError:
            return -(-self.num_data // self.first().num_rows)

    def map(self, function: Callable[[Data], Data]) -> "LoaderSource":
        """A source whose batches are mapped as they come."""
        return LoaderSource(self._passes, self.num_data, self.device, lambda batch: function(self._read(batch)))


def read_batch(batch: Any, dtype: torch.dtype, device: torch.device, *, need_targets: bool = True) -> Data:
    """One batch in any of the accepted forms as a `Data` of tensors on the device.

    Raises:
        ShapeError: if the parts disagree on the number of rows, or there are none.
        NotFiniteError: if inputs, weights or unmasked targets are NaN or infinite.
    """
    data = _parts(batch)
    inputs = as_inputs(data.inputs, dtype, device)
    rows = num_rows(inputs)
    if rows == 0:
        raise ShapeError("`inputs` has no rows; at least one is needed")
    for leaf in leaves(inputs):
        check_finite("inputs", leaf)
    if data.targets is None:
        if need_targets:
            raise ValueError("targets are needed: pass (inputs, targets), Data(inputs, targets) or a loader of such")
        return Data(inputs)
    targets = as_tensor(data.targets, dtype=dtype, device=device)
    check_same_rows("targets", targets.shape[0] if targets.dim() else 0, "inputs", rows)
    weights, mask = _weights(data.weights, rows, dtype, device), _mask(data.mask, targets, device)
    if mask is None and bool(targets.isnan().any()):  # a bound of a censored target may be infinite
        raise NotFiniteError(
            f"`targets` must be finite; {int(targets.isnan().sum())} of {targets.numel()} values are NaN. Where they "
            "are missing, say so by a mask: Data(inputs, targets, mask=...)"
        )
    return Data(inputs, targets, weights, mask, data.num_data)


def _parts(batch: Any) -> Data:
    if isinstance(batch, Data):
        return batch
    if isinstance(batch, dict):
        if "inputs" not in batch or not set(batch) <= {"inputs", "targets", "weights", "mask"}:
            raise ValueError(
                "a batch that is a mapping must have the key 'inputs' and may have 'targets', 'weights' and 'mask'; "
                f"got {sorted(batch)}"
            )
        return Data(**{key: _untupled(value) for key, value in batch.items()})
    if isinstance(batch, (tuple, list)) and len(batch) in {1, 2}:
        return Data(*(_untupled(part) for part in batch))
    if isinstance(batch, (bool, Real)):
        raise TypeError(f"data must be (inputs, targets), Data, a Dataset or a DataLoader; got the number {batch!r}")
    if isinstance(batch, (tuple, list)):
        raise TypeError(
            f"a batch must be (inputs,) or (inputs, targets); got {len(batch)} parts. Several inputs are nested: "
            "((x1, x2), targets)"
        )
    return Data(batch)


def _untupled(part: Any) -> Any:
    """A loader's collation makes lists of what were tuples."""
    if isinstance(part, list) and part and isinstance(part[0], Tensor):
        return tuple(part)
    return part


def _weights(weights: ArrayLike | None, rows: int, dtype: torch.dtype, device: torch.device) -> Tensor | None:
    if weights is None:
        return None
    values = check_finite("weights", as_tensor(weights, device=device).to(dtype))
    if values.shape != (rows,):
        raise ShapeError(f"`weights` must have shape ({rows},), one per row; got {tuple(values.shape)}")
    if bool((values < 0).any()):
        raise ValueError(f"`weights` must be 0 or above; the smallest is {float(values.min())}")
    return values


def _mask(mask: ArrayLike | None, targets: Tensor, device: torch.device) -> Tensor | None:
    if mask is None:
        return None
    given = as_tensor(mask, device=device)
    values = given.bool()
    if given.dtype != torch.bool and not bool((given == values).all()):
        odd = given[given != values].flatten()[0].item()
        raise ValueError(f"`mask` must hold booleans, or 0 and 1; got {odd:g}. Shares of a row are `weights`")
    rows = targets.shape[:1]
    if values.shape not in (rows, targets.shape):
        raise ShapeError(f"`mask` must have shape {tuple(rows)} or {tuple(targets.shape)}; got {tuple(values.shape)}")
    return values


def as_source(
    data: Any, dtype: torch.dtype, device: torch.device, *, batch_size: int | None = None, seed: int = 0
) -> Source:
    """Whatever the user passed, as a source.

    A `TensorDataset` is taken into memory; any other `Dataset` is read through a shuffling `DataLoader`. The seed is
    that of a loader's own random numbers.
    """
    whole = data if isinstance(data, Data) else Data(data)
    if whole.num_data is not None and whole.num_data < 1:
        raise ValueError(f"`num_data` must be 1 or more; got {whole.num_data}")
    inner = whole.inputs
    if isinstance(inner, TensorDataset):
        inputs, targets = _columns(inner)
        return ArraySource(read_batch(replace(whole, inputs=inputs, targets=targets), dtype, device))
    if not isinstance(inner, (DataLoader, Dataset)):
        return ArraySource(read_batch(data, dtype, device))
    if not (whole.targets is None and whole.weights is None and whole.mask is None):
        raise ValueError(
            "a loader or dataset brings its own targets, weights and mask: its batches may be mappings with the keys "
            "'inputs', 'targets', 'weights' and 'mask'"
        )
    loader = inner if isinstance(inner, DataLoader) else _loader(inner, batch_size)
    rows = whole.num_data or _loader_rows(loader)
    return LoaderSource(LoaderPasses(loader, seed), rows, device, lambda batch: read_batch(batch, dtype, device))


def _columns(dataset: TensorDataset) -> tuple[Any, Tensor | None]:
    """Inputs and targets: the last tensor of several is the targets."""
    *inputs, last = dataset.tensors
    if not inputs:
        return last, None
    return inputs[0] if len(inputs) == 1 else tuple(inputs), last


def _loader(dataset: Dataset[Any], batch_size: int | None) -> DataLoader[Any]:
    in_own_order = isinstance(dataset, IterableDataset)
    return DataLoader(dataset, batch_size=batch_size or 32, shuffle=None if in_own_order else True)


def _loader_rows(loader: DataLoader[Any]) -> int:
    whole_batches = loader.batch_sampler is None  # what the sampler counts are then batches, not rows
    try:
        if isinstance(loader.sampler, RandomSampler) and not whole_batches:
            return len(loader.sampler.data_source)  # whatever it draws in a pass
        rows = len(loader.sampler)  # type: ignore[arg-type]
        weighed = isinstance(loader.sampler, WeightedRandomSampler) and rows != len(loader.dataset)  # type: ignore[arg-type]
        if not (whole_batches or weighed):
            return rows
    except TypeError:
        pass
    raise ValueError(
        "the loader does not tell the number of training rows; pass Data(loader, num_data=...) with that number"
    )
