"""Two faults that users reported elsewhere, with their whole kinds.

Densities outside the support: an impossible target must score minus infinity or stop, never a number (an Exponential
of rate 2 at -5 would be rewarded with log 2 + 10). Logits guessed from their range: batches of one whose logit happens
to lie in [0, 1] must not be read as probabilities.
"""

import math

import pytest
import torch
from edge_outcomes import examples
from hypothesis import given
from hypothesis import strategies as st
from torch import distributions as plain

import cases
from credibly import distributions as waist
from credibly import metrics
from credibly.core.errors import CrediblyError, NotSupportedError, SupportError
from credibly.distributions.density import safe_log_prob
from credibly.distributions.kinds import base_of, kind

INF = math.inf
ONE = torch.ones(1, dtype=torch.float64)

# -- densities outside the support ---------------------------------------------------------------------------------

BOUNDED = {
    "exponential": (lambda: plain.Exponential(2 * ONE, validate_args=False), [-5.0, -1e-9]),
    "gamma": (lambda: plain.Gamma(ONE, ONE, validate_args=False), [-1.0]),
    "chi_squared": (lambda: plain.Chi2(3 * ONE, validate_args=False), [-1.0]),
    "inverse_gamma": (lambda: plain.InverseGamma(2 * ONE, ONE, validate_args=False), [-1.0, 0.0]),
    "beta": (lambda: plain.Beta(ONE, ONE, validate_args=False), [5.0, -0.5]),
    "kumaraswamy": (lambda: plain.Kumaraswamy(2 * ONE, 2 * ONE, validate_args=False), [1.5, -0.5]),
    "uniform": (lambda: plain.Uniform(0 * ONE, ONE, validate_args=False), [1.5, -0.5]),
    "log_normal": (lambda: plain.LogNormal(0 * ONE, ONE, validate_args=False), [-1.0, 0.0]),
    "weibull": (lambda: plain.Weibull(ONE, 2 * ONE, validate_args=False), [-1.0, 0.0]),
    "pareto": (lambda: plain.Pareto(ONE, 2 * ONE, validate_args=False), [0.5, -1.0]),
    "half_normal": (lambda: plain.HalfNormal(ONE, validate_args=False), [-1.0]),
    "half_cauchy": (lambda: plain.HalfCauchy(ONE, validate_args=False), [-1.0]),
    "poisson": (lambda: plain.Poisson(3 * ONE, validate_args=False), [-1.0, 1.5]),
    "geometric": (lambda: plain.Geometric(probs=0.5 * ONE, validate_args=False), [-1.0, 1.5]),
    "negative_binomial": (lambda: plain.NegativeBinomial(3 * ONE, probs=0.5 * ONE, validate_args=False), [-1.0, 1.5]),
    "binomial": (lambda: plain.Binomial(5 * ONE, probs=0.5 * ONE, validate_args=False), [-1.0, 1.5, 6.0]),
    "bernoulli": (lambda: plain.Bernoulli(probs=0.5 * ONE, validate_args=False), [-1.0, 0.5, 2.0]),
    "categorical": (lambda: plain.Categorical(logits=torch.zeros(1, 3), validate_args=False), [-1.0, 0.5, 3.0]),
}
WRAPPED = {
    "itself": lambda d, y: (d, y),
    "mixture": lambda d, y: (waist.MixturePredictive(d.expand((2, 1))), y),
    "event": lambda d, y: (plain.Independent(d.expand((1, 1)), 1, validate_args=False), y.unsqueeze(-1)),
    "view": lambda d, y: (waist.AffineView(d, 1.0, 2.0), 1 + 2 * y),
}
CASES = [
    (name, wrapped)
    for name, (build, _) in BOUNDED.items()
    for wrapped in WRAPPED
    if not (wrapped == "view" and kind(build()) != "real") and (name, wrapped) != ("categorical", "event")
]
"""Counts and classes have no other units."""


@pytest.mark.parametrize(("name", "wrapped"), CASES)
def test_an_impossible_target_scores_minus_infinity_or_stops(name, wrapped):
    build, impossible = BOUNDED[name]
    for value in impossible:
        predicted, y = WRAPPED[wrapped](build(), torch.tensor([value], dtype=torch.float64))
        assert safe_log_prob(predicted, y).tolist() == [-INF]
        with pytest.raises(SupportError, match=r"target .* outside the support of \w+: "):
            waist.log_prob(predicted, y)
        for metric in (metrics.LogScore(), metrics.NLL()):
            with pytest.raises(SupportError, match="outside the support"):
                metric(predicted, y)
            with pytest.raises(SupportError, match="outside the support"):
                metric.stream().update(predicted, y)


@pytest.mark.parametrize("name", [name for name in BOUNDED if name != "kumaraswamy"])
@examples(15)
@given(st.floats(-1e6, 1e6, allow_nan=False, allow_subnormal=False))
def test_densities_are_finite_exactly_inside_the_support(name, value):
    """But for the ends, where densities may be infinite. The powers of torch's own Kumaraswamy underflow close to 0."""
    predicted = BOUNDED[name][0]()
    y = torch.tensor([value], dtype=torch.float64)
    density, inside = safe_log_prob(predicted, y), predicted.support.check(y)
    assert not density.isnan().any()
    assert bool((density > -INF) == inside) or value in (0, 1)


def _impossible(predicted):
    support = predicted.support
    support = getattr(support, "base_constraint", support)
    lower, upper = getattr(support, "lower_bound", None), getattr(support, "upper_bound", None)
    values = [float(lower) - 5] if lower is not None else []
    values += [float(torch.as_tensor(upper).max()) + 5] if upper is not None else []
    return values + ([0.5] if support.is_discrete else [])


@pytest.mark.parametrize("name", cases.LIKELIHOODS)
def test_every_score_of_every_likelihood_refuses_an_impossible_target(name):
    likelihood = cases.LIKELIHOODS[name]().double()
    outputs = torch.zeros(3, *cases.outputs_shape(likelihood), dtype=torch.float64)
    predicted = likelihood(outputs)
    family = type(base_of(predicted)).__name__
    for value in _impossible(predicted):
        y = torch.full(predicted.batch_shape + predicted.event_shape, value, dtype=torch.float64)
        assert likelihood.log_prob(likelihood.parameters_of(outputs), y).eq(-INF).all()
        with pytest.raises(SupportError, match=f"outside the support of {family}"):
            waist.log_prob(predicted, y)
        for recipe in [make() for what, make in cases.METRICS.values() if what != "scores"]:
            with pytest.raises(
                (SupportError, NotSupportedError),
                match=r"outside the support|not available|needs|prediction of classes",
            ):
                recipe(predicted, y)


# -- logits are declared, never guessed ----------------------------------------------------------------------------

LOGITS, LABELS = torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64), torch.tensor([1, 0, 1])


def test_one_logit_at_a_time_and_all_at_once_give_one_half():
    """Per-batch guessing gives 0.2437."""
    for metric in (metrics.ECE(10), metrics.EventECE(10)):
        assert metric(waist.from_logits(LOGITS), LABELS).item() == pytest.approx(0.5, abs=1e-12)
        stream = metric.stream()
        for logit, label in zip(LOGITS.split(1), LABELS.split(1), strict=True):
            stream.update(waist.from_logits(logit), label)
        assert stream.compute().item() == pytest.approx(0.5, abs=1e-12)


KINDS = [name for name, (kind, _) in cases.METRICS.items() if kind in ("classes", "events")]


@pytest.mark.parametrize("name", KINDS)
@examples(4)
@given(st.lists(st.floats(0, 1), min_size=2, max_size=6), st.sampled_from([0.01, 1.0, 10.0]))
def test_no_score_depends_on_the_range_in_which_logits_happen_to_lie(name, numbers, size):
    """Logits inside [0, 1], in batches of one: the score is that of their probabilities, one by one and together."""
    what, recipe = cases.METRICS[name]
    first = size * torch.tensor(numbers, dtype=torch.float64)
    logits = first if what == "events" else torch.stack([first, 1 - first, 0.5 * first], -1)
    probs = logits.sigmoid() if what == "events" else logits.softmax(-1)
    labels = torch.arange(len(first)) % 2
    metric = recipe()
    stream = metric.stream()
    for row, label in zip(logits.split(1), labels.split(1), strict=True):
        stream.update(waist.from_logits(row), label)
    whole = metric(waist.from_logits(logits), labels)
    torch.testing.assert_close(stream.compute(), whole, rtol=1e-9, atol=1e-12)
    if not getattr(metric, "equal_mass", False):  # where rounding moves an edge
        torch.testing.assert_close(metric(waist.from_probs(probs), labels), whole, rtol=1e-6, atol=1e-8)


@examples(30)
@given(st.lists(st.floats(-50, 50), min_size=1, max_size=5))
def test_numbers_outside_0_and_1_are_no_probabilities(numbers):
    """Nothing is passed through a sigmoid to make it fit."""
    outside = any(number < -1e-6 or number > 1 + 1e-6 for number in numbers)
    if outside:
        with pytest.raises(ValueError, match=r"`probs` must lie in \[0, 1\].*use from_logits"):
            waist.from_probs(torch.tensor(numbers, dtype=torch.float64))
    else:
        kept = waist.from_probs(torch.tensor(numbers, dtype=torch.float64)).probs
        torch.testing.assert_close(kept, torch.tensor(numbers, dtype=torch.float64), rtol=0, atol=1e-6)


@pytest.mark.parametrize("rows", [[[0.2, 0.3]], [[2.0, 1.0]], [[1.0, 1.0]], [[-1.0, 2.0]]])
def test_rows_of_logits_are_no_probabilities(rows):
    with pytest.raises(ValueError, match=r"`probs` must (lie in|sum to 1)"):
        waist.from_probs(rows)


@pytest.mark.parametrize("numbers", [[0.2, 0.7], [[0.2, 0.8]], [[0.0, 1.0]]])
def test_logits_that_look_like_probabilities_stay_logits(numbers):
    predicted = waist.from_logits(numbers)
    given_logits = torch.tensor(numbers, dtype=torch.float64)
    expected = given_logits.sigmoid() if given_logits.dim() == 1 else given_logits.softmax(-1)
    torch.testing.assert_close(
        waist.class_log_probs(predicted).exp()[..., 1], expected if given_logits.dim() == 1 else expected[..., 1]
    )


def test_arrays_themselves_are_not_taken_for_predictions():
    """Neither logits nor probabilities can be passed where a distribution is needed."""
    for name in KINDS:
        recipe = cases.METRICS[name][1]()
        with pytest.raises((TypeError, CrediblyError), match="from_probs, from_logits"):
            recipe(torch.tensor([0.2, 0.8]), [0, 1])
