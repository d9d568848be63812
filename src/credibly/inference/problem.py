"""A fit, ready to run: the data read and checked, a copy of the model, standardised and at its start."""

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.parameter import UninitializedParameter

from credibly.core.data import ArraySource, Data, Source, as_source
from credibly.core.errors import ShapeError
from credibly.core.inputs import take_rows
from credibly.core.params import floating_dtype, module_device
from credibly.core.randomness import derived_seed
from credibly.core.typing import Inputs
from credibly.inference.reach import reached_outputs
from credibly.inference.starts import Start, begin, with_transforms_of
from credibly.model import Model

__all__ = ["Problem", "prepare", "read"]


@dataclass(frozen=True, eq=False)
class Problem:
    """A fit, ready to run.

    Attributes:
        model: a copy with fitted standardisation, beginning at the start.
        source: training data, checked, on the network's side.
        validation: likewise, or None.
        first_inputs: the inputs of the first rows, in the user's units.
    """

    model: Model
    source: Source
    validation: Source | None
    first_inputs: Inputs


def prepare(
    model: Model,
    data: Any,
    *,
    validation: Any = None,
    start: Start = None,
    batch_size: int | None = None,
    seed: int = 0,
) -> Problem:
    """Read and check the data, fit the standardisation on its rows, and begin at the start."""
    if not isinstance(model, Model):
        raise TypeError(f"the first argument must be a Model(net, likelihood); got {type(model).__name__}")
    lazy = [name for name, p in model.named_parameters() if isinstance(p, UninitializedParameter)]
    if lazy:
        raise ValueError(f"the weights {lazy} are not initialised yet; run a batch through the network first")
    if model.offset is None and model.likelihood.elements()[0].needs_offset:
        raise ShapeError(
            f"{type(model.likelihood).__name__}(num_trials=None) needs each row's number of trials as an input that is "
            "not given to the network: Model(..., offset=key or position); or give one number for all rows: "
            "num_trials=10"
        )
    own = with_transforms_of(model, start)
    source = read(own, data, batch_size, seed)
    fitted = own.fitted(source)
    first = take_rows(source.first().inputs, slice(0, 8))
    template = reached_outputs(fitted.core, fitted.standardize_inputs(take_rows(first, slice(0, 2))), model.net)
    fitted.likelihood.check_outputs(template)
    begin(fitted, start)
    held_out = None if validation is None else read(fitted, validation, batch_size, derived_seed(seed, "validation"))
    _check_counted(source)

    def on_network_side(batch: Data) -> Data:
        matched = fitted.matched(batch, template)
        if fitted.offset is not None:
            _check_offset(fitted, matched)
        return fitted.standardize(matched)

    return Problem(
        fitted, source.map(on_network_side), None if held_out is None else held_out.map(on_network_side), first
    )


def _check_counted(source: Source) -> None:
    """Something must be there to learn from; a loader's rows are not known before they come."""
    one = torch.ones((), device=source.device)
    if isinstance(source, ArraySource) and not bool(source.data.row_weights(one).any()):
        what = (
            "`mask` leaves no target present" if source.data.weights is None else "no present target has `weights` > 0"
        )
        raise ValueError(f"the training data must have at least one target that counts; {what}")


def _check_offset(model: Model, data: Data) -> None:
    """Targets of whole rows against their offsets; of those with missing elements, when they are scored."""
    rows = torch.arange(data.num_rows, device=data.targets.device)
    if data.mask is not None:
        rows = rows[data.mask.reshape(data.num_rows, -1).all(1)]
    offset = data.inputs[model.offset]
    model.likelihood.check_offset(data.targets[rows], offset[rows])


def read(model: Model, data: Any, batch_size: int | None = None, seed: int = 0) -> Source:
    """The data as a source on the model's device; a loader's own random numbers have the seed."""
    return as_source(data, floating_dtype(model), module_device(model), batch_size=batch_size, seed=seed)
