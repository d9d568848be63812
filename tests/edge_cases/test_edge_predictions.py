"""Every likelihood's predictions at the edges, through every function of the waist and every score of predictions.

The answer is a sound value, or one of the errors that `EXCEPTIONS` lists with its reason.
"""

import functools
import math
import re
from dataclasses import dataclass

import pytest
import torch
from edge_outcomes import examples, holds_nan, in_turn, outcome, share
from hypothesis import given
from hypothesis import strategies as st
from torch.distributions import Dirichlet

from cases import LIKELIHOODS, outputs_shape
from credibly import distributions as waist
from credibly import metrics
from credibly.core.errors import CrediblyError, NotFiniteError, NotSupportedError, ShapeError
from credibly.distributions.drawing import sampled
from credibly.distributions.kinds import base_of

EVERY = pytest.mark.parametrize("name", LIKELIHOODS)
NAN, INF = math.nan, math.inf
HALF = (torch.float16, torch.bfloat16)

AT_THE_WAIST = {
    "mean": lambda d, y: waist.mean(d),
    "variance": lambda d, y: waist.variance(d),
    "entropy": lambda d, y: waist.entropy(d),
    "log_prob": waist.log_prob,
    "cdf": waist.cdf,
    "survival": waist.survival,
    "crps": waist.crps,
    "lower_quantile": lambda d, y: waist.icdf(d, 0.0025),
    "median": lambda d, y: waist.icdf(d, 0.5),
    "upper_quantile": lambda d, y: waist.icdf(d, 0.9975),
    "log_prob_of_selected": lambda d, y: waist.log_prob(waist.select(d, slice(None)), y),
    "class_log_probs": lambda d, y: waist.class_log_probs(d),
    "pit": lambda d, y: metrics.pit(d, y, u=torch.full((len(y),), 0.5)),
    "entropy_score": lambda d, y: metrics.entropy_score(d),
    "negative_log_density_score": metrics.negative_log_density_score,
    "least_confidence_score": lambda d, y: metrics.least_confidence_score(d),
}
"""One answer a row, on axis 0."""

SUMMED = {
    "log_score": metrics.log_score,
    "crps": metrics.crps,
    "rmse": metrics.rmse,
    "brier": metrics.brier,
    "accuracy": metrics.accuracy,
    "brier_decomposition": metrics.brier_decomposition,
    "ece": metrics.ece,
    "classwise_ece": metrics.classwise_ece,
    "equal_mass": metrics.ECE(4, equal_mass=True),
    "smooth_ece": metrics.smooth_ece,
    "aurc": metrics.aurc,
    "e_aurc": metrics.e_aurc,
    "ranked_probability_score": metrics.ranked_probability_score,
    "narrow_coverage": lambda d, y: metrics.coverage(d, y, 0.005),
    "half_coverage": lambda d, y: metrics.coverage(d, y, 0.5),
    "wide_coverage": lambda d, y: metrics.coverage(d, y, 0.995),
    "width": lambda d, y: metrics.width(d, 0.995),
    "pinball": lambda d, y: metrics.pinball(d, y, [0.0025, 0.5, 0.9975]),
    "interval_score": lambda d, y: metrics.interval_score(d, y, 0.995),
    "weighted_interval_score": lambda d, y: metrics.weighted_interval_score(d, y, [0.005, 0.995]),
    "energy_score": lambda d, y: metrics.energy_score(d, y, num_draws=4, seed=0),
    "sharpness": lambda d, y: metrics.sharpness(d),
    "ence": metrics.ENCE(3),
    "error_spread": lambda d, y: metrics.error_spread(d, y, num_bins=3),
    "miscalibration_area": metrics.MiscalibrationArea(20),
    "regression_calibration_error": metrics.RegressionCalibrationError(20, central=True),
}
"""One answer for all rows, float64."""

EVERYTHING = AT_THE_WAIST | {f"metric {name}": function for name, function in SUMMED.items()}

SHARES = {"cdf", "survival", "pit", *(f"metric {part}_coverage" for part in ("narrow", "half", "wide"))}
NOT_NEGATIVE = {"variance", "metric width", "metric sharpness", "metric rmse", "metric brier", "metric ece"}

WITHOUT_LOCATION = {"variance", "entropy", "entropy_score", "metric sharpness"}
"""They do not depend on where the prediction lies, so that a location of NaN leaves them what they are."""


@dataclass(frozen=True)
class Edge:
    """How outputs are made: `size` times normal numbers; `bad` takes the place of all those of the last row."""

    rows: int
    dtype: torch.dtype
    size: float = 1.0
    bad: float | None = None

    @property
    def extreme(self):
        return self.size > 1 or self.bad is not None


EXCEPTIONS = [
    (lambda at, name: at.rows == 0, ShapeError, "at least one row", "a mean of nothing has no value"),
    (
        lambda at, name: at.bad is not None,
        NotFiniteError,
        "`|NaN",
        "a prediction that is NaN, or infinite, has no score",
    ),
    (
        lambda at, name: name in ("metric ence", "metric error_spread") and (at.extreme or at.dtype in HALF),
        ValueError,
        "`predicted` must have finite variances above 0",
        "the ratio of error to spread needs a spread",
    ),
    (
        lambda at, name: name == "metric energy_score" and at.extreme,
        NotFiniteError,
        "NaN, or gives scores|must be finite",
        "draws overflow",
    ),
    (
        lambda at, name: name in ("entropy", "entropy_score") and at.extreme,
        NotSupportedError,
        "sum over all likely counts",
        "the entropy of counts is a sum, here of more than 2^24 terms",
    ),
]
"""When, for which function, which error, and why."""


def on_edge(name, at, seed=0):
    """A prediction whose outputs are on an edge, with targets that are plausible for plain outputs."""
    generator = torch.Generator().manual_seed(seed)
    likelihood = LIKELIHOODS[name]()
    likelihood = likelihood.float() if at.dtype in HALF else likelihood.to(at.dtype)
    normal = torch.randn(at.rows, *outputs_shape(likelihood), generator=generator, dtype=torch.float64)
    outputs = (at.size * normal).to(at.dtype)
    if at.bad is not None:
        outputs[-1] = at.bad
    with torch.no_grad():
        return likelihood(outputs), plausible(likelihood(normal.to(at.dtype)))


def plausible(predicted):
    """A target a row that is neither at an end of the support nor far out."""
    return waist.mean(predicted) if isinstance(base_of(predicted), Dirichlet) else waist.icdf(predicted, 0.3)


@functools.cache
def refused(name):
    """The functions that plain predictions of a likelihood refuse by name."""
    predicted, targets = on_edge(name, Edge(3, torch.float64))
    answers = {key: outcome(function, predicted, targets) for key, function in EVERYTHING.items()}
    assert all(isinstance(a, NotSupportedError) for a in answers.values() if isinstance(a, Exception)), answers
    return {key for key, answer in answers.items() if isinstance(answer, Exception)}


def is_exception(at, function, error):
    return any(
        when(at, function) and isinstance(error, kind) and re.search(message, str(error))
        for when, kind, message, _ in EXCEPTIONS
    )


def check_value(function, at, value):
    if function in AT_THE_WAIST:
        assert value.shape[0] == at.rows
        if value.is_floating_point():
            own = {"class_log_probs", "pit", *(key for key in AT_THE_WAIST if key.endswith("_score"))}
            # counts of trials are computed in single precision, where they are given in half
            own_dtype = {at.dtype, torch.float32} if at.dtype in HALF else {at.dtype}
            assert value.dtype in ({torch.float64} if function in own else own_dtype)
        if function in ("log_prob", "negative_log_density_score"):
            assert value.shape == (at.rows,)
    if function in SHARES:
        finite = value[~value.isnan()]
        assert bool(((finite >= 0) & (finite <= 1)).all())
    if function in NOT_NEGATIVE:
        assert not bool((value < 0).any())


SIZES = st.sampled_from([1.0, 30.0, 1e4, 1e15])
PRECISE = st.sampled_from([torch.float32, torch.float64])
PART = st.integers(0, 3)
"""Which fourth of the functions an example looks at, so that there are four times as many edges."""


@EVERY
@examples(4)
@given(st.builds(Edge, st.sampled_from([1, 2, 5]), PRECISE, SIZES), PART)
def test_outputs_of_any_size_give_sound_values_or_documented_errors(name, at, part):
    check(name, at, share(EVERYTHING, part))


def check(name, at, functions=tuple(EVERYTHING)):
    """Functions of a prediction on an edge give a sound value, or an error that is documented for this edge."""
    predicted, targets = on_edge(name, at)
    for function in functions:
        value = outcome(EVERYTHING[function], predicted, targets)
        if isinstance(value, Exception):
            known = function in refused(name) and isinstance(value, NotSupportedError)
            assert known or is_exception(at, function, value), (function, repr(value))
        else:
            assert not holds_nan(value), function
            check_value(function, at, value)


@EVERY
def test_no_rows_give_no_rows_and_no_scores(name, dtype):
    check(name, Edge(0, dtype))
    predicted, targets = on_edge(name, Edge(0, dtype))
    for function in SUMMED.keys() - {part.removeprefix("metric ") for part in refused(name)}:
        assert isinstance(outcome(SUMMED[function], predicted, targets), ShapeError), function


@EVERY
@pytest.mark.parametrize("half", HALF, ids=str)
def test_half_precision_gives_sound_values_or_documented_errors(name, half):
    check(name, Edge(3, half))
    predicted, _ = on_edge(name, Edge(3, half))
    draws = sampled(predicted, torch.Size([2]))
    assert not draws.isnan().any()
    assert draws.dtype in (half, torch.float32, torch.int64)


@EVERY
@examples(4)
@given(st.sampled_from([NAN, INF, -INF]), st.sampled_from([1, 4]), PRECISE, PART)
def test_a_row_that_is_not_finite_spoils_neither_other_rows_nor_scores(name, bad, rows, dtype, part):
    at = Edge(rows, dtype, bad=bad)
    predicted, targets = on_edge(name, at)
    plain, _ = on_edge(name, Edge(rows, dtype))
    for function in share(EVERYTHING, part):
        action = EVERYTHING[function]
        value = outcome(action, predicted, targets)
        if isinstance(value, Exception):
            known = function in refused(name) and isinstance(value, NotSupportedError)
            assert known or is_exception(at, function, value), (function, repr(value))
            continue
        if function in AT_THE_WAIST:
            torch.testing.assert_close(value[:-1], action(plain, targets)[:-1], msg=function)
            check_value(function, at, value)
            if math.isnan(bad) and value.is_floating_point() and function not in WITHOUT_LOCATION:
                assert value[-1].isnan().any(), function
        else:
            assert not holds_nan(value), function
            assert not math.isnan(bad) or function in WITHOUT_LOCATION, function
    if math.isnan(bad):
        with pytest.raises(NotFiniteError, match="holds NaN"):
            sampled(predicted)


LAYOUTS = {
    "strided": lambda t: torch.stack([t, t + 1], -1)[..., 0],
    "transposed": lambda t: t.movedim(0, -1).contiguous().movedim(-1, 0),
    "reversed": lambda t: t.flip(0).contiguous().flip(0),
    "expanded": lambda t: t[:1].expand(t.shape),
    "of_a_larger": lambda t: torch.cat([t, t])[len(t) :],
}


@EVERY
@examples(1)
@given(st.integers(0, 4), PRECISE)
def test_the_layout_in_memory_changes_nothing_and_tensors_stay_as_they_are(name, first, dtype):
    likelihood = LIKELIHOODS[name]().to(dtype)
    outputs = torch.randn(4, *outputs_shape(likelihood), dtype=dtype)
    cases = {layout: LaidOut(likelihood, outputs, layout) for layout in LAYOUTS}
    functions = [function for function in EVERYTHING if function not in refused(name)]
    for function, layout in in_turn(functions, list(LAYOUTS), first):
        value, expected = (outcome(EVERYTHING[function], *pair) for pair in cases[layout].pairs)
        torch.testing.assert_close(_plain(value), _plain(expected), msg=f"{function} {layout}", equal_nan=False)
    for case in cases.values():
        case.check_unchanged()


class LaidOut:
    """A prediction and targets from plain tensors, and from the same numbers laid out otherwise."""

    def __init__(self, likelihood, outputs, layout):
        if layout == "expanded":
            outputs = outputs[:1].expand(outputs.shape).contiguous()
        plain = likelihood(outputs)
        targets = plausible(plain)
        self.tensors = LAYOUTS[layout](outputs), LAYOUTS[layout](targets)
        self.pairs = (likelihood(self.tensors[0]), self.tensors[1]), (plain, targets)
        self.kept = [(tensor.clone(), tensor._version) for tensor in self.tensors]

    def check_unchanged(self):
        for tensor, (values, version) in zip(self.tensors, self.kept, strict=True):
            assert tensor._version == version
            assert torch.equal(tensor, values)


def _plain(value):
    assert not isinstance(value, Exception), value
    return list(vars(value).values()) if hasattr(value, "__dataclass_fields__") else value


@EVERY
@examples(1)
@given(st.integers(0, 2), PRECISE)
def test_integer_targets_mean_what_their_floating_point_twins_do(name, first, dtype):
    """Whole numbers that are all one: a constant target."""
    likelihood = LIKELIHOODS[name]().to(dtype)
    predicted = likelihood(torch.randn(3, *outputs_shape(likelihood), dtype=dtype))
    ones = torch.ones(predicted.batch_shape + predicted.event_shape, dtype=dtype)
    functions = [function for function in EVERYTHING if function not in refused(name)]
    for function, of in in_turn(functions, [torch.int16, torch.int64, torch.uint8], first):
        value, expected = (outcome(EVERYTHING[function], predicted, y) for y in (ones.to(of), ones))
        if isinstance(value, Exception):  # 1 is no share and no part of a simplex: the same refusal for both
            assert isinstance(value, CrediblyError)
            assert str(value) == str(expected)
        else:
            torch.testing.assert_close(_plain(value), _plain(expected), msg=function)
            assert not holds_nan(value)
