"""The reliability diagram shows the numbers of its table, all of them and no others."""

import io

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.axes import Axes

from credibly.core.errors import ShapeError
from credibly.distributions.entry import from_probs
from credibly.metrics.bins import BinTable
from credibly.metrics.calibration_error import event_bins
from credibly.plots.bands import consistency_band
from credibly.plots.reliability import reliability_diagram

PROBS = [0.05, 0.15, 0.32, 0.33, 0.35, 0.61, 0.64, 0.97, 0.98, 1.0]
TARGETS = [0, 1, 0, 0, 1, 1, 0, 1, 1, 0]


def table(num_bins: int = 10) -> BinTable:
    return event_bins(from_probs(torch.tensor(PROBS, dtype=torch.float64)), torch.tensor(TARGETS), num_bins=num_bins)


def labelled(ax: Axes, label: str) -> np.ndarray:
    """The data of what the legend calls so: points (n, 2) or segments (n, 2, 2)."""
    (artist,) = [child for child in ax.collections if child.get_label() == label]
    return np.asarray(artist.get_offsets() if label == "observed" else artist.get_segments())


def test_points_gaps_band_and_counts_are_those_of_the_table() -> None:
    bins = table()
    ax = reliability_diagram(bins, band=0.8)
    some = bins.counts > 0
    confidence, frequency = bins.confidence[some].numpy(), bins.frequency[some].numpy()
    np.testing.assert_allclose(labelled(ax, "observed"), np.column_stack([confidence, frequency]))
    gaps = labelled(ax, "gap")
    np.testing.assert_allclose(gaps[:, :, 0], np.column_stack([confidence, confidence]))
    np.testing.assert_allclose(gaps[:, :, 1], np.column_stack([confidence, frequency]))
    low, high = consistency_band(bins, 0.8)
    np.testing.assert_allclose(
        labelled(ax, "80 % if calibrated")[:, :, 1], np.column_stack([low[some.numpy()], high[some.numpy()]])
    )
    (strip,) = ax.child_axes
    drawn = {round(bar.get_x(), 12): bar.get_height() for bar in strip.patches}
    assert drawn == {round(float(bins.edges[b]), 12): int(bins.counts[b]) for b in some.nonzero().flatten()}


def test_names_the_calibration_error_where_nothing_is_drawn() -> None:
    bins = table()
    assert [text.get_text() for text in reliability_diagram(bins).texts] == [f"ECE {float(bins.error()):.3f}"]
    free = BinTable(bins.edges, bins.counts, bins.confidence, bins.confidence)
    taken = BinTable(bins.edges, bins.counts, bins.confidence, torch.zeros_like(bins.confidence))
    assert reliability_diagram(free, band=None).texts[0].get_position() == (0.97, 0.03)
    assert reliability_diagram(taken, band=None).texts[0].get_position() == (0.03, 0.97)


def test_empty_bins_are_not_drawn() -> None:
    bins = table()
    assert bool((bins.counts == 0).any())
    assert len(labelled(reliability_diagram(bins), "observed")) == int((bins.counts > 0).sum())


def test_draws_on_the_given_axes_and_returns_them() -> None:
    figure, (left, right) = plt.subplots(1, 2)
    (line,) = right.plot([0, 1], [1, 0])
    assert reliability_diagram(table(), right, title="T") is right
    assert plt.get_fignums() == [figure.number]
    assert not left.has_data()
    assert right.get_title() == "T"
    assert line.get_clip_on()


def test_options_leave_out_what_they_say() -> None:
    ax = reliability_diagram(table(), counts=False, legend=False, band=None)
    assert ax.child_axes == []
    assert ax.get_legend() is None
    assert {artist.get_label() for artist in ax.collections} == {"observed", "gap"}
    legend = reliability_diagram(table()).get_legend()
    assert [text.get_text() for text in legend.get_texts()] == ["observed", "gap", "95 % if calibrated"]


def test_leaves_the_table_as_it_was() -> None:
    bins = table()
    before = [column.clone() for column in (bins.edges, bins.counts, bins.confidence, bins.frequency)]
    reliability_diagram(bins)
    for column, old in zip((bins.edges, bins.counts, bins.confidence, bins.frequency), before, strict=True):
        assert torch.equal(column, old)


def test_refuses_tables_of_several_classes_and_of_nothing() -> None:
    bins = table()
    stacked = (part.expand(2, -1) for part in (bins.edges, bins.counts, bins.confidence, bins.frequency))
    with pytest.raises(ShapeError, match=r"`table` must be of one class.*shape \(2, 10\)"):
        reliability_diagram(BinTable(*stacked))
    with pytest.raises(ShapeError, match="at least one forecast; `table` counts none"):
        reliability_diagram(BinTable(bins.edges, 0 * bins.counts, bins.confidence, bins.frequency))
    assert plt.get_fignums() == []


@settings(max_examples=15)
@given(
    st.lists(st.tuples(st.sampled_from([0.0, 1e-9, 0.3, 0.5, 1.0]), st.booleans()), min_size=1, max_size=12),
    st.sampled_from([1, 2, 15]),
)
def test_any_table_can_be_drawn(rows: list[tuple[float, bool]], num_bins: int) -> None:
    probs = torch.tensor([p for p, _ in rows], dtype=torch.float64)
    bins = event_bins(from_probs(probs), torch.tensor([y for _, y in rows]), num_bins=num_bins)
    ax = reliability_diagram(bins)
    ax.figure.savefig(io.BytesIO(), format="png", dpi=30)
    plt.close(ax.figure)


@pytest.mark.parametrize("width", [2.2, 4.2])
def test_nothing_is_cut_off_and_words_do_not_overlap(width: float) -> None:
    figure, ax = plt.subplots(figsize=(width, 1.3 * width), layout="constrained")
    reliability_diagram(table(), ax, title="Title", legend=width > 3)
    figure.canvas.draw()
    page, renderer = figure.bbox, figure.canvas.get_renderer()
    title, word = ax.title.get_window_extent(renderer), ax.texts[0].get_window_extent(renderer)
    strip = ax.child_axes[0].get_window_extent(renderer)
    assert title.y0 >= strip.y1
    assert title.y1 <= page.y1 + 1
    assert not word.overlaps(strip)


@pytest.mark.parametrize("columns", [1, 2])
def test_nothing_is_cut_off_in_a_figure_without_a_layout_engine(columns: int) -> None:
    figure, axes = plt.subplots(1, columns, squeeze=False)
    for ax in axes.flat:
        reliability_diagram(table(), ax, title="a title")
    figure.canvas.draw()
    inside = figure.get_tightbbox()
    width, height = figure.get_size_inches()
    assert inside.ymin >= 0
    assert inside.ymax <= height
    assert inside.xmin >= 0
    assert width > 0
