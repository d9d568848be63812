"""Draws of weights that each have BatchNorm statistics of their own.

The running statistics of a network belong to its own weights. Under weights drawn around them activations have another
mean and variance, so Maddox et al. 2019 (A Simple Baseline for Bayesian Uncertainty in Deep Learning) gather the
statistics anew for each draw, in a pass over the training data.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from credibly.core.checks import check_count
from credibly.core.data import ArraySource, Data, Source
from credibly.core.errors import NotSupportedError
from credibly.core.params import load_params, network_buffers, stack, training_mode
from credibly.core.randomness import Stream, base_seed, derived_seed, seeded
from credibly.core.typing import Params
from credibly.inference.problem import Problem, prepare
from credibly.posteriors.base import WeightPosterior
from credibly.posteriors.draws import DrawPosterior
from credibly.posteriors.evaluation import is_mappable
from credibly.training.batch_norm import has_statistics, refresh_statistics
from credibly.training.dropout import TrainingDropout
from credibly.training.objective import LogJoint
from credibly.training.trainee import Single, Stacked

__all__ = ["refreshed_draws"]

_TOGETHER = 8  # draws whose activations are held at once


def refreshed_draws(
    posterior: WeightPosterior, data: Any, *, num_draws: int = 30, batch_size: int | None = 128, seed: int | None = None
) -> DrawPosterior:
    """Stored draws from a posterior, each with BatchNorm statistics gathered at its own weights.

    Args:
        posterior: over weights, such as SWAG gives it; it is left alone.
        data: the training data.
        num_draws: how many.
        batch_size: rows per batch, whose statistics are averaged.
        seed: of the draws, the order of the rows and dropout masks.

    Raises:
        NotSupportedError: a posterior that is not over weights, or a network without running statistics.
    """
    if not isinstance(posterior, WeightPosterior):
        raise NotSupportedError(f"{posterior!r} draws no weights, which are to have statistics of their own")
    check_count("num_draws", num_draws)
    seed = base_seed(seed)
    several = (posterior.num_stored or 1) > 1
    model = posterior.to_model(draw=0) if several else posterior.to_model()
    problem = prepare(model, data, batch_size=batch_size, seed=seed)
    training_mode(problem.model)
    if not has_statistics(problem.model.core):
        raise NotSupportedError(
            "the network keeps no running statistics in training, as BatchNorm does, so there is nothing to gather "
            "anew; predict with the posterior itself"
        )
    draws = posterior.sample(num_draws, seed=derived_seed(seed, "draws"))
    order = _order(problem.source, seed)
    together = _TOGETHER if is_mappable(problem.model.net) else 1
    first_buffers = {name: value.clone() for name, value in network_buffers(problem.model.core).items()}
    each = [{**first_buffers, **{name: value[index] for name, value in draws.items()}} for index in range(num_draws)]
    seeds = [derived_seed(seed, "draw", index) for index in range(num_draws)]
    parts = []
    with seeded(seed, "refresh", device=problem.source.device):
        for first in range(0, num_draws, together):
            some = slice(first, first + together)
            batches = problem.source.batches(batch_size, order)
            parts.append(_statistics(problem, each[some], batches, seeds[some]))
    buffers = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    info = replace(posterior.info, reason="each draw has BatchNorm statistics of its own")
    return DrawPosterior(model, info, draws, buffers)


def _statistics(problem: Problem, draws: Sequence[Params], batches: Iterator[Data], seeds: Sequence[int]) -> Params:
    """The buffers of each draw, (draws, ...)."""
    model, core = problem.model, problem.model.core
    objective = LogJoint.of(model, problem.source.num_data, with_prior=False, loss=None, class_weights=None)
    masks = TrainingDropout(core, seeds, problem.source.first().inputs)
    dropout = masks if masks.is_used else None
    if len(draws) > 1:
        stacked = Stacked(model, draws, objective, dropout, None, own_rows=False)
        refresh_statistics(stacked, batches)
        return {name: value for name, value in stacked.buffers.items() if name.startswith("net.")}
    load_params(core, draws[0])
    refresh_statistics(Single(model, objective, dropout, None), batches)
    return stack([network_buffers(core)])


def _order(source: Source, seed: int) -> Tensor | None:
    """Shuffled, so that each batch is like the whole; a loader's order is its own."""
    if not isinstance(source, ArraySource):
        return None
    return torch.randperm(source.data.num_rows, generator=Stream(seed, "order").generator()).to(source.device)
