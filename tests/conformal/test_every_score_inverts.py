"""Every registered score and its regions invert each other at hostile inputs: tied, certain, crossing, infinite.

The ends that a region lists are judged by themselves, and not only through `contains`, which some regions leave to the
score.
"""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributions import Independent, Laplace, MultivariateNormal, Normal, Poisson

from cases import SCORES
from credibly.conformal.class_score import ClassScore
from credibly.conformal.cqr import AsymmetricCQR
from credibly.conformal.multi_target import BonferroniBox
from credibly.conformal.unions import UnionOfIntervals
from credibly.core.errors import NotSupportedError
from credibly.distributions.empirical import Empirical
from credibly.distributions.entry import from_logits
from credibly.distributions.mixture import MixturePredictive
from credibly.distributions.quantiles import QuantileForecast
from credibly.distributions.rows import select

INF = math.inf
F64 = {"dtype": torch.float64}
OF_CLASSES = [name for name, make in SCORES.items() if isinstance(make(), ClassScore)]
OF_VECTORS = ["box", "box_of_cqr", "one_of_several_targets", "ellipsoid", "ellipsoid_given"]
OF_NUMBERS = [name for name in SCORES if name not in (*OF_CLASSES, *OF_VECTORS)]
PRECISIONS = st.sampled_from([torch.float32, torch.float64])
UNIFORMS = st.sampled_from([0.0, 0.25, 1.0]) | st.floats(0, 1)


def around(scores):
    """Thresholds (7, rows): at the scores, just below them, of other rows, and at the ends of the line."""
    below = torch.nextafter(scores, torch.full_like(scores, -INF))
    ends = (torch.full_like(scores, end) for end in (-INF, INF, 0.0, 1.0))
    return torch.stack([scores, below, scores.flip(0), *ends])


# -- classes -------------------------------------------------------------------------------------------------------

LOGITS = st.sampled_from([0.0, 1.0, 1.0, -2.5, 90.0, -90.0, 1e-30, 1e30, -INF]) | st.floats(-20, 20, width=32)


@pytest.mark.parametrize("name", OF_CLASSES)
@settings(max_examples=10)
@given(
    st.integers(2, 5).flatmap(
        lambda k: st.lists(
            st.lists(LOGITS, min_size=k, max_size=k).filter(lambda z: max(z) > -INF), min_size=1, max_size=4
        )
    ),
    UNIFORMS,
    PRECISIONS,
)
def test_scores_of_classes_in_both_precisions(name, rows, u, dtype):
    score, predicted = SCORES[name](), from_logits(torch.tensor(rows, dtype=dtype))
    uniforms = torch.full((len(rows),), u, **F64)
    table = torch.stack(
        [score.score(predicted, torch.full((len(rows),), k), uniforms) for k in range(len(rows[0]))], -1
    )
    assert not bool(table.isnan().any())
    for column in table.T:
        for limits in around(column):
            assert torch.equal(score.region(predicted, limits, uniforms).members, table <= limits.unsqueeze(-1))
    for limit in table.flatten().tolist():
        assert torch.equal(score.region(predicted, limit, uniforms).members, table <= limit)


# -- numbers -------------------------------------------------------------------------------------------------------

NUMBERS = st.sampled_from([0.0, -0.0, 1.0, 1.0, 2.0, 1e-300, 1e300, -1e300]) | st.floats(-50, 50)
ANCHORS = NUMBERS | st.sampled_from([INF, -INF])
SCALES = st.sampled_from([1e-12, 1.0, 3.0, 1e12])
FORECASTS = {
    "normal": (
        st.tuples(ANCHORS, SCALES),
        lambda p: Normal(p[:, 0], p[:, 1], validate_args=False),
    ),
    "laplace": (
        st.tuples(NUMBERS, SCALES),
        lambda p: Laplace(p[:, 0], p[:, 1], validate_args=False),
    ),
    "crossing_quantiles": (
        st.tuples(ANCHORS, ANCHORS, ANCHORS),
        lambda p: QuantileForecast(torch.tensor([0.05, 0.5, 0.95], **F64), p),
    ),
    "tied_draws": (
        st.tuples(*[st.sampled_from([0.0, 1.0, 2.0, 2.0])] * 4),  # four, so that their mean is exact
        lambda p: Empirical(p.T),
    ),
    "mixture": (
        st.tuples(st.floats(-5, 5), st.floats(-5, 5)),
        lambda p: MixturePredictive(Normal(p.T, torch.tensor([[0.3], [1.0]], **F64).expand(2, len(p)))),
    ),
    "counts": (
        st.tuples(st.sampled_from([0.3, 2.0, 7.5])),
        lambda p: Poisson(p[:, 0]),
    ),
}


def applies(name, family):
    """Whether the score reads this kind of forecast; PITs need a cdf everywhere, which three quantiles have not."""
    _, build = FORECASTS[family]
    width = {"crossing_quantiles": 3, "tied_draws": 4, "counts": 1}.get(family, 2)
    if family == "crossing_quantiles" and name.startswith("pit"):
        return False
    try:
        SCORES[name]().score(build(torch.ones(1, width, **F64)), torch.ones(1))
    except NotSupportedError:
        return False
    return True


ROUNDED = ("normal", "laplace", "mixture")
"""Where ends are those of a density or a tail, found to rounding while the score decides."""


def listed(region, targets, step=0.0):
    """Whether the targets lie between the ends that the region lists, moved outwards by a step."""
    if isinstance(region, UnionOfIntervals):
        column, step = targets.unsqueeze(-1), torch.as_tensor(step).reshape(-1, 1)
        return ((region.lower - step <= column) & (column <= region.upper + step)).any(-1)
    return (region.lower - step <= targets) & (targets <= region.upper + step)


def region_size(region):
    """The size of the finite ends of every row."""
    ends = torch.stack([region.lower, region.upper]).nan_to_num(0.0, 0.0, 0.0).abs()
    return ends.amax(0) if ends.dim() == 2 else ends.amax((0, 2))


@pytest.mark.parametrize(
    ("name", "family"), [(name, family) for name in OF_NUMBERS for family in FORECASTS if applies(name, family)]
)
@settings(max_examples=6)
@given(st.data())
def test_scores_of_numbers(name, family, data):
    score, (row, build) = SCORES[name](), FORECASTS[family]
    whole = family in ("tied_draws", "counts")
    target = st.integers(0, 6).map(float) if whole else NUMBERS
    rows = data.draw(st.lists(st.tuples(row, target, st.floats(0.01, 0.99)), min_size=1, max_size=4))
    numbers = torch.tensor([r for r, _, _ in rows], **F64)
    if name == "highest_density":  # of nothing but infinite means no density is known
        numbers = numbers.nan_to_num(posinf=0.0, neginf=0.0)
    predicted = build(numbers)
    targets, u = (torch.tensor([r[j] for r in rows], **F64) for j in (1, 2))
    u = u if score.uses_uniforms else None
    scores = score.score(predicted, targets, u)
    assert not bool(scores.isnan().any())
    limits = around(scores)
    every = torch.arange(len(rows)).repeat(len(limits))
    region = score.region(select(predicted, every), limits.flatten(), None if u is None else u[every])
    inside = (scores <= limits).flatten()
    assert torch.equal(region.contains(targets[every]), inside)
    assert not bool(region.width.isnan().any())
    assert not bool((region.empty & inside).any())
    if name.startswith(("pit", "highest")) and family in ROUNDED:
        step = 1e-9 * (1 + targets[every].abs() + region_size(region))
        assert bool((listed(region, targets[every], step) | ~inside).all())
        assert not bool((listed(region, targets[every], -step) & ~inside).any())
    else:
        assert torch.equal(listed(region, targets[every]), inside)


@given(st.lists(st.tuples(ANCHORS, ANCHORS, NUMBERS), min_size=3, max_size=12), st.integers(0, 100))
def test_two_thresholds_invert_both_scores(rows, percent):
    lower, upper, targets = (torch.tensor(column, **F64) for column in zip(*rows, strict=True))
    predicted = QuantileForecast(torch.tensor([0.05, 0.95], **F64), torch.stack([lower, upper], -1))
    fitted = AsymmetricCQR().calibrate(predicted, targets)
    level = (1 + percent / 100) / 2 if percent else 0.0
    sides = [side.predict(predicted, level) for side in (fitted.below, fitted.above)]
    expected = torch.stack([side.contains(targets) for side in sides]).all(0)
    region = fitted.predict(predicted, percent / 100)
    assert torch.equal(region.contains(targets), expected)
    assert torch.equal(listed(region, targets), expected)
    assert not bool((region.lower > region.upper).any())
    assert not bool(region.width.isnan().any())


# -- vectors -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", OF_VECTORS)
@settings(max_examples=15)
@given(
    st.lists(
        st.tuples(ANCHORS, NUMBERS, SCALES, SCALES, NUMBERS, st.floats(-1e9, 1e9), st.booleans()),
        min_size=1,
        max_size=4,
    )
)
def test_scores_of_vectors(name, rows):
    score = SCORES[name]()
    table = torch.tensor([[*row[:6], 0.0 if row[6] else 1.0] for row in rows], **F64)
    loc, scale = table[:, :2], table[:, 2:4]
    targets = torch.where(table[:, 6:] == 0, loc.nan_to_num(posinf=0.0, neginf=0.0), table[:, 4:6])
    predicted = Independent(Normal(loc, scale, validate_args=False), 1, validate_args=False)
    scores = score.score(predicted, targets)
    assert not bool(scores.isnan().any())
    for limits in around(scores):
        region, inside = score.region(predicted, limits), scores <= limits
        assert torch.equal(region.contains(targets), inside)
        assert not bool(region.volume.isnan().any())
        assert not bool((region.empty & inside).any())


def test_a_box_of_several_thresholds_inverts_the_score_of_every_target():
    generator = torch.Generator().manual_seed(0)
    loc = torch.randn(60, 3, generator=generator, **F64).round(decimals=1)
    covariance = torch.tensor([[1.0, 0.5, 0.0], [0.5, 2.0, 0.1], [0.0, 0.1, 1.0]], **F64)
    predicted, targets = MultivariateNormal(loc, covariance), loc + torch.randn(60, 3, generator=generator, **F64)
    fitted = BonferroniBox().calibrate(predicted, targets)
    for coverage in (0.0, 0.4, 0.7, 0.94, 0.99, 1.0):
        region = fitted.predict(predicted, coverage)
        level = 1 - (1 - coverage) / 3 if coverage else 0.0
        each = [target.predict(predicted, level).contains(targets) for target in fitted.targets]
        assert torch.equal(region.contains(targets), torch.stack(each).all(0))
