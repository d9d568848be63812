"""Distributions over vectors whose elements depend on each other: joint densities, elements alone, rows, units."""

import numpy as np
import pytest
import torch
from scipy import stats
from torch.distributions import Dirichlet, Independent, MultivariateNormal, Normal

from credibly.core.errors import NotSupportedError, SupportError
from credibly.distributions import elements
from credibly.distributions import functions as waist
from credibly.distributions.affine import AffineView, affine
from credibly.distributions.mixture import MixturePredictive


def normal(dtype, *batch, size=3):
    generator = torch.Generator().manual_seed(0)
    factor = torch.randn(*batch, size, size, generator=generator, dtype=torch.float64).tril(-1) + torch.eye(size) * 0.7
    loc = torch.randn(*batch, size, generator=generator, dtype=torch.float64)
    return MultivariateNormal(loc.to(dtype), scale_tril=factor.to(dtype), validate_args=False)


def dirichlet(dtype, *batch, size=3):
    concentration = torch.rand(*batch, size, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 4 + 0.5
    return Dirichlet(concentration.to(dtype), validate_args=False)


BUILD = {"normal": normal, "dirichlet": dirichlet}
EVERY = pytest.mark.parametrize("build", BUILD.values(), ids=BUILD)


def element_law(d):
    if isinstance(d, MultivariateNormal):
        return stats.norm(
            d.loc.double().numpy(), d.covariance_matrix.double().diagonal(dim1=-2, dim2=-1).sqrt().numpy()
        )
    a = d.concentration.double().numpy()
    return stats.beta(a, a.sum(-1, keepdims=True) - a)


@EVERY
def test_elements_alone_are_scipys(build, dtype):
    d = build(dtype, 4)
    law, values = element_law(d), d.sample()
    tolerance = 64 * torch.finfo(dtype).eps
    for own, expected in (
        (waist.cdf(d, values), law.cdf(values.double().numpy())),
        (waist.icdf(d, 0.2), law.ppf(float(torch.tensor(0.2, dtype=dtype)))),
        (waist.mean(d), law.mean()),
        (waist.variance(d), law.var()),
        (waist.entropy(d), law.entropy()),
    ):
        assert own.shape == (4, 3)
        assert own.dtype == dtype
        np.testing.assert_allclose(own, expected, rtol=tolerance, atol=tolerance)
    assert waist.crps(d, values).shape == (4, 3)
    assert waist.log_prob(d, values).shape == (4,)


def test_the_joint_density_of_a_normal_is_scipys_with_a_draw_axis(dtype):
    d = normal(dtype, 2, 4)
    y = d.sample()[0]
    own = waist.safe_log_prob(d, y)
    expected = [
        [
            stats.multivariate_normal(d.loc[k, i].double(), d.covariance_matrix[k, i].double()).logpdf(y[i].double())
            for i in range(4)
        ]
        for k in range(2)
    ]
    np.testing.assert_allclose(own, expected, rtol=1e-4 if dtype == torch.float32 else 1e-9)


def test_a_normal_in_other_units_is_a_normal(dtype):
    d = normal(dtype, 4)
    loc, scale = torch.tensor([1.0, -2.0, 0.5], dtype=dtype), torch.tensor([2.0, 0.5, 3.0], dtype=dtype)
    moved = affine(d, loc, scale)
    assert isinstance(moved, MultivariateNormal)
    y = d.sample()
    expected = waist.log_prob(AffineView(d, loc, scale), loc + scale * y)
    torch.testing.assert_close(waist.log_prob(moved, loc + scale * y), expected, rtol=1e-4, atol=1e-4)
    covariance = d.covariance_matrix * scale.unsqueeze(-1) * scale
    torch.testing.assert_close(moved.covariance_matrix, covariance)


@EVERY
def test_rows_are_selected_joined_and_moved(build):
    d = build(torch.float64, 5)
    y = d.sample()
    parts = waist.concatenate([waist.select(d, slice(0, 2)), waist.select(d, [2, 3, 4])])
    assert type(parts) is type(d)
    assert torch.equal(waist.log_prob(parts, y), waist.log_prob(d, y))
    assert waist.mean(waist.to(d, dtype=torch.float32)).dtype == torch.float32
    broadcast = build(torch.float64, 1).expand((5,))
    assert waist.select(broadcast, [1, 2]).batch_shape == (2,)


@EVERY
def test_mixtures_over_draws_split_the_variance_of_each_element(build, dtype):
    d = MixturePredictive(build(dtype, 6, 4))
    y = d.draw(seed=0)
    torch.testing.assert_close(d.aleatoric_variance + d.epistemic_variance, d.variance)
    each = torch.stack([waist.safe_log_prob(waist.select(d.components, slice(None)), y)]).squeeze(0)
    torch.testing.assert_close(d.log_prob(y), torch.logsumexp(each, 0) - np.log(6))
    level = torch.tensor(0.3, dtype=dtype)
    torch.testing.assert_close(d.cdf(d.icdf(level)), level.expand(4, 3), rtol=1e-5, atol=1e-5)
    lower, upper = d.interval(0.9)
    assert lower.shape == (4, 3)
    assert bool((lower < upper).all())


def test_the_crps_of_a_mixture_of_normals_is_that_of_its_elements():
    d = normal(torch.float64, 5, 4)
    y = d.sample()[0]
    alone = MixturePredictive(Independent(elements(d), 1, validate_args=False))
    torch.testing.assert_close(waist.crps(MixturePredictive(d), y), waist.crps(alone, y))


@pytest.mark.parametrize("row", [[0.0, 0.5, 0.5], [0.5, 0.6, -0.1], [0.3, 0.3, 0.3]])
def test_what_is_no_composition_is_refused_and_has_no_density(row, dtype):
    d = dirichlet(dtype, 1)
    with pytest.raises(SupportError, match="Dirichlet"):
        waist.log_prob(d, [row])
    y = torch.tensor([row], dtype=dtype)
    a = d.concentration.clone().requires_grad_()
    density = waist.safe_log_prob(Dirichlet(a, validate_args=False), y)
    assert density.item() == -torch.inf
    assert torch.autograd.grad(density.nan_to_num(neginf=0.0).sum(), a)[0].isfinite().all()


def test_elements_of_independent_and_of_others():
    base = Normal(torch.zeros(2, 3), torch.ones(2, 3), validate_args=False)
    assert elements(Independent(base, 1, validate_args=False)) is base
    assert elements(base) is base
    with pytest.raises(NotSupportedError, match="elements is not available for LowRankMultivariateNormal"):
        elements(
            torch.distributions.LowRankMultivariateNormal(torch.zeros(2, 3), torch.ones(2, 3, 1), torch.ones(2, 3))
        )
