"""Distributional conformal prediction: PIT scores and the central intervals that they lead to."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch.distributions import Categorical, Independent, Normal, Poisson

from credibly.conformal.distributional import PITScore
from credibly.core.errors import NotFiniteError, NotSupportedError, ShapeError
from credibly.distributions.empirical import Empirical
from credibly.distributions.mixture import MixturePredictive
from credibly.metrics.pit import pit

LOC = torch.linspace(-1, 1, 9, dtype=torch.float64)


def test_the_score_is_the_distance_of_the_pit_from_one_half():
    predicted, targets = Normal(LOC, 1.5), torch.linspace(2, -3, 9, dtype=torch.float64)
    scores = PITScore().score(predicted, targets)
    assert torch.allclose(scores + 0.5, (pit(predicted, targets) - 0.5).abs(), atol=1e-15)
    region = PITScore().region(predicted, 0.45 - 0.5)  # 1/2 - q = 0.05
    assert torch.allclose(region.lower, LOC + 1.5 * stats.norm.ppf(0.05), atol=1e-12)
    assert torch.allclose(region.upper, LOC + 1.5 * stats.norm.ppf(0.95), atol=1e-12)


def test_far_targets_do_not_tie():
    predicted = Normal(torch.zeros(3), torch.ones(3))
    scores = PITScore().score(predicted, torch.tensor([10.0, 20.0, -30.0]))
    assert (-scores).tolist() == pytest.approx(stats.norm.sf([10, 20, 30]).tolist(), rel=1e-6)
    region = PITScore().region(predicted, scores)
    assert region.upper.tolist() == pytest.approx([10, 20, 30], rel=1e-6)


@pytest.mark.parametrize("level", [0.1, 0.4, 0.49])
def test_counts_give_whole_ends_and_exactly_the_counts_inside(level):
    rate = torch.tensor([0.3, 1.5, 7.0, 40.0], dtype=torch.float64)
    for u in (None, torch.tensor([0.0, 0.3, 0.9, 1.0], dtype=torch.float64)):
        score = PITScore(randomized=u is not None)
        region = score.region(Poisson(rate), level - 0.5, u)
        for row, value in enumerate(rate.tolist()):
            counts = torch.arange(100, dtype=torch.float64)
            each = None if u is None else u[row].expand(100)
            inside = score.score(Poisson(torch.full((100,), value, dtype=torch.float64)), counts, each) <= level - 0.5
            expected = counts[inside]
            if not len(expected):
                assert region.empty[row]
            else:
                assert (region.lower[row], region.upper[row]) == (expected[0], expected[-1])
    middle = PITScore().score(Poisson(torch.tensor([1.5])), torch.tensor([2.0])).item()
    mid_pit = stats.poisson.cdf(1, 1.5) + stats.poisson.pmf(2, 1.5) / 2
    assert middle == pytest.approx(abs(mid_pit - 0.5) - 0.5, abs=1e-12)


def test_draws_and_mixtures(dtype):
    generator = torch.Generator().manual_seed(0)
    draws = torch.randn(20, 5, generator=generator, dtype=dtype)
    mixture = MixturePredictive(Normal(draws, torch.ones_like(draws)))
    for predicted in (Empirical(draws), mixture, Normal(draws[0], torch.ones(5, dtype=dtype))):
        for limit in (-0.4, -0.1, -0.013):
            region = PITScore().region(predicted, limit)
            for shift in (0.0, 1e-9):
                for end, sign in ((region.lower, -1), (region.upper, 1)):
                    point = end + sign * shift if shift else end
                    inside = PITScore().score(predicted, point) <= limit
                    assert torch.equal(inside, torch.full((5,), shift == 0.0))
                    assert torch.equal(region.contains(point), inside)


@given(
    st.lists(st.tuples(st.floats(-50, 50), st.floats(1e-3, 50), st.floats(-60, 60)), min_size=1, max_size=6),
    st.floats(-0.6, 0.1) | st.sampled_from([math.inf, -math.inf, 0.0, -0.5]),
)
def test_score_and_region_invert_each_other(rows, limit):
    loc, scale, targets = (torch.tensor(column, dtype=torch.float64) for column in zip(*rows, strict=True))
    predicted = Normal(loc, scale)
    scores = PITScore().score(predicted, targets)
    below = torch.nextafter(scores, torch.full_like(scores, -math.inf))
    for q in (scores, below, torch.full_like(scores, limit)):
        region = PITScore().region(predicted, q)
        assert torch.equal(region.contains(targets), scores <= q)
        within = (region.lower - 1e-9 <= targets) & (targets <= region.upper + 1e-9)
        assert bool((within | ~(scores <= q)).all())
        assert not bool(region.width.isnan().any())
        assert not bool((region.lower > region.upper).any())


def test_order_batches_and_inputs():
    generator = torch.Generator().manual_seed(3)
    table = torch.randn(40, 3, generator=generator, dtype=torch.float64)
    kept = table.clone()
    loc, scale, targets = table[:, 0], table[:, 1].exp(), table[:, 2]
    scores = PITScore().score(Normal(loc, scale), targets)
    order = torch.randperm(40, generator=generator)
    assert torch.allclose(PITScore().score(Normal(loc[order], scale[order]), targets[order]), scores[order], atol=1e-15)
    whole = PITScore().region(Normal(loc, scale), -0.1)
    parts = [PITScore().region(Normal(loc[i : i + 7], scale[i : i + 7]), -0.1).upper for i in range(0, 40, 7)]
    assert torch.allclose(torch.cat(parts), whole.upper, rtol=1e-12)
    column = Independent(Normal(loc.unsqueeze(-1), scale.unsqueeze(-1)), 1)
    assert torch.equal(PITScore().score(column, targets), scores)
    assert torch.equal(PITScore().region(column, -0.1).upper, whole.upper)
    assert torch.equal(table, kept)
    assert PITScore().region(Normal(loc[:0], scale[:0]), -0.1).width.shape == (0,)


def test_refusals_by_name():
    with pytest.raises(NotSupportedError, match=r"PITScore.*Categorical"):
        PITScore().score(Categorical(logits=torch.zeros(2, 3)), [0, 1])
    with pytest.raises(NotSupportedError, match="event_shape"):
        PITScore().region(Independent(Normal(torch.zeros(2, 2), 1.0), 1), 0.0)
    with pytest.raises(ShapeError, match="`u`"):
        PITScore(randomized=True).score(Poisson(torch.ones(2)), [1, 1], torch.ones(3))
    with pytest.raises(NotFiniteError, match="NaN"):
        PITScore().score(Normal(torch.tensor([math.nan]), 1.0, validate_args=False), [0.0])
