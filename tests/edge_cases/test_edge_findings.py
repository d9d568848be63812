"""Single inputs at which something went wrong once, each with its right answer."""

import math

import pytest
import torch
from scipy import integrate, stats
from torch.distributions import (
    Bernoulli,
    Binomial,
    Categorical,
    Dirichlet,
    Gamma,
    LogNormal,
    MultivariateNormal,
    NegativeBinomial,
    Normal,
    Poisson,
    Weibull,
)

from credibly import distributions as waist
from credibly import metrics, priors
from credibly.core.errors import NotFiniteError, NotSupportedError, ShapeError
from credibly.distributions.drawing import sampled

NAN, INF = math.nan, math.inf


def column(*values, dtype=torch.float64):
    return torch.tensor(values, dtype=dtype)


COUNTS = {
    "poisson": Poisson(column(3.0, NAN), validate_args=False),
    "negative_binomial": NegativeBinomial(column(3.0, NAN), logits=column(0.0, 0.0), validate_args=False),
    "negative_binomial_probs": NegativeBinomial(column(3.0, 3.0), probs=column(0.5, NAN), validate_args=False),
    "binomial": Binomial(column(5.0, 5.0), logits=column(0.0, NAN), validate_args=False),
    "binomial_probs": Binomial(column(5.0, 5.0), probs=column(0.5, NAN), validate_args=False),
    "zero_inflated": waist.ZeroInflated(Poisson(column(3.0, 3.0), validate_args=False), column(0.0, NAN)),
    "bernoulli": Bernoulli(logits=column(0.0, NAN), validate_args=False),
    "bernoulli_probs": Bernoulli(probs=column(0.5, NAN), validate_args=False),
    "categorical": Categorical(logits=torch.tensor([[0.0, 1.0], [0.0, NAN]]), validate_args=False),
}


@pytest.mark.parametrize("name", COUNTS)
def test_parameters_of_nan_give_nan_and_never_a_count_or_a_certainty(name):
    """Comparisons with NaN are false, so that branches for vanishing parameters must not be the other branch."""
    predicted, y = COUNTS[name], torch.zeros(2)
    answers = [waist.log_prob(predicted, y), waist.cdf(predicted, y), waist.survival(predicted, y)]
    answers += [waist.icdf(predicted, level) for level in (0.0, 0.25, 1.0)]
    for answer in answers:
        assert not answer[0].isnan()
        assert answer[1].isnan()
    in_order = [] if name == "categorical" else [lambda d, y: metrics.coverage(d, y, 0.9)]
    for score in (metrics.log_score, *in_order):
        with pytest.raises(NotFiniteError, match="`predicted`"):
            score(predicted, y)


def test_a_class_of_probability_nan_is_neither_hit_nor_miss():
    for name in ("bernoulli", "bernoulli_probs", "categorical"):
        for action in (metrics.accuracy, metrics.zero_one_loss):
            with pytest.raises(NotFiniteError, match="`predicted` must be finite; 1 of 2"):
                action(COUNTS[name], [0, 0])


@pytest.mark.parametrize("name", COUNTS)
def test_nothing_is_drawn_of_parameters_of_nan(name):
    predicted = COUNTS[name]
    with pytest.raises(NotFiniteError, match=r"no draws can be taken of .*, which holds NaN"):
        sampled(predicted)
    twice = waist.rebuild(predicted, (), lambda parts, rest: parts[0] if rest is None else torch.stack([parts[0]] * 2))
    with pytest.raises(NotFiniteError, match="no draws can be taken"):
        waist.MixturePredictive(twice).draw(3)


def test_energy_scores_and_draws_of_half_precision_are_made_in_single(dtype):
    for half in (torch.float16, torch.bfloat16):
        predicted = waist.MixturePredictive(
            Gamma(torch.ones(2, 3).to(half), torch.ones(2, 3).to(half), validate_args=False)
        )
        assert predicted.draw(5, seed=0).dtype == half
        assert float(metrics.energy_score(predicted, torch.ones(3, dtype=dtype), num_draws=5, seed=0)) > 0


def test_no_rows_of_vectors_are_inside_their_support():
    predicted = MultivariateNormal(torch.zeros(0, 3), torch.eye(3).expand(0, 3, 3), validate_args=False)
    assert waist.log_prob(predicted, torch.zeros(0, 3)).shape == (0,)
    with pytest.raises(ShapeError, match="at least one row"):
        metrics.crps(predicted, torch.zeros(0, 3))


def test_the_entropy_of_counts_too_many_to_sum_is_refused_at_once():
    predicted = NegativeBinomial(column(2.0, 2.0), logits=column(0.0, 50.0), validate_args=False)
    with pytest.raises(NotSupportedError, match=r"sum over all likely counts, and a row has \S+e\+2\d"):
        waist.entropy(predicted)
    assert waist.entropy(waist.select(predicted, [0])).isfinite()
    assert waist.entropy(COUNTS["negative_binomial"]).isnan().tolist() == [False, True]


@pytest.mark.parametrize("scale", [0.5, 3.0, 30.0])
def test_the_crps_of_a_log_normal_whose_mean_overflows_is_not_nan(scale):
    for loc, y in ((-1.0, 0.3), (0.5, 4.0)):
        value = float(waist.crps(LogNormal(column(loc), column(scale), validate_args=False), column(y)))
        law = stats.lognorm(scale, scale=math.exp(loc))
        if scale < 30:  # the integrals in the logarithm of the target
            below = integrate.quad(lambda t: law.cdf(math.exp(t)) ** 2 * math.exp(t), -60, math.log(y), limit=200)[0]  # noqa: B023
            above = integrate.quad(lambda t: law.sf(math.exp(t)) ** 2 * math.exp(t), math.log(y), 60, limit=500)[0]  # noqa: B023
            assert value == pytest.approx(below + above, rel=1e-7)
    assert waist.crps(LogNormal(column(0.0), column(200.0), validate_args=False), column(1.0)) == INF
    single = LogNormal(column(0.0, dtype=torch.float32), column(1e4, dtype=torch.float32), validate_args=False)
    assert waist.crps(single, torch.ones(1)) == INF


def test_the_variance_of_a_weibull_of_large_shape_is_exact_and_never_negative():
    """About pi^2 / 6 / shape^2; as a difference of logarithms it was noise of either sign."""
    shape = column(999.0, 1001.0, 1e6, 1e12, 1e15)
    variance = waist.variance(Weibull(torch.ones_like(shape), shape, validate_args=False))
    leading = math.pi**2 / 6 / shape**2
    assert torch.allclose(variance[2:], leading[2:], rtol=1e-5)
    torch.testing.assert_close(variance[0] * 999**2, variance[1] * 1001**2, rtol=1e-5, atol=0)


def test_the_variance_of_zero_inflated_counts_does_not_overflow_on_its_way():
    base = Poisson(torch.tensor([1e25]), validate_args=False)
    assert waist.variance(waist.ZeroInflated(base, torch.tensor([1e4]))) == 0


def test_the_elements_of_a_dirichlet_keep_small_shares_beside_large_ones():
    concentration = torch.tensor([[1e-4, 1e8, 1e-3]])
    each = waist.elements(Dirichlet(concentration, validate_args=False))
    torch.testing.assert_close(each.concentration0, torch.tensor([[1e8, 1.1e-3, 1e8]]))
    assert not waist.entropy(Dirichlet(concentration, validate_args=False)).isnan().any()


def test_quantiles_beside_infinite_ones():
    """A level that a coverage rounds to 0.0025 + 2e-18 is that level, also beside an infinite quantile."""
    levels, values = [0.0025, 0.5, 0.9975], column(-INF, -1.0, 2.0).unsqueeze(0)
    predicted = waist.from_quantiles(levels, values)
    tail = (1 - 0.995) / 2
    assert [waist.icdf(predicted, q).item() for q in (tail, 0.3, 0.5, 1 - tail)] == [-INF, -INF, -1.0, 2.0]
    both = waist.from_quantiles(levels, column(-INF, INF, INF).unsqueeze(0))
    assert [waist.icdf(both, q).item() for q in (0.1, 0.4, 0.5, 0.9)] == [-INF, INF, INF, INF]
    finite = waist.from_quantiles(levels, column(-2.0, INF, INF).unsqueeze(0))
    assert waist.icdf(finite, tail) == -2


@pytest.mark.parametrize("score", [metrics.pinball, metrics.interval_score, metrics.energy_score])
def test_short_forms_refuse_scores_of_nan_as_recipes_do(score):
    predicted = Normal(column(0.0, NAN), column(1.0, 1.0), validate_args=False)
    more = {} if score is metrics.energy_score else {"levels": [0.5]} if score is metrics.pinball else {"coverage": 0.5}
    with pytest.raises(NotFiniteError, match="holds NaN"):
        score(predicted, [0.0, 0.0], **more)
    with pytest.raises(NotFiniteError, match="holds NaN"):
        metrics.ranked_probability_score(COUNTS["categorical"], [0, 0])
    with pytest.raises(NotFiniteError, match="holds NaN"):
        metrics.weighted_interval_score(predicted, [0.0, 0.0], [0.5])


def test_a_table_of_errors_without_a_mean_is_refused():
    predicted = Normal(column(0.0, NAN), column(1.0, 1.0), validate_args=False)
    with pytest.raises(NotFiniteError, match="`predicted` must have means; 1 of 2 are NaN"):
        metrics.error_spread(predicted, [0.0, 0.0])


def test_strided_arrays_of_numbers_are_counted_without_a_warning():
    strided = torch.linspace(0, 1, 12, dtype=torch.float64)[::2]
    assert int(metrics.pit_histogram(strided).counts.sum()) == 6
    assert metrics.one_sided_calibration_curve([0.5], levels=strided).num_values == 1
    assert int(metrics.size_stratified_coverage(torch.ones(6, dtype=torch.bool), strided, 0.9).counts.sum()) == 6


def test_a_prior_by_name_keeps_the_precision_of_the_weights():
    prior = priors.ByName({"*.bias": priors.Flat(), "*": priors.Normal()})
    for half in (torch.float16, torch.bfloat16):
        params = {"net.weight": torch.zeros(2, 2, dtype=half), "net.bias": torch.zeros(2, dtype=half)}
        assert prior.log_prob(params).dtype == half
    assert prior.log_prob({}) == 0


def test_a_tensor_in_place_of_a_prediction_is_told_how_to_become_one():
    for metric in (metrics.AURC(), metrics.ClasswiseECE(), metrics.Accuracy()):
        with pytest.raises(TypeError, match="from_probs, from_logits"):
            metric(torch.tensor([0.2, 0.8]), [0, 1])
