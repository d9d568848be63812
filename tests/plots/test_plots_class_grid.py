"""The grid shows every class once, each as its own reliability diagram would."""

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from picture_checks import words_fit

from credibly.core.errors import ShapeError
from credibly.distributions.entry import from_probs
from credibly.metrics.bins import BinTable
from credibly.metrics.calibration_error import classwise_bins
from credibly.plots.class_grid import class_reliability_grid


def table(num_classes: int = 3, rows: int = 60) -> BinTable:
    logits = torch.randn(rows, num_classes, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    targets = torch.arange(rows) % num_classes
    return classwise_bins(from_probs(logits.softmax(-1)), targets, num_bins=5)


def points(ax: plt.Axes) -> np.ndarray:
    (found,) = [child for child in ax.collections if child.get_label() == "observed"]
    return np.asarray(found.get_offsets())


def test_each_class_has_its_own_points_and_counts() -> None:
    bins = table()
    axes = class_reliability_grid(bins, ["a", "b", "c"])
    assert axes.shape == (3,)
    assert [ax.get_title() for ax in axes] == ["a", "b", "c"]
    for index, ax in enumerate(axes):
        some = bins.counts[index] > 0
        expected = torch.stack([bins.confidence[index][some], bins.frequency[index][some]], 1)
        np.testing.assert_array_equal(points(ax), expected)
        (strip,) = ax.child_axes
        assert [bar.get_height() for bar in strip.patches] == bins.counts[index][some].tolist()
        assert strip.get_ylim() == axes[0].child_axes[0].get_ylim()
        assert ax.texts[0].get_text() == f"ECE {float(bins.error()[index]):.3f}"


@pytest.mark.parametrize(("number", "columns"), [(2, 2), (4, 4), (7, 4), (26, 6)])
def test_labels_stand_outside_only(number: int, columns: int) -> None:
    axes = class_reliability_grid(table(number), legend=False, counts=False, band=None)
    assert len(axes) == len(axes[0].figure.axes) == number
    for index, ax in enumerate(axes):
        assert bool(ax.get_ylabel()) == (index % columns == 0)
        assert bool(ax.get_xlabel()) == (index + columns >= number)
    plt.close("all")


def test_words_of_the_figure_fit() -> None:
    axes = class_reliability_grid(table(6), [f"a class of some name {index}" for index in range(6)], title="T " * 60)
    words_fit(list(axes))
    figure = axes[0].figure
    renderer = figure.canvas.get_renderer()
    (legend,) = figure.legends
    top = figure._suptitle.get_window_extent(renderer)
    assert [text.get_text() for text in legend.get_texts()] == ["observed", "gap", "95 % if calibrated"]
    assert legend.get_window_extent(renderer).y1 <= axes[-1].xaxis.label.get_window_extent(renderer).y0 + 1
    assert top.y0 >= axes[0].title.get_window_extent(renderer).y1 - 1
    assert top.x0 >= 0
    assert top.x1 <= figure.bbox.x1


def test_draws_on_given_axes_of_any_arrangement() -> None:
    figure, given = plt.subplots(2, 2, layout="constrained")
    axes = class_reliability_grid(table(), axes=given)
    assert list(axes) == list(given.flat[:3])
    assert plt.get_fignums() == [figure.number]
    assert not given[1, 1].has_data()
    assert not figure.legends
    assert [bool(ax.get_xlabel()) for ax in axes] == [False, True, True]
    loose = [figure.add_axes((0.1 * place, 0, 0.1, 0.1)) for place in range(3)]
    assert list(class_reliability_grid(table(), axes=loose)) == loose


def test_refuses_what_does_not_fit() -> None:
    bins = table()
    one = BinTable(bins.edges[0], bins.counts[0], bins.confidence[0], bins.frequency[0])
    with pytest.raises(ShapeError, match=r"`table` must hold one row of bins a class.*shape \(5,\)"):
        class_reliability_grid(one)
    with pytest.raises(ShapeError, match="`names` must name 3 classes; got 2"):
        class_reliability_grid(bins, ["a", "b"])
    with pytest.raises(ShapeError, match="`axes` must hold at least 3 Axes, one a class; got 1"):
        class_reliability_grid(bins, axes=[plt.figure().add_subplot()])
    with pytest.raises(ShapeError, match="at least one forecast"):
        class_reliability_grid(
            BinTable(*(part * 0 for part in (bins.edges, bins.counts, bins.confidence, bins.frequency)))
        )
