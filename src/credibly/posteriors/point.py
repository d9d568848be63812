"""One set of weights: what maximum likelihood and MAP end in."""

from typing import Any

from torch import Tensor

from credibly.core.params import trainable_params
from credibly.core.typing import Inputs, Params
from credibly.model import Want
from credibly.posteriors.base import WeightPosterior, stored_draws
from credibly.posteriors.evaluation import grad_if_needed

__all__ = ["PointPosterior"]


class PointPosterior(WeightPosterior):
    """All belief on the model's own weights. Its predictive is a mixture of one component."""

    @property
    def num_stored(self) -> int:
        """One."""
        return 1

    def sample(self, num_draws: int, *, seed: int | None = None) -> Params:
        """The weights, (1, ...): there is one draw, and no more can be asked for."""
        stored_draws(num_draws, 1)
        return {name: p.detach().clone().unsqueeze(0) for name, p in trainable_params(self.model.core).items()}

    def _evaluate(self, inputs: Inputs, want: Want, num_draws: int | None, seed: int | None) -> Any:
        stored_draws(num_draws, 1)
        with grad_if_needed(inputs):
            result = self.model.call(trainable_params(self.model.core), {}, inputs, want)
        if isinstance(result, Tensor):
            return result.unsqueeze(0)
        return {name: value.unsqueeze(0) for name, value in result.items()}
