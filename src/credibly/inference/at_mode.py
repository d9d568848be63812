"""The log likelihood of all data at trained weights, and what tuning after training needs to know of it."""

import math
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from credibly.core.data import Data, Source
from credibly.core.errors import NotFiniteError, NotSupportedError
from credibly.core.params import evaluating
from credibly.core.randomness import seeded
from credibly.inference.tuning import Residuals
from credibly.likelihoods.base import Likelihood
from credibly.likelihoods.gaussian import Gaussian
from credibly.model import Model, weighted_rows
from credibly.posteriors.base import Posterior
from credibly.training.objective import mean_over_rows

__all__ = ["AtMode", "at_mode", "mean_log_prob", "on_network_side", "scale_noise"]

_ROWS = 512  # evaluated at a time


@dataclass(frozen=True, eq=False)
class AtMode:
    """Sums over the data at the weights.

    Attributes:
        log_likelihood: in the targets' units.
        residuals: of a Gaussian likelihood that learns its noise; otherwise None.
        share: training rows for each row that was seen, 1 unless the data told another number.
    """

    log_likelihood: float
    residuals: Residuals | None
    share: float

    def with_noise(self, factor: float) -> "AtMode":
        """The same with the variance of the noise multiplied by a factor."""
        assert self.residuals is not None
        squares, count = self.residuals.squares, self.residuals.count
        change = 0.5 * squares * (1 - 1 / factor) - 0.5 * count * math.log(factor)
        residuals = Residuals(squares / factor, count)
        return replace(self, log_likelihood=self.log_likelihood + change, residuals=residuals)


def on_network_side(model: Model) -> Model:
    """The same network and likelihood, for data that are standardised already."""
    return Model(
        model.net,
        model.likelihood,
        model.prior,
        output=model.output,
        offset=model.offset,
        noise_prior=model.noise_prior,
    )


def at_mode(model: Model, source: Source, log_scale: float, seed: int) -> AtMode:
    """One pass over the data.

    Args:
        model: on the network's side.
        source: likewise.
        log_scale: what a log density loses on the way back to the targets' units.
        seed: of what the network draws by itself.

    Raises:
        NotFiniteError: the log likelihood is NaN or infinite.
    """
    core, (element, axes) = model.core, model.likelihood.elements()
    learns = _learned_noise(element) is not None
    parts = [partial(of, event=element.num_outputs > 1) for of in (_squares, _count)] if learns else []
    totals, seen = torch.zeros(3, dtype=torch.float64), 0
    with torch.no_grad(), evaluating(core), seeded(seed, "network", device=source.device):
        for batch in source.batches(_ROWS):
            parameters = core(batch.inputs, "parameters")
            densities = weighted_rows(element.log_prob, parameters, batch, log_scale, axes)
            terms = [densities, *(weighted_rows(of, parameters, batch, 0.0, axes) for of in parts)]
            totals[: len(terms)] += torch.stack([term.double().sum() for term in terms]).cpu()
            seen += batch.num_rows
    if not bool(totals[0].isfinite()):
        raise NotFiniteError(f"the log likelihood of the data at the trained weights is {float(totals[0])}")
    share = source.num_data / seen
    log_likelihood, squares, count = (totals * share).tolist()
    return AtMode(log_likelihood, Residuals(squares, count) if learns else None, share)


def _learned_noise(element: Likelihood) -> Tensor | None:
    if isinstance(element, Gaussian) and element.log_scale is not None and element.log_scale.requires_grad:
        return element.log_scale
    return None


def _squares(parameters: dict[str, Tensor], targets: Tensor, *, event: bool) -> Tensor:
    squares = ((targets - parameters["loc"]) / parameters["scale"]).square()
    return squares.sum(-1) if event else squares


def _count(parameters: dict[str, Tensor], targets: Tensor, *, event: bool) -> Tensor:  # noqa: ARG001
    ones = torch.ones_like(parameters["loc"])
    return ones.sum(-1) if event else ones


def scale_noise(model: Model, factor: float) -> None:
    """Multiply the variance of the learned noise, in place."""
    element = model.likelihood.elements()[0]
    log_scale = _learned_noise(element)
    assert log_scale is not None
    assert isinstance(element, Gaussian)
    with torch.no_grad():
        scale = element.noise_scale()
        floor = scale - log_scale.exp()
        least = torch.finfo(scale.dtype).tiny
        log_scale.copy_((scale * factor**0.5 - floor).clamp(min=least).log())


def mean_log_prob(posterior: Posterior, source: Source, seed: int) -> float:
    """The mean log density of the rows of a source, on the network's side, weighted and over those present."""

    def score(batch: Data) -> Tensor:
        if batch.mask is not None and batch.mask.dim() > 1:
            raise NotSupportedError(
                "the log score of validation data is of whole rows; leave out rows with missing elements"
            )
        return posterior.predict(batch.inputs, seed=seed).log_prob(batch.targets)

    return float(mean_over_rows(score, source, _ROWS))
