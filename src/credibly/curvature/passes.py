"""One pass over a batch: outputs forwards, and backwards the use of every random weight along chosen directions."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from credibly.core.errors import NotFiniteError, NotSupportedError
from credibly.core.inputs import leaves
from credibly.core.substitution import functional_call
from credibly.core.typing import Inputs, Params
from credibly.curvature.joining import joined
from credibly.curvature.plan import Plan, use_of
from credibly.curvature.recording import Call, backward, recording
from credibly.curvature.row_gradients import row_gradients
from credibly.curvature.uses import Direct, Unused, Use
from credibly.model import Core

__all__ = ["Pass", "rows_at_once"]

_NUMBERS = 2**22
_PER_WEIGHT = 8
"""How many numbers one pass may hold: so many that still sit near the cache, more where the weights take more."""


@dataclass(frozen=True, eq=False)
class Pass:
    """A batch that went through the network.

    Attributes:
        core: in evaluation mode.
        plan: of its random weights.
        inputs: on the network's side.
        outputs: with a graph.
        calls: of the layers with rules.
        keep: whether gradients keep a graph, as those of inputs that require one do.
    """

    core: Core
    plan: Plan
    inputs: Inputs
    outputs: Tensor
    calls: list[Call]
    keep: bool

    @classmethod
    def of(cls, core: Core, plan: Plan, inputs: Inputs) -> "Pass":
        """Forwards.

        Raises:
            NotSupportedError: other layers are called than were planned with.
            NotFiniteError: outputs are NaN or infinite.
        """
        keep = torch.is_grad_enabled() and any(leaf.requires_grad for leaf in leaves(inputs))
        with torch.enable_grad(), recording(plan.modules) as calls:
            weights = _leaves_apart(core, plan) if keep else {}
            outputs: Tensor = functional_call(core, weights, (inputs, "outputs"))
        if len(calls) != len(plan.sites):
            raise NotSupportedError(
                f"{len(calls)} calls of layers were made for these rows and {len(plan.sites)} for the first ones; "
                "which layers are called must not depend on the inputs"
            )
        if not bool(outputs.isfinite().all()):
            raise NotFiniteError("the network's outputs at the weights of the curvature must be finite")
        return cls(core, plan, inputs, outputs, calls, keep)

    def uses(self, directions: Tensor) -> Iterator[tuple[str, Use]]:
        """The use of each weight along K directions of the outputs, (K, *outputs.shape), by name and in order."""
        called = sorted({n for part in self.plan.parts.values() for n, _ in part})
        with torch.enable_grad():
            found = backward(self.outputs, [self.calls[n] for n in called], directions, keep=self.keep)
            others = self._others(directions)
        gradients = dict(zip(called, found, strict=True))
        with torch.set_grad_enabled(self.keep):
            for name in self.plan.weights:
                yield name, Direct(others[name]) if name in others else self._use(name, gradients, len(directions))

    def _use(self, name: str, gradients: dict[int, Tensor], num_directions: int) -> Use:
        part = self.plan.parts[name]
        if not part:
            return Unused(self.outputs.new_zeros(self.plan.weights[name].numel()), num_directions, len(self.outputs))
        use = joined([use_of(self.calls[n], self.plan.sites[n], rule, gradients[n]) for n, rule in part])
        return use if self.keep else use.map(torch.Tensor.detach)

    def _others(self, directions: Tensor) -> dict[str, Tensor]:
        weights = {name: self.plan.weights[name] for name in self.plan.others}
        if not weights:
            return {}
        found = row_gradients(self.core, self.inputs, weights, self.outputs, directions, keep=self.keep)
        return found if self.keep else {name: value.detach() for name, value in found.items()}


def _leaves_apart(core: Core, plan: Plan) -> Params:
    """Weights that share their values with the network's: what goes back to the inputs leaves nothing on those."""
    own = {name: p for name, p in core.named_parameters() if p.requires_grad and name not in plan.others}
    return {name: p.detach().requires_grad_() for name, p in own.items()}


def rows_at_once(plan: Plan, num_directions: int, written_out: int = 0) -> int:
    """How many rows may go through at once, with so many numbers per row and direction written out besides."""
    row = plan.fixed + num_directions * (plan.per_direction + written_out)
    return max(1, max(_NUMBERS, _PER_WEIGHT * sum(plan.sizes)) // max(1, row))
