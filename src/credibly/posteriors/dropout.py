"""Monte Carlo dropout: a posterior over masks.

Dropout as a Bayesian Approximation, Gal and Ghahramani 2016. One mask per draw serves every row, so each draw is one
function and masks cost `num_draws * width`, not `num_draws * rows * width`. The network stays in evaluation mode:
BatchNorm is untouched, and a row's prediction does not depend on its batch mates.
"""

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from credibly.core.checks import check_count
from credibly.core.dropout import DropoutMode, MaskSource, Recorder, Site, SiteMasks, draw_masks, row_sites
from credibly.core.errors import NotSupportedError
from credibly.core.inputs import leaves, num_rows, take_rows
from credibly.core.params import evaluating, floating_dtype, module_device, trainable_params
from credibly.core.randomness import Stream, base_seed, seeded
from credibly.core.shared_calls import SharedCalls
from credibly.core.substitution import functional_call
from credibly.core.typing import ArrayLike, Inputs
from credibly.model import Model, Want
from credibly.posteriors.base import DEFAULT_NUM_DRAWS, Posterior, network_randomness
from credibly.posteriors.evaluation import Evaluated, grad_if_needed, is_mappable, map_draws
from credibly.posteriors.info import Info

__all__ = ["DropoutPosterior", "dropout_sites"]

_SAME = 1e-4  # but for rounding
_CHUNK_NUMBERS = 2**19  # numbers of one mapped activation that stay in the cache


def dropout_sites(model: Model, inputs: Inputs) -> list[Site]:
    """Where dropout acts, with the shape of one row's mask, found on copies of the first row."""
    core, device = model.core, module_device(model)

    def run(rows: int, source: MaskSource) -> Tensor:
        first = take_rows(inputs, torch.zeros(rows, dtype=torch.long, device=device))
        with (
            torch.no_grad(),
            seeded(0, "record", device=device),
            evaluating(core),
            DropoutMode(source, always=True),
        ):
            return core(model.standardize_inputs(first), "outputs")  # type: ignore[no-any-return]

    two, three = Recorder(), Recorder()
    outputs = run(2, two)
    run(3, three)
    sites = row_sites(two.sites, three.sites)
    for index, site in enumerate(sites):
        if site.row_axis is not None and site.shape[site.row_axis] > 1:
            other = run(2, _FirstHalf(index, site.row_axis))[1]
            if not torch.allclose(other, outputs[1], rtol=_SAME, atol=_SAME * float(outputs[1].abs().max())):
                raise NotSupportedError(
                    "a dropout acts on rows and positions in one axis, in which the entries of a row are not "
                    "neighbours, as in packed or time-major sequences: no mask could be the same for all rows; keep "
                    "the rows on an axis of their own"
                )
    return sites


class _FirstHalf(MaskSource):
    """Drops the first half of one site's entries along an axis: of two rows the first, where rows lie apart.

    Args:
        index: of the site.
        axis: its axis.
    """

    def __init__(self, index: int, axis: int) -> None:
        self._left = index
        self._axis = axis

    def next_mask(self, inputs: Tensor, probability: float, shape: tuple[int, ...], *, alpha: bool) -> Tensor | None:
        """None but at the site."""
        self._left -= 1
        if self._left != -1:
            return None
        mask = inputs.new_ones(shape)
        mask.narrow(self._axis, 0, shape[self._axis] // 2).zero_()
        return mask


class DropoutPosterior(Posterior):
    """Belief spread over the dropout masks of a trained network. Draws are made as needed.

    Args:
        model: the fitted model.
        info: how the posterior came to be.
    """

    def __init__(self, model: Model, info: Info) -> None:
        super().__init__(model, info)
        self._sites: dict[tuple[torch.Size, ...], list[Site]] = {}

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
        check_count("num_draws", num_draws)
        sites = self._sites_of(read)
        size = sum(site.size for site in sites)
        stream = Stream(base_seed(seed), "masks", module_device(self.model))
        masks = draw_masks(sites, stream.uniform(size, 0, num_draws), floating_dtype(self.model))
        chunk = _CHUNK_NUMBERS // max(1, num_rows(read) * max((site.size for site in sites), default=1))
        chunk = chunk if is_mappable(self.model.net) else 1
        shared = SharedCalls() if chunk < 2 and not torch.is_inference_mode_enabled() else None
        with grad_if_needed(read), network_randomness(self.model, seed):
            evaluate = self._plain(read, want)
            return map_draws(lambda draw: _under_masks(sites, draw, evaluate, shared), masks, chunk=chunk)

    def _sites_of(self, inputs: Inputs) -> list[Site]:
        """The sites for rows of this shape, found once."""
        key = tuple(leaf.shape[1:] for leaf in leaves(inputs))
        if key not in self._sites:
            self._sites[key] = dropout_sites(self.model, inputs)
        return self._sites[key]

    def _plain(self, inputs: Inputs, want: Want) -> Callable[[], Evaluated]:
        """The network at its weights: detached where there is a graph, so that no gradient reaches the posterior's."""
        core, standardized = self.model.core, self.model.standardize_inputs(inputs)
        if not torch.is_grad_enabled():
            return lambda: core(standardized, want)
        params = trainable_params(core)
        return lambda: functional_call(core, params, (standardized, want))


def _under_masks(
    sites: list[Site], masks: Sequence[Tensor], evaluate: Callable[[], Evaluated], shared: SharedCalls | None
) -> Evaluated:
    if shared is not None:
        shared.begin_draw()
    with DropoutMode(SiteMasks(sites, masks), always=True, shared=shared):
        return evaluate()
