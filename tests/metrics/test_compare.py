"""The difference of a metric between two predictions of the same rows, with a paired interval."""

import numpy as np
import pytest
import torch
from metric_data import make
from scipy import stats
from torch.distributions import Bernoulli, Categorical, Normal

import cases
from credibly import metrics
from credibly.core.errors import NotFiniteError, NotSupportedError, ShapeError
from credibly.metrics.row_metrics import MeanMetric, RowMetric

PAIRED = [name for name in cases.METRICS if isinstance(cases.METRICS[name][1](), (MeanMetric, RowMetric))]


def two_forecasts(num_rows=200, seed=0, noise=0.2, dtype=torch.float64):
    """Two predictions of one event, mostly alike."""
    generator = torch.Generator().manual_seed(seed)
    logits, one, two = 2 * torch.randn(3, num_rows, generator=generator, dtype=dtype)
    targets = torch.rand(num_rows, generator=generator, dtype=dtype) < logits.sigmoid()
    pair = (Bernoulli(logits=logits + noise * extra) for extra in (one, two))
    return *pair, targets


@pytest.mark.parametrize("name", PAIRED)
def test_a_prediction_differs_from_itself_by_0(name):
    kind, recipe = cases.METRICS[name]
    predicted, targets = make(kind, 40)
    estimate = recipe().compare(predicted, predicted, targets, num_replicates=200, seed=0)
    assert estimate.value == 0
    assert estimate.lower <= 0 <= estimate.upper
    if recipe() not in (metrics.EnergyScore(num_draws=20),):
        assert not bool(estimate.replicates.any())


@pytest.mark.parametrize("name", [name for name in cases.METRICS if name not in PAIRED])
def test_metrics_of_no_shared_rows_and_biased_ones_are_refused_by_name(name):
    kind, recipe = cases.METRICS[name]
    predicted, targets = make(kind, 10)
    with pytest.raises(NotSupportedError, match=f"{type(recipe()).__name__} has no paired interval.*LogScore"):
        recipe().compare(predicted, predicted, targets)


@pytest.mark.parametrize(
    "metric",
    [metrics.LogScore(), metrics.Brier(), metrics.RMSE(), metrics.AURC(), metrics.EAURC()],
    ids=lambda metric: type(metric).__name__,
)
def test_the_paired_interval_is_narrow_and_holds_the_difference(metric, dtype):
    one, two, targets = two_forecasts(noise=0.1, dtype=dtype)
    before = torch.get_rng_state()
    estimate = metric.compare(one, two, targets, seed=0)
    assert torch.equal(torch.get_rng_state(), before)
    assert estimate.value.item() == pytest.approx((metric(one, targets) - metric(two, targets)).item(), abs=1e-12)
    assert estimate.lower <= estimate.value <= estimate.upper
    assert estimate.replicates.shape == (1000,)
    alone = [metric.bootstrap(d, targets, seed=0) for d in (one, two)]
    unpaired = torch.stack([e.upper - e.lower for e in alone]).square().sum().sqrt()
    assert estimate.upper - estimate.lower < 0.6 * unpaired


@pytest.mark.parametrize(
    "metric", [metrics.LogScore(), metrics.Brier(), metrics.RMSE()], ids=lambda metric: type(metric).__name__
)
def test_the_order_of_two_predictions_turns_the_interval_round(metric):
    one, two, targets = two_forecasts()
    forth, back = metric.compare(one, two, targets, seed=3), metric.compare(two, one, targets, seed=3)
    assert forth.lower.item() == pytest.approx(-back.upper.item(), abs=1e-12)
    assert torch.allclose(forth.replicates, -back.replicates)


def test_the_difference_of_means_is_the_mean_of_differences():
    one, two, targets = two_forecasts()
    rows = metrics.Brier().rows(one, targets) - metrics.Brier().rows(two, targets)
    estimate = metrics.Brier().compare(one, two, targets, seed=0)
    width = 2 * stats.t.ppf(0.975, len(rows) - 1) * rows.std() / len(rows) ** 0.5
    assert (estimate.upper - estimate.lower).item() == pytest.approx(width.item(), rel=0.15)


def test_the_difference_of_functions_of_means_has_the_error_of_the_delta_method():
    one, two, targets = two_forecasts(2000)
    estimate = metrics.RMSE().compare(one, two, targets, num_replicates=4000, seed=0)
    width = (estimate.upper - estimate.lower).item()
    assert width == pytest.approx(2 * 1.96 * estimate.replicates.std().item(), rel=0.08)


def test_shares_that_differ_one_way_have_the_exact_interval():
    """Gaffke's interval is that of Clopper and Pearson there; 20,000 draws leave some 0.003 of the ends."""
    right, targets = torch.zeros(60, dtype=torch.long), torch.zeros(60)
    other = torch.where(torch.arange(60) < 4, 1, right)
    one, two = (Categorical(logits=3.0 * torch.nn.functional.one_hot(c, 2)) for c in (right, other))
    estimate = metrics.Accuracy().compare(one, two, targets, num_replicates=20_000, seed=0)
    assert estimate.value.item() == pytest.approx(4 / 60)
    exact = stats.binomtest(4, 60).proportion_ci(0.95, "exact")
    assert estimate.upper.item() == pytest.approx(exact.high, abs=0.004)
    assert estimate.lower.item() == pytest.approx(
        np.quantile(np.random.default_rng(0).dirichlet([1, 4, 56], 10**5) @ [-1, 1, 0], 0.025), abs=0.004
    )


def test_intervals_of_differences_cover_at_their_rate():
    """200 data sets of 60 rows, coverage 0.9; 4.5 standard errors, 3e-6 by chance. Both forecasts are equally noisy."""
    held = dict.fromkeys((metrics.LogScore(), metrics.RMSE(), metrics.Accuracy(), metrics.AURC()), 0)
    for seed in range(200):
        one, two, targets = two_forecasts(60, seed=1000 + seed, noise=0.4)
        for metric in held:
            estimate = metric.compare(one, two, targets, coverage=0.9, num_replicates=100, seed=seed)
            held[metric] += int(estimate.lower <= 0 <= estimate.upper)
    for metric, times in held.items():
        assert times / 200 > 0.9 - 4.5 * (0.9 * 0.1 / 200) ** 0.5, metric


def test_refusals():
    nowhere = Categorical(probs=torch.tensor([[1.0, 0.0], [0.5, 0.5], [0.2, 0.8]]))
    with pytest.raises(NotFiniteError, match="LogScore is infinite for both"):
        metrics.LogScore().compare(nowhere, nowhere, [1, 0, 1])
    some = Categorical(probs=torch.tensor([[0.5, 0.5], [0.5, 0.5], [0.2, 0.8]]))
    estimate = metrics.LogScore().compare(nowhere, some, [1, 0, 1], seed=0)
    assert estimate.value == estimate.lower == -torch.inf
    with pytest.raises(ShapeError, match="at least 2 rows"):
        metrics.CRPS().compare(*2 * [Normal(torch.zeros(1), torch.ones(1))], [0.0])
    with pytest.raises(ShapeError, match="at least one row"):
        metrics.CRPS().compare(*2 * [Normal(torch.zeros(0), torch.ones(0))], torch.zeros(0))
    one, two, targets = two_forecasts(10)
    with pytest.raises(ShapeError, match="targets"):
        metrics.Brier().compare(one, Bernoulli(logits=torch.zeros(9)), targets)
    with pytest.raises(ValueError, match="at least 40"):
        metrics.Brier().compare(one, two, targets, num_replicates=39)
