"""The contract of metrics: streams, shards in any order, and the bootstrap."""

import copy
import itertools
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from metric_data import join, make, pick

import cases
from credibly import metrics
from credibly.core.errors import NotFiniteError, NotSupportedError, ShapeError
from credibly.metrics import ood
from credibly.metrics.resampling import percentiles
from credibly.metrics.row_metrics import MeanMetric, RowMetric

DEPEND_ON_THE_NUMBER_OF_ROWS = {"ece_debiased", "ece_of_event", "aurc", "e_aurc"}
"""They take a bias off that halves, or average over the ranks, which are twice as many."""

EVERY = pytest.mark.parametrize("name", cases.METRICS)


def case(name, num_rows=60, **options):
    kind, recipe = cases.METRICS[name]
    return recipe(), make(kind, num_rows, **options)


def close(one, other):
    return torch.allclose(one, other, rtol=1e-12, atol=1e-12)


@EVERY
def test_the_value_is_finite_float64_and_without_gradients(name, dtype):
    metric, pair = case(name, dtype=dtype)
    value = metric(*pair)
    assert value.dtype == torch.float64
    assert value.dim() == (1 if isinstance(metric, metrics.BrierDecomposition) else 0)
    assert bool(value.isfinite().all())
    assert not value.requires_grad


@EVERY
@settings(max_examples=8)
@given(data=st.data())
def test_a_stream_equals_the_whole_data_for_every_split_and_order(name, data):
    metric, pair = case(name, 24)
    order = torch.tensor(data.draw(st.permutations(range(24))))
    cuts = data.draw(st.lists(st.integers(0, 24), max_size=5))
    edges = sorted({0, 24, *cuts})
    parts = [order[a:b] for a, b in itertools.pairwise(edges)]
    one_by_one, shards = metric.stream(), []
    for rows in parts:
        one_by_one.update(*pick(pair, rows))
        shard = metric.stream()
        shard.update(*pick(pair, rows))
        shards.append(shard)
    merged = shards.pop()
    while shards:
        merged = shards.pop(data.draw(st.integers(0, len(shards) - 1))).merge(merged)
    whole = metric(*pair)
    assert close(one_by_one.compute(), whole)
    assert close(merged.compute(), whole)
    assert all(
        torch.equal(a, b)
        for a, b in zip(merged.state.values(), one_by_one.state.values(), strict=True)
        if a.dtype == torch.int64
    )


@EVERY
def test_an_empty_batch_changes_nothing(name):
    metric, pair = case(name)
    stream = metric.stream()
    for rows in (slice(0, 0), slice(0, 25), slice(25, 25), slice(25, 60)):
        stream.update(*pick(pair, rows))
    assert close(stream.compute(), metric(*pair))


@EVERY
def test_merging_changes_neither_stream(name):
    metric, pair = case(name)
    one, other = metric.stream(), metric.stream()
    one.update(*pick(pair, slice(0, 20)))
    other.update(*pick(pair, slice(20, 60)))
    before = one.compute(), other.compute()
    both = one.merge(other).merge(metric.stream())
    assert close(both.compute(), metric(*pair))
    assert torch.equal(one.compute(), before[0])
    assert torch.equal(other.compute(), before[1])


@pytest.mark.parametrize("name", [name for name in cases.METRICS if name not in DEPEND_ON_THE_NUMBER_OF_ROWS])
def test_doubled_rows_change_nothing(name):
    metric, pair = case(name)
    assert torch.allclose(metric(*join([pair, pair])), metric(*pair), rtol=1e-9, atol=1e-9)


@EVERY
def test_the_bootstrap_is_seeded_and_leaves_no_trace(name):
    metric, pair = case(name)
    before = torch.get_rng_state()
    one, same = (metric.bootstrap(*pair, num_replicates=40, seed=5) for _ in range(2))
    other = metric.bootstrap(*pair, num_replicates=40, seed=6)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.allclose(one.value, metric(*pair), rtol=1e-12, atol=1e-12)
    assert one.replicates.shape == (40, *one.value.shape)
    assert bool(one.replicates.isfinite().all())
    assert bool((one.lower <= one.upper).all())
    for field in ("lower", "upper", "replicates"):
        assert torch.equal(getattr(one, field), getattr(same, field))
    assert not torch.equal(one.replicates, other.replicates)


@EVERY
def test_metrics_are_plain_values(name):
    recipe = cases.METRICS[name][1]
    assert recipe() == recipe()
    assert hash(recipe()) == hash(recipe())
    for twin in (pickle.loads(pickle.dumps(recipe())), copy.deepcopy(recipe())):
        assert twin == recipe()


@EVERY
def test_no_rows_are_refused_by_name(name):
    metric, pair = case(name)
    empty = pick(pair, slice(0, 0))
    with pytest.raises(ShapeError, match="at least one"):
        metric(*empty)
    with pytest.raises(ShapeError, match="at least one"):
        metric.stream().compute()


@EVERY
def test_the_callers_tensors_stay_as_they_are(name):
    metric, pair = case(name)
    kept = copy.deepcopy(pair[1])
    metric(*pair)
    metric.bootstrap(*pair, num_replicates=40, seed=0)
    assert torch.equal(pair[1], kept)


@EVERY
def test_one_row_has_a_value_and_an_interval_only_where_it_says_something(name):
    """A share, whose interval is exact, and one score of each kind of rows."""
    metric, pair = case(name, 1)
    value = metric(*pair)
    assert bool(value.isfinite().all())
    if isinstance(metric, (metrics.Accuracy, metrics.Coverage, ood.TwoSampleMetric)):
        estimate = metric.bootstrap(*pair, num_replicates=40, seed=0)
        assert estimate.lower <= value <= estimate.upper
        assert estimate.lower < estimate.upper
    else:
        with pytest.raises(ShapeError, match=f"{type(metric).__name__} needs at least 2 rows; got 1"):
            metric.bootstrap(*pair, num_replicates=40, seed=0)


@pytest.mark.parametrize(("coverage", "needed"), [(0.95, 40), (0.9, 20), (0.5, 4), (0.999, 2000), (0.0, 2)])
def test_too_few_replicates_for_the_coverage_are_refused_by_number(coverage, needed):
    pair = make("events", 20)
    for action in (metrics.Brier().bootstrap, metrics.ECE().bootstrap):
        assert action(*pair, coverage=coverage, num_replicates=needed, seed=0).coverage == coverage
        with pytest.raises(ValueError, match=f"`num_replicates` must be at least {needed} .* got {needed - 1}"):
            action(*pair, coverage=coverage, num_replicates=needed - 1, seed=0)


def test_nan_never_leaves_a_metric():
    nan = torch.tensor([0.0, float("nan")])
    predicted = torch.distributions.Normal(nan, torch.ones(2), validate_args=False)
    for metric in (metrics.LogScore(), metrics.RMSE(), metrics.CRPS()):
        with pytest.raises(NotFiniteError, match="predicted"):
            metric(predicted, [0.0, 1.0])
        with pytest.raises(NotFiniteError, match="predicted"):
            metric.bootstrap(predicted, [0.0, 1.0])
    for metric in (metrics.ECE(), metrics.SmoothECE(), metrics.BrierDecomposition(), metrics.ClasswiseECE()):
        with pytest.raises(NotFiniteError, match="predicted"):
            metric(torch.distributions.Bernoulli(probs=nan, validate_args=False), [0, 1])


def test_streams_of_different_metrics_are_not_merged():
    with pytest.raises(ValueError, match="num_bins=7"):
        metrics.ECE(7).stream().merge(metrics.ECE(8).stream())


def test_refused_options():
    pair = make("events", 10)
    with pytest.raises(ValueError, match="coverage"):
        metrics.Brier().bootstrap(*pair, coverage=1.5)
    with pytest.raises(ValueError, match=r"below 1; got 1\.0"):
        metrics.Brier().bootstrap(*pair, coverage=1.0)
    with pytest.raises(ValueError, match="num_replicates"):
        metrics.Brier().bootstrap(*pair, num_replicates=0)
    with pytest.raises(ValueError, match="num_bins"):
        metrics.ECE(0)
    with pytest.raises(ValueError, match="norm"):
        metrics.ECE(norm="L1")
    with pytest.raises(ValueError, match="positive"):
        metrics.AUPR(positive="inside")
    with pytest.raises(ValueError, match="tpr"):
        metrics.FPR(tpr=0)
    with pytest.raises(NotSupportedError, match="EventECE"):
        metrics.SmoothECE().bootstrap(*make("labels", 10))


def test_percentiles_are_order_statistics():
    replicates = torch.arange(1000.0).flip(0)
    assert [end.item() for end in percentiles(replicates, 0.95)] == [24, 975]
    assert [end.item() for end in percentiles(replicates, 0.0)] == [499, 500]
    assert [end.item() for end in percentiles(replicates, 1.0)] == [0, 999]
    assert [end.item() for end in percentiles(torch.tensor([-torch.inf, 0, 1]), 0.5)] == [-torch.inf, 1]


class _Range(RowMetric):
    def rows(self, predicted, targets):
        return targets.unsqueeze(-1)

    def of_rows(self, rows):
        return rows[..., 0].amax(-1) - rows[..., 0].amin(-1)


class _Deviation(MeanMetric):
    def rows(self, predicted, targets):
        return torch.stack([targets, targets.square()], -1)

    def of_means(self, means):
        return (means[..., 1] - means[..., 0].square()).sqrt()


@pytest.mark.parametrize(("metric", "expected"), [(_Range(), 6.0), (_Deviation(), 5**0.5)])
def test_metrics_of_ones_own(metric, expected):
    targets = torch.tensor([1.0, 3.0, 5.0, 7.0], dtype=torch.float64)
    predicted = torch.distributions.Normal(targets, 1)
    assert metric(predicted, targets).item() == pytest.approx(expected)
    estimate = metric.bootstrap(predicted, targets, seed=0)
    assert estimate.replicates.shape == (1000,)
    assert 0 <= estimate.lower <= estimate.upper <= expected + 1


def test_ten_million_rows_take_the_memory_of_one_batch():
    generator = torch.Generator().manual_seed(0)
    p = torch.rand(2**20, generator=generator, dtype=torch.float32)
    hits = torch.rand(2**20, generator=generator) < p
    from_probs = torch.distributions.Bernoulli(probs=p, validate_args=False)
    for metric in (metrics.ECE(), metrics.BrierDecomposition()):
        stream = metric.stream()
        stream.update(from_probs, hits)
        numbers = {name: part.numel() for name, part in stream.state.items()}
        for _ in range(9):
            stream.update(from_probs, hits)
        assert {name: part.numel() for name, part in stream.state.items()} == numbers
        assert sum(numbers.values()) < 200
        total = stream.state["counts"].sum() if "counts" in stream.state else stream.state["sums"][0].sum()
        assert int(total) == 10 * 2**20
        assert torch.allclose(stream.compute(), metric(from_probs, hits), rtol=1e-9)


def test_intervals_of_skewed_means_cover_at_their_rate():
    """Squared normal errors, 400 data sets of 40 rows, coverage 0.9: 4 standard errors, 3e-5 by chance."""
    generator = torch.Generator().manual_seed(2)
    held = percentile = 0
    for seed in range(400):
        targets = torch.randn(40, generator=generator, dtype=torch.float64)
        predicted = torch.distributions.Normal(torch.zeros(40), torch.ones(40), validate_args=False)
        estimate = metrics.RMSE().bootstrap(predicted, targets, coverage=0.9, num_replicates=200, seed=seed)
        held += int(estimate.lower <= 1 <= estimate.upper)
        low, high = percentiles(estimate.replicates, 0.9)
        percentile += int(low <= 1 <= high)
    assert held / 400 > 0.9 - 4 * (0.9 * 0.1 / 400) ** 0.5
    assert held > percentile


def test_a_share_has_the_exact_interval():
    predicted, _ = make("classes", 50)
    right = predicted.probs.argmax(-1)
    estimate = metrics.Accuracy().bootstrap(predicted, right, seed=0)
    assert estimate.value == estimate.upper == 1
    assert estimate.lower.item() == pytest.approx(0.025 ** (1 / 50), abs=1e-9)


def test_an_impossible_outcome_leaves_an_interval_without_nan():
    predicted = torch.distributions.Categorical(probs=torch.tensor([[1.0, 0.0], [0.5, 0.5], [0.2, 0.8]]))
    estimate = metrics.LogScore().bootstrap(predicted, [1, 0, 1], seed=0)
    assert estimate.value == estimate.lower == -torch.inf
    assert estimate.upper <= 0
