"""A posterior and its data as an ArviZ object, for leave-one-out scores, comparisons and predictive checks.

ArviZ: A Unified Library for Exploratory Analysis of Bayesian Models in Python (Kumar, Carroll, Hartikainen, Martin,
2019). Leave-one-out scores by importance sampling (see `credibly.metrics.psis_loo`) treat the draws as a sample of the
posterior. The members of an ensemble, or dropout masks, are one as far as that approximation goes; the fewer they are,
the less ArviZ can say: it fits the tail of the importance ratios to a fifth of the draws, so 25 or more are needed.
With fewer, ArviZ 0.23 reports an infinite k with its usual warning, and ArviZ 1 raises an error.
"""

from typing import Any

import torch
import xarray
from torch import Tensor

from credibly.core.checks import check_count
from credibly.core.randomness import base_seed, derived_seed
from credibly.core.typing import Inputs
from credibly.diagnostics.arviz_versions import arviz_object, dataset
from credibly.diagnostics.chains import chains_dataset
from credibly.diagnostics.pointwise import Rows, as_counted, count_draws, evaluate_rows, read_rows
from credibly.diagnostics.weights import Chosen, chosen_weights, prior_as_posterior
from credibly.posteriors.base import Posterior

__all__ = ["to_arviz"]

_SAMPLES = ("chain", "draw")


def to_arviz(
    posterior: Posterior,
    data: Any,
    *,
    params: Chosen = (),
    num_draws: int | None = None,
    seed: int | None = None,
    posterior_predictive: bool = True,
    prior_predictive: int = 0,
    constant_data: bool = True,
    name: str = "targets",
) -> Any:
    """A posterior and data as `arviz.InferenceData`, or as the `xarray.DataTree` that ArviZ takes from 1.0 on.

    The draws are one chain. Groups and their variables, all in the units of the data:

    - `posterior`: the chosen weights, (chain, draw, ...); without any the numbers of the draws, `index`, because ArviZ
      asks for the group.
    - `log_likelihood`: `name`, (chain, draw, row) in float64, weighted by row weights as in the fit. It is computed in
      chunks of rows: what is held is the result and one chunk.
    - `posterior_predictive`: `name`, (chain, draw, row, ...), a target a row from every draw's distribution.
    - `observed_data`: `name`, (row, ...). Rows without a target, by the mask of `Data(inputs, targets, mask=...)`, are
      left out everywhere, single missing elements are NaN; the coordinate `row` keeps the places in the data. Censored
      targets, of which only bounds are known, are `<name>_lower` and `<name>_upper`; a predicted target has no such
      counterpart to be compared with.
    - `constant_data`: `inputs`, (row, ...); of several inputs `inputs_<position or key>`.
    - `prior` and `prior_predictive`, on demand: the same for weights drawn from their prior.

    Counts, events and classes are integers, observed and predicted ones, so that ArviZ draws bars and not densities;
    observed ones with missing elements cannot be.

    A point posterior, as MLE and MAP give, is one draw. It can be compared with the data (`arviz.plot_ppc`), but not
    judged by leaving rows out: `arviz.loo` needs draws that differ, and breaks off with an IndexError.

    Args:
        posterior: of any kind that predicts a mixture of equally weighted draws.
        data: (inputs, targets), `Data`, a `Dataset` or a `DataLoader`.
        params: which weights: names or glob patterns, such as "net.0.*"; or functions by name of the dict of one draw's
            weights. Posteriors over dropout masks have none.
        num_draws: by default all stored draws, or 100 where draws are made as needed.
        seed: of the draws and of the predicted targets.
        posterior_predictive: whether to draw targets.
        prior_predictive: how many draws of the weights from their prior to predict with; 0 leaves the prior out.
        constant_data: whether to export the inputs.
        name: of the targets' variable.

    Raises:
        TypeError: a prediction or a model in place of a posterior.
        NotFiniteError: targets that are NaN: those that are missing must be masked.
        NotSupportedError: weights of a posterior that has none; a prior that cannot be drawn from; a posterior without
            draws.
        ValueError: a pattern that no weight matches; members with different numbers of draws.
    """
    if not isinstance(posterior, Posterior):
        raise TypeError(
            f"`posterior` must be a Posterior, as `fit` gives it, from which predictions are made; "
            f"got {type(posterior).__name__}"
        )
    seed = base_seed(seed)
    rows = read_rows(posterior.model, data, seed)
    num_draws = count_draws(posterior, rows, num_draws, seed)
    labels = {"row": rows.index}

    def over_rows(values: Tensor) -> xarray.Dataset:
        return dataset({name: values.unsqueeze(0)}, (*_SAMPLES, "row"), labels)

    groups = {"posterior": _posterior_group(posterior, params, num_draws, seed)}
    found = evaluate_rows(posterior, rows, num_draws, seed, predictive=posterior_predictive)
    if found.targets is not None:
        groups["posterior_predictive"] = over_rows(found.targets)
    groups["log_likelihood"] = over_rows(found.log_likelihood)
    if prior_predictive:
        own = derived_seed(seed, "prior")
        prior = prior_as_posterior(posterior.model, check_count("prior_predictive", prior_predictive), own)
        drawn = evaluate_rows(prior, rows, prior_predictive, own).targets
        assert drawn is not None  # they were asked for
        groups |= {
            "prior": _posterior_group(prior, params, prior_predictive, own),
            "prior_predictive": over_rows(drawn),
        }
    groups["observed_data"] = dataset(_observed_by_name(posterior, rows, num_draws, name), ("row",), labels)
    if constant_data:
        groups["constant_data"] = dataset(_named(rows.data.inputs), ("row",), labels)
    return arviz_object(groups)


def _posterior_group(posterior: Posterior, params: Chosen, num_draws: int, seed: int) -> xarray.Dataset:
    chosen = chosen_weights(posterior, params, num_draws, seed) or {"index": torch.arange(num_draws)}
    return chains_dataset({name: value.unsqueeze(0) for name, value in chosen.items()})


def _observed_by_name(posterior: Posterior, rows: Rows, num_draws: int, name: str) -> dict[str, Tensor]:
    """The targets; of censored ones, which have an axis of bounds beyond their event, the two bounds."""
    observed = _observed(rows)
    first = rows.data.take(slice(0, 1)).inputs
    predicted = posterior.predict(first, num_draws=num_draws, seed=0)
    if observed.dim() == len(predicted.event_shape) + 1:
        return {name: observed if bool(observed.isnan().any()) else as_counted(predicted, observed)}
    return {f"{name}_lower": observed[..., 0], f"{name}_upper": observed[..., 1]}


def _observed(rows: Rows) -> Tensor:
    targets, mask = rows.data.targets, rows.data.mask
    if mask is None or bool(mask.all()):
        return targets.clone()  # type: ignore[no-any-return]
    floating = targets if targets.is_floating_point() else targets.double()
    return torch.where(mask.reshape(mask.shape + (1,) * (targets.dim() - mask.dim())), floating, torch.nan)


def _named(inputs: Inputs) -> dict[str, Tensor]:
    if isinstance(inputs, Tensor):
        return {"inputs": inputs.clone()}
    items = inputs.items() if isinstance(inputs, dict) else enumerate(inputs)
    return {f"inputs_{key}": value.clone() for key, value in items}
