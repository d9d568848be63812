"""Highest-density regions: every piece is found, its ends are exact, and the score decides."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch.distributions import (
    Beta,
    Categorical,
    Exponential,
    Gamma,
    Gumbel,
    Independent,
    Laplace,
    LogNormal,
    MixtureSameFamily,
    Normal,
    Poisson,
    StudentT,
    Uniform,
    Weibull,
)

from credibly.conformal.hdr import HighestDensity
from credibly.conformal.unions import UnionOfIntervals
from credibly.core.errors import NotFiniteError, NotSupportedError, ShapeError
from credibly.distributions.affine import AffineView
from credibly.distributions.density import safe_log_prob
from credibly.distributions.mixture import MixturePredictive
from credibly.distributions.rows import select

F64 = {"dtype": torch.float64}


def surprise(predicted, points):
    """Minus the log density at points (points, rows)."""
    rows = torch.arange(points.shape[1]).repeat(len(points))
    return -safe_log_prob(select(predicted, rows), points.reshape(-1)).reshape(points.shape)


def assert_ends_are_crossings(predicted, limit):
    """Inside at each end, outside a step beyond it, and no grid point disagrees with the pieces."""
    region = HighestDensity().region(predicted, limit)
    rows = predicted.batch_shape[-1]
    for row, pieces in enumerate(region.pieces):
        own = select(predicted, [row])
        for low, high in pieces:
            for end, step in ((low, -1), (high, 1)):
                if math.isfinite(end):
                    beyond = end + step * 1e-9 * max(1.0, abs(end))
                    ends = torch.tensor([[end], [beyond]], **F64)
                    assert (surprise(own, ends) <= limit).flatten().tolist() == [True, False]
    grid = torch.linspace(-12, 30, 4001, **F64)
    inside = surprise(predicted, grid.unsqueeze(-1).expand(-1, rows)) <= limit
    lower, upper = (ends.T.unsqueeze(0) for ends in (region.lower, region.upper))
    listed = ((lower <= grid.reshape(-1, 1, 1)) & (grid.reshape(-1, 1, 1) <= upper)).any(1)
    assert torch.equal(inside, listed)
    return region


def test_a_normal_gives_its_central_interval():
    predicted = Normal(torch.tensor([0.0, 3.0]), torch.tensor([1.0, 2.0]))
    q = -stats.norm.logpdf(1.96, 0, 1)
    region = HighestDensity().region(predicted, q)
    assert region.pieces[0] == [pytest.approx((-1.96, 1.96))]
    assert region.width[1].item() == pytest.approx(4 * math.sqrt(2 * (q - math.log(2 * math.sqrt(2 * math.pi)))))
    nothing = HighestDensity().region(predicted, 0.5)  # above the density everywhere
    assert nothing.empty.tolist() == [True, True]
    assert nothing.contains([0.0, 3.0]).tolist() == [False, False]
    assert nothing.width.tolist() == [0.0, 0.0]
    everything = HighestDensity().region(predicted, math.inf)
    assert everything.pieces == [[(-math.inf, math.inf)]] * 2
    assert HighestDensity().region(predicted, -math.inf).num_pieces.tolist() == [0, 0]


FAMILIES = {
    "laplace": Laplace(torch.zeros(1, **F64), 1.0),
    "student": StudentT(torch.full((1,), 3.0, **F64), 1.0, 2.0),
    "log_normal": LogNormal(torch.zeros(1, **F64), 1.0),
    "gamma": Gamma(torch.tensor([2.5], **F64), 1.0),
    "gamma_with_a_pole": Gamma(torch.tensor([0.5], **F64), 1.0),
    "exponential": Exponential(torch.ones(1, **F64)),
    "weibull": Weibull(torch.ones(1, **F64), torch.full((1,), 1.7, **F64)),
    "beta": Beta(torch.tensor([2.0], **F64), torch.tensor([5.0], **F64)),
    "beta_with_two_poles": Beta(torch.tensor([0.5], **F64), torch.tensor([0.7], **F64)),
    "uniform": Uniform(torch.zeros(1, **F64), 2.0),
    "other_units": AffineView(Gamma(torch.tensor([2.5], **F64), 1.0), 3.0, 2.0),
}


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("limit", [0.0, 0.9, 2.0, 5.0])
def test_every_family(name, limit):
    assert_ends_are_crossings(FAMILIES[name], limit)


def test_two_poles_are_two_pieces():
    region = HighestDensity().region(FAMILIES["beta_with_two_poles"], 0.0)
    assert region.num_pieces.tolist() == [2]
    assert (region.lower[0, 0].item(), region.upper[0, 1].item()) == (0.0, 1.0)


class Twin(Gumbel):
    """A type of the user's own with two modes, and quantiles that are a wide grid."""

    def log_prob(self, value):
        return torch.logaddexp(Gumbel.log_prob(self, value - 4), Gumbel.log_prob(self, value + 4)) - math.log(2)


def test_far_and_narrow_components_are_found():
    loc = torch.tensor([[0.0], [1000.0], [1000.01], [-1e6]], **F64)
    scale = torch.tensor([[1.0], [1e-4], [1e-5], [1e-9]], **F64)
    weights = torch.tensor([0.97, 0.01, 0.01, 0.01], **F64).log()
    predicted = MixturePredictive(Normal(loc, scale), weights)
    region = HighestDensity().region(predicted, 4.0)
    assert region.num_pieces.tolist() == [4]
    middles = ((region.lower + region.upper) / 2)[0].tolist()
    assert middles == pytest.approx([-1e6, 0.0, 1000.0, 1000.01], abs=1e-6)


@settings(max_examples=30)
@given(
    st.integers(0, 10_000),
    st.integers(1, 6),
    st.floats(-1.5, 8) | st.sampled_from([1.0, 2.0]),
)
def test_mixtures_against_a_grid(seed, components, limit):
    generator = torch.Generator().manual_seed(seed)
    loc = torch.randn(components, 3, generator=generator, **F64) * 3
    scale = torch.rand(components, 3, generator=generator, **F64) + 0.02
    over_draws = MixturePredictive(Normal(loc, scale), torch.randn(components, generator=generator, **F64))
    weights = Categorical(logits=torch.randn(3, components, generator=generator, **F64))
    within = MixtureSameFamily(weights, Normal(loc.T, scale.T))
    for predicted in (over_draws, within):
        assert_ends_are_crossings(predicted, limit)


def test_mixtures_of_mixtures():
    generator = torch.Generator().manual_seed(1)
    loc = torch.randn(2, 3, 4, generator=generator, **F64) * 4
    inner = MixtureSameFamily(Categorical(logits=torch.zeros(2, 3, 4, **F64)), Normal(loc, 0.3))
    region = assert_ends_are_crossings(MixturePredictive(inner), 3.0)
    assert int(region.num_pieces.max()) > 2


def test_score_and_region_invert_each_other(dtype):
    generator = torch.Generator().manual_seed(2)
    loc = torch.randn(4, 30, generator=generator, dtype=dtype)
    predicted = MixturePredictive(Normal(loc, 0.2 + loc.abs()))
    targets = torch.randn(30, generator=generator, dtype=dtype) * 3
    scores = HighestDensity().score(predicted, targets)
    below = torch.nextafter(scores, torch.full_like(scores, -math.inf))
    for q in (scores, below, scores.flip(0), torch.full_like(scores, math.inf)):
        region = HighestDensity().region(predicted, q)
        assert torch.equal(region.contains(targets), scores <= q)
    # the listed ends agree with the score but for rounding
    region = HighestDensity().region(predicted, scores)
    nearest = torch.minimum((region.lower.T - targets).abs(), (region.upper.T - targets).abs()).nan_to_num(9.0).amin(0)
    assert float(nearest.max()) < 1e-9
    column = MixturePredictive(Independent(Normal(loc.unsqueeze(-1), 0.2 + loc.abs().unsqueeze(-1)), 1))
    assert torch.equal(HighestDensity().region(column, 2.0).width, HighestDensity().region(predicted, 2.0).width)


def test_counts_come_in_runs():
    rate = torch.tensor([[0.5, 4.0], [20.0, 4.0]], **F64)
    predicted = MixturePredictive(Poisson(rate))
    for limit in (1.0, 2.0, 3.5, 8.0):
        region = HighestDensity().region(predicted, limit)
        counts = torch.arange(80, **F64)
        inside = surprise(predicted, counts.unsqueeze(-1).expand(-1, 2)) <= limit
        for row, pieces in enumerate(region.pieces):
            listed = {k for low, high in pieces for k in range(int(low), int(high) + 1)}
            assert listed == set(counts[inside[:, row]].int().tolist())
    assert HighestDensity().region(predicted, 3.5).num_pieces.tolist() == [2, 1]
    assert HighestDensity().region(predicted, math.inf).pieces == [[(0.0, math.inf)]] * 2
    assert HighestDensity().region(predicted, -0.1).num_pieces.tolist() == [0, 0]


def test_a_distribution_without_an_entry():
    assert_ends_are_crossings(Gumbel(torch.zeros(2, **F64), 1.0), 2.0)
    region = HighestDensity().region(Twin(torch.zeros(1, **F64), torch.full((1,), 3.0, **F64)), 2.9)
    assert region.num_pieces.tolist() == [2]
    assert region.pieces[0][0][0] < -4 < region.pieces[0][0][1] < region.pieces[0][1][0] < 4


def test_rows_batches_and_inputs():
    generator = torch.Generator().manual_seed(5)
    loc = torch.randn(5, 40, generator=generator, **F64) * 3
    kept = loc.clone()
    whole = HighestDensity().region(MixturePredictive(Normal(loc, 0.5)), 3.0)
    parts = [HighestDensity().region(MixturePredictive(Normal(loc[:, i : i + 9], 0.5)), 3.0) for i in range(0, 40, 9)]
    assert torch.allclose(torch.cat([part.width for part in parts]), whole.width, rtol=1e-12)
    assert torch.equal(loc, kept)
    empty = HighestDensity().region(Normal(loc[0, :0], loc[0, :0]), 1.0)
    assert empty.width.shape == empty.num_pieces.shape == (0,)


def test_refusals_by_name():
    with pytest.raises(NotSupportedError, match=r"HighestDensity.*LAC"):
        HighestDensity().score(Categorical(logits=torch.zeros(2, 3)), [0, 1])
    with pytest.raises(NotSupportedError, match="event_shape"):
        HighestDensity().score(Independent(Normal(torch.zeros(2, 2), 1.0), 1), torch.zeros(2, 2))


def test_unions_by_themselves():
    nan = math.nan
    region = UnionOfIntervals(torch.tensor([[0.0, 2.0], [nan, nan]]), torch.tensor([[1.0, math.inf], [nan, nan]]))
    assert region.num_pieces.tolist() == [2, 0]
    assert region.width.tolist() == [math.inf, 0.0]
    assert region.pieces == [[(0.0, 1.0), (2.0, math.inf)], []]
    assert region.contains([1.5, 0.0]).tolist() == [False, False]
    assert region.contains([[2.0], [0.0]]).tolist() == [True, False]
    assert region.empty.tolist() == [False, True]
    with pytest.raises(ShapeError, match=r"\(2,\).*\(3,\)"):
        region.contains([0.0] * 3)
    with pytest.raises(NotFiniteError, match="targets"):
        region.contains([0.0, nan])
    with pytest.raises(ShapeError, match="lower"):
        UnionOfIntervals(torch.zeros(2), torch.zeros(2))
