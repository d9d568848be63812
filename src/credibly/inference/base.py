"""An inference method is a recipe: a frozen dataclass of options with one verb.

`fit` takes a model and data and returns a posterior. The user's model is never changed, in weights, buffers or flags;
what is trained is a copy.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from credibly.core.data import ArraySource, Data, Source, as_source
from credibly.core.dropout_rates import learned_rates, set_known_rates
from credibly.core.errors import NotFiniteError, NotSupportedError, ShapeError
from credibly.core.inputs import take_rows
from credibly.core.params import (
    check_params,
    floating_dtype,
    load_params,
    module_device,
    network_buffers,
    trainable_params,
)
from credibly.core.randomness import derived_seed
from credibly.core.typing import Inputs, Params
from credibly.inference.reach import reached_outputs
from credibly.model import Model
from credibly.posteriors.base import Posterior
from credibly.standardization import same_transform

__all__ = ["InferenceMethod", "Problem", "Start", "prepare"]

Start: TypeAlias = Posterior | Params | Literal["current"] | None


@dataclass(frozen=True, eq=False)
class InferenceMethod(ABC):
    """A recipe for turning a model and data into a posterior."""

    @property
    def trains(self) -> bool:
        """Whether `fit` trains weights, or takes them as they are at the start."""
        return True

    @property
    def draws_weights(self) -> bool:
        """Whether `fit` draws fresh weights itself, where it is given no start."""
        return False

    @abstractmethod
    def fit(
        self,
        model: Model,
        data: Any,
        *,
        validation: Any = None,
        start: Start = None,
        seed: int | None = None,
        progress: bool | None = None,
    ) -> Posterior:
        """Fit the model to data.

        Args:
            model: never changed.
            data: (inputs, targets), `Data`, a `Dataset` or a `DataLoader`.
            validation: data of the same forms, scored after every epoch of training.
            start: where to begin: a posterior, weights by name, or "current" for the model's own.
            seed: of everything random; None takes one from torch's global generator.
            progress: show a progress bar on standard error.
        """

    def fit_members(
        self,
        model: Model,
        data: Any,
        starts: Sequence[Start],
        seeds: Sequence[int],
        *,
        rows: Sequence[Tensor] | None = None,
        validation: Any = None,
        progress: bool | None = None,
    ) -> list[Posterior]:
        """One posterior per start and seed, here by a loop over `fit`.

        Args:
            model: with fitted standardisation, shared by all members.
            data: as in `fit`.
            starts: where each member begins.
            seeds: of each member.
            rows: for each member the rows it learns from (a bootstrap sample); needs data in memory.
            validation: as in `fit`.
            progress: as in `fit`.
        """
        options = {"validation": validation, "progress": progress}
        members = zip(data_of_members(model, data, rows, len(seeds)), starts, seeds, strict=True)
        return one_by_one(
            partial(self.fit, model, part, start=start, seed=seed, **options) for part, start, seed in members
        )


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
    first = take_rows(source.first().inputs, slice(0, 2))
    template = reached_outputs(fitted.core, fitted.standardize_inputs(first), model.net)
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


def check_precision(method: str, weights: Params, *, bfloat16: bool = False) -> None:
    """Whether a method can keep variances of the weights: all of one precision, and of enough of it.

    Args:
        method: its name.
        weights: those that are random.
        bfloat16: whether that is enough.
    """
    found = {weight.dtype for weight in weights.values()}
    enough = {torch.float32, torch.float64} | ({torch.bfloat16} if bfloat16 else set())
    if len(found) > 1 or not found <= enough:
        names = ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in found))
        raise NotSupportedError(
            f"{method} needs all weights in float32, or all in float64; got {names}. For a forward pass in lower "
            "precision keep float32 weights and give `autocast`"
        )


def check_recipe(method: str, train: object) -> None:
    """Whether a method that works on a trained network can have it trained so, or by nothing, which is None.

    Args:
        method: its name.
        train: the recipe.
    """
    if train is None:
        return
    if not isinstance(train, InferenceMethod):
        raise TypeError(f"`train` must be an inference method, such as MAP(); got {train!r}")
    if train.draws_weights:
        name = type(train).__name__
        raise NotSupportedError(f"{name} ends in several networks; turn it round: {name}(of={method}(train=...), ...)")


def check_begins(method: str, start: Start) -> None:
    """Without a recipe to train by there must be a start."""
    if start is None:
        raise ValueError(
            f"{method} does not train by itself: pass start=posterior, weights by name or start='current' to fit, or a "
            f"recipe, {method}(train=MAP())"
        )


def data_of_members(model: Model, data: Any, rows: Sequence[Tensor] | None, num_members: int) -> list[Any]:
    """What each member learns from: all of the data, or the rows of its sample."""
    return [data] * num_members if rows is None else [rows_of(model, data, index) for index in rows]


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


def rows_of(model: Model, data: Any, index: Tensor) -> Any:
    """The chosen rows of data in memory."""
    source = read(model, data)
    if not isinstance(source, ArraySource):
        raise NotSupportedError("a bootstrap sample needs data in memory, as (inputs, targets); got a loader")
    some = source.data.take(index.to(module_device(model)))
    return replace(some, num_data=source.data.num_data)


def with_transforms_of(model: Model, start: Start) -> Model:
    """A posterior to start from brings its standardisation; another one is refused."""
    if not isinstance(start, Posterior):
        return model
    for name in ("inputs", "targets"):
        own, brought = getattr(model, name), getattr(start.model, name)
        is_fitted = isinstance(own, nn.Module)
        if (own is None) != (brought is None) or (is_fitted and not same_transform(own, brought)):
            raise ValueError(
                f"`start` was fitted with another standardisation of `{name}`; use its own model, start.to_model()"
            )
    return model.replace(inputs=start.model.inputs, targets=start.model.targets)


def begin(model: Model, start: Start) -> Model:
    """The model with the start's weights and buffers; None and "current" keep its own."""
    if start is None:
        return model
    if isinstance(start, str):
        if start != "current":
            raise ValueError(f"`start` must be a posterior, weights by name, 'current' or None; got {start!r}")
        return model
    if isinstance(start, Posterior):
        if (start.num_stored or 1) > 1:
            raise ValueError(
                f"{start!r} is several networks, whose mean is none; fit one of them, posterior.to_model(draw=k)"
            )
        source = start.to_model().core
        check_params(trainable_params(source), trainable_params(model.core))
        weights: Params = dict(source.named_parameters())  # the frozen ones too, which the others were trained beside
        check_params(weights, {**dict(model.core.named_parameters())})
        load_params(model.core, {**weights, **network_buffers(source)})
        set_known_rates(model.net, learned_rates(source.net))
        return model
    if not isinstance(start, dict):
        raise TypeError(f"`start` must be a posterior, weights by name, 'current' or None; got {type(start).__name__}")
    load_params(model.core, checked_state(start, model))
    return model


def checked_state(state: Params, model: Model) -> Params:
    """Weights by name, complete and of the right shapes; the network's buffers may come with them."""
    buffers = network_buffers(model.core)
    check_params({k: v for k, v in state.items() if k not in buffers}, trainable_params(model.core))
    return state
