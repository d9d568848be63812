"""Dropout in training, keyed by (seed, member, step), so that a member trains alike alone and in a stack."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from credibly.core.dropout import DropoutMode, Recorder, Site, SiteMasks, draw_masks
from credibly.core.inputs import leaves
from credibly.core.params import buffers_of, floating_dtype, module_device
from credibly.core.randomness import Stream, seeded
from credibly.core.substitution import functional_call
from credibly.core.typing import Inputs

__all__ = ["TrainingDropout"]


class TrainingDropout:
    """The masks of every step.

    The sites are recorded once for each shape of a batch, or for every batch once they turned out to depend on more.
    Copies of the network's buffers are used, so that its BatchNorm statistics do not move.

    Args:
        core: the network in training.
        seeds: one per member.
        example: (rows, ...) inputs of a batch, to find out whether there is any dropout.
    """

    def __init__(self, core: nn.Module, seeds: Sequence[int], example: Inputs) -> None:
        self._core = core
        device = module_device(core)
        self._dtype = floating_dtype(core)
        self._streams = [Stream(seed, "dropout", device) for seed in seeds]
        self._sites: dict[tuple[torch.Size, ...], list[Site]] = {}
        self._looks_always = False
        self.draws_other_randomness = False
        self.is_used = bool(self.sites(example)) or self.draws_other_randomness

    def sites(self, inputs: Inputs) -> list[Site]:
        """Where dropout acts on inputs of this shape."""
        key = tuple(leaf.shape for leaf in leaves(inputs))
        if key not in self._sites or self._looks_always:
            recorder = Recorder()
            buffers = {name: value.clone() for name, value in buffers_of(self._core).items()}
            with (
                seeded(0, "record", device=module_device(self._core)),
                torch.no_grad(),
                DropoutMode(recorder, always=False),
            ):
                before = _random_state(module_device(self._core))
                functional_call(self._core, buffers, (inputs,))
                self.draws_other_randomness |= not torch.equal(before, _random_state(module_device(self._core)))
            self._sites[key] = recorder.sites
        return self._sites[key]

    def masks(self, sites: Sequence[Site], step: int) -> list[Tensor] | None:
        """The masks of this step, one per site, (members, *shape); None where nothing is dropped."""
        if not sites:
            return None
        size = sum(site.size for site in sites)
        uniforms = torch.cat([stream.uniform(size, step, step + 1) for stream in self._streams])
        return draw_masks(list(sites), uniforms, self._dtype)

    def active(self, sites: Sequence[Site], masks: Sequence[Tensor] | None) -> AbstractContextManager[object]:
        """A context in which one member's dropouts take those masks."""
        return nullcontext() if masks is None else DropoutMode(SiteMasks(list(sites), masks), always=False)

    def alone(self, inputs: Inputs, step: int) -> AbstractContextManager[object]:
        """The context of a step of the only member."""
        sites = self.sites(inputs)
        masks = self.masks(sites, step)
        return self.active(sites, None if masks is None else [mask[0] for mask in masks])

    def look_always(self) -> bool:
        """Record the sites of every batch from now on, as they depend on more than its shape; False if it is so."""
        before, self._looks_always = self._looks_always, True
        return not before


def _random_state(device: torch.device) -> Tensor:
    """The states of the generators that a network on the device can draw from, as one tensor."""
    own = torch.get_rng_state()
    return torch.cat([own, torch.cuda.get_rng_state(device)]) if device.type == "cuda" else own
