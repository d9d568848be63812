"""The entrance for predictions that come from elsewhere: arrays in, distributions out, nothing guessed.

Whether numbers are probabilities or logits is said by the name of the function, never read off their range.
Probabilities are checked (torch would silently renormalise them) and kept as float64 logarithms, so that
probabilities of exactly 0 and 1 stay what they are.
"""

import torch
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Distribution

from credibly.core.checks import as_tensor
from credibly.core.errors import NotFiniteError, ShapeError
from credibly.core.typing import ArrayLike
from credibly.distributions.empirical import Empirical
from credibly.distributions.mixture import MixturePredictive
from credibly.distributions.quantiles import QuantileForecast

__all__ = ["from_draws", "from_logits", "from_probs", "from_quantiles"]

ROUNDING = {torch.float64: 1e-6, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 1e-2}
"""How far a row may sum from 1, or a probability lie outside [0, 1], and still count as rounded: by dtype."""


def from_probs(probs: ArrayLike) -> Distribution:
    """Class probabilities as a distribution.

    Args:
        probs: (n,), the probability of an event: a Bernoulli; (n, classes), at least 2: a Categorical;
            (num_draws, n, classes): a MixturePredictive of equal weights.

    Raises:
        ShapeError: another shape, such as (n, 1): pass (n,).
        NotFiniteError: NaN.
        ValueError: a probability outside [0, 1], or a row that does not sum to 1, by more than rounding:
            1e-6 in float64, 1e-4 in float32, 1e-2 in half precisions. Smaller deviations are clamped and
            renormalised.
    """
    given = _numbers("probs", probs)
    slack = ROUNDING[given.dtype]
    values = given.double()
    if given.dim() == 1:
        _check_range(values, slack)
        return Bernoulli(probs=values.clamp(0, 1), validate_args=False)
    _check_range(values, slack)
    totals = values.sum(-1)
    off = ((totals - 1).abs() > slack).nonzero()
    if len(off):
        row = tuple(off[0].tolist())
        raise ValueError(f"`probs` must sum to 1 over the classes; row {_name(row)} sums to {float(totals[row]):.6g}")
    values = values.clamp(min=0)
    return _over_classes(torch.log(values / values.sum(-1, keepdim=True)))


def from_logits(logits: ArrayLike) -> Distribution:
    """Logits as a distribution.

    Args:
        logits: (n,), the log odds of an event: a Bernoulli; (n, classes), at least 2, log probabilities up
            to a constant, -inf for probability 0: a Categorical; (num_draws, n, classes): a
            MixturePredictive of equal weights.

    Raises:
        ShapeError: another shape, such as (n, 1): pass (n,).
        NotFiniteError: NaN; +inf among classes; a row of -inf alone.
    """
    values = _numbers("logits", logits).double()
    if values.dim() == 1:
        return Bernoulli(logits=values, validate_args=False)
    bad = (~torch.isfinite(values.logsumexp(-1))).nonzero()
    if len(bad):
        raise NotFiniteError(
            f"`logits` must not be +inf, nor -inf for all classes of a row; see row {_name(tuple(bad[0].tolist()))}"
        )
    return _over_classes(values)


def from_draws(draws: ArrayLike) -> Empirical:
    """Draws of targets, (num_draws, batch, *event), as an equally weighted Empirical; see there."""
    return Empirical(draws)


def from_quantiles(levels: ArrayLike, values: ArrayLike) -> QuantileForecast:
    """Quantiles (batch, levels) at given levels as a QuantileForecast; see there."""
    return QuantileForecast(levels, values)


def _numbers(name: str, values: ArrayLike) -> Tensor:
    tensor = as_tensor(values)
    tensor = tensor if tensor.is_floating_point() else tensor.double()
    if tensor.dim() not in (1, 2, 3) or (tensor.dim() > 1 and tensor.shape[-1] < 2):
        raise ShapeError(
            f"`{name}` must have shape (n,), (n, classes >= 2) or (num_draws, n, classes); got {tuple(tensor.shape)}"
        )
    missing = tensor.isnan().nonzero()
    if len(missing):
        raise NotFiniteError(
            f"`{name}` must not be NaN; see row {_name(tuple(missing[0].tolist()[: tensor.dim() - 1]))}"
        )
    return tensor


def _check_range(values: Tensor, slack: float) -> None:
    outside = ((values < -slack) | (values > 1 + slack)).nonzero()
    if len(outside):
        where = tuple(outside[0].tolist())
        row = where if values.dim() == 1 else where[:-1]
        raise ValueError(
            f"`probs` must lie in [0, 1]; row {_name(row)} holds {float(values[where]):.6g}. "
            "If these are logits, use from_logits"
        )


def _name(row: tuple[int, ...]) -> str:
    return str(row[0]) if len(row) == 1 else str(row)


def _over_classes(logits: Tensor) -> Distribution:
    categorical = Categorical(logits=logits, validate_args=False)
    return categorical if logits.dim() == 2 else MixturePredictive(categorical)
