"""The PIT of quantile forecasts, whose distribution function is known between the outer levels alone."""

import scipy.stats
import torch

from credibly import metrics
from credibly.distributions.quantiles import QuantileForecast


def test_beyond_the_outer_quantiles_u_spreads_the_mass_that_is_left(dtype: torch.dtype) -> None:
    d = QuantileForecast([0.1, 0.5, 0.8], torch.tensor([[0.0, 1.0, 2.0]], dtype=dtype).expand(5, 3))
    y = torch.tensor([-3.0, 0.0, 1.5, 2.0, 9.0], dtype=dtype)
    found = metrics.pit(d, y, u=torch.full((5,), 0.25))
    expected = torch.tensor([0.025, 0.1, 0.65, 0.8, 0.85], dtype=torch.float64)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


def test_it_is_uniform_when_the_quantiles_are_true() -> None:
    """Quantiles of a uniform, between which the forecast's straight lines are true; fails one time in 10^4."""
    rows = 4000
    levels = torch.tensor([0.2, 0.5, 0.7], dtype=torch.float64)
    d = QuantileForecast(levels, (4 * levels).expand(rows, 3))
    y = 4 * torch.rand(rows, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert scipy.stats.kstest(metrics.pit(d, y, seed=0).numpy(), "uniform").pvalue > 1e-4
