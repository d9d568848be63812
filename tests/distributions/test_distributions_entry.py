"""Arrays from elsewhere: from_probs, from_logits; and exact class probabilities."""

import math

import numpy as np
import pytest
import torch
from torch.distributions import Bernoulli, Categorical, Independent, Normal

from credibly.core.errors import NotFiniteError, NotSupportedError, ShapeError
from credibly.distributions.classes import class_log_probs
from credibly.distributions.cumulative import cdf
from credibly.distributions.density import log_prob
from credibly.distributions.entry import from_draws, from_logits, from_probs, from_quantiles
from credibly.distributions.mixture import MixturePredictive

ZERO = -math.inf


def test_probabilities_by_their_shape() -> None:
    event = from_probs([0.0, 0.25, 1.0])
    assert isinstance(event, Bernoulli)
    assert event.probs.tolist() == [0.0, 0.25, 1.0]
    classes = from_probs(np.array([[0.5, 0.5, 0.0], [0.0, 0.0, 1.0]], dtype=np.float32))
    assert isinstance(classes, Categorical)
    assert classes.probs.tolist() == [[0.5, 0.5, 0.0], [0.0, 0.0, 1.0]]
    assert torch.isneginf(class_log_probs(classes)).sum() == 3
    assert class_log_probs(classes).exp().tolist() == [[0.5, 0.5, 0.0], [0.0, 0.0, 1.0]]
    mixture = from_probs(torch.full((5, 2, 4), 0.25))
    assert isinstance(mixture, MixturePredictive)
    assert (mixture.num_draws, mixture.batch_shape) == (5, (2,))
    assert mixture.probs.tolist() == [[0.25] * 4] * 2


def test_logits_by_their_shape() -> None:
    assert isinstance(from_logits([0.0, ZERO]), Bernoulli)
    classes = from_logits([[0.0, 0.0, ZERO]])
    assert class_log_probs(classes).exp().tolist() == [[0.5, 0.5, 0.0]]
    assert from_logits(np.zeros((5, 2, 4), dtype=np.float32)).num_draws == 5


def test_probabilities_exactly_0_and_1_are_kept() -> None:
    d = from_probs([[1.0, 0.0]])
    assert log_prob(d, [0]).tolist() == [0.0]
    assert log_prob(d, [1]).tolist() == [ZERO]
    assert class_log_probs(from_probs([1.0, 0.0])).tolist() == [[ZERO, 0.0], [0.0, ZERO]]


def test_rounding_is_forgiven_and_renormalised() -> None:
    single = torch.softmax(torch.linspace(-5, 5, 1000).repeat(3, 1), -1)
    totals = class_log_probs(from_probs(single)).exp().sum(-1)
    torch.testing.assert_close(totals, torch.ones(3, dtype=torch.float64), rtol=0, atol=1e-14)
    from_probs(single.double().numpy())
    from_probs(single.bfloat16())
    assert from_probs([[1 + 1e-9, -1e-9]]).probs.tolist() == [[1.0, 0.0]]


@pytest.mark.parametrize("numbers", [np.float64, np.float32])
def test_rows_that_do_not_sum_to_1_are_named(numbers: type) -> None:
    probs = np.array([[0.5, 0.5], [0.5, 0.499], [0.3, 0.3]], dtype=numbers)
    with pytest.raises(ValueError, match=r"row 1 sums to 0\.999"):
        from_probs(probs)
    with pytest.raises(ValueError, match=r"row \(0, 1\) sums to 0\.999"):
        from_probs(probs[None])


@pytest.mark.parametrize(
    ("probs", "row"), [([0.2, 1.2], "1"), ([[1.5, -0.5]], "0"), ([[[0.5, 0.5]], [[1.1, -0.1]]], r"\(1, 0\)")]
)
def test_probabilities_outside_0_and_1_are_named(probs: list[object], row: str) -> None:
    with pytest.raises(ValueError, match=rf"must lie in \[0, 1\]; row {row} holds"):
        from_probs(probs)


def test_nan_and_infinities() -> None:
    for entrance in (from_probs, from_logits):
        with pytest.raises(NotFiniteError, match="row 1"):
            entrance([[0.5, 0.5], [math.nan, 0.5]])
        with pytest.raises(NotFiniteError):
            entrance([math.nan])
    for bad in ([ZERO, ZERO], [math.inf, 0.0]):
        with pytest.raises(NotFiniteError, match="row 1"):
            from_logits([[0.0, 0.0], bad])
    with pytest.raises(NotFiniteError):
        from_draws([[math.nan]])
    with pytest.raises(NotFiniteError):
        from_quantiles([0.5], [[math.nan]])


@pytest.mark.parametrize("shape", [(), (3, 1), (2, 3, 1), (1, 2, 3, 4)])
def test_other_shapes_are_refused(shape: tuple[int, ...]) -> None:
    for entrance in (from_probs, from_logits):
        with pytest.raises(ShapeError, match=r"\(n,\), \(n, classes >= 2\) or \(num_draws, n, classes\)"):
            entrance(np.zeros(shape))


def test_no_rows() -> None:
    assert from_probs(np.zeros((0, 3))).batch_shape == (0,)
    assert from_logits(np.zeros(0)).batch_shape == (0,)


def test_the_callers_array_is_left_alone() -> None:
    probs = torch.tensor([[0.25, 0.75]], dtype=torch.float64)
    d, kept = from_probs(probs), probs.clone()
    cdf(d, 0.0)
    assert torch.equal(probs, kept)


def test_class_log_probs_read_the_parameter_itself() -> None:
    tiny = torch.tensor([[1e-30, 1.0]])
    d = Categorical(probs=tiny, validate_args=False)
    assert float(d.logits[0, 0]) > -17  # torch clamps
    assert float(class_log_probs(d)[0, 0]) == pytest.approx(math.log(1e-30), rel=1e-6)
    b = Bernoulli(probs=torch.tensor([1e-30]), validate_args=False)
    assert float(class_log_probs(b)[0, 1]) == pytest.approx(math.log(1e-30), rel=1e-6)
    logits = Bernoulli(logits=torch.tensor([-200.0, 200.0]), validate_args=False)
    assert class_log_probs(logits)[:, 1].tolist() == pytest.approx([-200.0, 0.0])
    labels = Independent(Bernoulli(logits=torch.zeros(2, 5)), 1)
    assert class_log_probs(labels).shape == (2, 5, 2)
    with pytest.raises(NotSupportedError, match="class_log_probs is not available for Normal"):
        class_log_probs(Normal(torch.zeros(2), torch.ones(2)))


def test_a_thousand_float32_classes_sum_in_float64() -> None:
    logits = 20 * torch.randn(50, 1000, generator=torch.Generator().manual_seed(0))
    totals = class_log_probs(Categorical(logits=logits, validate_args=False)).exp().sum(-1)
    torch.testing.assert_close(totals, torch.ones(50, dtype=torch.float64), rtol=0, atol=1e-13)
