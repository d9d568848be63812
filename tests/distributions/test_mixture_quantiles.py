"""Quantiles of mixtures: how many evaluations they take, and that they are right for hard mixtures."""

import pytest
import torch
from torch.distributions import Normal

from credibly.distributions import mixture_cumulative, mixture_quantiles
from credibly.distributions.cumulative import cdf, icdf
from credibly.distributions.density import log_prob
from credibly.distributions.mixture import MixturePredictive
from credibly.distributions.rows import select

SPREADS = {"overlapping": 1.0, "touching": 0.1, "apart": 0.01, "far_apart": 1e-5}


@pytest.mark.parametrize("spread", SPREADS)
def test_both_bounds_of_a_mixture_in_twelve_evaluations(spread: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """90 % of 200 Gaussian components: where these are apart, both levels lie exactly on a step of the cdf."""
    calls = []

    def counted(*args: torch.Tensor) -> object:
        calls.append(1)
        return mixture_quantiles.mixture_gap(*args)

    monkeypatch.setattr(mixture_cumulative, "mixture_gap", counted)
    generator = torch.Generator().manual_seed(1)
    loc = torch.randn(200, 1000, generator=generator, dtype=torch.float64)
    width = SPREADS[spread] * (0.5 + torch.rand(200, 1000, generator=generator, dtype=torch.float64))
    mixture = MixturePredictive(Normal(loc, width, validate_args=False))
    rounding = 16 * torch.finfo(torch.float64).eps  # of two sums of 200 terms
    for q in (0.05, 0.95):
        for first in range(0, 1000, 250):  # one chunk of rows, so that calls are evaluations
            part = select(mixture, slice(first, first + 250))
            calls.clear()
            root = icdf(part, q)
            assert 1 <= len(calls) <= 12
            gap = (cdf(part, root) - q).abs()
            distance = gap / log_prob(part, root).exp() / part.stddev
            # where F is flat it is at the level but for the rounding of its sum, and nothing tells more
            assert bool(((distance <= 1e-8) | (gap <= rounding)).all())


def test_quantiles_of_hard_mixtures() -> None:
    """Few components of very different weights and widths, and one of no weight."""
    generator = torch.Generator().manual_seed(2)
    loc = 10 * torch.randn(5, 300, generator=generator, dtype=torch.float64)
    width = torch.exp(2 * torch.randn(5, 300, generator=generator, dtype=torch.float64))
    mixture = MixturePredictive(Normal(loc, width, validate_args=False), [0.0, -3.0, 2.0, -20.0, float("-inf")])
    for q in (1e-12, 0.05, 0.5, 0.88, 0.999):
        reached = cdf(mixture, icdf(mixture, q))
        torch.testing.assert_close(reached, torch.full_like(reached, q), rtol=1e-11, atol=0)
