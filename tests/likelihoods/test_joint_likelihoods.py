"""What the contract over all likelihoods does not ask: joint laws against scipy, units, advice, hard mixtures."""

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn
from torch.distributions import MultivariateNormal

from credibly import Data, Model, inference, priors
from credibly.core.errors import NotSupportedError, SupportError
from credibly.distributions import functions as waist
from credibly.likelihoods import Dirichlet, HeteroscedasticGaussian, MixtureDensity, MultivariateGaussian
from credibly.standardization import Standardize
from credibly.training import linear


def outputs_for(likelihood, *batch, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(*batch, likelihood.num_outputs, generator=generator, dtype=torch.float64).to(dtype)


def fitted(likelihood, x, y, **options):
    net = nn.Linear(x.shape[1], likelihood.num_outputs).to(x.dtype)
    for parameter in net.parameters():  # from random weights the first gradients are huge, and Adam remembers them long
        nn.init.zeros_(parameter)
    method = inference.MLE(num_epochs=400, batch_size=None, learning_rate=0.05, schedule=linear)
    return method.fit(Model(net, likelihood, priors.Flat(), **options), (x, y), seed=0)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_the_multivariate_gaussian_is_scipys(size):
    likelihood = MultivariateGaussian(size).double()
    assert likelihood.num_outputs == size + size * (size + 1) // 2
    predicted = likelihood(outputs_for(likelihood, 3))
    y = predicted.sample()
    expected = [
        stats.multivariate_normal(m, c).logpdf(v)
        for m, c, v in zip(predicted.loc.numpy(), predicted.covariance_matrix.numpy(), y.numpy(), strict=True)
    ]
    np.testing.assert_allclose(predicted.log_prob(y), expected, rtol=1e-8)
    diagonal = predicted.scale_tril.diagonal(dim1=-2, dim2=-1)
    assert bool((diagonal > likelihood.min_scale).all())
    assert bool((predicted.scale_tril.triu(1) == 0).all())


def test_the_multivariate_fisher_matrix_is_the_curvature_of_the_divergence():
    for likelihood in (MultivariateGaussian(3), Dirichlet(4)):
        outputs = outputs_for(likelihood, 1)

        def divergence(other, likelihood=likelihood, outputs=outputs):
            return torch.distributions.kl_divergence(likelihood(outputs), likelihood(other.unsqueeze(0))).sum()

        curvature = torch.autograd.functional.hessian(divergence, outputs[0])
        torch.testing.assert_close(likelihood.fisher(outputs)[0], curvature, rtol=1e-8, atol=1e-8)


def test_standardised_targets_predict_a_covariance_in_their_own_units(dtype):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(4000, 1, generator=generator, dtype=torch.float64).to(dtype)
    factor = torch.tensor([[20.0, 0.0], [0.3, 0.4]], dtype=dtype)
    noise = torch.randn(4000, 2, generator=generator, dtype=torch.float64).to(dtype) @ factor.T
    y = torch.tensor([1000.0, -3.0]).to(dtype) + x * torch.tensor([50.0, 1.0]).to(dtype) + noise
    posterior = fitted(MultivariateGaussian(2), x, y, targets=Standardize())
    predicted = posterior.predict(x[:1])
    assert isinstance(predicted.components, MultivariateNormal)
    covariance, expected = predicted.components.covariance_matrix[0, 0].double(), (factor @ factor.T).double()
    # each entry within 5 standard errors of a covariance of 4,000 draws; the intercepts' own error is far smaller
    error = ((expected.diagonal().outer(expected.diagonal()) + expected**2) / 4000).sqrt()
    assert bool(((covariance - expected).abs() < 8 * error).all())
    # the density is that of the targets' own units
    own = MultivariateNormal(predicted.components.loc[0], covariance_matrix=predicted.components.covariance_matrix[0])
    torch.testing.assert_close(predicted.log_prob(y[:1]), own.log_prob(y[:1]), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    "row", [[0.0, 0.4, 0.6], [0.2, 0.2, 0.2], [-0.1, 0.5, 0.6], [1.0, 0.0, 0.0]], ids=["zero", "sum", "sign", "corner"]
)
def test_a_composition_outside_the_open_simplex_is_refused_with_advice(row, dtype):
    likelihood = Dirichlet(3).to(dtype)
    with pytest.raises(SupportError, match="put a small share in their place"):
        likelihood.match_targets([row], torch.zeros(1, 3, dtype=dtype))
    outputs = torch.zeros(1, 3, dtype=dtype, requires_grad=True)
    density = likelihood.log_prob(likelihood.parameters_of(outputs), torch.tensor([row], dtype=dtype))
    assert density.item() == -torch.inf


def test_missing_compositions_may_hold_anything():
    x, y = torch.randn(20, 2), torch.full((20, 3), 1 / 3)
    y[::4] = torch.nan
    model = Model(nn.Linear(2, 3), Dirichlet(3))
    posterior = inference.MAP(num_epochs=2).fit(model, Data(x, y, mask=~y.isnan().any(1)), seed=0)
    assert np.isfinite(posterior.info.history.loss).all()


def test_one_component_is_a_gaussian(dtype):
    one, plain = MixtureDensity(1, min_scale=1e-4), HeteroscedasticGaussian(min_scale=1e-4)
    outputs = outputs_for(one, 5, dtype=dtype)
    y = torch.linspace(-3, 3, 5, dtype=dtype)
    for function in (waist.log_prob, waist.cdf, waist.crps):
        torch.testing.assert_close(function(one(outputs), y), function(plain(outputs[:, 1:]), y), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(one.fisher(outputs)[:, 1:, 1:], plain.fisher(outputs[:, 1:]), rtol=1e-4, atol=1e-5)


def test_the_fisher_matrix_of_a_mixture_is_exact_however_far_apart_the_components_are():
    likelihood = MixtureDensity(3).double()
    scale = torch.log(torch.expm1(torch.tensor([0.01, 1.0, 30.0], dtype=torch.float64)))
    outputs = torch.cat([torch.tensor([0.0, 1.0, -1.0, 3.0, 0.0, -40.0], dtype=torch.float64), scale]).unsqueeze(0)
    grids = [
        torch.linspace(2.5, 3.5, 200_001, dtype=torch.float64),
        torch.linspace(-15, 2.5, 200_001, dtype=torch.float64),
        torch.linspace(3.5, 15, 200_001, dtype=torch.float64),
        torch.linspace(-400, -15, 100_001, dtype=torch.float64),
        torch.linspace(15, 400, 100_001, dtype=torch.float64),
    ]
    total = torch.zeros(9, 9, dtype=torch.float64)
    for y in grids:
        repeated = outputs.expand(len(y), -1).clone().requires_grad_()
        density = likelihood.log_prob(likelihood.parameters_of(repeated), y)
        scores = torch.autograd.grad(density.sum(), repeated)[0]
        weights = torch.full_like(y, float(y[1] - y[0]))
        weights[[0, -1]] /= 2  # the trapezoidal rule
        total += torch.einsum("n,nc,nd->cd", weights * density.detach().exp(), scores, scores)
    torch.testing.assert_close(likelihood.fisher(outputs)[0], total, rtol=1e-5, atol=1e-5)


def test_the_fisher_matrix_of_a_vector_mixture_is_refused_and_its_scores_are_drawn():
    likelihood = MixtureDensity(2, 2)
    outputs = outputs_for(likelihood, 3, dtype=torch.float32)
    with pytest.raises(NotSupportedError, match="sample_scores"):
        likelihood.fisher(outputs)
    scores = likelihood.sample_scores(outputs, 4000, seed=0)
    # 6 standard errors of a mean that is 0
    assert bool((scores.mean(0).abs() <= 6 * scores.std(0) / 4000**0.5 + 1e-6).all())


def test_a_network_finds_both_branches_and_members_mix(dtype):
    """y^2 = x has two answers; the fitted law has the mass of each within 5 standard errors of the fraction."""
    generator = torch.Generator().manual_seed(4)
    y = torch.where(torch.rand(2000, generator=generator) < 0.7, 1.0, -1.0) + 0.1 * torch.randn(
        2000, generator=generator
    )
    x, y = torch.zeros(2000, 1, dtype=dtype), y.to(dtype)
    method = inference.MLE(num_epochs=300, batch_size=None, learning_rate=0.05, schedule=linear)
    likelihood = MixtureDensity(2)
    model = Model(nn.Linear(1, likelihood.num_outputs).to(dtype), likelihood, priors.Flat(), targets=Standardize())
    posterior = inference.Ensemble(of=method, num_members=2).fit(model, (x, y), seed=1)
    assert posterior.info.stacked
    predicted = posterior.predict(x[:3])
    negative = float((y < 0).double().mean())
    assert float(predicted.cdf(0.0)[0]) == pytest.approx(negative, abs=5 * (0.21 / 2000) ** 0.5)
    lower, upper = predicted.interval(0.9)
    assert float(lower[0]) == pytest.approx(-1, abs=0.3)
    assert float(upper[0]) == pytest.approx(1, abs=0.3)
    torch.testing.assert_close(predicted.aleatoric_variance + predicted.epistemic_variance, predicted.variance)
    best = waist.log_prob(predicted, y[:3])
    assert bool(best.isfinite().all())


def test_a_collapsing_component_keeps_a_finite_loss():
    likelihood = MixtureDensity(2)
    outputs = torch.tensor([[0.0, 0.0, 1.0, 0.0, -200.0, 0.0]], requires_grad=True)
    density = likelihood.log_prob(likelihood.parameters_of(outputs), torch.tensor([1.0]))
    assert bool(density.isfinite().all())
    assert bool(torch.autograd.grad(density.sum(), outputs)[0].isfinite().all())
    far = likelihood.log_prob(likelihood.parameters_of(outputs), torch.tensor([1e6]))
    assert bool(far.isfinite().all())
    assert bool(torch.autograd.grad(far.sum(), outputs)[0].isfinite().all())
