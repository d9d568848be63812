r"""Weights for calibration rows that are not exchangeable with the test rows.

Covariate shift ("Conformal Prediction Under Covariate Shift", Tibshirani, Barber, Candes, Ramdas, 2019): the inputs
move from a density p to a density q, targets given inputs stay. With weights w(x) = q(x) / p(x), known up to a factor,
on calibration and test rows alike, `Score.calibrate(weights=...)` keeps its coverage. A classifier that tells test from
calibration inputs knows them:

    w(x)  =  P(test | x) / P(calibration | x)  *  P(calibration) / P(test).

Drift ("Conformal Prediction Beyond Exchangeability", Barber, Candes, Ramdas, Tibshirani, 2023): with weights that are
fixed before the data are seen, small for rows that are thought to differ much, and 1 for the test row, coverage is at
least

    c  -  sum_i w_i d_i / (sum_i w_i + 1),

d_i the total variation between the scores and the scores with row i and the test row exchanged.

Weights cost precision: n rows count as (sum w)^2 / sum w^2 ("Survey Sampling", Kish, 1965).
"""

import math

import torch
from torch import Tensor
from torch.distributions import Distribution

from credibly.core.checks import as_tensor, check_finite, check_positive
from credibly.core.errors import NotFiniteError, NotSupportedError, ShapeError
from credibly.core.typing import ArrayLike
from credibly.distributions.classes import class_log_probs
from credibly.distributions.kinds import kind

__all__ = ["coverage_gap", "density_ratio", "effective_sample_size", "recency_weights"]


def density_ratio(
    predicted: Distribution,
    *,
    prior_ratio: float = 1.0,
    clip: tuple[float, float] | None = None,
) -> Tensor:
    """The ratio of test to calibration density of every row's inputs, from a classifier that tells them apart.

    Train the classifier on inputs of both kinds (never the targets), on other rows than those it weighs, so that the
    calibration weights are like the test weights. Its forecasts may come from a network, or from any other source
    through `distributions.from_probs` or `from_logits`; they should be calibrated, since their odds are used as they
    are.

    Args:
        predicted: forecasts of two classes, 0 for calibration and 1 for test, (rows,).
        prior_ratio: rows of class 0 to rows of class 1 in the classifier's training data. A constant factor: it makes
            the weights average 1 over calibration rows, and changes no prediction set as long as calibration and test
            rows share it.
        clip: smallest and largest ratio; those outside are moved to the nearer end. It bounds the variance that a few
            huge weights cause, and the coverage then holds for the clipped shift, no longer for the true one. None
            leaves ratios as they are.

    Returns:
        The weights, (rows,), float64, for `calibrate(weights=...)` and `predict(weights=...)`.

    Raises:
        NotSupportedError: `predicted` is not one choice between two classes a row.
        NotFiniteError: NaN probabilities, or a probability of 1 for the test class that no `clip` bounds.
        ValueError: `prior_ratio` not above 0, or `clip` not an increasing pair of numbers of 0 or above.
    """
    check_positive("prior_ratio", prior_ratio)
    if clip is not None and not 0 <= clip[0] < clip[1]:
        raise ValueError(f"`clip` must be two increasing numbers, 0 or above; got {clip}")
    log_probs = _two_classes(predicted)
    ratio = torch.exp(log_probs[:, 1] - log_probs[:, 0] + math.log(prior_ratio))
    if bool(ratio.isnan().any()):
        raise NotFiniteError(f"`predicted` has NaN probabilities in {int(ratio.isnan().sum())} rows")
    if clip is not None:
        ratio = ratio.clamp(*clip)
    if bool(ratio.isinf().any()):
        raise NotFiniteError(
            f"`predicted` is certain of the test class in {int(ratio.isinf().sum())} rows, which gives infinite "
            "weights: give its logits (from_logits), or pass clip=(low, high)"
        )
    return ratio


def _two_classes(predicted: Distribution) -> Tensor:
    if kind(predicted) != "class" or predicted.event_shape:
        raise NotSupportedError(
            "density_ratio needs `predicted` to be one choice between two classes a row; got a "
            f"{type(predicted).__name__} about a {kind(predicted)} target, event_shape {tuple(predicted.event_shape)}"
        )
    log_probs = class_log_probs(predicted).detach()
    if log_probs.shape[-1] != 2:
        raise NotSupportedError(f"density_ratio needs two classes, calibration and test; got {log_probs.shape[-1]}")
    return log_probs


def effective_sample_size(weights: ArrayLike) -> Tensor:
    """How many equally weighted rows are worth as much, (sum w)^2 / sum w^2 over the last axis; 0 if all are 0.

    Args:
        weights: numbers of 0 or above, (..., n).

    Returns:
        A number from 1 to n, (...), float64.

    Raises:
        ShapeError: `weights` is a single number.
        NotFiniteError: NaN or infinite weights.
        ValueError: weights below 0.
    """
    w = _checked_weights(weights)
    if not w.shape[-1]:
        return w.new_zeros(w.shape[:-1])
    power = torch.frexp(w.amax(-1, keepdim=True)).exponent.clamp(-1000, 1000)
    unit = torch.ldexp(w, -power)  # a power of two rounds nothing, and squares neither overflow nor vanish
    squares = unit.square().sum(-1)
    return unit.sum(-1).square() / torch.where(squares > 0, squares, 1.0)


def recency_weights(ages: ArrayLike, *, half_life: float) -> Tensor:
    """Weights 2^(-age / half_life): fixed weights for data that drift. The test row has age 0 and weight 1.

    Args:
        ages: how long before the test row each row was seen, any shape, 0 or above; for rows in order of time,
            n, n - 1, ..., 1.
        half_life: the age at which a row counts half.

    Returns:
        The weights, float64, in the shape of `ages`.

    Raises:
        NotFiniteError: NaN or infinite ages.
        ValueError: ages below 0, or `half_life` not above 0.
    """
    check_positive("half_life", half_life)
    given = check_finite("ages", as_tensor(ages)).to(torch.float64)
    if bool((given < 0).any()):
        raise ValueError(f"`ages` must be 0 or above; got {given.min():g}")
    return torch.exp2(-given / half_life)


def coverage_gap(weights: ArrayLike, distances: ArrayLike) -> Tensor:
    """The coverage that fixed weights may lose at most, sum_i w_i d_i / (sum_i w_i + 1).

    Args:
        weights: fixed weights in the unit of the test row's, which is 1; (..., n), each at most 1.
        distances: total variation between the scores, and the scores with row i and the test row exchanged, (..., n),
            in [0, 1]; for independent rows at most twice the total variation between row i and the test row.

    Returns:
        The gap, (...), float64.

    Raises:
        ShapeError: the last axes differ.
        NotFiniteError: NaN or infinite arguments.
        ValueError: weights or distances outside [0, 1].
    """
    w, d = _checked_weights(weights), check_finite("distances", as_tensor(distances)).to(torch.float64)
    if not d.dim() or d.shape[-1] != w.shape[-1]:
        raise ShapeError(f"`weights` and `distances` must agree; got {tuple(w.shape)} and {tuple(d.shape)}")
    for name, tensor in (("weights", w), ("distances", d)):
        if bool(((tensor < 0) | (tensor > 1)).any()):
            raise ValueError(f"`{name}` must lie in [0, 1]; they range from {tensor.min():g} to {tensor.max():g}")
    return (w * d).sum(-1) / (w.sum(-1) + 1)


def _checked_weights(weights: ArrayLike) -> Tensor:
    w = check_finite("weights", as_tensor(weights)).detach().to(torch.float64)
    if not w.dim():
        raise ShapeError("`weights` must have shape (..., n); got a single number")
    if bool((w < 0).any()):
        raise ValueError(f"`weights` must be 0 or above; got {w.min():g}")
    return w
