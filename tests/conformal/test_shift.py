"""Weights: exact coverage by enumeration, density ratios from classifiers, effective sample sizes."""

import itertools
import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression
from torch.distributions import Bernoulli, Categorical, Normal

from credibly import distributions
from credibly.conformal.ranks import threshold, weighted_threshold
from credibly.conformal.residual import AbsoluteResidual
from credibly.conformal.shift import coverage_gap, density_ratio, effective_sample_size, recency_weights
from credibly.core.errors import NotFiniteError, NotSupportedError, ShapeError

P = [Fraction(1, 2), Fraction(1, 4), Fraction(1, 4)]  # of the inputs 0, 1, 2 in calibration
Q = [Fraction(1, 4), Fraction(1, 4), Fraction(1, 2)]  # and in test
SCORES = [[1.0, 4.0], [2.0, 5.0], [3.0, 6.0]]  # of either target, each with probability 1/2, at every input
POINTS = [(x, e) for x in range(3) for e in range(2)]


def in_region(calibration, point, coverage):
    """Membership from the definition, in rationals: the weighted rank of a score among all, its own at infinity."""
    w = [q / p for p, q in zip(P, Q, strict=True)]
    mass = sum(w[x] for x, _ in calibration) + w[point[0]]
    below = sum(w[x] for x, e in calibration if SCORES[x][e] < SCORES[point[0]][point[1]])
    return below < coverage * mass


@pytest.mark.parametrize("coverage", ["0.5", "0.75", "0.8", "0.9"])
def test_weighted_coverage_by_enumeration_of_all_data_sets(coverage):
    level, weighted, plain = Fraction(coverage), Fraction(0), Fraction(0)
    test_rows = Normal(torch.zeros(6, dtype=torch.float64), 1.0)
    targets = torch.tensor([SCORES[x][e] for x, e in POINTS], dtype=torch.float64)
    test_weights = torch.tensor([float(Q[x] / P[x]) for x, _ in POINTS], dtype=torch.float64)
    for calibration in itertools.product(POINTS, repeat=3):
        scores = torch.tensor([SCORES[x][e] for x, e in calibration], dtype=torch.float64)
        weights = torch.tensor([float(Q[x] / P[x]) for x, _ in calibration], dtype=torch.float64)
        rows = Normal(torch.zeros(3, dtype=torch.float64), 1.0)
        predictor = AbsoluteResidual().calibrate(rows, scores, weights=weights)
        inside = predictor.predict(test_rows, float(level), weights=test_weights).contains(targets).tolist()
        assert inside == [in_region(calibration, point, level) for point in POINTS]
        without = (targets <= threshold(scores.sort().values, float(level))).tolist()
        probability = math.prod(P[x] / 2 for x, _ in calibration)
        for (x, _), held, held_without in zip(POINTS, inside, without, strict=True):
            weighted += probability * Q[x] / 2 * held
            plain += probability * Q[x] / 2 * held_without
    assert weighted >= level
    if level <= Fraction(3, 4):  # three scores have a rank for it; inputs with large scores have become more frequent
        assert plain < weighted


@pytest.mark.parametrize("coverage", ["0.5", "0.6", "0.8"])
def test_coverage_with_fixed_weights_loses_at_most_the_gap(coverage):
    # three independent calibration rows whose law drifts, and a test row, by enumeration
    laws = [[Fraction(k, 4) for k in row] for row in ([3, 1, 0], [2, 1, 1], [1, 2, 1], [1, 1, 2])]
    weights = recency_weights(torch.tensor([3, 2, 1]), half_life=1)
    level, held, tv = Fraction(coverage), Fraction(0), [Fraction(0)] * 3
    ones = torch.ones(1, dtype=torch.float64)

    def probability(values):
        return math.prod(law[v] for law, v in zip(laws, values, strict=True))

    for values in itertools.product(range(3), repeat=4):
        scores, order = torch.tensor(values[:3], dtype=torch.float64).sort()
        limit = weighted_threshold(scores, weights[order], ones, float(level)).item()
        held += probability(values) * (values[3] <= limit)
        for i in range(3):
            swapped = list(values)
            swapped[i], swapped[3] = swapped[3], swapped[i]
            tv[i] += abs(probability(values) - probability(swapped)) / 2
    gap = coverage_gap(weights, torch.tensor([float(d) for d in tv])).item()
    by_hand = sum(Fraction(1, 2 ** (3 - i)) * tv[i] for i in range(3)) / (1 + Fraction(7, 8))
    assert gap == pytest.approx(float(by_hand), rel=1e-6)
    assert held >= level - by_hand


def test_recency_weights_by_hand(dtype):
    ages = torch.tensor([4, 2, 1, 0], dtype=dtype)
    assert recency_weights(ages, half_life=2).tolist() == [0.25, 0.5, 0.5**0.5, 1.0]
    with pytest.raises(ValueError, match="ages"):
        recency_weights([-1.0], half_life=2)
    with pytest.raises(ValueError, match="half_life"):
        recency_weights([1.0], half_life=0)
    with pytest.raises(NotFiniteError, match="ages"):
        recency_weights([math.nan], half_life=1)


def test_coverage_gap_refuses_what_is_not_a_distance():
    assert coverage_gap([1.0, 0.5], [0.2, 0.4]).item() == pytest.approx(0.4 / 2.5)
    with pytest.raises(ValueError, match="distances"):
        coverage_gap([1.0], [1.5])
    with pytest.raises(ValueError, match="weights"):
        coverage_gap([2.0], [0.5])
    with pytest.raises(ShapeError, match="agree"):
        coverage_gap([1.0, 1.0], [0.5])


def test_density_ratio_of_the_exact_classifier(dtype, device):
    # N(0, 1) against N(1, 1), 3 rows of calibration to 1 of test: logit = x - 1/2 - log 3, ratio = exp(x - 1/2)
    x = torch.linspace(-4, 4, 50, dtype=dtype, device=device)
    logits = x - 0.5 - math.log(3)
    expected = torch.exp(x.double() - 0.5)
    for predicted in (Bernoulli(logits=logits), Categorical(logits=torch.stack([torch.zeros_like(x), logits], -1))):
        ratio = density_ratio(predicted, prior_ratio=3)
        assert ratio.dtype == torch.float64
        assert torch.allclose(ratio, expected, rtol=20 * torch.finfo(dtype).eps)
    clipped = density_ratio(Bernoulli(logits=logits), prior_ratio=3, clip=(0.5, 2.0))
    assert torch.allclose(clipped, expected.clamp(0.5, 2.0), rtol=20 * torch.finfo(dtype).eps)


def test_density_ratio_of_confident_classifiers():
    assert density_ratio(Bernoulli(logits=torch.tensor([100.0, -100.0]))).tolist() == pytest.approx(
        [math.exp(100), math.exp(-100)]
    )
    certain = distributions.from_probs([[0.0, 1.0], [1.0, 0.0]])
    with pytest.raises(NotFiniteError, match="clip"):
        density_ratio(certain)
    assert density_ratio(certain, clip=(0.1, 10)).tolist() == [10.0, 0.1]
    assert density_ratio(distributions.from_probs([[1.0, 0.0]])).tolist() == [0.0]
    assert density_ratio(Bernoulli(logits=torch.empty(0))).shape == (0,)


def test_density_ratio_refuses_other_forecasts():
    with pytest.raises(NotSupportedError, match="two classes"):
        density_ratio(Categorical(logits=torch.zeros(3, 4)))
    with pytest.raises(NotSupportedError, match="Normal"):
        density_ratio(Normal(torch.zeros(3), 1.0))
    with pytest.raises(NotFiniteError, match="NaN"):
        density_ratio(Bernoulli(logits=torch.tensor([math.nan]), validate_args=False))
    for clip in ((2.0, 1.0), (-1.0, 1.0), (math.nan, 1.0)):
        with pytest.raises(ValueError, match="clip"):
            density_ratio(Bernoulli(logits=torch.zeros(2)), clip=clip)
    with pytest.raises(ValueError, match="prior_ratio"):
        density_ratio(Bernoulli(logits=torch.zeros(2)), prior_ratio=0)


def test_density_ratio_learned_by_scikit_learn_restores_coverage():
    # y = x^2 noise, x from N(0, 1) to N(1, 1). 5 standard errors of the weighted threshold and of the test rows:
    # failure rate 6e-7 each, the classifier's own error (20,000 rows) being an order smaller.
    generator = torch.Generator().manual_seed(3)

    def draw(rows, shift):
        x = torch.randn(rows, generator=generator, dtype=torch.float64) + shift
        return x, (1 + x**2) * torch.randn(rows, generator=generator, dtype=torch.float64)

    train = torch.cat([draw(15_000, 0.0)[0], draw(5_000, 1.0)[0]]).unsqueeze(-1)
    labels = [0] * 15_000 + [1] * 5_000
    classifier = LogisticRegression(C=1e9, max_iter=500).fit(train.numpy(), labels)
    (x, y), (new_x, new_y) = draw(6000, 0.0), draw(6000, 1.0)

    def ratio(values):
        probs = classifier.predict_proba(values.unsqueeze(-1).numpy())
        return density_ratio(distributions.from_probs(probs), prior_ratio=3.0)

    zeros = Normal(torch.zeros(6000, dtype=torch.float64), 1.0)
    predictor = AbsoluteResidual().calibrate(zeros, y, weights=ratio(x))
    # E w = 1 and E w^2 = e for this shift
    assert ratio(x).mean().item() == pytest.approx(1, abs=5 * math.sqrt((math.e - 1) / 6000) + 0.1)
    assert 6000 / 10 < predictor.effective_sample_size < 6000
    reached = predictor.predict(zeros, 0.9, weights=ratio(new_x)).empirical_coverage(new_y).item()
    error = 5 * math.sqrt(0.09 / predictor.effective_sample_size + 0.09 / 6000)
    assert abs(reached - 0.9) < error
    plain = AbsoluteResidual().calibrate(zeros, y).predict(zeros, 0.9).empirical_coverage(new_y).item()
    assert plain < 0.9 - error


def test_effective_sample_size_by_hand(dtype):
    assert effective_sample_size(torch.ones(7, dtype=dtype)).item() == 7.0
    assert effective_sample_size(torch.tensor([[1, 1, 0, 0], [3, 1, 0, 0]], dtype=dtype)).tolist() == [2.0, 1.6]
    assert effective_sample_size(torch.zeros(3, dtype=dtype)).item() == 0.0
    assert effective_sample_size(torch.empty(0, dtype=dtype)).item() == 0.0
    assert effective_sample_size([1e300, 1e300]).item() == 2.0
    assert effective_sample_size([1e-300, 1e-300]).item() == 2.0
    with pytest.raises(ValueError, match="weights"):
        effective_sample_size([-1.0])
    with pytest.raises(NotFiniteError, match="weights"):
        effective_sample_size([math.inf])
    with pytest.raises(ShapeError, match="single number"):
        effective_sample_size(1.0)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=20).filter(any))
def test_effective_sample_size_lies_between_one_and_all(weights):
    size = effective_sample_size(weights).item()
    assert 1 - 1e-12 <= size <= len(weights) * (1 + 1e-12)


def test_a_predictor_reports_its_effective_sample_size():
    zeros = Normal(torch.zeros(4), 1.0)
    plain = AbsoluteResidual().calibrate(zeros, torch.arange(4.0))
    weighted = AbsoluteResidual().calibrate(zeros, torch.arange(4.0), weights=[3.0, 1.0, 0.0, 0.0])
    assert plain.effective_sample_size == 4.0
    assert weighted.effective_sample_size == 1.6
