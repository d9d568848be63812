"""The smooth reliability diagram draws its table."""

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from picture_checks import band, keys, line

from credibly.core.errors import NotFiniteError, ShapeError
from credibly.distributions.entry import from_probs
from credibly.metrics.smooth_curve import SmoothCurve, smooth_curve
from credibly.plots.smooth_reliability import smooth_reliability

POINTS = torch.linspace(0, 1, 6, dtype=torch.float64)


def table(**parts: torch.Tensor) -> SmoothCurve:
    curve = torch.tensor([torch.nan, 0.1, 0.3, 0.5, 0.9, 1.0], dtype=torch.float64)
    columns = {"confidence": POINTS, "frequency": curve, "lower": curve - 0.05, "upper": (curve + 0.05).clamp(max=1)}
    columns |= {"density": torch.tensor([0.0, 0.5, 1.0, 2.0, 1.0, 1.0], dtype=torch.float64)} | parts
    error = torch.tensor(0.0625)
    return SmoothCurve(**columns, error=error, bandwidth=error, coverage=0.9, num_forecasts=9)


def test_curve_band_and_density_are_those_of_the_table() -> None:
    shown = table()
    ax = smooth_reliability(shown)
    np.testing.assert_array_equal(line(ax, "observed"), np.stack([shown.confidence, shown.frequency]))
    expected = zip(shown.confidence.tolist()[1:], shown.lower.tolist()[1:], shown.upper.tolist()[1:], strict=True)
    assert band(ax, "90 % interval") == {x: (low, high) for x, low, high in expected}
    gap = band(ax, "gap")
    assert {x: sorted([x, m]) for x, m in zip(POINTS.tolist()[1:], shown.frequency.tolist()[1:], strict=True)} == {
        x: list(ends) for x, ends in gap.items()
    }
    (strip,) = ax.child_axes
    (area,) = strip.collections
    assert {y for _, y in area.get_paths()[0].vertices.tolist()} == {0.0, 0.5, 1.0, 2.0}
    assert [text.get_text() for text in ax.texts] == ["smECE 0.062"]


def test_options_leave_out_what_they_say() -> None:
    ax = smooth_reliability(table(), band=False, density=False)
    assert keys(ax) == ["gap", "observed"]
    assert ax.child_axes == []


def test_pieces_too_short_to_be_seen_are_dots() -> None:
    certain = torch.tensor([0.0, 1.0], dtype=torch.float64).repeat(20)
    ax = smooth_reliability(smooth_curve(from_probs(certain), certain.long(), num_replicates=3, seed=0))
    (dots,) = [line.get_xydata() for line in ax.lines if line.get_marker() == "o"]
    np.testing.assert_allclose(dots, [[0, 0], [1, 1]], atol=0.005)
    assert [line.get_marker() for line in smooth_reliability(table()).lines] == ["None", "None"]


def test_refuses_tables_that_are_none() -> None:
    with pytest.raises(ShapeError, match=r"`confidence` must have shape \(rows,\)"):
        smooth_reliability(table(confidence=POINTS[:0]))
    with pytest.raises(NotFiniteError, match="`density` must be finite"):
        smooth_reliability(table(density=POINTS * torch.nan))
    assert plt.get_fignums() == []
