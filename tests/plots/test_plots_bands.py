"""The consistency band against scipy's binomial distribution, and against its own definition."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from credibly.metrics.bins import BinTable
from credibly.plots.bands import consistency_band


def table_of(counts: list[int], confidence: list[float]) -> BinTable:
    edges = torch.linspace(0, 1, len(counts) + 1, dtype=torch.float64)
    means = torch.tensor(confidence, dtype=torch.float64)
    return BinTable(edges, torch.tensor(counts), means, torch.zeros_like(means))


@pytest.mark.parametrize("level", [0.5, 0.9, 0.95, 0.999])
def test_equals_binomial_quantiles(level: float) -> None:
    counts = [n for n in (1, 2, 3, 7, 50, 51, 1000, 1_000_000) for _ in range(5)]
    confidence = [0.001, 0.1, 0.5, 0.75, 0.999] * 8
    low, high = consistency_band(table_of(counts, confidence), level)
    expected = binom.ppf([[(1 - level) / 2], [(1 + level) / 2]], counts, confidence) / counts
    np.testing.assert_allclose([low, high], expected, rtol=1e-12)


@given(st.integers(1, 60), st.floats(0.001, 0.999), st.floats(0.01, 0.99))
def test_holds_its_probability_and_no_end_can_be_spared(n: int, confidence: float, level: float) -> None:
    low, high = consistency_band(table_of([n], [confidence]), level)
    law = binom(n, confidence)
    first, last = round(low[0] * n), round(high[0] * n)
    tail, slack = (1 - level) / 2, 1e-12
    assert law.cdf(last) - law.cdf(first - 1) >= level - slack
    assert law.cdf(first - 1) <= tail + slack
    assert law.sf(last) <= tail + slack
    assert law.cdf(first) >= tail - slack
    assert law.sf(last - 1) >= tail - slack


def test_certain_forecasts_have_no_band_and_empty_bins_none() -> None:
    low, high = consistency_band(table_of([4, 0, 3], [0.0, 0.0, 1.0]))
    np.testing.assert_array_equal(low, [0.0, np.nan, 1.0])
    np.testing.assert_array_equal(high, [0.0, np.nan, 1.0])


@pytest.mark.parametrize("level", [0.0, 1.0, -0.1, float("nan")])
def test_refuses_levels_that_are_none(level: float) -> None:
    with pytest.raises(ValueError, match="`level` must lie between 0 and 1"):
        consistency_band(table_of([1], [0.5]), level)
