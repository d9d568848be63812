"""The entrance for predictions that come from elsewhere: arrays in, distributions out, nothing guessed.

Whether numbers are probabilities or logits is said by the name of the function, never read off their range.
Probabilities are checked, which torch does not do (it would silently renormalise them), and kept as they are, so
that 0 and 1 stay 0 and 1: `class_log_probs` reads them from there, in float64.
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


_UNITS = 32  # rows that sum to 1 to so many units in the last place are left as they are
HALF = {torch.float16, torch.bfloat16}


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
    values = given.float() if given.dtype in HALF else given
    lowest = _check_range(values, slack)
    if values.dim() == 1:
        return Bernoulli(probs=values.clamp(0, 1), validate_args=False)
    off = _check_totals(values, slack)
    values = values.clamp(min=0) if lowest < 0 else values
    if lowest < 0 or off > _UNITS * torch.finfo(values.dtype).eps:
        return _over_classes(Categorical(probs=values, validate_args=False))
    return _over_classes(_as_given(values))


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
    values = _numbers("logits", logits)
    values = values.float() if values.dtype in HALF else values
    if values.dim() == 1:
        _refuse_nan("logits", values)
        return Bernoulli(logits=values, validate_args=False)
    if values.numel() and not bool(values.amax(-1).isfinite().all()):
        _refuse_nan("logits", values)
        row = tuple((~values.amax(-1).isfinite()).nonzero()[0].tolist())
        raise NotFiniteError(f"`logits` must not be +inf, nor -inf for all classes of a row; see row {_name(row)}")
    return _over_classes(Categorical(logits=values, validate_args=False))


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
    return tensor


def _refuse_nan(name: str, values: Tensor) -> None:
    missing = values.isnan().nonzero()
    if len(missing):
        row = tuple(missing[0].tolist()[: max(values.dim() - 1, 1)])
        raise NotFiniteError(f"`{name}` must not be NaN; see row {_name(row)}")


def _check_range(values: Tensor, slack: float) -> float:
    """The smallest probability, after all have been found to lie in [0, 1]."""
    if not values.numel():
        return 0.0
    low, high = (float(bound) for bound in values.aminmax())
    if -slack <= low and high <= 1 + slack:  # false for NaN
        return low
    _refuse_nan("probs", values)
    where = tuple(((values < -slack) | (values > 1 + slack)).nonzero()[0].tolist())
    raise ValueError(
        f"`probs` must lie in [0, 1]; row {_name(where[: max(values.dim() - 1, 1)])} holds {float(values[where]):.6g}. "
        "If these are logits, use from_logits"
    )


def _check_totals(values: Tensor, slack: float) -> float:
    """The largest deviation of a row's sum from 1, after it has been found to be rounding."""
    totals = values.sum(-1)
    if not totals.numel():
        return 0.0
    low, high = (float(bound) for bound in totals.aminmax())
    worst = max(1 - low, high - 1)
    if worst > slack:
        row = tuple(((totals - 1).abs() > slack).nonzero()[0].tolist())
        raise ValueError(f"`probs` must sum to 1 over the classes; row {_name(row)} sums to {float(totals[row]):.9g}")
    return worst


def _as_given(probs: Tensor) -> Categorical:
    """A Categorical of rows that sum to 1 already.

    Its constructor would divide them by their sums, and take as long as most of what is then done with them.
    """
    made = Categorical.__new__(Categorical)
    made.probs = made._param = probs
    made._num_events = probs.shape[-1]
    Distribution.__init__(made, probs.shape[:-1], validate_args=False)
    return made


def _name(row: tuple[int, ...]) -> str:
    return str(row[0]) if len(row) == 1 else str(row)


def _over_classes(classes: Categorical) -> Distribution:
    return classes if len(classes.batch_shape) == 1 else MixturePredictive(classes)
