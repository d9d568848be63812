"""Which rule gives the gradients of each weight, found out by passing a few rows through the network.

A weight is known by its name and by the layers that own it, never by position. A rule holds for it if every use of the
weight in the graph is a call of a layer with a rule, and if rows of what the layer gives belong to rows of the outputs.
Both are checked: by counting the uses in the graph, and by passing back directions of half of the rows, which must
leave the others at 0. Where a rule does not hold, gradients are computed row by row. Every pass looks again, as later
rows may be unlike the first ones; see `passes`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from credibly.core.errors import NotSupportedError
from credibly.core.inputs import num_rows, take_rows
from credibly.core.params import evaluating, module_device
from credibly.core.randomness import seeded
from credibly.core.typing import Inputs
from credibly.curvature.joining import are_alike
from credibly.curvature.layers import Rule, rule_of
from credibly.curvature.recording import Call, backward, graph_uses, recording
from credibly.curvature.uses import Use
from credibly.model import Core

__all__ = ["Owner", "Plan", "Site", "make_plan", "owners", "random_weights", "use_of"]

_ROWS = 8  # that are looked at; a power of 2


@dataclass(frozen=True, eq=False)
class Owner:
    """A layer and its own name for a weight."""

    module: nn.Module
    local: str

    @property
    def rule(self) -> Rule | None:
        """How it uses the weight, where that is known."""
        layer = rule_of(self.module)
        return None if layer is None else layer.rules.get(self.local)

    @property
    def label(self) -> str:
        """Its type."""
        return type(self.module).__name__


@dataclass(frozen=True)
class Site:
    """Where rows lie in the inputs and outputs of one call.

    Attributes:
        axis: the axis along which they lie.
        share: how many neighbouring entries of it belong to a row.
    """

    axis: int
    share: int


@dataclass(frozen=True, eq=False)
class Plan:
    """How to get the gradients of each weight.

    Attributes:
        weights: by name, in order.
        sites: of every call in a pass, in order; None where rows cannot be told apart.
        modules: the layers whose calls are recorded.
        called: the layer of every call, in order.
        parts: for each weight that has rules the numbers of its calls, with their rules; none where it is not used.
        others: for each other weight why no rule holds.
        mixed: weights that layers of different kinds share.
        fixed, per_direction: how many numbers one row of them takes, apart from directions and for each.
    """

    weights: dict[str, Tensor]
    sites: list[Site | None]
    modules: list[nn.Module]
    called: list[nn.Module]
    parts: dict[str, list[tuple[int, Rule]]]
    others: dict[str, str]
    mixed: frozenset[str]
    fixed: int
    per_direction: int

    @property
    def sizes(self) -> list[int]:
        """The number of entries of each weight."""
        return [weight.numel() for weight in self.weights.values()]


def random_weights(core: Core, names: Sequence[str]) -> dict[str, Tensor]:
    """The named weights, in that order.

    Raises:
        ValueError: a name that is no trainable weight of the network, or a name twice.
    """
    known = {n: p for n, p in core.named_parameters() if p.requires_grad and n.startswith("net.")}
    unknown = [name for name in names if name not in known]
    if unknown or not names or len(set(names)) < len(names):
        raise ValueError(
            f"`names` must be different trainable weights of the network, at least one; got {list(names)}, of which "
            f"{unknown} are unknown"
        )
    return {name: known[name] for name in names}


def owners(core: Core, weights: dict[str, Tensor]) -> dict[str, list[Owner]]:
    """The layers that own each weight, several where it is tied."""
    names = {id(weight): name for name, weight in weights.items()}
    found: dict[str, list[Owner]] = {name: [] for name in weights}
    for module in core.modules():
        for local, weight in module.named_parameters(recurse=False, remove_duplicate=False):
            if id(weight) in names:
                found[names[id(weight)]].append(Owner(module, local))
    _check_rows_stay_apart(found)
    return found


def _check_rows_stay_apart(found: dict[str, list[Owner]]) -> None:
    for name, group in found.items():
        for owner in group:
            layer = rule_of(owner.module)
            reason = "" if layer is None else layer.refuse(owner.module)
            if reason:
                raise NotSupportedError(f"`{name}` of a {owner.label} has no curvature: {reason}; freeze or replace it")


def make_plan(core: Core, inputs: Inputs, names: Sequence[str]) -> Plan:
    """Find out which rules hold.

    Args:
        core: the network, on whose side the inputs are.
        inputs: some rows.
        names: of weights.
    """
    weights = random_weights(core, names)
    found = owners(core, weights)
    modules = list({id(o.module): o.module for group in found.values() for o in group if o.rule is not None}.values())
    rows = _spread_rows(num_rows(inputs)).to(next(iter(weights.values())).device)
    few, _ = _calls(core, modules, take_rows(inputs, rows[:2]))
    calls, outputs = _calls(core, modules, take_rows(inputs, rows))
    sites = _sites(few, calls, outputs)
    others = _others(found, calls, sites, outputs)
    parts = {
        name: [(n, o.rule) for n, call in enumerate(calls) for o in group if o.module is call.module and o.rule]
        for name, group in found.items()
        if name not in others
    }
    uses = {name: _probed(part, calls, sites) for name, part in parts.items()}
    numbers = [use.numbers() for group in uses.values() for use in group]
    rest = sum(weights[name].numel() for name in others)
    return Plan(
        weights,
        sites,
        modules,
        [call.module for call in calls],
        parts,
        others,
        frozenset(name for name, group in uses.items() if group and not are_alike(group)),
        sum(fixed for fixed, _ in numbers) // _ROWS,
        sum(each for _, each in numbers) // _ROWS + rest,
    )


def _spread_rows(num_rows: int) -> Tensor:
    """The rows to look at: spread over all, as neighbours may be alike; some twice where there are fewer."""
    if num_rows < _ROWS:
        return torch.arange(_ROWS) % num_rows
    return torch.linspace(0, num_rows - 1, _ROWS).long()


def _calls(core: Core, modules: list[nn.Module], inputs: Inputs) -> tuple[list[Call], Tensor]:
    own_numbers = seeded(0, "record", device=module_device(core))
    with torch.enable_grad(), evaluating(core), own_numbers, recording(modules) as calls:
        outputs = core(inputs, "outputs")
    return calls, outputs


def _sites(few: list[Call], calls: list[Call], outputs: Tensor) -> list[Site | None]:
    if len(few) != len(calls):
        raise NotSupportedError(
            "two rows and more call different layers; which layers are called must not depend on the inputs, nor on "
            "how many there are"
        )
    sites = [_site(a, b) for a, b in zip(few, calls, strict=True)]
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(outputs.shape, generator=generator, dtype=torch.float64).to(outputs)
    chosen = _splits(outputs.device)
    directions = noise * chosen.reshape(len(chosen), _ROWS, *[1] * (outputs.dim() - 1))
    gradients = backward(outputs, calls, directions, keep=False)
    return [
        site if site is not None and _is_by_row(gradient, site, chosen) else None
        for site, gradient in zip(sites, gradients, strict=True)
    ]


def _splits(device: torch.device) -> Tensor:
    """Halves of the rows, (K, rows), so that of any two rows each is in one without the other."""
    bits = torch.arange(_ROWS, device=device) >> torch.arange(_ROWS.bit_length() - 1, device=device).unsqueeze(1)
    halves = bits % 2 == 1
    return torch.cat([halves, ~halves])


def _site(few: Call, call: Call) -> Site | None:
    layer = rule_of(call.module)
    found = {_growing(few.inputs.shape, call.inputs.shape), _growing(few.shape, call.shape)}
    site = found.pop()
    if found or site is None or layer is None or not (site.axis == 0 or layer.rows_anywhere):
        return None
    return site


def _growing(few: torch.Size, many: torch.Size) -> Site | None:
    """The one axis that grows with the rows, from two of them."""
    if len(few) != len(many):
        return None
    axes = [axis for axis, (m, n) in enumerate(zip(few, many, strict=True)) if m != n]
    if len(axes) != 1 or few[axes[0]] % 2 or few[axes[0]] * _ROWS != many[axes[0]] * 2:
        return None
    return Site(axes[0], few[axes[0]] // 2)


def _is_by_row(gradients: Tensor, site: Site, chosen: Tensor) -> bool:
    """Whether directions of some rows of the outputs reach nothing of the others."""
    by_row = gradients.movedim(site.axis + 1, 1).reshape(len(chosen), _ROWS, -1)
    reached = (by_row != 0).any(-1)
    return not bool((reached & ~chosen).any())


def _others(
    found: dict[str, list[Owner]], calls: list[Call], sites: list[Site | None], outputs: Tensor
) -> dict[str, str]:
    uses, nodes = graph_uses(outputs)
    reached = [call for call in calls if call.edge is not None and call.edge.node in nodes]
    weights = {name: group[0].module.get_parameter(group[0].local) for name, group in found.items()}
    blurred = {id(call.module) for call, site in zip(calls, sites, strict=True) if site is None}
    return {
        name: reason
        for name, group in found.items()
        if (reason := _reason(group, reached, uses.get(id(weights[name]), 0), blurred))
    }


def _reason(group: list[Owner], reached: list[Call], num_uses: int, blurred: set[int]) -> str:
    """Why no rule holds; "" where one does."""
    for owner in group:
        if owner.rule is None:
            return f"{owner.label} has no rule for its `{owner.local}`"
        if id(owner.module) in blurred:
            return f"the rows cannot be told apart in what this {owner.label} reads and gives"
    if sum(call.module is owner.module for call in reached for owner in group) != num_uses:
        return f"it is used outside of its {group[0].label}"
    return ""


def _probed(part: list[tuple[int, Rule]], calls: list[Call], sites: list[Site | None]) -> list[Use]:
    """The uses along one direction, of which only the shapes matter."""
    with torch.no_grad():
        return [use_of(calls[n], sites[n], rule, _nothing(calls[n])) for n, rule in part]


def _nothing(call: Call) -> Tensor:
    weight = next(call.module.parameters(recurse=False))
    return weight.new_zeros(1, *call.shape)


def use_of(call: Call, site: Site | None, rule: Rule, gradients: Tensor) -> Use:
    """The use of a weight in one call.

    Args:
        call: of the layer.
        site: where rows lie.
        rule: of the weight.
        gradients: (K, *shape of what the call returned).
    """
    assert site is not None
    x = call.checked_inputs().movedim(site.axis, 0)
    return rule(call.module, x, gradients.movedim(site.axis + 1, 1)).folded(site.share)
