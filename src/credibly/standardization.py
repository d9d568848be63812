"""Affine standardisation of inputs and targets: a recipe, and the transform that fitting it gives.

Positive targets cannot be shifted, only divided: `Standardize(center=False)`. The standard deviation is the
population's (divided by n). A constant column has none: its scale is 1, with a warning, so that it becomes 0 and comes
back exact.
"""

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor, nn

from credibly.core.checks import as_tensor, check_finite
from credibly.core.errors import ShapeError
from credibly.core.typing import ArrayLike, Inputs

__all__ = ["InputsRecipe", "InputsStandardization", "Standardization", "Standardize", "fit_inputs", "same_transform"]

_LOST = 1e-3  # the share of the spread that rounding may take


@dataclass(frozen=True)
class Standardize:
    """Subtract the mean and divide by the standard deviation of the training rows.

    Attributes:
        axes: the axes over which both are taken; 0 is the rows. Images (rows, channels, height, width) are
            standardised per channel with `axes=(0, 2, 3)`.
        center: whether to subtract the mean. Without, values are divided by their root mean square: for positive
            targets, and for inputs whose zeros mean nothing is there.
    """

    axes: tuple[int, ...] = (0,)
    center: bool = True

    def __post_init__(self) -> None:
        if 0 not in self.axes:
            raise ValueError(f"`axes` must hold 0, the rows; got {self.axes}")

    def fit(self, values: ArrayLike | Iterable[ArrayLike], *, name: str = "values") -> "Standardization":
        """The transform fitted to one tensor or array, or to batches of one as they come. Sums are kept in float64."""
        batches = map(as_tensor, [values] if hasattr(values, "__array__") else values)
        count, mean, squares, shift = 0, None, None, None
        dtype = torch.get_default_dtype()
        for batch in batches:
            if batch.numel() == 0:
                continue
            dtype = batch.dtype if batch.is_floating_point() else dtype
            data = check_finite(name, batch).double()
            shift = self._first(data) if shift is None else shift
            data = data - shift  # about a value of the data itself a constant is exactly 0
            size = data.numel() // shift.numel()
            batch_mean = data.mean(self.axes, keepdim=True)
            batch_squares = ((data - batch_mean) ** 2).sum(self.axes, keepdim=True)
            if mean is None or squares is None:
                count, mean, squares = size, batch_mean, batch_squares
                continue
            # merging of moments: Chan, Golub, LeVeque 1983
            delta, total = batch_mean - mean, count + size
            mean = mean + delta * size / total
            squares = squares + batch_squares + delta**2 * count * size / total
            count = total
        if mean is None or squares is None or shift is None:
            raise ShapeError(f"`{name}` is empty; at least one row is needed to standardise")
        mean, variance = (shift + mean).squeeze(0), (squares / count).squeeze(0)
        if not self.center:
            return _transform(torch.zeros_like(mean), (mean.square() + variance).sqrt(), dtype, name)
        return _transform(mean, variance.sqrt(), dtype, name)

    def _first(self, data: Tensor) -> Tensor:
        axes = {axis % data.dim() for axis in self.axes}
        return data[tuple(slice(0, 1) if axis in axes else slice(None) for axis in range(data.dim()))]


def _transform(mean: Tensor, deviation: Tensor, dtype: torch.dtype, name: str) -> "Standardization":
    tiny = 8 * torch.finfo(torch.float64).eps * mean.abs()
    constant = (deviation <= tiny) | (deviation.to(dtype) == 0)
    if bool(constant.any()):
        warnings.warn(
            f"{int(constant.sum())} of {constant.numel()} columns of `{name}` are constant: their scale is taken as 1",
            stacklevel=2,
        )
    lost = ~constant & (torch.finfo(dtype).eps * mean.abs() > _LOST * deviation)
    if bool(lost.any()):
        warnings.warn(
            f"{int(lost.sum())} columns of `{name}` lie so far from 0, for their spread, that {dtype} no longer tells "
            "their values apart well; subtract a constant first, or use a float64 network",
            stacklevel=2,
        )
    return Standardization(mean.to(dtype), torch.where(constant, 1.0, deviation).to(dtype))


class Standardization(nn.Module):
    """The fitted map `(values - loc) / scale`.

    Args:
        loc: what is subtracted, in the shape of one row or broadcastable to it.
        scale: what is divided by, above 0.
    """

    loc: Tensor
    scale: Tensor

    def __init__(self, loc: Tensor, scale: Tensor) -> None:
        super().__init__()
        loc, scale = torch.as_tensor(loc), torch.as_tensor(scale)
        if loc.shape != scale.shape:
            raise ShapeError(f"`loc` and `scale` must have one shape; got {tuple(loc.shape)} and {tuple(scale.shape)}")
        if not bool(((scale > 0) & scale.isfinite()).all() and loc.isfinite().all()):
            raise ValueError("`scale` must be finite and above 0, and `loc` finite")
        self.register_buffer("loc", loc.detach().clone())
        self.register_buffer("scale", scale.detach().clone())

    def forward(self, values: Tensor) -> Tensor:
        """Standardised values, in the dtype of floating values.

        Raises:
            ShapeError: rows of another shape than those that were fitted, which would broadcast.
        """
        self._check_row(values)
        return _as_given((values - self.loc) / self.scale, values)

    def inverse(self, values: Tensor) -> Tensor:
        """Values in their own units."""
        self._check_row(values)
        return _as_given(self.loc + self.scale * values, values)

    def _check_row(self, values: Tensor) -> None:
        fitted, row = self.loc.shape, values.shape[1:]
        wide = len(fitted) <= len(row) and all(
            own in (1, size) for own, size in zip(reversed(fitted), reversed(row), strict=False)
        )
        if not wide and self.loc.numel() != 1:
            raise ShapeError(
                f"the standardisation was fitted to rows of shape {tuple(fitted)}; got rows of shape {tuple(row)}"
            )

    def same_as(self, other: object) -> bool:
        """Whether the other is an equal transform."""
        return (
            isinstance(other, Standardization)
            and _are_equal(self.loc, other.loc)
            and _are_equal(self.scale, other.scale)
        )


def _are_equal(one: Tensor, other: Tensor) -> bool:
    """Tensors without numbers are as equal as can be told."""
    return one.shape == other.shape and (one.is_meta or torch.equal(one, other.to(one.device)))


def _as_given(result: Tensor, values: Tensor) -> Tensor:
    """A transform fitted to float64 arrays does not make float64 of a float32 network's values."""
    return result.to(values.dtype) if values.is_floating_point() else result


InputsRecipe: TypeAlias = Standardize | Standardization | Mapping[str | int, Standardize | Standardization]


class InputsStandardization(nn.Module):
    """Transforms for some of the tensors of a tuple or dict of inputs.

    Args:
        parts: key of a dict, or position in a tuple, to transform.
    """

    def __init__(self, parts: Mapping[str | int, Standardization]) -> None:
        super().__init__()
        self.parts = dict(parts)
        self.transforms = nn.ModuleList(self.parts.values())

    def forward(self, inputs: Inputs) -> Inputs:
        """The inputs with those tensors standardised."""
        _check_keys(inputs, self.parts)
        if isinstance(inputs, dict):
            return {key: self._part(key, value) for key, value in inputs.items()}
        return tuple(self._part(index, value) for index, value in enumerate(inputs))

    def _part(self, key: str | int, value: Tensor) -> Tensor:
        transform = self.parts.get(key)
        return value if transform is None else transform(value)

    def same_as(self, other: object) -> bool:
        """Whether the other holds equal transforms for the same tensors."""
        return (
            isinstance(other, InputsStandardization)
            and self.parts.keys() == other.parts.keys()
            and all(part.same_as(other.parts[key]) for key, part in self.parts.items())
        )


def fit_inputs(recipe: InputsRecipe, batches: Iterable[Inputs]) -> Standardization | InputsStandardization:
    """Fit a recipe, for one tensor or for some of several, to batches of inputs; fitted transforms are kept."""
    if isinstance(recipe, Standardization):
        return recipe
    if isinstance(recipe, Standardize):
        return recipe.fit(_single(batches), name="inputs")
    all_batches = list(batches)
    parts = {
        key: part
        if isinstance(part, Standardization)
        else part.fit((_pick(batch, key) for batch in all_batches), name=f"inputs[{key!r}]")
        for key, part in recipe.items()
    }
    return InputsStandardization(parts)


def _single(batches: Iterable[Inputs]) -> Iterable[Tensor]:
    for batch in batches:
        if not isinstance(batch, Tensor):
            raise TypeError(
                "one recipe cannot standardise several input tensors; pass a mapping from key or position to recipe"
            )
        yield batch


def _pick(batch: Inputs, key: str | int) -> Tensor:
    _check_keys(batch, (key,))
    return batch[key]  # type: ignore[index]


def _check_keys(inputs: Inputs, keys: Iterable[str | int]) -> None:
    if isinstance(inputs, Tensor):
        raise TypeError("`inputs` is one tensor; pass one recipe for it, not a mapping")
    known = list(inputs) if isinstance(inputs, dict) else list(range(len(inputs)))
    unknown = [key for key in keys if key not in known]
    if unknown:
        raise ValueError(f"the standardisation names the inputs {unknown}; there are {known}")


def same_transform(one: object, other: object) -> bool:
    """Whether two fitted transforms are equal; None is none at all."""
    if isinstance(one, (Standardization, InputsStandardization)):
        return one.same_as(other)
    return one is None and other is None
