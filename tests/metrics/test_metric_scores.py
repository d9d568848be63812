"""Scores against scikit-learn, scipy and hand values."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.metrics import brier_score_loss, log_loss
from torch.distributions import Bernoulli, Categorical, Independent, Normal, Poisson

from credibly.core.errors import NotSupportedError, ShapeError, SupportError
from credibly.distributions.mixture import MixturePredictive
from credibly.metrics.intervals import coverage, size, width
from credibly.metrics.scores import accuracy, brier, crps, log_score, nll, rmse

GENERATOR = torch.Generator().manual_seed(11)
LOGITS = torch.randn(400, 4, generator=GENERATOR, dtype=torch.float64) * 2
CLASSES = torch.randint(0, 4, (400,), generator=GENERATOR)
EVENTS = torch.randint(0, 2, (400,), generator=GENERATOR)


def test_class_scores_agree_with_scikit_learn(dtype):
    predicted = Categorical(logits=LOGITS.to(dtype))
    probs = LOGITS.softmax(-1).numpy()
    tolerance = 1e-6 if dtype == torch.float32 else 1e-12
    assert nll(predicted, CLASSES).item() == pytest.approx(log_loss(CLASSES, probs), abs=tolerance)
    sklearn_brier = brier_score_loss(CLASSES, probs, labels=[0, 1, 2, 3], scale_by_half=False)
    assert brier(predicted, CLASSES).item() == pytest.approx(sklearn_brier, abs=tolerance)
    assert accuracy(predicted, CLASSES).item() == np.mean(probs.argmax(-1) == CLASSES.numpy())


def test_binary_scores_agree_with_scikit_learn():
    predicted, probs = Bernoulli(logits=LOGITS[:, 0]), LOGITS[:, 0].sigmoid().numpy()
    assert nll(predicted, EVENTS).item() == pytest.approx(log_loss(EVENTS, probs), abs=1e-12)
    assert brier(predicted, EVENTS).item() == pytest.approx(brier_score_loss(EVENTS, probs), abs=1e-12)
    assert accuracy(predicted, EVENTS).item() == np.mean((probs > 0.5) == EVENTS.numpy())


def test_two_classes_have_twice_the_brier_score_of_the_event():
    two = Categorical(logits=torch.stack([torch.zeros(400), LOGITS[:, 0]], -1))
    event = Bernoulli(logits=LOGITS[:, 0])
    assert brier(two, EVENTS).item() == pytest.approx(2 * brier(event, EVENTS).item(), abs=1e-12)


def test_log_score_is_nll_with_its_sign_turned_and_keeps_its_constants():
    predicted = Normal(torch.zeros(2), torch.ones(2))
    expected = stats.norm.logpdf([0.0, 2.0]).mean()
    assert log_score(predicted, torch.tensor([0.0, 2.0])).item() == pytest.approx(expected, rel=1e-6)
    assert nll(predicted, torch.tensor([0.0, 2.0])).item() == pytest.approx(-expected, rel=1e-6)


def test_zero_probability_scores_minus_infinity():
    predicted = Categorical(probs=torch.tensor([[1.0, 0.0]]))
    assert log_score(predicted, [1]).item() == -math.inf
    assert brier(predicted, [1]).item() == 2.0
    assert log_score(predicted, [0]).item() == 0.0


def test_crps_golden_values():
    standard = Normal(torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64))
    assert crps(standard, [0.0]).item() == pytest.approx(0.2336949773, abs=1e-10)
    assert crps(standard, [1.0]).item() == pytest.approx(0.6024413576, abs=1e-10)


def test_rmse_is_in_the_units_of_the_targets():
    predicted = Normal(torch.tensor([1.0, 2.0]), torch.ones(2))
    assert rmse(predicted, torch.tensor([4.0, 6.0])).item() == pytest.approx(math.sqrt(12.5))
    several = Independent(Normal(torch.zeros(2, 3), torch.ones(2, 3)), 1)
    assert rmse(several, torch.full((2, 3), 2.0)).item() == pytest.approx(2.0)
    mixture = MixturePredictive(Normal(torch.tensor([[0.0], [4.0]]), torch.ones(2, 1), validate_args=False))
    assert rmse(mixture, torch.tensor([2.0])).item() == pytest.approx(0.0)


def test_columns_of_targets_never_broadcast():
    predicted = Normal(torch.zeros(5), torch.ones(5))
    column = torch.arange(5.0).unsqueeze(-1)
    assert rmse(predicted, column) == rmse(predicted, column.squeeze(-1))
    for score in (log_score, nll, rmse, crps):
        with pytest.raises(ShapeError, match=r"\(5,\).*\(4,\)"):
            score(predicted, torch.zeros(4))


def test_accuracy_counts_the_first_of_equally_probable_classes():
    predicted = Categorical(logits=torch.zeros(4, 3))
    assert accuracy(predicted, torch.tensor([0, 0, 1, 2])).item() == 0.5


def test_central_intervals():
    predicted = Normal(torch.zeros(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64))
    targets = torch.tensor([0.0, 1.6, 1.7])
    assert coverage(predicted, targets, 0.9).item() == pytest.approx(2 / 3)
    assert width(predicted, 0.9).item() == pytest.approx(2 * stats.norm.ppf(0.95), rel=1e-12)
    assert coverage(predicted, targets, 1).item() == 1.0
    assert width(predicted, 1).item() == math.inf
    counts = Poisson(torch.full((2,), 4.0))
    low, high = stats.poisson.ppf([0.05, 0.95], 4)
    assert coverage(counts, torch.tensor([low, high]), 0.9).item() == 1.0
    assert width(counts, 0.9).item() == high - low
    assert size(torch.tensor([[True, False], [True, True]])).item() == 1.5


def test_refusals():
    with pytest.raises(ShapeError, match="empty"):
        nll(Normal(torch.zeros(0), torch.ones(0)), torch.zeros(0))
    with pytest.raises(ShapeError, match="at least one row"):
        coverage(Normal(torch.zeros(0), torch.ones(0)), torch.zeros(0), 0.9)
    with pytest.raises(ValueError, match="coverage"):
        width(Normal(torch.zeros(1), torch.ones(1)), 1.5)
    with pytest.raises(ShapeError, match="at least one row"):
        width(Normal(torch.zeros(0), torch.ones(0)), 0.9)
    with pytest.raises(ShapeError, match="rows, classes"):
        size(torch.ones(3))
    with pytest.raises(TypeError, match="from_probs"):
        nll(torch.ones(3), torch.ones(3))
    with pytest.raises(NotSupportedError, match="Normal"):
        brier(Normal(torch.zeros(1), torch.ones(1)), [0.0])
    with pytest.raises(SupportError):
        accuracy(Categorical(logits=torch.zeros(2, 3)), [10, 20])
