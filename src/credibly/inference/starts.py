"""Where a fit begins: a posterior, weights by name, or the model's own."""

from typing import Literal, TypeAlias

from torch import nn

from credibly.core.dropout_rates import learned_rates, set_known_rates
from credibly.core.params import check_params, load_params, network_buffers, trainable_params
from credibly.core.typing import Params
from credibly.model import Model
from credibly.posteriors.base import Posterior
from credibly.standardization import same_transform

__all__ = ["Start", "begin", "with_transforms_of"]

Start: TypeAlias = Posterior | Params | Literal["current"] | None


def with_transforms_of(model: Model, start: Start) -> Model:
    """A posterior to start from brings its standardisation; another one is refused."""
    if not isinstance(start, Posterior):
        return model
    for name in ("inputs", "targets"):
        own, brought = getattr(model, name), getattr(start.model, name)
        is_fitted = isinstance(own, nn.Module)
        if (own is None) != (brought is None) or (is_fitted and not same_transform(own, brought)):
            raise ValueError(
                f"`start` was fitted with another standardisation of `{name}`; use its own model, start.to_model()"
            )
    return model.standardized_by(start.model.inputs, start.model.targets)


def begin(model: Model, start: Start) -> Model:
    """The model with the start's weights and buffers; None and "current" keep its own."""
    if start is None:
        return model
    if isinstance(start, str):
        if start != "current":
            raise ValueError(f"`start` must be a posterior, weights by name, 'current' or None; got {start!r}")
        return model
    if isinstance(start, Posterior):
        if (start.num_stored or 1) > 1:
            raise ValueError(
                f"{start!r} is several networks, whose mean is none; fit one of them, posterior.to_model(draw=k)"
            )
        source = start.to_model().core
        check_params(trainable_params(source), trainable_params(model.core))
        weights: Params = dict(source.named_parameters())  # the frozen ones too, which the others were trained beside
        check_params(weights, {**dict(model.core.named_parameters())})
        load_params(model.core, {**weights, **network_buffers(source)})
        set_known_rates(model.net, learned_rates(source.net))
        return model
    if not isinstance(start, dict):
        raise TypeError(f"`start` must be a posterior, weights by name, 'current' or None; got {type(start).__name__}")
    load_params(model.core, _checked_state(start, model))
    return model


def _checked_state(state: Params, model: Model) -> Params:
    """Weights by name, complete and of the right shapes; the network's buffers may come with them."""
    buffers = network_buffers(model.core)
    check_params({k: v for k, v in state.items() if k not in buffers}, trainable_params(model.core))
    return state
