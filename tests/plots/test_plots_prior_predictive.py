"""Pictures of what a prior predicts: quantiles of the draws, and histograms of data sets."""

import io

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from picture_checks import band, keys, line

from credibly.core.errors import NotFiniteError, ShapeError
from credibly.plots.prior_predictive import prior_predictive, prior_predictive_histogram

X = torch.tensor([2.0, 0.0, 1.0], dtype=torch.float64)
DRAWS = torch.arange(11, dtype=torch.float64)[:, None] * torch.tensor([1.0, -1.0, 0.5], dtype=torch.float64)


def test_bands_and_lines_are_quantiles_and_draws_in_order_of_the_input() -> None:
    ax = prior_predictive(X, DRAWS, levels=(0.2, 0.8), num_functions=2)
    order = [1, 2, 0]
    np.testing.assert_array_equal(line(ax, "median"), [[0.0, 1.0, 2.0], DRAWS.median(0).values[order].tolist()])
    for level in (0.2, 0.8):
        ends = np.quantile(DRAWS[:, order], [(1 - level) / 2, (1 + level) / 2], axis=0)
        drawn = band(ax, f"{100 * level:g} % of draws")
        np.testing.assert_allclose([drawn[x] for x in (0.0, 1.0, 2.0)], ends.T)
    lines = [artist.get_ydata() for artist in ax.lines if artist.get_label() != "median"]
    np.testing.assert_array_equal(lines, DRAWS[[0, 5]][:, order])
    assert keys(ax) == ["80 % of draws", "20 % of draws", "median", "draws"]


def test_observed_rows_lie_inside_the_picture() -> None:
    ax = prior_predictive(X, DRAWS, observed=([5.0, -1.0], [[40.0], [3.0]]))
    np.testing.assert_array_equal(line(ax, "observed"), [[5.0, -1.0], [40.0, 3.0]])
    assert ax.get_ylim()[1] > 40
    assert ax.get_xlim() == (-1.0, 5.0)


def test_one_wild_draw_does_not_set_the_height() -> None:
    wild = torch.cat([DRAWS.repeat(10, 1), torch.full((1, 3), 1e9, dtype=torch.float64)])
    assert prior_predictive(X, wild).get_ylim()[1] < 20


def test_refuses_what_is_no_set_of_functions() -> None:
    with pytest.raises(ShapeError, match="`draws` has 3 rows, `inputs` has 2"):
        prior_predictive(X[:2], DRAWS)
    with pytest.raises(ShapeError, match="at least two different inputs"):
        prior_predictive([1.0], DRAWS[:, :1])
    with pytest.raises(ShapeError, match=r"`draws` must have shape \(num_draws, rows\)"):
        prior_predictive(X, DRAWS[:0])
    with pytest.raises(NotFiniteError, match="`draws` must be finite; 1 of 33"):
        prior_predictive(X, torch.where(DRAWS == 10, torch.inf, DRAWS))
    with pytest.raises(NotFiniteError, match="`inputs` must be finite"):
        prior_predictive(X * torch.nan, DRAWS)
    for levels in ((), (0.5, 1.0)):
        with pytest.raises(ValueError, match="`levels` must lie between 0 and 1"):
            prior_predictive(X, DRAWS, levels=levels)
    with pytest.raises(ValueError, match="`num_functions` must be a whole number"):
        prior_predictive(X, DRAWS, num_functions=0)
    plt.close("all")


def stairs(ax: plt.Axes, label: str) -> tuple[np.ndarray, np.ndarray]:
    (found,) = [patch for patch in ax.patches if patch.get_label() == label]
    return found.get_data().values, found.get_data().edges


def test_whole_numbers_are_counted_at_whole_numbers() -> None:
    draws = torch.tensor([[0, 1, 1, 2], [1, 1, 2, 2]])
    ax = prior_predictive_histogram(draws, observed=[0, 3])
    values, edges = stairs(ax, "predicted")
    np.testing.assert_array_equal(edges, [-0.5, 0.5, 1.5, 2.5, 3.5])
    np.testing.assert_allclose(values, [0.125, 0.5, 0.375, 0.0])
    np.testing.assert_allclose(stairs(ax, "observed")[0], [0.5, 0, 0, 0.5])
    assert not ax.texts


def test_band_holds_most_histograms_and_says_what_is_outside() -> None:
    draws = torch.randn(200, 50, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    ax = prior_predictive_histogram(draws, num_bins=8, level=0.5)
    values, edges = stairs(ax, "predicted")
    rows = np.stack([np.histogram(row, edges)[0] / (50 * np.diff(edges)) for row in draws.numpy()])
    np.testing.assert_allclose(values, rows.mean(0))
    (container,) = ax.containers
    low, high = np.quantile(rows, [0.25, 0.75], axis=0)
    np.testing.assert_allclose([bar.get_y() for bar in container], low)
    np.testing.assert_allclose([bar.get_y() + bar.get_height() for bar in container], high)
    outside = float(((draws < edges[0]) | (draws > edges[-1])).double().mean())
    assert ax.texts[0].get_text() == f"{100 * outside:.2g} % of draws outside"
    assert edges[0] == np.quantile(draws, 0.005)


def test_refuses_histograms_of_nothing() -> None:
    with pytest.raises(ShapeError, match=r"`draws` must have shape \(num_draws, rows\)"):
        prior_predictive_histogram(torch.zeros(3, 0))
    with pytest.raises(ShapeError, match=r"`observed` must have shape \(rows,\)"):
        prior_predictive_histogram(DRAWS, observed=[])
    with pytest.raises(NotFiniteError, match="`observed` must be finite"):
        prior_predictive_histogram(DRAWS, observed=[float("nan")])
    with pytest.raises(ValueError, match="`level` must lie between 0 and 1; got 1"):
        prior_predictive_histogram(DRAWS, level=1)
    with pytest.raises(ValueError, match="`num_bins` must be a whole number"):
        prior_predictive_histogram(DRAWS, num_bins=0)
    assert plt.get_fignums() == []


@settings(max_examples=5)
@given(st.lists(st.sampled_from([-1e6, 0.0, 0.25, 3.0, 1e12]), min_size=1, max_size=5), st.booleans())
def test_any_draws_can_be_drawn(values: list[float], observed: bool) -> None:
    ax = prior_predictive_histogram([values], observed=values[:1] if observed else None)
    ax.figure.savefig(io.BytesIO(), format="png", dpi=30)
    plt.close(ax.figure)
