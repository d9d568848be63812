"""What a model predicts before it has seen data: p(y | x) = integral of p(y | x, w) p(w) over the weights.

A prior over weights says little by itself; the functions that it makes say what it believes (Gelman, Simpson,
Betancourt, "The Prior Can Often Only Be Understood in the Context of the Likelihood", 2017).
"""

from typing import cast

from torch import Tensor

from credibly.core.checks import check_count
from credibly.core.errors import NotSupportedError
from credibly.core.params import trainable_params
from credibly.core.randomness import base_seed, derived_seed
from credibly.core.typing import ArrayLike, Params
from credibly.distributions.mixture import MixturePredictive
from credibly.model import Model
from credibly.posteriors.base import DEFAULT_NUM_DRAWS, network_randomness
from credibly.posteriors.evaluation import Evaluator, grad_if_needed
from credibly.priors.base import Prior

__all__ = ["prior_draws", "prior_predictive"]


def prior_predictive(
    model: Model, inputs: ArrayLike, *, num_draws: int = DEFAULT_NUM_DRAWS, seed: int | None = None
) -> MixturePredictive:
    """The mixture of the model's predictions at weights drawn from its prior, in the targets' units.

    Args:
        model: its trainable weights are drawn; frozen ones and buffers are as they are. Nothing is changed.
        inputs: arrays or tensors of rows.
        num_draws: draws of all weights; each is one function for all rows.
        seed: of the draws.

    Raises:
        NotSupportedError: a prior from which nothing can be drawn: a flat one, over weights or over what the
            likelihood learns.
    """
    if not isinstance(model, Model):
        raise TypeError(
            f"`model` must be a Model(net, likelihood, prior); got {type(model).__name__}. A posterior's is "
            "posterior.model, or posterior.to_model()"
        )
    base = base_seed(seed)
    draws = prior_draws(model, num_draws, seed=base)
    read = model.read_inputs(inputs)
    with network_randomness(model, base), grad_if_needed(read):
        evaluator = Evaluator(
            lambda params, buffers, rows: model.call(params, buffers, rows, "parameters"), model.net, read
        )
        parameters = evaluator(draws, {}, num_draws=num_draws if draws else 1)
    return MixturePredictive(model.distribution(cast("dict[str, Tensor]", parameters)))


def prior_draws(model: Model, num_draws: int, *, seed: int | None = None) -> Params:
    """Draws of the model's trainable weights from its prior, and of what its likelihood learns from its noise prior.

    Args:
        model: the model.
        num_draws: how many.
        seed: of the draws.

    Returns:
        Each (num_draws, ...).
    """
    check_count("num_draws", num_draws)
    base = base_seed(seed)
    like = trainable_params(model.core)
    noise = {name: value for name, value in like.items() if name.startswith("likelihood.")}
    weights = {name: value for name, value in like.items() if name not in noise}
    return {
        **_drawn("prior", model.prior, weights, num_draws, derived_seed(base, "weights")),
        **_drawn("noise_prior", model.noise_prior, noise, num_draws, derived_seed(base, "noise")),
    }


def _drawn(option: str, prior: Prior, like: Params, num_draws: int, seed: int) -> Params:
    if not like:
        return {}
    try:
        return prior.sample(like, num_draws, seed=seed)
    except NotSupportedError as error:
        example = f"Model(..., {option}=priors.Normal(...))"
        raise NotSupportedError(f"the model's `{option}` cannot be drawn from: {error}, such as {example}") from error
