"""The distribution function just below a value: the cdf where it does not jump, brute force elsewhere."""

import pytest
import torch
from distribution_cases import ALL, QUANTILES, WITH_DENSITY, build, numbers, targets
from torch.distributions import Normal, Poisson

from credibly.core.errors import NotSupportedError
from credibly.distributions.affine import AffineView
from credibly.distributions.cumulative import cdf
from credibly.distributions.empirical import Empirical
from credibly.distributions.kinds import kind
from credibly.distributions.mixture import MixturePredictive
from credibly.distributions.pit import cdf_below, draw_cdf_limits
from credibly.distributions.quantiles import QuantileForecast


@pytest.mark.parametrize("name", ALL)
def test_below_is_the_cdf_where_it_is_continuous_and_that_of_one_less_for_whole_numbers(name, dtype, device):
    d = build(name, dtype, device)
    y = targets(d).to(dtype)
    below = cdf_below(d, y)
    assert below.shape == y.shape
    if name in WITH_DENSITY:
        torch.testing.assert_close(below, cdf(d, y if kind(d) == "real" else y - 1), rtol=0, atol=0)
    if kind(d) != "real":  # between whole numbers F does not jump
        torch.testing.assert_close(cdf_below(d, y + 0.5), cdf(d, y), rtol=0, atol=0)
        assert bool((below < cdf(d, y)).all())


def test_draws_count_strictly_below(dtype):
    draws = numbers(7, 4, 2, dtype=dtype).mul(3).round()
    log_weights = numbers(7, dtype=dtype, low=-2.0, high=0.0)
    grid = torch.arange(-4, 5).to(dtype).reshape(-1, 1, 1).expand(-1, 4, 2)
    for d in (Empirical(draws), Empirical(draws, log_weights)):
        weights = d.log_weights.exp()
        expected = ((draws < grid.unsqueeze(1)) * weights.reshape(-1, 1, 1)).sum(1)
        torch.testing.assert_close(cdf_below(d, grid), expected)
        view = AffineView(d, 5.0, 2.0)
        torch.testing.assert_close(cdf_below(view, 5 + 2 * grid), expected)


def test_quantiles_jump_where_they_coincide(dtype):
    d = QuantileForecast([0.1, 0.25, 0.5, 0.9], torch.tensor([[0.0, 1.0, 1.0, 3.0], [0.0, 1.0, 2.0, 3.0]], dtype=dtype))
    values = torch.tensor([[0.0, 0.0], [0.5, 0.5], [1.0, 1.0], [2.0, 2.0], [3.0, 3.0]], dtype=dtype)
    expected = torch.tensor([[0.1, 0.1], [0.175, 0.175], [0.25, 0.25], [0.7, 0.5], [0.9, 0.9]], dtype=dtype)
    torch.testing.assert_close(cdf_below(d, values), expected)
    assert cdf(d, values)[2, 0] == 0.5


@pytest.mark.parametrize("name", QUANTILES)
def test_beyond_the_outer_quantiles_nothing_is_known(name, dtype):
    d = build(name, dtype, torch.device("cpu"))
    with pytest.raises(ValueError, match="outer quantiles"):
        cdf_below(d, 1e6)


def test_every_draw_by_itself(dtype):
    rates = numbers(3, 4, dtype=dtype, low=0.5, high=5.0)
    y = torch.tensor([0.0, 1.0, 2.0, 3.0], dtype=dtype)
    below, at = draw_cdf_limits(MixturePredictive(Poisson(rates, validate_args=False)), y)
    torch.testing.assert_close(at, torch.stack([cdf(Poisson(rate), y) for rate in rates]))
    torch.testing.assert_close(below, torch.stack([cdf(Poisson(rate), y - 1) for rate in rates]))
    draws = torch.tensor([[0.0, 1.0], [1.0, 1.0]], dtype=dtype)
    below, at = draw_cdf_limits(Empirical(draws), torch.tensor([1.0, 1.0], dtype=dtype))
    assert below.tolist() == [[1, 0], [0, 0]]
    assert at.tolist() == [[1, 1], [1, 1]]
    with pytest.raises(NotSupportedError, match="draw_cdf_limits is not available for Normal"):
        draw_cdf_limits(Normal(torch.zeros(2), torch.ones(2)), torch.zeros(2))
