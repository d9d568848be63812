"""The one place that knows which ArviZ is installed: `InferenceData` up to 0.23, xarray's `DataTree` from 1.0 on.

The data sets are built here with their dimensions, and not by ArviZ's converters, whose arguments changed.
"""

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray
from torch import Tensor

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # 0.23 announces its successor on import, once a day
    import arviz

__all__ = ["arviz_object", "dataset"]


def arviz_object(groups: Mapping[str, xarray.Dataset]) -> Any:
    """Named groups as what the functions of the installed ArviZ take."""
    if "InferenceData" in vars(arviz):  # asking 1.x for the name would warn
        return arviz.InferenceData(**groups)  # type: ignore[arg-type]
    return xarray.DataTree.from_dict(dict(groups))


def dataset(
    values: Mapping[str, Tensor], dims: tuple[str, ...], labels: Mapping[str, Tensor] | None = None
) -> xarray.Dataset:
    """Tensors whose leading axes are `dims`, as variables; further axes are called `<name>_dim_<k>`, as by ArviZ.

    Args:
        values: by name.
        dims: the names of the axes that all of them share.
        labels: of the entries along an axis; by default they are numbered from 0.
    """
    variables = {name: (_dims(name, value, dims), value.detach().cpu().numpy()) for name, value in values.items()}
    sizes = {dim: size for axes, array in variables.values() for dim, size in zip(axes, array.shape, strict=True)}
    given = {name: label.cpu().numpy() for name, label in (labels or {}).items() if name in sizes}
    return xarray.Dataset(variables, coords={name: np.arange(size) for name, size in sizes.items()} | given)


def _dims(name: str, value: Tensor, dims: tuple[str, ...]) -> tuple[str, ...]:
    return (*dims, *(f"{name}_dim_{axis}" for axis in range(value.dim() - len(dims))))
