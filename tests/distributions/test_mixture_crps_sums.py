"""The CRPS of mixtures over draws: sums over counts, and integrals of the density, against the definition."""

import time

import numpy as np
import pytest
import torch
from torch.distributions import Beta, Binomial, Distribution, NegativeBinomial, Poisson, StudentT

from credibly.distributions.functions import cdf, crps
from credibly.distributions.mixture import MixturePredictive
from credibly.distributions.zero_inflated import ZeroInflated

ROWS, DRAWS, LAST = 7, 5, 4000


def uniform(*shape: int) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def negative_binomial(rows: int, draws: int, mean: float) -> NegativeBinomial:
    total = 1 + uniform(draws, rows)
    means = mean * (0.5 + uniform(draws, rows))
    return NegativeBinomial(total, logits=(means / total).log(), validate_args=False)


def count_components() -> dict[str, Distribution]:
    rate, mixed = 0.2 + 6 * uniform(DRAWS, ROWS), negative_binomial(ROWS, DRAWS, 3.0)
    return {
        "Poisson": Poisson(rate, validate_args=False),
        "NegativeBinomial": mixed,
        "Binomial": Binomial(torch.full_like(rate, 12.0), probs=rate / 7, validate_args=False),
        "ZeroInflated": ZeroInflated(mixed, rate - 3),
    }


@pytest.mark.parametrize("name", ["Poisson", "NegativeBinomial", "Binomial", "ZeroInflated"])
def test_equals_the_sum_over_all_counts(name: str) -> None:
    d = MixturePredictive(count_components()[name], [0.0, -1.0, -2.0, float("-inf"), 0.5])
    y = torch.tensor([0.0, 1, 2, 4, 8, 10, 12], dtype=torch.float64)
    counts = torch.arange(LAST, dtype=torch.float64).unsqueeze(-1)
    expected = (cdf(d, counts.expand(-1, ROWS)) - (y <= counts).double()).square().sum(0)
    torch.testing.assert_close(crps(d, y), expected, rtol=1e-10, atol=1e-10)


def test_a_target_far_above_and_rows_of_many_counts() -> None:
    total = torch.full((3, 2), 2.0, dtype=torch.float64)
    d = MixturePredictive(NegativeBinomial(total, logits=torch.tensor([0.0, 9.0]).double().expand(3, 2)))
    y = torch.tensor([5000.0, 3.0], dtype=torch.float64)
    torch.testing.assert_close(crps(d, y), crps(NegativeBinomial(total[0], logits=total.new_tensor([0.0, 9.0])), y))


def test_a_hundred_draws_of_a_hundred_rows_are_fast() -> None:
    """It took 20 s when every count cost an incomplete beta function; the bound leaves room for a busy machine."""
    d = MixturePredictive(negative_binomial(142, 100, 3.0))
    start = time.process_time()
    crps(d, torch.full((142,), 4.0, dtype=torch.float64))
    assert time.process_time() - start < 2.0


def real_components() -> dict[str, tuple[Distribution, torch.Tensor, tuple[float, float]]]:
    mean, precision = 0.1 + 0.8 * uniform(DRAWS, 3), 1 + 30 * uniform(DRAWS, 3)
    df = torch.full((DRAWS, 3), 4.0, dtype=torch.float64)
    inside = torch.tensor([0.02, 0.4, 0.9], dtype=torch.float64)
    return {
        "Beta": (Beta(mean * precision, (1 - mean) * precision, validate_args=False), inside, (0.0, 1.0)),
        "Beta without end": (Beta(0.3 * mean, 0.5 + 0 * mean, validate_args=False), inside, (0.0, 1.0)),
        "StudentT": (StudentT(df, 4 * mean, 0.2 + precision / 30, validate_args=False), 5 * inside, (-1e5, 1e5)),
        "narrow StudentT": (StudentT(df, 9 * mean, 1e-3 * precision, validate_args=False), 5 * inside, (-1e5, 1e5)),
    }


def by_panels(d: MixturePredictive, y: torch.Tensor, means: torch.Tensor, low: float, high: float) -> torch.Tensor:
    """The integral of (F - 1{y <= x})^2 by Gauss's rule on panels that crowd around every mean and end."""
    steps = torch.cat([10.0 ** torch.arange(-6, 5.1, 0.25, dtype=torch.float64), torch.zeros(1).double()])
    centres = torch.cat([means.flatten(), y, torch.tensor([low, high]).double()])
    edges = torch.cat([(centres.unsqueeze(-1) + sign * steps).flatten() for sign in (-1, 1)]).clamp(low, high).unique()
    nodes, weights = (torch.from_numpy(a) for a in np.polynomial.legendre.leggauss(6))
    half = edges.diff() / 2
    x = ((edges[:-1] + half).unsqueeze(-1) + half.unsqueeze(-1) * nodes).flatten().unsqueeze(-1).expand(-1, len(y))
    squares = (cdf(d, x) - (x >= y).double()).square()
    return (half.unsqueeze(-1) * weights).flatten() @ squares


@pytest.mark.parametrize("name", ["Beta", "Beta without end", "StudentT", "narrow StudentT"])
def test_integrals_of_the_density_equal_those_of_the_cdf(name: str) -> None:
    components, y, (low, high) = real_components()[name]
    d = MixturePredictive(components)
    torch.testing.assert_close(crps(d, y), by_panels(d, y, components.mean, low, high), rtol=1e-6, atol=0)
