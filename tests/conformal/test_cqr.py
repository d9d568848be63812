"""Conformalised quantile regression: golden numbers, infinite sides, and regions that invert their scores."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributions import Categorical, Independent, Normal, Poisson, StudentT

import credibly
from credibly.conformal.cqr import CQR, AsymmetricCQR, OneSidedCQR, ScaledCQR
from credibly.conformal.float_search import last_true
from credibly.conformal.interval_score import divided, multiplied
from credibly.conformal.residual import StandardizedResidual
from credibly.core.errors import NotFiniteError, NotSupportedError, ShapeError
from credibly.distributions.quantiles import QuantileForecast

SCORES = {
    "cqr": CQR(),
    "scaled": ScaledCQR(),
    "lower": OneSidedCQR(0.05, "lower"),
    "upper": OneSidedCQR(0.95, "upper"),
}


def forecast(lower, upper, dtype=torch.float64):
    levels = torch.tensor([0.05, 0.95], dtype=dtype)
    return QuantileForecast(levels, torch.tensor([lower, upper], dtype=dtype).T)


def test_crossing_quantiles_are_sorted_before_scoring_and_predicting():
    crossed = forecast([3.0], [2.0])
    assert CQR().score(crossed, [2.5]).tolist() == [-0.5]
    for q, ends in ((0.3, (1.7, 3.3)), (0.5, (1.5, 3.5)), (-0.1, (2.1, 2.9))):
        region = CQR().region(crossed, q)
        assert (region.lower.item(), region.upper.item()) == pytest.approx(ends)
    region = CQR().region(forecast([2.0], [2.1]), -0.1)
    assert region.empty.tolist() == [True]
    assert region.contains([2.05]).tolist() == [False]
    assert region.width.tolist() == [0.0]


@pytest.mark.parametrize(("n", "finite", "one_sided_finite"), [(18, True, False), (19, True, True), (8, False, False)])
def test_sides_without_enough_scores_are_infinite(n, finite, one_sided_finite):
    predicted, targets = forecast([0.0] * n, [1.0] * n), torch.linspace(-1, 2, n)
    both = CQR().calibrate(predicted, targets).predict(predicted, 0.9)
    apart = AsymmetricCQR().calibrate(predicted, targets).predict(predicted, 0.9)
    assert bool(both.width.isfinite().all()) == finite
    assert bool(apart.lower.isfinite().all()) == bool(apart.upper.isfinite().all()) == one_sided_finite
    assert not bool(apart.lower.isnan().any())
    assert not bool(apart.width.isnan().any())
    if n == 18:  # 18 of 18: the largest score
        assert both.upper[0].item() == 2.0


def test_one_side_can_be_infinite_alone():
    predicted, targets = forecast([0.0] * 19, [1.0] * 19), torch.linspace(-1, 2, 19)
    fitted = AsymmetricCQR().calibrate(predicted, targets)
    new = forecast([-math.inf, 0.0, 0.0], [1.0, math.inf, 1.0])
    region = fitted.predict(new, 0.9)
    assert region.lower.tolist() == [-math.inf, -1.0, -1.0]
    assert region.upper.tolist() == [2.0, math.inf, 2.0]
    assert fitted.predict(new, 0).empty.tolist() == [True] * 3
    assert fitted.predict(new, 1).width.tolist() == [math.inf] * 3
    with pytest.raises(ValueError, match="coverage"):
        fitted.predict(new, 1.1)


def test_sides_equal_their_definition():
    generator = torch.Generator().manual_seed(0)
    loc = torch.randn(200, generator=generator, dtype=torch.float64)
    predicted = Normal(loc, torch.ones_like(loc))
    targets = loc + 2 * torch.randn(200, generator=generator, dtype=torch.float64)
    low, high = (predicted.icdf(torch.tensor(q, dtype=torch.float64)) for q in (0.05, 0.95))
    region = AsymmetricCQR().calibrate(predicted, targets).predict(predicted, 0.9)
    k = 191  # ceil(201 * 0.95)
    assert torch.allclose(region.lower, low - (low - targets).sort().values[k - 1], atol=1e-9)
    assert torch.allclose(region.upper, high + (targets - high).sort().values[k - 1], atol=1e-9)
    together = CQR().calibrate(predicted, targets).predict(predicted, 0.9)
    q = torch.maximum(low - targets, targets - high).sort().values[181 - 1]
    assert torch.allclose(together.lower, low - q, atol=1e-9)
    scaled = ScaledCQR().calibrate(predicted, targets).predict(predicted, 0.9)
    assert torch.allclose(scaled.upper, together.upper, atol=1e-9)  # all predicted widths are equal here


def test_the_scaled_form_moves_wide_intervals_more():
    predicted = forecast([0.0, 0.0, 1.0], [1.0, 10.0, 1.0])
    region = ScaledCQR().region(predicted, 0.5)
    assert region.lower.tolist() == [-0.5, -5.0, 1.0]
    assert region.upper.tolist() == [1.5, 15.0, 1.0]
    assert ScaledCQR().score(predicted, [1.5, 5.0, 1.0]).tolist() == [0.5, -0.5, 0.0]
    assert ScaledCQR().score(predicted, [0.0, 0.0, 1.5]).tolist() == [0.0, 0.0, math.inf]
    assert ScaledCQR().region(predicted, -0.1).empty.tolist() == [False, False, True]
    assert ScaledCQR().region(predicted, math.inf).width.tolist() == [math.inf] * 3


NUMBERS = st.floats(-1e9, 1e9) | st.sampled_from([0.0, 1.0, -1.0, 1e-300, 5e-324, 1.7e308, -1.7e308])
ENDS = NUMBERS | st.sampled_from([math.inf, -math.inf])
LIMITS = NUMBERS | st.sampled_from([-0.5, 0.5, math.inf, -math.inf])


@given(st.lists(st.tuples(ENDS, ENDS, NUMBERS, LIMITS), min_size=1, max_size=8), st.sampled_from(sorted(SCORES)))
def test_score_and_region_invert_each_other(rows, name):
    score = SCORES[name]
    lower, upper, targets, limits = (torch.tensor(column, dtype=torch.float64) for column in zip(*rows, strict=True))
    predicted = forecast(lower.tolist(), upper.tolist())
    scores = score.score(predicted, targets)
    assert not bool(scores.isnan().any())
    below = torch.nextafter(scores, torch.full_like(scores, -math.inf))
    for q in (limits, scores, below, scores.flip(0), limits[0]):
        region = score.region(predicted, q)
        assert torch.equal(region.contains(targets), scores <= q)
        assert not bool((region.lower > region.upper).any())
        assert not bool(region.width.isnan().any())
        assert torch.equal(region.lower.isnan(), region.empty)


@given(st.lists(st.tuples(NUMBERS, st.floats(0, 1e9) | st.just(math.inf), NUMBERS, LIMITS), min_size=1, max_size=8))
def test_standardised_residuals_invert(rows):
    centre, scale, targets, limits = (torch.tensor(column, dtype=torch.float64) for column in zip(*rows, strict=True))
    predicted = Normal(centre, scale, validate_args=False)
    score = StandardizedResidual()
    scores = score.score(predicted, targets)
    for q in (limits, scores, torch.nextafter(scores, torch.full_like(scores, -math.inf))):
        assert torch.equal(score.region(predicted, q).contains(targets), scores <= q)


@given(st.floats(allow_nan=False), st.floats(min_value=0) | st.just(math.nan), st.floats(0, 1e308))
def test_the_largest_distance_is_the_largest(limit, scale, distance):
    q, s, d = (torch.tensor([x], dtype=torch.float64) for x in (limit, scale, distance))
    assert torch.equal(divided(d, s) <= q, d <= multiplied(q, s))


@given(st.floats(allow_nan=False), st.floats(allow_nan=False), st.floats(allow_nan=False))
def test_bisection_ends_at_the_last_number(start, end, edge):
    low, high = min(start, end), max(start, end)
    if low == high:
        return
    edge = min(max(edge, low), math.nextafter(high, -math.inf))
    ends = [torch.tensor([x], dtype=torch.float64) for x in (low, high)]
    assert last_true(lambda x: x <= edge, *ends).item() == edge
    edge = max(edge, math.nextafter(low, math.inf))
    assert last_true(lambda x: x >= edge, ends[1], ends[0]).item() == edge


def test_any_predictive_has_quantiles(dtype):
    rows = torch.arange(1, 6, dtype=dtype)
    for predicted, targets in (
        (Normal(rows, rows), rows),
        (Poisson(rows), rows),
        (StudentT(torch.full_like(rows, 3.0), rows, rows), rows),
        (Independent(Normal(rows.unsqueeze(-1), rows.unsqueeze(-1)), 1), rows),
    ):
        for score in SCORES.values():
            scores = score.score(predicted, targets)
            assert scores.dtype == torch.float64
            assert bool(score.region(predicted, scores).contains(targets).all())


@pytest.mark.parametrize("score", [*SCORES.values(), StandardizedResidual()], ids=repr)
def test_order_batches_and_strides_change_nothing_and_inputs_stay(score):
    generator = torch.Generator().manual_seed(3)
    table = torch.randn(60, 3, generator=generator, dtype=torch.float64)
    loc, scale, targets = table[:, 0], table[:, 1].exp(), table[:, 2]  # not contiguous
    kept = table.clone()
    scores = score.score(Normal(loc, scale), targets)
    region = score.region(Normal(loc, scale), 0.3)
    order = torch.randperm(60, generator=generator)
    assert torch.equal(score.score(Normal(loc[order], scale[order]), targets[order]), scores[order])
    parts = [score.region(Normal(loc[i : i + 7], scale[i : i + 7]), 0.3).lower for i in range(0, 60, 7)]
    assert torch.equal(torch.cat(parts).nan_to_num(9.0), region.lower.nan_to_num(9.0))
    single = score.score(Normal(loc.float(), scale.float()), targets.float())
    assert torch.allclose(single, scores, atol=1e-5, rtol=1e-4)
    assert torch.equal(table, kept)
    empty = Normal(loc[:0], scale[:0])
    assert score.region(empty, 0.3).width.shape == score.score(empty, targets[:0]).shape == (0,)


def test_groups_and_files(tmp_path):
    predicted, targets = forecast([0.0] * 60, [1.0] * 60), torch.linspace(-1, 3, 60)
    groups = torch.arange(60) % 2
    fitted = AsymmetricCQR().calibrate(predicted, targets, groups=groups)
    credibly.save(fitted, tmp_path / "sides")
    again = credibly.load(tmp_path / "sides")
    a, b = (each.predict(predicted, 0.8, groups=groups) for each in (fitted, again))
    assert torch.equal(a.lower, b.lower)
    assert torch.equal(a.upper, b.upper)
    alone = AsymmetricCQR().calibrate(forecast([0.0] * 30, [1.0] * 30), targets[groups == 1])
    assert a.upper[1] == alone.predict(forecast([0.0], [1.0]), 0.8).upper[0]


def test_refusals_by_name():
    with pytest.raises(NotSupportedError, match=r"CQR.*Categorical.*LAC"):
        CQR().score(Categorical(logits=torch.zeros(2, 3)), [0, 1])
    with pytest.raises(NotSupportedError, match=r"event_shape.*Box"):
        CQR().score(Independent(Normal(torch.zeros(2, 3), 1.0), 1), torch.zeros(2, 3))
    with pytest.raises(ValueError, match="outer levels"):
        CQR(0.01, 0.99).score(forecast([0.0], [1.0]), [0.5])
    with pytest.raises(NotFiniteError, match="quantile"):
        CQR().region(Normal(torch.tensor([math.nan]), 1.0, validate_args=False), 0.0)
    with pytest.raises(ValueError, match="levels"):
        CQR(0.9, 0.1)
    with pytest.raises(ValueError, match="side"):
        OneSidedCQR(0.1, "left")
    with pytest.raises(ShapeError, match="thresholds"):
        CQR().region(forecast([0.0], [1.0]), torch.zeros(1, 2))
    with pytest.raises(ValueError, match="scale"):
        StandardizedResidual((0.0,))
    with pytest.raises(ShapeError, match="scale"):
        StandardizedResidual((1.0, 1.0)).score(Normal(torch.zeros(2), 1.0), torch.zeros(2))
