"""Stored draws of the weights: the members of an ensemble, or the states of a sampler."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from credibly.core.errors import ShapeError
from credibly.core.params import load_params, network_buffers, stack, trainable_params
from credibly.core.typing import Inputs, Params
from credibly.model import Model, Want
from credibly.posteriors.base import WeightPosterior, check_alike, stored_draws
from credibly.posteriors.evaluation import Evaluator, grad_if_needed
from credibly.posteriors.info import Info
from credibly.posteriors.point import PointPosterior
from credibly.priors.base import Prior

__all__ = ["DrawPosterior"]


class DrawPosterior(WeightPosterior):
    """Equal belief in each of a number of stored draws.

    Args:
        model: the fitted model.
        info: how the posterior came to be.
        draws: each trainable weight by name, (num_draws, ...).
        buffers: BatchNorm statistics and the like by name, (num_draws, ...); empty where all draws share the model's.
    """

    def __init__(self, model: Model, info: Info, draws: Params, buffers: Params | None = None) -> None:
        super().__init__(model, info)
        self.draws = {name: value.detach() for name, value in draws.items()}
        self.buffers = {name: value.detach() for name, value in (buffers or {}).items()}
        sizes = {value.shape[0] for value in (*self.draws.values(), *self.buffers.values())}
        if len(sizes) != 1:
            raise ShapeError(f"all draws must share axis 0; got sizes {sorted(sizes)}")
        self._num_stored = sizes.pop()

    @property
    def num_stored(self) -> int:
        """The number of draws."""
        return self._num_stored

    @property
    def fixed(self) -> Params:
        """The weights that are the same in every draw."""
        return {n: p.detach() for n, p in self.model.core.named_parameters() if n not in self.draws}

    @classmethod
    def of_points(cls, points: Sequence[PointPosterior], info: Info) -> "DrawPosterior":
        """One draw per point: the members of an ensemble, the snapshots of a run.

        Args:
            points: posteriors of one model, at least one.
            info: how they came to be.
        """
        if not points:
            raise ValueError("`points` must hold at least one posterior; got none")
        check_alike(points)
        cores = [point.model.core for point in points]
        own_buffers = [network_buffers(core) for core in cores]
        return cls(points[0].model, info, stack([trainable_params(core) for core in cores]), stack(own_buffers))

    def sample(self, num_draws: int, *, seed: int | None = None) -> Params:
        """Stored draws, evenly spaced where fewer are wanted than there are."""
        index = stored_draws(num_draws, self.num_stored)
        return {name: value[index.to(value.device)] for name, value in self.draws.items()}

    def to_model(self, *, draw: int | None = None, prior: Prior | None = None) -> Model:
        """A copy with one stored draw's weights. Networks that were trained apart have no meaningful mean."""
        if draw is None or not 0 <= draw < self.num_stored:
            raise ValueError(
                f"separate draws of a network have no meaningful mean weights: name one with `draw`, 0 to "
                f"{self.num_stored - 1}; got {draw}"
            )
        model = self._copy(prior)
        load_params(model.core, {name: value[draw] for name, value in (self.draws | self.buffers).items()})
        return model

    def _evaluate(self, inputs: Inputs, want: Want, num_draws: int | None, seed: int | None) -> Any:
        index = stored_draws(num_draws, self.num_stored)

        def pick(values: dict[str, Tensor]) -> dict[str, Tensor]:
            return values if len(index) == self.num_stored else {k: v[index.to(v.device)] for k, v in values.items()}

        fixed = self.fixed  # detached: a graph towards the inputs leaves no gradient on them
        evaluator = Evaluator(
            lambda params, buffers, rows: self.model.call({**fixed, **params}, buffers, rows, want),
            self.model.net,
            inputs,
        )
        with grad_if_needed(inputs):
            return evaluator(pick(self.draws), pick(self.buffers), num_draws=len(index), own_buffers=bool(self.buffers))
