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
from credibly.curvature.plan import Plan, Site, use_of
from credibly.curvature.recording import Call, backward, operations, recording
from credibly.curvature.row_gradients import row_gradients
from credibly.curvature.uses import Direct, Unused, Use
from credibly.model import Core

__all__ = ["Pass", "rows_at_once"]

_NUMBERS = 2**22
_PER_WEIGHT = 8
"""How many numbers one pass may hold: so many that still sit near the cache, more where the weights take more."""
_PLACED = frozenset(
    f"{name}Backward{number}"
    for number in (0, 1)
    for name in (
        *("Addmm", "T", "Convolution", "NativeBatchNorm", "CudnnBatchNorm", "NativeLayerNorm", "NativeGroupNorm"),
        *("Relu", "Tanh", "Sigmoid", "Gelu", "Silu", "Elu", "LeakyRelu", "Softplus", "Hardtanh", "PreluKernel"),
        *("Add", "Sub", "Mul", "Div", "Neg", "Mean", "MaxPool2DWithIndices", "AvgPool2D", "MkldnnConvolution"),
        *("View", "UnsafeView", "ReshapeAlias", "Unsqueeze", "Squeeze"),
    )
)
"""Operations that leave every row where it was, whatever the values."""
_POWERS = 16  # of 2: one in so many pairs of rows may change places unseen
_ROUNDING = 1e-2  # of the norm of a row's gradients; those of rows that change places differ by a factor of 2 or more


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
        if [call.module for call in calls] != plan.called:
            raise NotSupportedError(
                f"{len(calls)} calls of layers were made for these rows and {len(plan.called)} for the first ones, or "
                "others were called; which layers are called must not depend on the inputs"
            )
        if not bool(outputs.isfinite().all()):
            raise NotFiniteError("the network's outputs at the weights of the curvature must be finite")
        return cls(core, plan, inputs, outputs, calls, keep)

    def uses(self, directions: Tensor, *, by_row: bool = True) -> Iterator[tuple[str, Use]]:
        """The use of each weight along K directions of the outputs, by name and in order.

        Args:
            directions: (K, *outputs.shape).
            by_row: whether gradients row by row may take the place of those of layers, where rows do not stay apart.

        Raises:
            NotSupportedError: they do not, and may not.
        """
        called = sorted({n for part in self.plan.parts.values() for n, _ in part})
        found = self._gradients(called, directions) if self._has_planned_rows(called) else None
        if found is None and not by_row:
            raise NotSupportedError(
                "rows change places between layers here, as where they are sorted by their length, and not in the "
                "first ones; Kronecker factors take layers that keep their order: use Dense(), Diagonal() or LowRank()"
            )
        if found is None:
            return ((name, Direct(each)) for name, each in self._row_gradients(self.plan.weights, directions).items())
        return self._planned(dict(zip(called, found, strict=True)), directions)

    def _planned(self, gradients: dict[int, Tensor], directions: Tensor) -> Iterator[tuple[str, Use]]:
        others = self._row_gradients({name: self.plan.weights[name] for name in self.plan.others}, directions)
        with torch.set_grad_enabled(self.keep):
            for name in self.plan.weights:
                yield name, Direct(others[name]) if name in others else self._use(name, gradients, len(directions))

    def _has_planned_rows(self, called: list[int]) -> bool:
        """Whether layers read and gave as many entries as the rows need."""
        rows = len(self.outputs)
        pairs = [(self.calls[n], self.plan.sites[n]) for n in called]
        return all(
            site is not None and call.inputs.shape[site.axis] == call.shape[site.axis] == rows * site.share
            for call, site in pairs
        )

    def _gradients(self, called: list[int], directions: Tensor) -> list[Tensor] | None:
        """Of what the layers returned, (K, *shape) for each; None where rows do not stay apart.

        The first direction is passed back a second time with its rows multiplied by powers of 2: where rows stay apart,
        the gradients of each are multiplied by the same. Networks of nothing but operations whose places no values
        decide need no second look.
        """
        calls, rows = [self.calls[n] for n in called], len(self.outputs)
        if rows == 1 or not called or operations(self.outputs) <= _PLACED:
            with torch.enable_grad():
                return backward(self.outputs, calls, directions, keep=self.keep)
        generator = torch.Generator().manual_seed(rows)
        factors = 2.0 ** torch.randint(_POWERS, (rows,), generator=generator).to(directions)
        again = directions[:1] * factors.reshape(-1, *[1] * (directions.dim() - 2))
        with torch.enable_grad():
            found = backward(self.outputs, calls, torch.cat([directions, again]), keep=self.keep)
        sites = [self.plan.sites[n] for n in called]
        if not all(_is_by_row(gradient.detach(), site, factors) for gradient, site in zip(found, sites, strict=True)):
            return None
        return [gradient[:-1] for gradient in found]

    def _use(self, name: str, gradients: dict[int, Tensor], num_directions: int) -> Use:
        part = self.plan.parts[name]
        if not part:
            return Unused(self.outputs.new_zeros(self.plan.weights[name].numel()), num_directions, len(self.outputs))
        use = joined([use_of(self.calls[n], self.plan.sites[n], rule, gradients[n]) for n, rule in part])
        return use if self.keep else use.map(torch.Tensor.detach)

    def _row_gradients(self, weights: Params, directions: Tensor) -> Params:
        if not weights:
            return {}
        with torch.enable_grad():
            found = row_gradients(self.core, self.inputs, weights, self.outputs, directions, keep=self.keep)
        return found if self.keep else {name: value.detach() for name, value in found.items()}


def _is_by_row(gradients: Tensor, site: Site | None, factors: Tensor) -> bool:
    """Whether the last of some gradients is as large as the first with every row multiplied by its factor."""
    assert site is not None
    first, last = (gradients[k].movedim(site.axis, 0).reshape(len(factors), -1).norm(dim=1) for k in (0, -1))
    expected = first * factors
    return bool(((expected - last).abs() <= _ROUNDING * torch.maximum(expected, last)).all())


def _leaves_apart(core: Core, plan: Plan) -> Params:
    """Weights that share their values with the network's: what goes back to the inputs leaves nothing on those."""
    own = {name: p for name, p in core.named_parameters() if p.requires_grad and name not in plan.others}
    return {name: p.detach().requires_grad_() for name, p in own.items()}


def rows_at_once(plan: Plan, num_directions: int, written_out: int = 0) -> int:
    """How many rows may go through at once, with so many numbers per row and direction written out besides."""
    row = plan.fixed + num_directions * (plan.per_direction + written_out)
    return max(1, max(_NUMBERS, _PER_WEIGHT * sum(plan.sizes)) // max(1, row))
