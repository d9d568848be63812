r"""Dropout rates as weights to be trained: relaxed masks, and what they do to the divergence from the prior.

Concrete Dropout, Gal, Hron, Kendall 2017. A layer with weights W that reads units dropped at rate p, the kept ones
multiplied by 1 / (1 - p) as torch does it, has as its weights the columns of M = W / (1 - p), each kept with
probability 1 - p and otherwise 0. With q the distribution of those weights, and rates p_s of dropouts over K_s units,

    E_q log p(w) + H(q) = sum over weights of (1 - p) log p(M) + p log p(0)  +  sum_s K_s h(p_s)  +  const,
    h(p) = -p log p - (1 - p) log(1 - p).

Under `Normal(0, s)` that is the paper's -(1 - p) |M|^2 / (2 s^2) + K h(p). All of it is counted once, against the log
likelihood of all N rows. A rate gets a gradient through masks that are nearly 0 or 1, at relaxation t,

    z = 1 - sigmoid((logit p + logit u) / t),  u ~ Uniform(0, 1).
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from credibly.core.copying import copied
from credibly.core.data import Data
from credibly.core.dropout import DropoutMode, Recorder, Site, draw_masks, row_sites
from credibly.core.dropout_rates import DROPOUT_LAYERS, InputDropout
from credibly.core.errors import NotSupportedError
from credibly.core.inputs import take_rows
from credibly.core.params import module_device
from credibly.core.randomness import Stream, seeded
from credibly.core.typing import Inputs, Params
from credibly.model import Core, Model
from credibly.priors.base import Prior
from credibly.training.dropout import TrainingDropout
from credibly.training.objective import LogJoint
from credibly.training.trainee import Single

__all__ = ["Concrete", "Plan", "entropy", "expected_log_prior", "record", "relaxed_mask"]

_READERS: tuple[tuple[tuple[type[nn.Module], ...], str, tuple[str, ...]], ...] = (
    ((nn.Linear,), "in_features", ("weight",)),
    (
        (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
        "in_channels",
        ("weight",),
    ),
    ((nn.RNNBase,), "input_size", ("weight_ih_l0", "weight_ih_l0_reverse")),
    ((nn.RNNCellBase,), "input_size", ("weight_ih",)),
    ((nn.MultiheadAttention,), "embed_dim", ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight")),
)
"""Layers, the number of units that they read, and the weights that these are multiplied by."""


@dataclass(frozen=True, eq=False)
class Plan:
    """What the dropouts of a network act on.

    Attributes:
        places: for each dropout the network applies, in order, the name of the module whose rate it has; None where
            its rate is not learned.
        units: for each of them, K, how many units of a row are dropped independently, those of the layer it feeds.
        readers: for each weight that reads dropped units, by its name in the model, the modules that drop them.
        layers: the names of the layers that read dropped units.
    """

    places: tuple[str | None, ...]
    units: tuple[int, ...]
    readers: Mapping[str, tuple[str, ...]]
    layers: frozenset[str]

    @property
    def names(self) -> tuple[str, ...]:
        """The modules with a rate to learn, in the order of their first dropout."""
        return tuple(dict.fromkeys(place for place in self.places if place is not None))


def record(core: Core, inputs: Inputs) -> Plan:
    """See which dropouts the network applies in training, and which layers come next.

    Args:
        core: in training mode; a copy of it is run.
        inputs: some rows, on the network's side.
    """
    (two, events), (three, _) = (_run(core, inputs, rows) for rows in (2, 3))
    sizes = [site.size for site in row_sites(two, three)]
    places = tuple(name for kind, name in events if kind == "dropout")
    weights = {id(p): name for name, p in core.named_parameters() if p.requires_grad}
    units, readers, layers = list(sizes), dict[str, tuple[str, ...]](), set()
    waiting: list[int] = []
    index = 0
    for kind, name in events:
        if kind == "dropout":
            waiting += [] if name is None else [index]
            index += 1
            continue
        layer = core.net.get_submodule(name or "")
        reads, own = _reads(layer)
        dropped = tuple(dict.fromkeys(place for place in (places[site] for site in waiting) if place is not None))
        for site in waiting:
            units[site] = min(units[site], reads)
        for weight in own:
            if dropped and id(weight) in weights:
                known = readers.get(weights[id(weight)], ())
                readers[weights[id(weight)]] = tuple(dict.fromkeys((*known, *dropped)))
        layers |= {name or ""} if waiting else set()
        waiting = []
    return Plan(places, tuple(units), readers, frozenset(layers))


def _run(core: Core, inputs: Inputs, rows: int) -> tuple[list[Site], list[tuple[str, str | None]]]:
    """The dropouts, and in their order among the calls of layers: ("dropout", of which module) and ("layer", name)."""
    twin = copied(core)
    events: list[tuple[str, str | None]] = []
    inside: list[str | None] = [None]
    for name, part in twin.net.named_modules():
        if isinstance(part, DROPOUT_LAYERS) or any(
            isinstance(hook, InputDropout) for hook in part._forward_pre_hooks.values()
        ):
            part.register_forward_pre_hook(lambda *_, name=name: inside.append(name), prepend=True)
            if isinstance(part, DROPOUT_LAYERS):
                part.register_forward_hook(lambda *_: inside.pop() and None)
            else:
                part.register_forward_pre_hook(lambda *_: inside.pop() and None)
        if _reads(part)[1]:
            part.register_forward_pre_hook(lambda *_, name=name: events.append(("layer", name)))
    recorder = _Placed(inside, events)
    first = take_rows(inputs, torch.zeros(rows, dtype=torch.long, device=module_device(core)))
    with seeded(0, "record", device=module_device(core)), torch.no_grad(), DropoutMode(recorder, always=False):
        twin(first, "outputs")
    return recorder.sites, events


class _Placed(Recorder):
    """A recorder that notes in which module each dropout happens."""

    def __init__(self, inside: list[str | None], events: list[tuple[str, str | None]]) -> None:
        super().__init__()
        self._inside = inside
        self._events = events

    def next_mask(self, inputs: Tensor, probability: float, shape: tuple[int, ...], *, alpha: bool) -> None:
        """Note the call and its place."""
        super().next_mask(inputs, probability, shape, alpha=alpha)
        self._events.append(("dropout", self._inside[-1]))


def _reads(part: nn.Module) -> tuple[int, list[Tensor]]:
    for kinds, size, names in _READERS:
        if isinstance(part, kinds):
            own = [getattr(part, name, None) for name in names]
            return int(getattr(part, size)), [weight for weight in own if isinstance(weight, Tensor)]
    return 0, []


def entropy(logits: Tensor) -> Tensor:
    """-p log p - (1 - p) log(1 - p) at p = sigmoid(logits), in nats."""
    return logits.sigmoid() * F.softplus(-logits) + torch.sigmoid(-logits) * F.softplus(logits)


def relaxed_mask(logit: Tensor, uniforms: Tensor, relaxation: float) -> Tensor:
    """Masks near 0 and 1 / (1 - p), with a gradient in the logit of p.

    Args:
        logit: of the rate p, a scalar.
        uniforms: of any shape.
        relaxation: t above 0; at 0 masks would be exact.
    """
    smallest = torch.finfo(uniforms.dtype).eps
    noise = uniforms.clamp(smallest, 1 - smallest).logit()
    return torch.sigmoid(-(logit + noise) / relaxation) / torch.sigmoid(-logit)


def expected_log_prior(prior: Prior, params: Params, keeps: Mapping[str, Tensor]) -> Tensor:
    """The expected log density of weights whose columns are kept with some probability, and otherwise 0: a scalar.

    Args:
        prior: under which weights are independent.
        params: of the network, as torch has them: what a layer reads is multiplied by 1 / (1 - p).
        keeps: for each weight that reads dropped units, the probability that one is kept.
    """
    value = prior.log_prob({name: weight for name, weight in params.items() if name not in keeps})
    for name, keep in keeps.items():
        weight = params[name]
        kept = prior.log_prob({name: weight / keep})
        value = value + keep * kept + (1 - keep) * prior.log_prob({name: torch.zeros_like(weight)})
    return value


class Concrete(Single):
    """One model and its dropout rates, trained in place.

    Args:
        model: a copy in training mode, which may be changed.
        objective: of the likelihood, without a prior.
        plan: of its dropouts.
        rates: to begin with, by name.
        relaxation: t.
        seed: of the masks.
        autocast: a lower precision for the forward pass.
    """

    def __init__(
        self,
        model: Model,
        objective: LogJoint,
        plan: Plan,
        rates: Mapping[str, float],
        *,
        example: Inputs,
        relaxation: float,
        seed: int,
        autocast: torch.dtype | None,
    ) -> None:
        super().__init__(model, objective, None, autocast)
        self.plan = plan
        self._model = model
        self._sites = TrainingDropout(self.core, [seed], example)
        self._stream = Stream(seed, "dropout", module_device(self.core))
        self._relaxation = relaxation
        like = self.leaves[0]
        begin = [math.log(rates[name]) - math.log1p(-rates[name]) for name in plan.names]
        self.logits = torch.tensor(begin, dtype=like.dtype, device=like.device, requires_grad=True)
        self.leaves = [*self.leaves, self.logits]
        self._index = {name: index for index, name in enumerate(plan.names)}

    def objectives(self, batch: Data, step: int) -> Tensor:
        """The evidence lower bound per row, up to a constant."""
        sites = self._sites.sites(batch.inputs)
        uniforms = self._stream.uniform(sum(site.size for site in sites), step, step + 1)[0]
        with self._sites.active(sites, self.masks(sites, uniforms)):
            parameters = self.core(batch.inputs, "parameters", self._autocast)
        return self._objective(parameters, self._params, batch) + self.regularizer() / self._objective.num_data

    def masks(self, sites: Sequence[Site], uniforms: Tensor) -> list[Tensor]:
        """A mask for each site, relaxed where its rate is learned."""
        if len(sites) != len(self.plan.places):
            raise NotSupportedError(
                f"the network applies {len(sites)} dropouts to these rows and {len(self.plan.places)} to the first "
                "ones; rates are learned of dropouts that all rows pass"
            )
        masks = []
        parts = uniforms.split([site.size for site in sites])  # type: ignore[no-untyped-call]
        for site, place, numbers in zip(sites, self.plan.places, parts, strict=True):
            if place is None:
                masks += draw_masks([site], numbers, self.logits.dtype)
            else:
                mask = relaxed_mask(self.logits[self._index[place]], numbers.to(self.logits.dtype), self._relaxation)
                masks.append(mask.reshape(site.shape))
        return masks

    def regularizer(self) -> Tensor:
        """E_q log p(w) + H(q), up to a constant: a scalar, of all weights."""
        weights = {name: value for name, value in self._params.items() if name.startswith("net.")}
        noise = {name: value for name, value in self._params.items() if name not in weights}
        kept = torch.sigmoid(-self.logits)
        keeps = {name: _product(kept[self._index[place]] for place in by) for name, by in self.plan.readers.items()}
        value = expected_log_prior(self._model.prior, weights, keeps)
        pairs = zip(self.plan.places, self.plan.units, strict=True)
        places = [(self._index[place], units) for place, units in pairs if place is not None]
        index, units = (torch.tensor(column, device=self.logits.device) for column in zip(*places, strict=True))
        value = value + (entropy(self.logits)[index] * units).sum()
        return value + self._model.noise_prior.log_prob(noise) if noise else value

    def rates(self) -> dict[str, float]:
        """The rates as they are now, by name."""
        return dict(zip(self.plan.names, self.logits.detach().double().sigmoid().tolist(), strict=True))

    def state_views(self) -> list[Tensor]:
        """With a member axis of size 1."""
        return [*super().state_views(), self.logits.detach().unsqueeze(0)]


def _product(values: Iterable[Tensor]) -> Any:
    return math.prod(values)
