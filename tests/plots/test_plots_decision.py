"""Pictures of decisions, sets, widths, streams and maps show the numbers that they are given."""

from collections.abc import Callable

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from picture_checks import band, keys, line, words_fit

from credibly.core.errors import NotFiniteError, ShapeError, SupportError
from credibly.metrics.coverage_law import coverage_interval
from credibly.plots.decision_regions import decision_regions
from credibly.plots.online_coverage import online_coverage
from credibly.plots.recalibration_map import recalibration_map
from credibly.plots.set_sizes import set_sizes
from credibly.plots.style import ALARM, DATA, PALE
from credibly.plots.widths import widths_against_difficulty

GRID = torch.linspace(0, 1, 21, dtype=torch.float64)
HITS = torch.arange(300) % 10 > 0
ACTS = torch.where(GRID < 0.5, 0, 1) - (GRID > 0.8).long()[:, None] * 2
LONG = "A title that is far too long for one line above a picture as small as this one is"

PICTURES: dict[str, Callable[..., Axes]] = {
    "decision_regions": lambda ax=None, **options: decision_regions(
        GRID, GRID, ACTS.clamp(min=-1), ax, points=torch.rand(30, 2), classes=torch.arange(30) % 2, **options
    ),
    "recalibration_map": lambda ax=None, **options: recalibration_map(
        GRID, {"square": GRID**2, "none": GRID}, ax, draws=GRID ** torch.rand(9, 1).add(1), forecasts=GRID, **options
    ),
    "set_sizes": lambda ax=None, **options: set_sizes(torch.arange(300) % 4, ax, contained=HITS, **options),
    "set_sizes_of_two": lambda ax=None, **options: set_sizes(
        {"LAC": torch.arange(30) % 4, "APS": torch.arange(20) % 7}, ax, **options
    ),
    "widths": lambda ax=None, **options: widths_against_difficulty(
        torch.arange(300.0), torch.arange(300.0), ax, contained=HITS, **options
    ),
    "online_coverage": lambda ax=None, **options: online_coverage({"ACI": HITS, "none": ~HITS}, 0.9, ax, **options),
}


@pytest.fixture(params=sorted(PICTURES))
def picture(request: pytest.FixtureRequest) -> Callable[..., Axes]:
    return PICTURES[request.param]


def test_draws_on_the_given_axes_and_returns_them(picture: Callable[..., Axes]) -> None:
    figure, (left, right) = plt.subplots(1, 2)
    assert picture(right, title="T", legend=False) is right
    assert plt.get_fignums() == [figure.number]
    assert not left.has_data()
    assert right.get_title() == "T"
    assert right.get_legend() is None


def test_makes_a_figure_of_its_own_whose_words_fit(picture: Callable[..., Axes]) -> None:
    ax = picture(title=LONG)
    assert plt.get_fignums() == [ax.figure.number]
    assert keys(ax)
    assert len(set(keys(ax))) == len(keys(ax))
    words_fit([ax])


@pytest.mark.parametrize("layout", ["constrained", None])
def test_words_fit_into_a_grid(layout: str | None) -> None:
    _, axes = plt.subplots(2, 3, figsize=(14, 9), layout=layout)
    words_fit([draw(ax, title=LONG) for draw, ax in zip(PICTURES.values(), axes.flat, strict=True)])


def test_regions_have_the_colour_of_their_act() -> None:
    acts = torch.tensor([[0, 0, 1], [0, -1, 1]])
    ax = decision_regions([0.0, 1.0, 2.0], [5.0, 6.0], acts, names=["wait", "treat"], abstained="ask")
    assert keys(ax) == ["wait", "treat", "ask"]
    (mesh,) = [part for part in ax.collections if hasattr(part, "get_coordinates")]
    colors = mesh.cmap(mesh.norm(mesh.get_array()))[..., :3]
    looks = {part.get_label(): part.get_facecolor()[0, :3] for part in ax.collections if part.get_label() in keys(ax)}
    for act, name in ((0, "wait"), (1, "treat"), (-1, "ask")):
        assert (colors[acts.numpy() == act] == looks[name]).all()
    np.testing.assert_allclose(looks["ask"], to_rgb(PALE))
    assert len({tuple(look) for look in looks.values()}) == 3
    assert ax.get_xlim() == (0, 2)
    assert ax.get_ylim() == (5, 6)


def test_points_lie_where_they_are_with_a_mark_a_class() -> None:
    points = torch.tensor([[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]])
    ax = decision_regions(GRID, GRID, ACTS.clamp(-1, 0), points=points, classes=[1, 0, 1], class_names=["well", "ill"])
    drawn = {part.get_label(): np.asarray(part.get_offsets()) for part in ax.collections}
    np.testing.assert_allclose(drawn["ill"], points[[0, 2]])
    np.testing.assert_allclose(drawn["well"], points[[1]])
    assert keys(decision_regions(GRID, GRID, torch.zeros(21, 21), points=points)) == ["act 0", "data"]
    many = decision_regions(GRID, GRID, (torch.arange(441) % 13).reshape(21, 21))
    assert len(keys(many)) == 13


def test_regions_refuse_what_is_no_grid() -> None:
    with pytest.raises(ShapeError, match=r"`acts` must have shape \(2, 3\), as y and x; got \(3, 2\)"):
        decision_regions([0.0, 1.0, 2.0], [0.0, 1.0], torch.zeros(3, 2))
    with pytest.raises(ValueError, match="`x` must increase"):
        decision_regions([1.0, 0.0], [0.0, 1.0], torch.zeros(2, 2))
    with pytest.raises(ShapeError, match="`y` must have 2 places or more; got 1"):
        decision_regions([0.0, 1.0], [0.0], torch.zeros(1, 2))
    with pytest.raises(SupportError, match="`acts` must be whole numbers, -1 or more"):
        decision_regions([0.0, 1.0], [0.0, 1.0], torch.full((2, 2), -2))
    with pytest.raises(ShapeError, match="`names` must name 2; got 1"):
        decision_regions([0.0, 1.0], [0.0, 1.0], torch.eye(2), names=["a"])
    with pytest.raises(ShapeError, match=r"`points` must have shape \(n, 2\); got \(3,\)"):
        decision_regions([0.0, 1.0], [0.0, 1.0], torch.eye(2), points=torch.zeros(3))
    with pytest.raises(ShapeError, match=r"`classes` must have shape \(1,\), one a point; got \(2,\)"):
        decision_regions([0.0, 1.0], [0.0, 1.0], torch.eye(2), points=torch.zeros(1, 2), classes=[0, 1])
    assert plt.get_fignums() == []


def test_maps_are_drawn_in_order_of_the_forecast() -> None:
    before = torch.tensor([0.9, 0.1, 0.5])
    draws = torch.tensor([[0.8, 0.0, 0.4], [0.9, 0.2, 0.6], [1.0, 0.4, 0.8]])
    ax = recalibration_map(before, before**2, draws=draws, coverage=0.5)
    np.testing.assert_allclose(line(ax, "map"), [[0.1, 0.5, 0.9], [0.01, 0.25, 0.81]], rtol=1e-6)
    found = {round(x, 6): ends for x, ends in band(ax, "50 % of draws").items()}
    np.testing.assert_allclose(found[0.1], [0.1, 0.3], rtol=1e-6)
    np.testing.assert_allclose(found[0.9], [0.85, 0.95], rtol=1e-6)
    assert keys(ax) == ["unchanged", "50 % of draws", "map"]


def test_strip_counts_the_forecasts() -> None:
    (strip,) = recalibration_map(GRID, GRID, forecasts=[0.0, 0.01, 1.0]).child_axes
    heights = [patch.get_height() for patch in strip.patches]
    assert (heights[0], heights[-1], sum(heights)) == (2, 1, 3)


def test_maps_refuse_what_is_no_probability() -> None:
    with pytest.raises(ValueError, match=r"`before` must lie in \[0, 1\]; got values from 0 to 2"):
        recalibration_map([0.0, 2.0], [0.0, 1.0])
    with pytest.raises(ShapeError, match=r"`after \(iso\)` has 1 rows, `before` has 2"):
        recalibration_map([0.0, 1.0], {"iso": [0.5]})
    with pytest.raises(ShapeError, match=r"`draws` must have shape \(num_draws, 2\)"):
        recalibration_map([0.0, 1.0], [0.0, 1.0], draws=torch.zeros(4, 3))
    with pytest.raises(ValueError, match="`coverage` must lie between 0 and 1"):
        recalibration_map([0.0, 1.0], [0.0, 1.0], draws=torch.zeros(4, 2), coverage=1.0)
    with pytest.raises(NotFiniteError, match=r"`after \(map\)` must be finite"):
        recalibration_map([0.0, 1.0], [0.0, torch.nan])
    assert plt.get_fignums() == []


def bars(ax: Axes, label: str) -> list[float]:
    (found,) = [part for part in ax.containers if part.get_label() == label]
    return [patch.get_height() for patch in found]


def test_sizes_are_shares_of_rows_split_by_what_they_hold() -> None:
    ax = set_sizes([0, 1, 1, 3], contained=[False, True, False, True])
    assert bars(ax, "holds its target") == [0, 0.25, 0, 0.25]
    assert bars(ax, "misses it") == [0.25, 0.25, 0, 0]
    assert [text.get_text() for text in ax.texts] == ["mean size 1.25, 50.0 % hold their target"]
    colors = [part.patches[0].get_facecolor()[:3] for part in ax.containers]
    np.testing.assert_allclose(colors, [to_rgb(DATA), to_rgb(ALARM)])
    two = set_sizes({"LAC": [1, 1], "APS": [1, 2, 2, 2]})
    assert bars(two, "LAC, mean size 1") == [0, 1, 0]
    assert bars(two, "APS, mean size 1.75") == [0, 0.25, 0.75]


def test_many_sizes_are_counted_in_groups() -> None:
    ax = set_sizes(torch.arange(1000))
    heights = bars(ax, "mean size 500")
    assert len(heights) == 40
    np.testing.assert_allclose(heights, 25 / 1000)


def test_sizes_refuse_what_they_cannot_count() -> None:
    with pytest.raises(SupportError, match="`sizes` must be whole numbers, 0 or more"):
        set_sizes([0.5])
    with pytest.raises(ShapeError, match=r"`sizes` must have shape \(rows,\)"):
        set_sizes([])
    with pytest.raises(ShapeError, match="`contained` has 1 rows, `sizes` has 2"):
        set_sizes([1, 2], contained=[True])
    with pytest.raises(ValueError, match="`contained` goes with the sets of one method"):
        set_sizes({"a": [1], "b": [1]}, contained=[True])
    assert plt.get_fignums() == []


def test_widths_stand_over_their_difficulty() -> None:
    hard, wide = torch.arange(40.0).flip(0), torch.arange(40.0).flip(0) * 2
    held = torch.arange(40) != 3
    wide[0] = torch.inf
    ax = widths_against_difficulty(wide, hard, contained=held, num_bins=2)
    drawn = {part.get_label(): np.asarray(part.get_offsets()) for part in ax.collections}
    np.testing.assert_array_equal(drawn["misses its target"], [[36, 72]])
    assert len(drawn["interval"]) == 38
    np.testing.assert_array_equal(drawn["infinite"], [[39, ax.get_ylim()[1]]])
    np.testing.assert_array_equal(line(ax, "median of a bin"), [[9.5, 29.5], [20, 60]])


def test_widths_may_all_be_infinite_or_zero() -> None:
    ax = widths_against_difficulty([torch.inf], [1.0])
    np.testing.assert_array_equal(line(ax, "median of a bin"), [[1], [ax.get_ylim()[1]]])
    assert widths_against_difficulty([0.0, 0.0], [1.0, 2.0]).get_ylim() == (0, 1)


def test_widths_refuse_what_is_none() -> None:
    with pytest.raises(NotFiniteError, match="`widths` must not be NaN; 1 of 2"):
        widths_against_difficulty([torch.nan, 1.0], [0.0, 1.0])
    with pytest.raises(ValueError, match="`widths` must be 0 or more; got -1"):
        widths_against_difficulty([-1.0], [0.0])
    with pytest.raises(ShapeError, match="`difficulty` has 1 rows, `widths` has 2"):
        widths_against_difficulty([1.0, 1.0], [0.0])
    assert plt.get_fignums() == []


def test_coverage_of_a_window_is_the_mean_of_its_hits() -> None:
    hits = torch.tensor([1, 0, 1, 1, 1, 0])
    ax = online_coverage({"ACI": hits}, 0.8, window=3, times=[10, 20, 30, 40, 50, 60])
    x, y = line(ax, "ACI, 0.667")
    np.testing.assert_array_equal(x, [30, 40, 50, 60])
    np.testing.assert_allclose(y, [2 / 3, 2 / 3, 1, 2 / 3])
    np.testing.assert_array_equal(line(ax, "0.8 asked for")[1], [0.8, 0.8])
    (patch,) = ax.patches
    low, high = coverage_interval(None, 3, 0.8, 0.95)
    assert (patch.get_y(), patch.get_y() + patch.get_height()) == pytest.approx((low, high))
    assert len(online_coverage(hits, 0.8, window=3, band=None).patches) == 0


def test_streams_refuse_what_they_cannot_draw() -> None:
    with pytest.raises(ShapeError, match="`contained` must have 100 times or more, as many as `window`; got 5"):
        online_coverage(torch.ones(5), 0.9)
    with pytest.raises(ValueError, match="`coverage` must lie between 0 and 1; got 1"):
        online_coverage(torch.ones(5), 1.0, window=2)
    with pytest.raises(ShapeError, match=r"`contained \(b\)` has 4 rows, `the first series` has 5"):
        online_coverage({"a": torch.ones(5), "b": torch.ones(4)}, 0.9, window=2)
    with pytest.raises(ShapeError, match="`times` has 4 rows, `contained` has 5"):
        online_coverage(torch.ones(5), 0.9, window=2, times=torch.arange(4))
    with pytest.raises(ValueError, match="`window` must be a whole number"):
        online_coverage(torch.ones(5), 0.9, window=0)
    assert plt.get_fignums() == []
