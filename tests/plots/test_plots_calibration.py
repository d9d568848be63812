"""Calibration curves and PIT histograms show the numbers of their tables."""

import io

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.patches import Rectangle
from picture_checks import band, keys, line
from scipy.stats import binom

from credibly.core.errors import NotFiniteError, ShapeError
from credibly.metrics.regression_calibration import (
    CalibrationCurve,
    PITHistogram,
    central_calibration_curve,
    one_sided_calibration_curve,
    pit_histogram,
)
from credibly.plots.calibration_curve import calibration_curve
from credibly.plots.pit_histogram import pit_histogram as draw_pit_histogram

PITS = torch.tensor([0.03, 0.11, 0.12, 0.35, 0.36, 0.5, 0.77, 0.98], dtype=torch.float64)


@pytest.mark.parametrize("simultaneous", [False, True])
def test_curve_and_band_are_those_of_the_table(simultaneous: bool) -> None:
    table = one_sided_calibration_curve(PITS, confidence=0.9)
    ax = calibration_curve(table, simultaneous=simultaneous)
    np.testing.assert_array_equal(line(ax, "observed"), np.stack([table.levels, table.observed]))
    low, high = table.simultaneous() if simultaneous else (table.lower, table.upper)
    drawn = band(ax, "90 % band" if simultaneous else "90 % interval")
    expected = zip(table.levels.tolist(), low.tolist(), high.tolist(), strict=True)
    assert drawn == {level: (one, two) for level, one, two in expected}
    assert [text.get_text() for text in ax.texts] == ["n = 8"]
    np.testing.assert_array_equal(ax.lines[0].get_data(), [[0, 1], [0, 1]])


def test_several_curves_are_named_in_order() -> None:
    tables = {"before": central_calibration_curve(PITS), "after": central_calibration_curve(PITS[:4])}
    ax = calibration_curve(tables, xlabel="x", ylabel="y")
    assert keys(ax) == ["before", "after"]
    for name, table in tables.items():
        np.testing.assert_array_equal(line(ax, name)[1], table.observed)
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("x", "y")
    assert not ax.texts  # of different sizes


def test_refuses_curves_that_are_none() -> None:
    empty = torch.empty(0, dtype=torch.float64)
    with pytest.raises(ShapeError, match=r"`levels` must have shape \(rows,\), of at least one row; got \(0,\)"):
        calibration_curve(CalibrationCurve(empty, empty, empty.long(), 3, empty, empty, 0.9))
    table = one_sided_calibration_curve(PITS, levels=[0.5])
    wrong = CalibrationCurve(table.levels, table.levels * torch.nan, table.counts, 8, table.lower, table.upper, 0.9)
    with pytest.raises(NotFiniteError, match="`observed` must be finite"):
        calibration_curve(wrong)
    with pytest.raises(ShapeError, match="`tables` must hold at least one table"):
        calibration_curve({})
    assert plt.get_fignums() == []


def test_bars_and_band_of_the_histogram_are_those_of_the_table() -> None:
    table = pit_histogram(PITS, num_bins=4, confidence=0.8)
    ax = draw_pit_histogram(table)
    bars = [bar for bar in ax.patches if isinstance(bar, Rectangle) and bar.get_label() != "80 % if calibrated"]
    np.testing.assert_allclose([bar.get_height() for bar in bars], table.counts / 2.0)
    np.testing.assert_allclose([bar.get_x() for bar in bars], table.edges[:-1])
    (region,) = [patch for patch in ax.patches if patch.get_label() == "80 % if calibrated"]
    assert region.get_y() * 2 == binom(8, 0.25).ppf(0.1)
    assert (region.get_y() + region.get_height()) * 2 == binom(8, 0.25).ppf(0.9)
    assert [text.get_text() for text in ax.texts] == ["n = 8"]
    assert keys(draw_pit_histogram(table, band=False)) == ["observed"]


def test_refuses_a_histogram_of_nothing() -> None:
    edges, nothing = torch.tensor([0.0, 0.5, 1.0]), torch.zeros(2, dtype=torch.int64)
    with pytest.raises(ValueError, match="`table` counts no values"):
        draw_pit_histogram(PITHistogram(edges, nothing, 0.0, 0, 0, 0.95))
    with pytest.raises(ShapeError, match="`edges` must have shape"):
        draw_pit_histogram(PITHistogram(edges[:0], nothing[:0], 1.0, 0, 0, 0.95))
    assert plt.get_fignums() == []


@settings(max_examples=6)
@given(st.lists(st.sampled_from([0.0, 1e-9, 0.3, 0.5, 1.0]), min_size=1, max_size=6), st.sampled_from([1, 2, 40]))
def test_any_pits_can_be_drawn(pits: list[float], num_bins: int) -> None:
    figure, axes = plt.subplots(1, 2, figsize=(6, 3))
    calibration_curve(one_sided_calibration_curve(pits, levels=[0.5]), axes[0])
    draw_pit_histogram(pit_histogram(pits, num_bins=num_bins), axes[1])
    figure.savefig(io.BytesIO(), format="png", dpi=30)
    plt.close(figure)
