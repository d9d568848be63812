"""Monte Carlo dropout: a posterior over masks.

Dropout as a Bayesian Approximation, Gal and Ghahramani 2016. One mask per draw serves every row, so each draw is one
function and masks cost `num_draws * width`, not `num_draws * rows * width`. The network stays in evaluation mode:
BatchNorm is untouched, and a row's prediction does not depend on its batch mates.
"""

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

from credibly.core.dropout import DropoutMode, Recorder, Site, SiteMasks, keep_masks, row_sites
from credibly.core.inputs import num_rows, take_rows
from credibly.core.params import floating_dtype, module_device, trainable_params
from credibly.core.randomness import Stream, base_seed
from credibly.core.typing import ArrayLike, Inputs
from credibly.model import Model, Want
from credibly.posteriors.base import DEFAULT_NUM_DRAWS, Posterior
from credibly.posteriors.evaluation import Evaluated, grad_if_needed, is_mappable, map_draws

__all__ = ["DropoutPosterior", "dropout_sites"]

_CHUNK_NUMBERS = 2**24  # numbers of one mapped activation at a time: 64 MiB in single precision


def dropout_sites(model: Model, inputs: Inputs) -> list[Site]:
    """Where dropout acts, with the shape of one row's mask, found on copies of the first row."""

    def record(rows: int) -> list[Site]:
        recorder = Recorder()
        first = take_rows(inputs, torch.zeros(rows, dtype=torch.long, device=module_device(model)))
        with torch.no_grad(), DropoutMode(recorder, always=True):
            model.call({}, {}, first, "outputs")
        return recorder.sites

    return row_sites(record(2), record(3))


class DropoutPosterior(Posterior):
    """Belief spread over the dropout masks of a trained network. Draws are made as needed."""

    def parameters(
        self, inputs: ArrayLike, *, num_draws: int | None = None, seed: int | None = None
    ) -> dict[str, Tensor]:
        """The likelihood's parameters under each mask, each (num_draws, rows, ...)."""
        return cast("dict[str, Tensor]", self._evaluate(inputs, "parameters", num_draws, seed))

    def outputs(self, inputs: ArrayLike, *, num_draws: int | None = None, seed: int | None = None) -> Tensor:
        """The network's outputs under each mask: (num_draws, rows, num_outputs)."""
        return cast("Tensor", self._evaluate(inputs, "outputs", num_draws, seed))

    def _evaluate(self, inputs: ArrayLike, want: Want, num_draws: int | None, seed: int | None) -> Any:
        read = self.model.read_inputs(inputs)
        num_draws = DEFAULT_NUM_DRAWS if num_draws is None else num_draws
        if num_draws < 1:
            raise ValueError(f"`num_draws` must be 1 or more; got {num_draws}")
        sites = dropout_sites(self.model, read)
        size = sum(site.size for site in sites)
        stream = Stream(base_seed(seed), "masks", module_device(self.model))
        keep = keep_masks(sites, stream.uniform(size, 0, num_draws), floating_dtype(self.model))
        widest = max(site.size for site in sites)
        chunk = _CHUNK_NUMBERS // max(1, num_rows(read) * widest)
        with grad_if_needed(read):
            return map_draws(self._under(sites, read, want), keep, chunk=chunk, mappable=is_mappable(self.model.net))

    def _under(self, sites: list[Site], inputs: Inputs, want: Want) -> Callable[[Tensor], Evaluated]:
        params = trainable_params(self.model.core)  # detached, so that no gradient reaches the posterior's own

        def call(mask: Tensor) -> Evaluated:
            with DropoutMode(SiteMasks(sites, mask), always=True):
                return self.model.call(params, {}, inputs, want)

        return call
