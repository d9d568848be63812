"""Chains of draws from anywhere as an ArviZ object: dimensions chain, draw, then the parameter's own."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import xarray
from torch import Tensor

from credibly.core.checks import as_tensor
from credibly.core.errors import ShapeError
from credibly.core.typing import ArrayLike
from credibly.diagnostics.arviz_versions import arviz_object, dataset

__all__ = ["chains_dataset", "draws_to_arviz"]


def draws_to_arviz(draws: Mapping[str, ArrayLike | Sequence[ArrayLike]], *, trim: bool = False) -> Any:
    """Draws by name as the posterior of an ArviZ object.

    Args:
        draws: for each parameter one array (chains, draws, *parameter), or a list with one array (draws, *parameter)
            per chain.
        trim: cut chains of unequal lengths to the shortest, with a warning; otherwise they are refused.

    Returns:
        `arviz.InferenceData` where ArviZ has it, and an `xarray.DataTree` from ArviZ 1.0 on.

    Raises:
        TypeError: arrays without names.
        ShapeError: chains of unequal lengths; parameters with different numbers of chains or draws; too few axes.
    """
    return arviz_object({"posterior": chains_dataset(draws, trim=trim)})


def chains_dataset(draws: Mapping[str, ArrayLike | Sequence[ArrayLike]], *, trim: bool = False) -> xarray.Dataset:
    """The same as one group."""
    if not isinstance(draws, Mapping):
        raise TypeError(f"`draws` must be a mapping of names to arrays, {{'name': array}}; got {type(draws).__name__}")
    if not draws:
        raise ValueError("`draws` must hold at least one parameter; got none")
    chains = {name: _as_chains(name, value) for name, value in draws.items()}
    lengths = {name: [len(chain) for chain in parts] for name, parts in chains.items()}
    counts = {name: len(parts) for name, parts in lengths.items()}
    if len(set(counts.values())) > 1:
        raise ShapeError(f"all parameters in `draws` must have the same number of chains; got {counts}")
    shortest = min(length for parts in lengths.values() for length in parts)
    if any(length != shortest for parts in lengths.values() for length in parts):
        _refuse_or_warn(lengths, shortest, trim)
    stacked = {name: torch.stack([chain[:shortest] for chain in parts]) for name, parts in chains.items()}
    return dataset(stacked, ("chain", "draw"))


def _as_chains(name: str, value: ArrayLike | Sequence[ArrayLike]) -> list[Tensor]:
    chains = [as_tensor(chain) for chain in value] if isinstance(value, (list, tuple)) else [*_whole(name, value)]
    shapes = [tuple(chain.shape) for chain in chains]
    if not shapes or any(len(shape) == 0 or shape[0] == 0 for shape in shapes):
        raise ShapeError(f"`draws[{name!r}]` must hold chains of shape (draws, *parameter); got shapes {shapes}")
    if len({shape[1:] for shape in shapes}) > 1:
        raise ShapeError(f"the chains of `draws[{name!r}]` must have one parameter shape; got shapes {shapes}")
    return chains


def _whole(name: str, value: ArrayLike) -> Tensor:
    table = as_tensor(value)
    if table.dim() < 2:
        raise ShapeError(
            f"`draws[{name!r}]` must have shape (chains, draws, *parameter); got {tuple(table.shape)}. "
            "One chain is [values] or values[None]"
        )
    return table


def _refuse_or_warn(lengths: Mapping[str, list[int]], shortest: int, trim: bool) -> None:
    if not trim:
        raise ShapeError(f"all chains in `draws` must have the same number of draws, or pass trim=True; got {lengths}")
    warnings.warn(f"chains of lengths {dict(lengths)} were cut to {shortest} draws", stacklevel=4)
