"""Weights to look at: some of them by name, or functions of them, at draws from a posterior or from the prior."""

import fnmatch
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from credibly.core.checks import as_tensor
from credibly.core.errors import NotSupportedError
from credibly.core.params import module_device, stack, trainable_params
from credibly.core.randomness import seeded
from credibly.core.typing import Params
from credibly.model import Model
from credibly.posteriors.base import Posterior, WeightPosterior
from credibly.posteriors.draws import DrawPosterior
from credibly.posteriors.info import Info
from credibly.priors.base import FactorisedPrior, Prior
from credibly.priors.flat import Flat

__all__ = ["Chosen", "chosen_weights", "prior_as_posterior"]

Chosen: TypeAlias = str | Sequence[str] | Mapping[str, Callable[[Params], Tensor]]


def chosen_weights(posterior: Posterior, params: Chosen, num_draws: int, seed: int) -> dict[str, Tensor]:
    """By name, each (num_draws, ...).

    Raises:
        NotSupportedError: the posterior's draws are not weights.
        ValueError: a pattern that no weight matches.
    """
    if not params:
        return {}
    draws = _weight_draws(posterior, num_draws, seed)
    if isinstance(params, Mapping):
        return {name: _mapped(function, draws, _fixed(posterior), num_draws) for name, function in params.items()}
    names = _matching([params] if isinstance(params, str) else params, draws)
    return {name: draws[name] for name in names}


def _weight_draws(posterior: Posterior, num_draws: int, seed: int) -> Params:
    if isinstance(posterior, WeightPosterior):
        return posterior.sample(num_draws, seed=seed)
    if posterior.num_stored is None:
        raise NotSupportedError(f"the draws of {posterior!r} are not weights; leave `params` out")
    if num_draws != posterior.num_stored:
        raise NotSupportedError(
            f"`params` of {posterior!r} need all of its stored draws: leave `num_draws` out; got {num_draws}"
        )
    cores = [posterior.to_model(draw=draw).core for draw in range(num_draws)]
    return stack([trainable_params(core) for core in cores])


def _fixed(posterior: Posterior) -> Params:
    return posterior.fixed if isinstance(posterior, WeightPosterior) else {}


def _mapped(function: Callable[[Params], Tensor], draws: Params, fixed: Params, num_draws: int) -> Tensor:
    """A loop: a user's function need not have rules for `vmap`."""
    values = [function(fixed | {name: value[draw] for name, value in draws.items()}) for draw in range(num_draws)]
    return torch.stack([as_tensor(value).detach() for value in values])


def _matching(patterns: Iterable[str], names: Iterable[str]) -> list[str]:
    known = list(names)
    found: dict[str, None] = {}
    for pattern in patterns:
        matched = fnmatch.filter(known, pattern)
        if not matched:
            raise ValueError(f"`params`: no weight matches {pattern!r}; there are {known}")
        found.update(dict.fromkeys(matched))
    return list(found)


def prior_as_posterior(model: Model, num_draws: int, seed: int) -> DrawPosterior:
    """Draws of all weights from their prior, to predict with. Buffers stay as they are fitted.

    What the likelihood learns stays at its fitted value where its prior is flat.

    Raises:
        NotSupportedError: a weight of the network has no proper prior of its own.
    """
    weights = trainable_params(model.core)
    net = {name: value for name, value in weights.items() if name.startswith("net.")}
    noise = {name: value for name, value in weights.items() if name not in net}
    with seeded(seed, "prior", device=module_device(model)):
        draws = _prior_draws(model.prior, net, num_draws)
        if noise and not isinstance(model.noise_prior, Flat):
            draws |= _prior_draws(model.noise_prior, noise, num_draws)
    kept = {name: value.expand(num_draws, *value.shape) for name, value in weights.items() if name not in draws}
    return DrawPosterior(model, Info(method=type(model.prior).__name__, seed=seed), draws | kept)


def _prior_draws(prior: Prior, weights: Params, num_draws: int) -> Params:
    distributions = prior.distributions(weights) if isinstance(prior, FactorisedPrior) else {}
    improper = sorted(weights.keys() - distributions.keys())
    if improper:
        raise NotSupportedError(
            f"{type(prior).__name__} has no distribution for {improper} to draw from; leave `prior_predictive` out, or "
            "give these weights a proper prior"
        )
    return {name: distribution.sample(torch.Size([num_draws])) for name, distribution in distributions.items()}
