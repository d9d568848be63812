"""The ranked probability score against its definition, hand values and the CRPS of a number."""

import numpy as np
import pytest
import torch
from torch.distributions import Bernoulli, Categorical, Independent, Poisson

from credibly.core.errors import NotSupportedError, ShapeError, SupportError
from credibly.distributions import MixturePredictive, Ordinal, crps, from_draws, from_probs, select
from credibly.metrics import brier
from credibly.metrics.ranked_probability import ranked_probability_rows, ranked_probability_score

LOGITS = 2 * torch.randn(50, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
CLASSES = torch.arange(50) % 5


def test_the_rows_are_the_sum_over_cumulative_terms(dtype):
    predicted = Categorical(logits=LOGITS.to(dtype))
    forecast = LOGITS.to(dtype).double().softmax(-1).numpy().cumsum(-1)
    came = np.arange(5) >= CLASSES.numpy()[:, None]
    expected = ((forecast - came)[:, :-1] ** 2).sum(-1)
    rows = ranked_probability_rows(predicted, CLASSES)
    assert rows.dtype == torch.float64
    rounding = 32 * torch.finfo(dtype).eps  # torch normalises the logits in their own precision
    np.testing.assert_allclose(rows.numpy(), expected, rtol=rounding, atol=rounding)
    assert ranked_probability_score(predicted, CLASSES).item() == pytest.approx(expected.mean(), rel=rounding)


def test_hand_values():
    probs = torch.tensor([[0.2, 0.3, 0.5]] * 3, dtype=torch.float64)
    rows = ranked_probability_rows(from_probs(probs), [0, 1, 2])
    np.testing.assert_allclose(rows, [0.8**2 + 0.5**2, 0.2**2 + 0.5**2, 0.2**2 + 0.5**2], rtol=1e-12)
    sure = from_probs(torch.eye(4, dtype=torch.float64))
    np.testing.assert_allclose(ranked_probability_rows(sure, [0, 1, 2, 3]), 0.0, atol=1e-15)
    np.testing.assert_allclose(ranked_probability_rows(sure, [3, 3, 3, 0]), [3, 2, 1, 3], rtol=1e-12)


def test_a_miss_by_two_classes_costs_more_than_a_miss_by_one_which_brier_does_not_see():
    near = from_probs(torch.tensor([[0.0, 1.0, 0.0, 0.0]]))
    rows = [ranked_probability_score(near, [k]).item() for k in range(4)]
    assert rows == pytest.approx([1, 0, 1, 2])
    assert brier(near, [2]) == brier(near, [3])


def test_with_two_classes_it_is_the_brier_score_of_the_event():
    event, happened = Bernoulli(logits=LOGITS[:, 0]), CLASSES > 2
    assert ranked_probability_score(event, happened).item() == pytest.approx(brier(event, happened).item(), rel=1e-12)
    two = Categorical(logits=torch.stack([torch.zeros(50).double(), LOGITS[:, 0]], -1))
    assert ranked_probability_score(two, happened.long()).item() == pytest.approx(
        brier(event, happened).item(), rel=1e-12
    )


def test_it_is_the_crps_of_the_class_index_as_a_number():
    classes = Categorical(probs=torch.tensor([[0.25, 0.5, 0.25, 0.0]]))
    draws = torch.tensor([0.0, 1.0, 1.0, 2.0]).reshape(4, 1)
    for k in range(4):
        expected = crps(from_draws(draws), torch.tensor([float(k)])).item()
        assert ranked_probability_score(classes, [k]).item() == pytest.approx(expected, rel=1e-6)


def test_a_mixture_scores_its_mean_probabilities():
    loc, cuts = torch.randn(3, 20, dtype=torch.float64), torch.tensor([-1.0, 0.3, 2.0]).double().expand(3, 20, 3)
    mixture = MixturePredictive(Ordinal(loc, cuts))
    plain = from_probs(Ordinal(loc, cuts).probs.mean(0))
    targets = torch.arange(20) % 4
    torch.testing.assert_close(ranked_probability_rows(mixture, targets), ranked_probability_rows(plain, targets))


def test_several_labels_and_single_rows():
    several = Independent(Bernoulli(logits=LOGITS[:, :2]), 1)
    labels = (LOGITS[:, :2] > 1).double()
    rows = ranked_probability_rows(several, labels)
    assert rows.shape == (50, 2)
    torch.testing.assert_close(rows, (LOGITS[:, :2].sigmoid() - labels) ** 2)
    whole = Categorical(logits=LOGITS)
    torch.testing.assert_close(
        ranked_probability_rows(select(whole, [3]), CLASSES[[3]]), ranked_probability_rows(whole, CLASSES)[[3]]
    )
    assert ranked_probability_rows(select(whole, slice(0, 0)), CLASSES[:0]).shape == (0,)


def test_the_true_forecast_scores_best_on_average():
    truth = LOGITS.softmax(-1)
    expected = {}
    for name, forecast in (
        ("true", truth),
        ("sharper", (1.5 * LOGITS).softmax(-1)),
        ("flat", torch.full_like(truth, 0.2)),
    ):
        each = torch.stack([ranked_probability_rows(from_probs(forecast), torch.full((50,), k)) for k in range(5)], -1)
        expected[name] = (truth * each).sum(-1).mean().item()
    assert expected["true"] < expected["sharper"]
    assert expected["true"] < expected["flat"]


def test_refusals():
    with pytest.raises(ShapeError, match="at least one row"):
        ranked_probability_score(select(Categorical(logits=LOGITS), slice(0, 0)), CLASSES[:0])
    with pytest.raises(SupportError, match="target 5"):
        ranked_probability_rows(Categorical(logits=LOGITS), torch.full((50,), 5))
    with pytest.raises(NotSupportedError, match="Poisson"):
        ranked_probability_rows(Poisson(torch.ones(2)), torch.ones(2))
    with pytest.raises(ShapeError, match="one-hot"):
        ranked_probability_rows(Categorical(logits=LOGITS), torch.eye(5)[CLASSES])
