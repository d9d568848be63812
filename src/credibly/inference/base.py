"""An inference method is a recipe: a frozen dataclass of options with one verb.

`fit` takes a model and data and returns a posterior. The user's model is never changed, in weights, buffers or flags;
what is trained is a copy.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from credibly.core.errors import NotSupportedError
from credibly.core.typing import Params
from credibly.inference.members import data_of_members, one_by_one
from credibly.inference.starts import Start
from credibly.model import Model
from credibly.posteriors.base import Posterior

__all__ = ["InferenceMethod", "check_begins", "check_precision", "check_recipe"]


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
