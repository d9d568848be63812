"""What a posterior says of each row at each draw, in chunks of rows, so that only the result is ever held whole."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution
from torch.utils.data import DataLoader, Dataset, TensorDataset

from credibly.core.data import Data, as_source
from credibly.core.errors import NotSupportedError
from credibly.core.params import floating_dtype, module_device
from credibly.core.randomness import seeded
from credibly.core.typing import Inputs
from credibly.distributions.drawing import sampled
from credibly.distributions.kinds import kind
from credibly.distributions.mixture import MixturePredictive
from credibly.model import Model, weighted_rows
from credibly.posteriors.base import DEFAULT_NUM_DRAWS, Posterior
from credibly.posteriors.mixture import MixturePosterior

__all__ = ["Rows", "Tables", "as_counted", "count_draws", "evaluate_rows", "read_rows"]

_CHUNK = 2**21  # numbers of one chunk's outputs, over draws and rows
_DATASET_ROWS = 1024


@dataclass(frozen=True)
class Rows:
    """The rows whose targets are known.

    Attributes:
        data: tensors in the user's units, checked against the model.
        index: (rows,) their places in the data as it came.
    """

    data: Data
    index: Tensor


@dataclass(frozen=True)
class Tables:
    """What was found.

    Attributes:
        log_likelihood: (num_draws, rows) float64, the log density of each row's target, as in `Model.log_likelihood`.
        targets: (num_draws, rows, *event) one target a row from each draw's distribution, in the targets' units; None
            where none were asked for.
    """

    log_likelihood: Tensor
    targets: Tensor | None


def as_counted(d: Distribution, targets: Tensor) -> Tensor:
    """Targets as integers if they are counts, events or classes, as they are if they are numbers."""
    return targets if kind(d) == "real" else targets.to(torch.int64)


def read_rows(model: Model, data: Any, seed: int) -> Rows:
    """Data of any accepted form in memory; rows whose target is masked are left out.

    Raises:
        NotFiniteError: targets that are NaN without being masked.
    """
    if isinstance(data, Dataset) and not isinstance(data, TensorDataset):
        data = DataLoader(data, batch_size=_DATASET_ROWS)
    source = as_source(data, floating_dtype(model), module_device(model), seed=seed)
    matched = model.matched(_joined(list(source.batches(None))))
    if matched.mask is None:
        return Rows(matched, torch.arange(matched.num_rows))
    present = matched.mask.reshape(matched.num_rows, -1).any(-1).nonzero().squeeze(-1)
    if not len(present):
        raise ValueError("`data` must have at least one row with a target; all of them are missing")
    return Rows(matched.take(present), present.cpu())


def _joined(batches: Sequence[Data]) -> Data:
    def joined(parts: list[Any]) -> Any:
        return None if parts[0] is None else torch.cat(parts)

    return Data(
        _joined_inputs([batch.inputs for batch in batches]),
        joined([batch.targets for batch in batches]),
        joined([batch.weights for batch in batches]),
        joined([batch.mask for batch in batches]),
    )


def _joined_inputs(parts: list[Any]) -> Inputs:
    if isinstance(parts[0], dict):
        return {key: torch.cat([part[key] for part in parts]) for key in parts[0]}
    if isinstance(parts[0], tuple):
        return tuple(torch.cat(column) for column in zip(*parts, strict=True))
    return torch.cat(parts)


def count_draws(posterior: Posterior, rows: Rows, num_draws: int | None, seed: int) -> int:
    """How many draws are meant, all of which must weigh the same: an ArviZ object knows no weights.

    By default all stored draws; where draws are made as needed 100, or as many below as all members share equally.
    """
    if num_draws is None and posterior.num_stored is None:  # said, because closed forms are predicted otherwise
        members = len(posterior.members) if isinstance(posterior, MixturePosterior) else 1
        num_draws = max(1, DEFAULT_NUM_DRAWS // members) * members
    predicted = posterior.predict(rows.data.take(slice(0, 1)).inputs, num_draws=num_draws, seed=seed)
    if not isinstance(predicted, MixturePredictive):
        raise NotSupportedError(f"{posterior!r} predicts {type(predicted).__name__}, which has no draws to export")
    weights = predicted.log_weights
    if not torch.allclose(weights, weights[:1].expand_as(weights)):
        raise ValueError(
            "the draws of this posterior do not weigh the same, because its members give different numbers of them: "
            f"choose `num_draws` so that all give as many; got {num_draws}"
        )
    return predicted.num_draws


def evaluate_rows(posterior: Posterior, rows: Rows, num_draws: int, seed: int, *, predictive: bool = True) -> Tables:
    """Every row at every draw.

    Args:
        posterior: what to evaluate.
        rows: at which data.
        num_draws: as counted by `count_draws`.
        seed: of the draws and of the targets.
        predictive: whether to draw targets.
    """
    model = posterior.model
    element, axes = model.likelihood.elements()
    densities = torch.empty(num_draws, rows.data.num_rows, dtype=torch.float64)
    targets: Tensor | None = None
    for some, chunk, parameters in _chunks(posterior, rows, num_draws, seed):
        each = weighted_rows(element.log_prob, parameters, model.standardize(chunk), model.log_scale(), axes)
        densities[:, some] = each.cpu()
        if predictive:
            with seeded(seed, "predict", some.start, device=module_device(model)):
                distribution = model.distribution(parameters)
                drawn = as_counted(distribution, sampled(distribution))
            if targets is None:
                targets = torch.empty(num_draws, rows.data.num_rows, *drawn.shape[2:], dtype=drawn.dtype)
            targets[:, some] = drawn.cpu()
    return Tables(densities, targets)


def _chunks(
    posterior: Posterior, rows: Rows, num_draws: int, seed: int
) -> Iterator[tuple[slice, Data, dict[str, Tensor]]]:
    """Places, data and the likelihood's parameters (num_draws, rows, ...) of some rows after another."""
    data = rows.data.map_inputs(torch.Tensor.detach)
    per_row = posterior.model.dry_run(data.inputs)[0].numel()
    size = max(1, _CHUNK // (num_draws * per_row))
    for start in range(0, data.num_rows, size):
        some = slice(start, start + size)
        chunk = data.take(some)
        with torch.no_grad():
            parameters = posterior.parameters(chunk.inputs, num_draws=num_draws, seed=seed)
            yield some, chunk, parameters
