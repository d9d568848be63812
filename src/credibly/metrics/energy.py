"""Scores of draws: the CRPS of an ensemble of numbers and the energy score of an ensemble of vectors.

    ES = E|X - y| - E|X - X'|/2

with Euclidean norms and X, X' independent draws; in one dimension it is the CRPS (Tilmann Gneiting, Adrian Raftery,
"Strictly Proper Scoring Rules, Prediction, and Estimation", 2007). Of M draws, the plain form averages over all M^2
pairs: it is the score of their empirical distribution. The fair form averages over the M (M - 1) pairs of different
draws and is unbiased for the score of the distribution from which they come (Christopher Ferro, "Fair scores for
ensemble forecasts", 2014). The CRPS takes O(M log M) a number, the energy score O(M^2 D) a row.

The functions `..._rows` give one float64 number a row; those without give their mean. Smaller is better.
"""

import torch
from torch import Tensor
from torch.distributions import Distribution

from credibly.core.checks import check_count
from credibly.core.errors import NotSupportedError
from credibly.core.typing import ArrayLike
from credibly.distributions.crps import crps
from credibly.distributions.empirical import Empirical, ensemble, fair_crps
from credibly.distributions.kinds import kind
from credibly.distributions.targets import check_rows, match_targets
from credibly.metrics.mean_score import mean_score

__all__ = ["crps_ensemble", "crps_ensemble_rows", "energy_score", "energy_score_rows"]

CHUNK = 2**22  # distances at a time


def crps_ensemble(draws: ArrayLike, targets: ArrayLike, *, fair: bool = False) -> Tensor:
    """The mean CRPS of draws over rows and outputs, a float64 scalar, in the units of the targets.

    Args:
        draws: (num_draws, rows, *event).
        targets: (rows, *event).
        fair: unbiased for the distribution from which the draws come.

    Raises:
        ShapeError: no rows, or shapes that do not fit.
        NotFiniteError: NaN or infinite draws or targets.
        ValueError: no draws, or for the fair form a single one.
    """
    return mean_score(crps_ensemble_rows(draws, targets, fair=fair), "crps_ensemble")


def crps_ensemble_rows(draws: ArrayLike, targets: ArrayLike, *, fair: bool = False) -> Tensor:
    """The CRPS of every row's draws, (rows,), float64: the mean over outputs; see `crps_ensemble`."""
    predicted = Empirical(draws)
    scores = fair_crps(predicted, targets) if fair else crps(predicted, targets)
    return scores.to(torch.float64).unsqueeze(-1).flatten(1).mean(1)


def energy_score(
    predicted: Distribution | ArrayLike,
    targets: ArrayLike,
    *,
    num_draws: int | None = None,
    fair: bool = False,
    seed: int | None = None,
) -> Tensor:
    """The mean energy score over rows, a float64 scalar, in the units of the targets.

    Args:
        predicted: draws (num_draws, rows, *event), or a distribution from which they are taken. All numbers of an
            event together are one vector.
        targets: (rows, *event).
        num_draws: how many draws to take from a distribution; None is all of an `Empirical`, else 100.
        fair: unbiased for the distribution from which the draws come.
        seed: equal seeds take equal draws.

    Raises:
        ShapeError: no rows, or shapes that do not fit.
        NotFiniteError: NaN or infinite draws or targets.
        ValueError: no draws, or for the fair form a single one; `num_draws` for draws that are given.
        NotSupportedError: classes, a distribution that cannot be sampled, or the fair form of weighted draws.
    """
    return mean_score(energy_score_rows(predicted, targets, num_draws=num_draws, fair=fair, seed=seed), "energy_score")


def energy_score_rows(
    predicted: Distribution | ArrayLike,
    targets: ArrayLike,
    *,
    num_draws: int | None = None,
    fair: bool = False,
    seed: int | None = None,
) -> Tensor:
    """The energy score of every row, (rows,), float64; see `energy_score`."""
    d = _distribution(predicted, num_draws)
    y = match_targets(d, targets)
    draws, log_weights = ensemble(d, num_draws if num_draws is None else check_count("num_draws", num_draws), seed)
    count = len(draws)
    if fair and log_weights is not None:
        raise NotSupportedError("the fair energy score is for equally weighted draws")
    if fair and count < 2:
        raise ValueError(f"the fair energy score needs at least 2 draws; got {count}")
    weights = draws.new_full((count,), 1 / count, dtype=torch.float64) if log_weights is None else log_weights.exp()
    vectors, points = draws.unsqueeze(-1).flatten(2).transpose(0, 1), y.unsqueeze(-1).flatten(1).unsqueeze(1)
    correction = count / (count - 1) if fair else 1.0
    size = max(1, CHUNK // count**2)
    some = [slice(first, first + size) for first in range(0, max(len(y), 1), size)]
    return torch.cat([_energy(vectors[s].double(), points[s].double(), weights.double(), correction) for s in some])


def _distribution(predicted: Distribution | ArrayLike, num_draws: int | None) -> Distribution:
    if not isinstance(predicted, Distribution):
        if num_draws is not None:
            raise ValueError(f"`num_draws` is for distributions, and these draws are given; got {num_draws}")
        return Empirical(predicted)
    if kind(predicted) == "class":
        raise NotSupportedError(f"energy_score needs numbers; {type(predicted).__name__} is over classes: use brier")
    check_rows(predicted)
    return predicted


def _energy(
    draws: Tensor,  # (rows, num_draws, dimensions)
    targets: Tensor,  # (rows, 1, dimensions)
    weights: Tensor,  # (num_draws,)
    correction: float,
) -> Tensor:
    """The score of some rows. Distances are taken from differences: products of vectors would cancel."""
    exact = "donot_use_mm_for_euclid_dist"
    far = torch.cdist(draws, targets, compute_mode=exact).squeeze(-1) @ weights
    near = torch.cdist(draws, draws, compute_mode=exact) @ weights @ weights
    return far - correction * near / 2
