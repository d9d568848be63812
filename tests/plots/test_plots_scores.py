"""Score histograms count every row once, and name the AUROC."""

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from picture_checks import keys
from sklearn.metrics import roc_auc_score

from credibly.core.errors import NotFiniteError, ShapeError
from credibly.plots.scores import score_histograms

INF, NAN = float("inf"), float("nan")


def shares(ax: plt.Axes, name: str) -> tuple[np.ndarray, np.ndarray]:
    (found,) = [patch for patch in ax.patches if patch.get_label().startswith(name)]
    return found.get_data().values, found.get_data().edges


def test_bins_count_every_row_and_the_corner_names_the_auroc(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    inside, outside = (
        torch.randn(size, generator=generator, dtype=dtype) + shift for size, shift in ((90, 0), (60, 1))
    )
    ax = score_histograms(inside, outside, num_bins=12, names=("digits", "letters"), xlabel="entropy")
    for name, values in (("digits", inside), ("letters", outside)):
        drawn, edges = shares(ax, name)
        clipped = values.double().numpy().clip(edges[0], edges[-1])
        np.testing.assert_allclose(drawn, np.histogram(clipped, edges)[0] / len(values))
        assert drawn.sum() == pytest.approx(1)
    area = roc_auc_score([0] * 90 + [1] * 60, torch.cat([inside, outside]))
    assert [text.get_text() for text in ax.texts] == [f"AUROC {area:.3f}"]
    assert keys(ax) == ["digits (n = 90)", "letters (n = 60)"]
    assert ax.get_xlabel() == "entropy"


def test_infinite_scores_are_in_the_outermost_bins() -> None:
    ax = score_histograms([-INF, 0.0, 1.0], [INF, INF], num_bins=2)
    np.testing.assert_allclose(shares(ax, "inside")[0], [2 / 3, 1 / 3])
    np.testing.assert_allclose(shares(ax, "outside")[0], [0, 1])


def test_one_row_of_each_and_ties_can_be_drawn() -> None:
    ax = score_histograms([2.0], [2.0])
    assert ax.texts[0].get_text() == "AUROC 0.500"
    assert ax.get_xlim() == (1.5, 2.5)


def test_refuses_what_is_no_score() -> None:
    with pytest.raises(NotFiniteError, match="`scores_out` must not be NaN"):
        score_histograms([0.0], [NAN])
    with pytest.raises(NotFiniteError, match="must be finite to draw a histogram"):
        score_histograms([INF], [-INF])
    with pytest.raises(ShapeError, match=r"`scores_in` must have shape \(rows,\)"):
        score_histograms([], [1.0])
    with pytest.raises(ShapeError, match=r"`scores_out` must have shape \(rows,\)"):
        score_histograms([1.0], torch.zeros(2, 2))
    with pytest.raises(ValueError, match="`num_bins` must be a whole number"):
        score_histograms([1.0], [1.0], num_bins=0)
    assert plt.get_fignums() == []
