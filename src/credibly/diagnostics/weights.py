"""Weights to look at: some of them by name, or functions of them, at draws from a posterior or from the prior."""

import fnmatch
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from credibly.core.checks import as_tensor
from credibly.core.errors import NotSupportedError
from credibly.core.params import stack, trainable_params
from credibly.core.typing import Params
from credibly.model import Model
from credibly.posteriors.base import Posterior, WeightPosterior
from credibly.posteriors.draws import DrawPosterior
from credibly.posteriors.info import Info
from credibly.posteriors.prior_predictive import prior_draws

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
    """Draws of all weights from their prior, and of what the likelihood learns from its own, to predict with.

    Buffers stay as they are fitted.

    Raises:
        NotSupportedError: a prior from which nothing can be drawn, as in `posteriors.prior_predictive`.
    """
    draws = prior_draws(model, num_draws, seed=seed)
    return DrawPosterior(model, Info(method=type(model.prior).__name__, seed=seed), draws)
