"""Mixtures with weights of their own in every row: against scipy, brute force and themselves."""

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from torch.distributions import Categorical, Independent, LogNormal, MixtureSameFamily, Normal, Poisson

from credibly.core.errors import NotSupportedError, SupportError
from credibly.distributions import functions as waist
from credibly.distributions.affine import affine
from credibly.distributions.mixture import MixturePredictive

ROWS, PARTS = 4, 3


def mixture(dtype, *batch, vector=False, family=Normal):
    generator = torch.Generator().manual_seed(2)
    shape = (*batch, PARTS) + ((2,) if vector else ())
    logits, loc = (torch.randn(*s, generator=generator, dtype=torch.float64) for s in ((*batch, PARTS), shape))
    scale = torch.rand(*shape, generator=generator, dtype=torch.float64) + 0.1
    parts = family(loc.to(dtype), scale.to(dtype), validate_args=False)
    parts = Independent(parts, 1, validate_args=False) if vector else parts
    return MixtureSameFamily(Categorical(logits=logits.to(dtype), validate_args=False), parts, validate_args=False)


@pytest.mark.parametrize("vector", [False, True])
def test_densities_and_moments_are_torchs(vector, dtype):
    d = mixture(dtype, ROWS, vector=vector)
    y = d.sample()
    torch.testing.assert_close(waist.log_prob(d, y), d.log_prob(y))
    torch.testing.assert_close(waist.mean(d), d.mean)
    torch.testing.assert_close(waist.variance(d), d.variance)


@pytest.mark.parametrize("vector", [False, True])
def test_cdf_is_the_weighted_mean_and_quantiles_are_its_inverse_into_the_tails(vector, dtype):
    d = mixture(dtype, ROWS, vector=vector)
    weights = d.mixture_distribution.probs.double().numpy()
    loc, scale = (
        getattr(d.component_distribution if not vector else d.component_distribution.base_dist, n)
        for n in ("loc", "scale")
    )
    y = d.sample()
    axis = -2 if vector else -1
    each = stats.norm(loc.double().numpy(), scale.double().numpy()).cdf(np.expand_dims(y.double().numpy(), axis))
    expected = ((weights[..., None] if vector else weights) * each).sum(axis)
    np.testing.assert_allclose(waist.cdf(d, y), expected, rtol=64 * torch.finfo(dtype).eps)
    for level in (1e-12, 1e-3, 0.5, 0.99):
        found = waist.icdf(d, level)
        assert found.dtype == dtype
        back = waist.cdf(waist.to(d, dtype=torch.float64), found.double())
        loss = 1e-4 if dtype == torch.float32 else 1e-12
        torch.testing.assert_close(back, torch.full_like(back, level), rtol=loss, atol=0)
    assert bool(torch.isneginf(waist.icdf(d, 0.0)).all())
    assert bool(torch.isposinf(waist.icdf(d, 1.0)).all())


def test_the_closed_crps_is_the_integral():
    d = mixture(torch.float64, ROWS)
    y = d.sample()
    closed = waist.crps(d, y)
    for row in range(ROWS):
        one = waist.select(d, [row])

        def gap(x, one=one, target=float(y[row])):
            return (float(waist.cdf(one, x)[0]) - (x >= target)) ** 2

        target = float(y[row])
        expected = integrate.quad(gap, -30, target, limit=200)[0] + integrate.quad(gap, target, 30, limit=200)[0]
        assert float(closed[row]) == pytest.approx(expected, rel=1e-6)


def test_the_crps_of_other_components_is_integrated():
    d = mixture(torch.float64, ROWS, family=LogNormal)
    one = MixtureSameFamily(
        Categorical(logits=torch.zeros(2, 1, dtype=torch.float64), validate_args=False),
        LogNormal(torch.zeros(2, 1, dtype=torch.float64), torch.ones(2, 1, dtype=torch.float64), validate_args=False),
        validate_args=False,
    )
    y = torch.tensor([0.5, 2.0], dtype=torch.float64)
    torch.testing.assert_close(
        waist.crps(one, y), waist.crps(LogNormal(torch.zeros(2).double(), 1.0), y), rtol=1e-6, atol=0
    )
    assert bool((waist.crps(d, d.sample()) > 0).all())


def test_the_crps_of_a_vector_is_that_of_each_element():
    d = mixture(torch.float64, ROWS, vector=True)
    y = d.sample()
    base = d.component_distribution.base_dist
    for element in range(2):
        parts = Normal(base.loc[..., element], base.scale[..., element], validate_args=False)
        alone = MixtureSameFamily(d.mixture_distribution, parts, validate_args=False)
        torch.testing.assert_close(waist.crps(d, y)[:, element], waist.crps(alone, y[:, element]))
        torch.testing.assert_close(waist.icdf(d, 0.2)[:, element], waist.icdf(alone, 0.2))


@pytest.mark.parametrize("vector", [False, True])
def test_mixtures_over_draws_of_mixtures(vector, dtype):
    d = MixturePredictive(mixture(dtype, 5, ROWS, vector=vector))
    y = d.draw(seed=0)
    each = torch.stack([d.components.log_prob(y)]).squeeze(0)
    torch.testing.assert_close(d.log_prob(y), torch.logsumexp(each, 0) - np.log(5))
    torch.testing.assert_close(d.aleatoric_variance + d.epistemic_variance, d.variance)
    level = torch.tensor(0.1, dtype=dtype)
    torch.testing.assert_close(d.cdf(d.icdf(level)), level.expand(y.shape), rtol=1e-4, atol=1e-6)
    moved = affine(d, 3.0, 2.0)
    torch.testing.assert_close(
        moved.log_prob(3 + 2 * y), d.log_prob(y) - np.log(2) * (2 if vector else 1), rtol=1e-4, atol=1e-4
    )
    torch.testing.assert_close(moved.icdf(level), 3 + 2 * d.icdf(level), rtol=1e-4, atol=1e-4)
    assert waist.crps(d, y).shape == y.shape


@pytest.mark.parametrize("vector", [False, True])
def test_rows_are_selected_joined_and_moved(vector):
    d = mixture(torch.float64, 5, vector=vector)
    y = d.sample()
    joined = waist.concatenate([waist.select(d, slice(0, 2)), waist.select(d, [2, 3, 4])])
    assert torch.equal(waist.log_prob(joined, y), waist.log_prob(d, y))
    assert waist.select(d, [4, 4]).sample().shape == (2, *d.event_shape)
    assert waist.mean(waist.to(d, dtype=torch.float32)).dtype == torch.float32


def test_components_without_weight_say_nothing_about_quantiles():
    weights = Categorical(logits=torch.tensor([[0.0, -torch.inf]], dtype=torch.float64), validate_args=False)
    parts = Normal(torch.tensor([[0.0, 1e6]]).double(), torch.ones(1, 2).double(), validate_args=False)
    d = MixtureSameFamily(weights, parts, validate_args=False)
    torch.testing.assert_close(waist.icdf(d, 0.9), torch.tensor([stats.norm.ppf(0.9)]))
    assert float(waist.mean(d)) == 0
    assert waist.log_prob(d, [0.0]).isfinite()


def test_mixtures_of_counts_have_the_smallest_value_with_enough_mass():
    rates = torch.tensor([[1.0, 9.0]], dtype=torch.float64)
    d = MixtureSameFamily(Categorical(logits=torch.zeros(1, 2).double()), Poisson(rates), validate_args=False)
    table = 0.5 * (stats.poisson(1).cdf(np.arange(40)) + stats.poisson(9).cdf(np.arange(40)))
    for level in (0.05, 0.3, 0.5, 0.75, 0.999):
        assert int(waist.icdf(d, level)) == int(np.searchsorted(table, level))
    assert waist.kind(d) == "count"


def test_classes_and_impossible_targets_are_refused():
    names = MixtureSameFamily(Categorical(logits=torch.zeros(1, 2)), Categorical(logits=torch.zeros(1, 2, 3)))
    with pytest.raises(NotSupportedError, match="averaged probabilities"):
        waist.icdf(names, 0.5)
    with pytest.raises(NotSupportedError, match="entropy is not available for MixtureSameFamily"):
        waist.entropy(mixture(torch.float64, 2))
    with pytest.raises(SupportError, match="target -1"):
        waist.log_prob(mixture(torch.float64, 2, family=LogNormal), [1.0, -1.0])
