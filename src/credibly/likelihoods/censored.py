"""Targets of which only bounds are known: durations that were still running, measurements below a limit of detection.

An exact target has its density, a pair of bounds the probability between them, so that every row says what it knows
("Estimation of Relationships for Limited Dependent Variables", Tobin, 1958, for Gaussian noise; Kalbfleisch and
Prentice, "The Statistical Analysis of Failure Time Data", 2002, for durations).
"""

import torch
from torch import Tensor
from torch.distributions import Distribution

from credibly.core.errors import NotSupportedError
from credibly.core.typing import ArrayLike
from credibly.distributions import censored
from credibly.distributions.targets import match_observed
from credibly.likelihoods.base import Likelihood

__all__ = ["Censored"]


class Censored(Likelihood):
    """The likelihood `of`, for targets (rows, 2) of bounds [lower, upper], or (rows,) where all are exact.

    Equal bounds are an exact observation. (lower, inf) is right-censored, (-inf, upper), or a lower bound below the
    support, is left-censored; otherwise the target lies in between. What is predicted is the quantity itself.

    Args:
        of: the likelihood of one real number a row, with a known logarithm of both tails: Gaussian,
            HeteroscedasticGaussian, Laplace, LogNormal, Gamma, Weibull, MixtureDensity.

    Raises:
        NotSupportedError: vectors, counts, classes, or a distribution whose tails are not known.
    """

    def __init__(self, of: Likelihood) -> None:
        super().__init__()
        with torch.no_grad():
            example = censored.Censored(of(torch.zeros(1, of.num_outputs)))
            censored.log_interval(example.of, torch.ones(1), 2 * torch.ones(1))  # refuses unknown tails by name
        self.of = of
        self.num_outputs = of.num_outputs

    def parameters_of(self, outputs: Tensor) -> dict[str, Tensor]:
        """Those of `of`."""
        return self.of.parameters_of(outputs)

    def distribution(self, parameters: dict[str, Tensor]) -> Distribution:
        """That of `of`, which takes bounds as targets."""
        return censored.Censored(self.of.distribution(parameters))

    def log_prob(self, parameters: dict[str, Tensor], targets: Tensor) -> Tensor:
        """The log density of exact targets, the log probability of the interval of others."""
        predicted = self.of.distribution(parameters)
        lower, upper = censored.as_bounds(targets, predicted.batch_shape)
        if lower is targets:  # numbers, not pairs
            return self.of.log_prob(parameters, targets)
        exact = lower == upper
        safe = torch.where(exact, lower, censored.interior(predicted, lower))  # what is not used must stay finite
        density = self.of.log_prob(parameters, safe)
        within = censored.log_interval(predicted, lower, torch.where(exact, torch.inf, upper))
        return torch.where(exact, density, within)

    def fisher(self, outputs: Tensor) -> Tensor:
        """That of an exact observation. A censored one holds less, by an amount that depends on what is censored."""
        return self.of.fisher(outputs)

    def fisher_root(self, outputs: Tensor) -> Tensor:
        """That of an exact observation."""
        return self.of.fisher_root(outputs)

    def sample_scores(self, outputs: Tensor, num_scores: int, *, seed: int | None = None) -> Tensor:
        """Those of exact observations."""
        return self.of.sample_scores(outputs, num_scores, seed=seed)

    def with_offset(self, outputs: Tensor, offset: Tensor) -> Tensor:
        """As `of` takes it."""
        return self.of.with_offset(outputs, offset)

    def standardized(self, loc: Tensor, scale: Tensor) -> "Censored":
        """Refused: mean and deviation of bounds are not those of the targets, and a probability has no unit to change.

        Raises:
            NotSupportedError: always.
        """
        raise NotSupportedError(
            "targets of Censored cannot be standardised: the mean and deviation of bounds are not those of the "
            "targets; divide the bounds by a constant yourself"
        )

    def match_targets(self, targets: ArrayLike, outputs: Tensor) -> Tensor:
        """Bounds (rows, 2), or exact targets (rows,), checked.

        Raises:
            ShapeError, NotFiniteError, SupportError: as for every likelihood; NaN.
            ValueError: a lower bound above its upper bound.
        """
        rows = len(targets)
        with torch.no_grad():
            template = self(outputs[:1].detach().expand(rows, *outputs.shape[1:]))
        matched = match_observed(template, targets)
        lower, upper = censored.as_bounds(matched, template.batch_shape)
        self.of.check_targets(lower[lower == upper])
        return matched
