"""The picture of intervals shows every row once, in order, and says truly how many were hit."""

import io

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.axes import Axes

from credibly.core.errors import NotFiniteError, ShapeError
from credibly.plots.intervals import prediction_intervals

INF, NAN = float("inf"), float("nan")


def points(ax: Axes, label: str) -> list[tuple[float, float]]:
    (line,) = [line for line in ax.lines if line.get_label() == label]
    return [tuple(pair) for pair in np.column_stack(line.get_data())]


def segments(ax: Axes) -> dict[int, tuple[float, float]]:
    return {int(s[0, 0]): (s[0, 1], s[1, 1]) for artist in ax.collections for s in artist.get_segments()}


def test_rows_are_sorted_and_misses_apart() -> None:
    lower, upper = torch.tensor([4.0, 0.0, 2.0]), torch.tensor([6.0, 2.0, 5.0])
    ax = prediction_intervals(lower, upper, [6.0, 3.0, 2.0])
    assert segments(ax) == {0: (0.0, 2.0), 1: (2.0, 5.0), 2: (4.0, 6.0)}
    assert points(ax, "target inside") == [(1.0, 2.0), (2.0, 6.0)]
    assert points(ax, "target outside") == [(0.0, 3.0)]
    assert ax.texts[0].get_text() == "2 of 3 inside (66.7 %), mean width 2.333"


def test_centers_give_the_order_and_are_drawn() -> None:
    ax = prediction_intervals([0.0, 0.0], [9.0, 9.0], [1.0, 2.0], centers=np.array([5.0, 4.0]))
    assert points(ax, "prediction") == [(0.0, 4.0), (1.0, 5.0)]
    assert points(ax, "target inside") == [(0.0, 2.0), (1.0, 1.0)]


def test_infinite_ends_reach_the_edge_and_empty_intervals_miss() -> None:
    ax = prediction_intervals([-INF, 1.0, NAN, -INF], [INF, INF, NAN, 3.0], [0.0, 2.0, 1.0, 4.0])
    bottom, top = ax.get_ylim()
    drawn = segments(ax)
    assert sorted(drawn) == [0, 1, 2]
    assert drawn[0][0] == 1.0  # sorted by the finite end: [1, inf), (-inf, 3], then the whole line, then none
    assert drawn[0][1] > top
    assert drawn[1][0] < bottom
    assert drawn[1][1] == 3.0
    assert drawn[2][0] < bottom < top < drawn[2][1]
    assert points(ax, "target outside") == [(1.0, 4.0), (3.0, 1.0)]
    assert "2 of 4 inside (50.0 %), mean width inf" in ax.texts[0].get_text()


def test_accepts_columns_and_leaves_arguments_as_they_were() -> None:
    lower, upper, targets = (torch.tensor(column).unsqueeze(1) for column in ([1.0, 0.0], [2.0, 1.0], [1.5, 3.0]))
    before = [column.clone() for column in (lower, upper, targets)]
    prediction_intervals(lower, upper, targets)
    assert all(torch.equal(a, b) for a, b in zip(before, (lower, upper, targets), strict=True))


def test_draws_on_the_given_axes_and_returns_them() -> None:
    figure, ax = plt.subplots()
    assert prediction_intervals([0.0], [1.0], [0.5], ax, title="T", xlabel="x", ylabel="y", legend=False) is ax
    assert plt.get_fignums() == [figure.number]
    assert (ax.get_title(loc="left"), ax.get_xlabel(), ax.get_ylabel()) == ("T", "x", "y")
    assert ax.get_legend() is None


def test_refuses_shapes_that_do_not_fit() -> None:
    with pytest.raises(ShapeError, match="`targets` has 3 rows, `lower` has 2"):
        prediction_intervals([0.0, 1.0], [1.0, 2.0], [1.0, 2.0, 3.0])
    with pytest.raises(ShapeError, match=r"`lower` must have shape \(rows,\); got \(2, 2\)"):
        prediction_intervals(torch.zeros(2, 2), [1.0, 2.0], [1.0, 2.0])
    with pytest.raises(ShapeError, match="at least one row"):
        prediction_intervals([], [], [])
    with pytest.raises(NotFiniteError, match="`targets` must be finite; 1 of 2"):
        prediction_intervals([0.0, 1.0], [1.0, 2.0], [1.0, NAN])


ENDS = st.sampled_from([-INF, INF, NAN, -1e6, 0.0, 1.0])


@settings(max_examples=15)
@given(st.lists(st.tuples(ENDS, ENDS, st.sampled_from([-5.0, 0.0, 0.0, 1e6])), min_size=1, max_size=8))
def test_any_intervals_can_be_drawn(rows: list[tuple[float, float, float]]) -> None:
    lower, upper, targets = (list(column) for column in zip(*rows, strict=True))
    ax = prediction_intervals(lower, upper, targets)
    ax.figure.savefig(io.BytesIO(), format="png", dpi=30)
    plt.close(ax.figure)
    hits = sum(low <= y <= high for low, high, y in rows)
    assert ax.texts[0].get_text().startswith(f"{hits} of {len(rows)} inside")
