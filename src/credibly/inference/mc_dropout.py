"""Monte Carlo dropout: keep the dropout masks of training on when predicting, one mask per draw.

Dropout as a Bayesian Approximation: Representing Model Uncertainty in Deep Learning, Gal and Ghahramani 2016.
Dropout is found wherever it happens: in modules, in functional calls, inside attention. Where it cannot be reached, the
network is refused by name rather than given a variance that is silently too small.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from credibly.core.copying import copied
from credibly.core.dropout import DropoutMode, Recorder
from credibly.core.errors import NotSupportedError
from credibly.core.inputs import take_rows
from credibly.core.params import module_device
from credibly.core.randomness import base_seed, seeded
from credibly.core.typing import Inputs
from credibly.inference.base import InferenceMethod, check_begins, check_recipe
from credibly.inference.problem import prepare
from credibly.inference.starts import Start
from credibly.model import Model
from credibly.posteriors.base import Posterior
from credibly.posteriors.dropout import DropoutPosterior, dropout_sites
from credibly.posteriors.info import Info

__all__ = ["MCDropout"]


@dataclass(frozen=True, eq=False, kw_only=True)
class MCDropout(InferenceMethod):
    """Turn a network with dropout into a posterior over masks.

    Attributes:
        train: how to train first, for example `MAP()`. None does not train: then `fit` needs a `start`.
    """

    train: InferenceMethod | None = None

    def __post_init__(self) -> None:
        check_recipe("MCDropout", self.train)

    @property
    def trains(self) -> bool:
        """Whether there is a recipe to train by."""
        return self.train is not None

    def fit(
        self,
        model: Model,
        data: Any,
        *,
        validation: Any = None,
        start: Start = None,
        seed: int | None = None,
        progress: bool | None = None,
    ) -> DropoutPosterior:
        """Train, if asked to, and keep the dropout on.

        Raises:
            ValueError: if there is neither a `start` nor a recipe to train by.
            NotSupportedError: if the network has no dropout, or one that cannot be reached.
        """
        seed = base_seed(seed)
        if self.train is not None:
            options = {"validation": validation, "start": start, "seed": seed, "progress": progress}
            check_dropout(*_ready(model, data, start, seed))
            trained = self.train.fit(model, data, **options)
            return self._of(trained)
        check_begins("MCDropout", start)
        fitted, inputs = _ready(model, data, start, seed)
        check_dropout(fitted, inputs)
        return DropoutPosterior(fitted, Info("MCDropout", seed))

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
        """The members are trained together by the recipe, where it can."""
        if self.train is None:
            return super().fit_members(model, data, starts, seeds, rows=rows, validation=validation, progress=progress)
        check_dropout(*_ready(model, data, None, seeds[0]))
        members = self.train.fit_members(
            model, data, starts, seeds, rows=rows, validation=validation, progress=progress
        )
        return [self._of(member) for member in members]

    def _of(self, trained: Posterior) -> DropoutPosterior:
        return DropoutPosterior(trained.to_model(), replace(trained.info, method="MCDropout"))


def _ready(model: Model, data: Any, start: Start, seed: int) -> tuple[Model, Inputs]:
    """The model at its start and the first rows of its inputs, in the user's units."""
    problem = prepare(model, data, start=start, seed=seed)
    return problem.model, problem.first_inputs


def check_dropout(model: Model, inputs: Inputs) -> None:
    """Raise unless the network has dropout and all of it can be reached in evaluation mode."""
    for name, part in model.net.named_modules():
        if isinstance(part, nn.RNNBase) and part.dropout > 0 and part.num_layers > 1:
            raise NotSupportedError(
                f"the dropout of `{name or 'the network'}` ({type(part).__name__}) sits inside its kernel and cannot "
                "be sampled; stack single-layer recurrent modules with nn.Dropout between them"
            )
    reached, wanted = _where(model, inputs, training=False), _where(model, inputs, training=True)
    missing = wanted - reached
    if missing:
        places = ", ".join(f"`{name}`" for name in sorted(missing))
        raise NotSupportedError(
            f"{places} drops units only while its training flag is on, in a way that cannot be reached in evaluation "
            "mode; call F.dropout(x, p, training=self.training) without a condition around it"
        )
    if not dropout_sites(model, inputs):
        raise NotSupportedError(
            f"the network ({type(model.net).__name__}) has no dropout with p above 0, so its masks give no "
            "uncertainty; add nn.Dropout, or use Ensemble"
        )


def _where(model: Model, inputs: Inputs, *, training: bool) -> Counter[str]:
    """How many dropouts each module applies, on a copy."""
    core = copied(model).core
    core.train(training)
    stack = ["the network"]
    for name, part in core.net.named_modules():
        label = name or f"the network ({type(part).__name__})"
        part.register_forward_pre_hook(lambda *_, label=label: stack.append(label))
        part.register_forward_hook(lambda *_: stack.pop() and None)
    recorder = _Placed(stack)
    rows = torch.zeros(2, dtype=torch.long)
    device = module_device(core)
    with seeded(0, "record", device=device), torch.no_grad(), DropoutMode(recorder, always=True):
        core(model.standardize_inputs(take_rows(inputs, rows)), "outputs")
    return Counter(recorder.places)


class _Placed(Recorder):
    """A recorder that notes the module in which each dropout happens."""

    def __init__(self, stack: list[str]) -> None:
        super().__init__()
        self._stack = stack
        self.places: list[str] = []

    def next_mask(self, inputs: Tensor, probability: float, shape: tuple[int, ...], *, alpha: bool) -> None:
        """Note the call and its place."""
        super().next_mask(inputs, probability, shape, alpha=alpha)
        self.places.append(self._stack[-1])
