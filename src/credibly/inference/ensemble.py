"""Deep ensembles: several members, each with its own initialisation and its own order of the data.

Simple and Scalable Predictive Uncertainty Estimation using Deep Ensembles, Lakshminarayanan, Pritzel, Blundell 2017.
The predictive is the mixture of the members' distributions, never an average of their parameters, which would drop the
variance between members.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from credibly.core.checks import check_count
from credibly.core.copying import copied
from credibly.core.data import ArraySource
from credibly.core.errors import NotFiniteError, NotSupportedError
from credibly.core.params import initialize, module_device, network_buffers, trainable_params
from credibly.core.randomness import Stream, base_seed, derived_seed, seeded
from credibly.core.typing import Params
from credibly.inference.base import InferenceMethod
from credibly.inference.map import MAP
from credibly.inference.problem import read
from credibly.inference.starts import Start, with_transforms_of
from credibly.model import Model
from credibly.posteriors.base import Posterior
from credibly.posteriors.draws import DrawPosterior
from credibly.posteriors.mixture import MixturePosterior
from credibly.posteriors.point import PointPosterior

__all__ = ["Ensemble"]


@dataclass(frozen=True, eq=False, kw_only=True)
class Ensemble(InferenceMethod):
    """Fit any method several times from different beginnings.

    Attributes:
        of: the method each member is fitted by.
        num_members: how many.
        bootstrap: give each member its own sample of the rows, drawn with replacement. How often each holds each row
            is kept in `posterior.info.in_bag`, which `conformal.JackknifePlusAfterBootstrap` asks for.
        initialize: sets new weights in a network, in place, where `reset_parameters` cannot; called under the
            member's seed.
    """

    of: InferenceMethod = field(default_factory=MAP)
    num_members: int = 5
    bootstrap: bool = False
    initialize: Callable[[nn.Module], object] | None = None

    @property
    def trains(self) -> bool:
        """Whether the members are trained."""
        return self.of.trains

    @property
    def draws_weights(self) -> bool:
        """Always."""
        return True

    def __post_init__(self) -> None:
        check_count("num_members", self.num_members)
        if not isinstance(self.of, InferenceMethod):
            raise TypeError(f"`of` must be a method such as MAP(), not {self.of!r}")

    def fit(
        self,
        model: Model,
        data: Any,
        *,
        validation: Any = None,
        start: Start = None,
        seed: int | None = None,
        progress: bool | None = None,
    ) -> DrawPosterior | MixturePosterior:
        """Fit the members. With `start` all begin there and differ in their data order only."""
        if start is None and not self.of.trains:
            raise ValueError(
                f"{type(self.of).__name__} does not train by itself, so fresh members would stay untrained; "
                f"give it a recipe, for example {type(self.of).__name__}(train=MAP()), or pass a `start`"
            )
        seed = base_seed(seed)
        seeds = [derived_seed(seed, "member", index) for index in range(self.num_members)]
        own = with_transforms_of(model, start)
        source = read(own, data, seed=derived_seed(seed, "read"))
        fitted = own.fitted(source)
        rows = self._samples(source.data.num_rows, seeds) if isinstance(source, ArraySource) else None
        if self.bootstrap and rows is None:
            raise NotSupportedError("a bootstrap sample needs data in memory, as (inputs, targets); got a loader")
        starts: Sequence[Start] = [start] * len(seeds)
        if start is None and not self.of.draws_weights:
            starts = [self._fresh(fitted, member) for member in seeds]
        try:
            members = self.of.fit_members(
                fitted, data, starts, seeds, rows=rows, validation=validation, progress=progress
            )
        except NotFiniteError as error:
            error.posterior = self._combined(error.posterior, seed) if error.posterior else None
            raise
        return self._combined(members, seed, None if rows is None else _counts(rows))

    def _fresh(self, model: Model, seed: int) -> Params:
        """New weights, and new buffers with them."""
        core = copied(model).core
        device = module_device(core)
        if self.initialize is not None:
            with seeded(seed, "init", device=device), torch.no_grad():
                self.initialize(core.net)
            initialize(core.likelihood, seed, device)
        else:
            initialize(core, seed, device)
        return {**trainable_params(core), **network_buffers(core)}

    def _samples(self, num_rows: int, seeds: Sequence[int]) -> list[Tensor] | None:
        if not self.bootstrap:
            return None
        return [torch.randint(num_rows, (num_rows,), generator=Stream(seed, "bootstrap").generator()) for seed in seeds]

    def _combined(self, members: Any, seed: int, in_bag: Tensor | None = None) -> DrawPosterior | MixturePosterior:
        """Points become stacked draws; anything richer stays whole, in a mixture."""
        members = members if isinstance(members, list) else [members]
        first: Posterior = members[0]
        histories = [history for member in members for history in member.info.histories]
        info = replace(
            first.info, method=f"Ensemble({first.info.method})", seed=seed, histories=histories, in_bag=in_bag
        )
        if len(members) == 1:
            info = replace(info, stacked=None)
        else:
            info = replace(info, stacked=bool(first.info.stacked), dropout_rates={})
            if first.info.stacked is None:
                info = replace(info, reason="; ".join(filter(None, ["members were fitted one by one", info.reason])))
        points = all(isinstance(member, PointPosterior) for member in members)
        return DrawPosterior.of_points(members, info) if points else MixturePosterior(members, info)


def _counts(rows: Sequence[Tensor]) -> Tensor:
    """How often each sample, of as many rows as there are, holds each row: (members, rows)."""
    return torch.stack([torch.bincount(own, minlength=len(own)) for own in rows]).to(torch.int16)
