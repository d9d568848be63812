"""Gaussians with covariances, by variational inference: exact where the posterior is Gaussian."""

import math

import pytest
import torch
from conjugate import well_conditioned
from torch import nn
from torch.distributions import LowRankMultivariateNormal, MultivariateNormal, Normal, kl_divergence

from credibly import Model, inference, likelihoods, priors
from credibly.core.errors import NotSupportedError
from credibly.inference import FullGaussian, LowRankGaussian
from credibly.training import linear
from credibly.training.variational import DrawnWeights
from credibly.training.variational_approximations import FullCovariance, LowRankCovariance
from credibly.training.variational_priors import FlatWeights, prior_term

LONG = {"num_epochs": 1200, "batch_size": None, "learning_rate": 0.05, "schedule": linear}


def fresh(exact):
    """The model of a conjugate problem, away from its answer."""
    model = exact.model()
    for weight in model.net.parameters():
        nn.init.zeros_(weight)
    return model


def flat(params):
    return torch.cat([value.flatten() for value in params.values()])


def whitened(posterior, exact):
    """How far mean and covariance are off, in units of the posterior itself."""
    root = torch.linalg.cholesky(torch.linalg.inv(exact.covariance()))
    offset = root.T @ (flat(posterior.mean) - flat({n: p.detach() for n, p in exact.net().named_parameters()}))
    ratio = root.T @ posterior.covariance.dense() @ root
    return offset.norm().item(), (ratio - torch.eye(len(ratio)).to(ratio)).norm().item()


@pytest.mark.parametrize("bias", [False, True])
def test_a_gaussian_posterior_is_found_exactly(bias):
    """Means, covariance and predictive to 1e-3: at the optimum the path gradient has no noise."""
    exact = well_conditioned(bias=bias)
    posterior = FullGaussian(**LONG).fit(fresh(exact), exact.data, seed=0)
    assert max(whitened(posterior, exact)) < 1e-3
    mean, variance = exact.predictive(exact.inputs + 1)
    drawn = posterior.covariance.root(torch.eye(posterior.covariance.size).double())
    design = exact.of(exact.inputs + 1)
    torch.testing.assert_close((design @ drawn.T).square().sum(1), variance.squeeze(1), rtol=1e-3, atol=0)
    torch.testing.assert_close(design @ flat(posterior.mean), mean.squeeze(1), rtol=1e-3, atol=1e-3)


def test_low_rank_is_exact_at_full_rank_and_better_than_mean_field_below():
    exact = well_conditioned(bias=False)
    model = fresh(exact)
    assert max(whitened(LowRankGaussian(3, **LONG).fit(model, exact.data, seed=0), exact)) < 1e-2
    rank_one = whitened(LowRankGaussian(1, **LONG).fit(model, exact.data, seed=0), exact)[1]
    short = LONG | {"num_epochs": 600}
    assert rank_one < 0.7 * whitened(inference.MeanField(**short).fit(model, exact.data, seed=0), exact)[1]


def test_temperature_widens_the_posterior():
    """At temperature 2 the covariance of a Gaussian posterior doubles, and its mean stays."""
    exact = well_conditioned(bias=False)
    posterior = FullGaussian(temperature=2.0, **LONG).fit(fresh(exact), exact.data, seed=0)
    assert posterior.info.temperature == 2.0
    torch.testing.assert_close(posterior.covariance.dense(), 2 * exact.covariance(), rtol=5e-3, atol=1e-5)


def test_the_posterior_of_one_data_set_is_the_prior_of_the_next():
    exact = well_conditioned(bias=False)
    x, y = exact.data
    first = FullGaussian(**LONG).fit(fresh(exact), (x[:15], y[:15]), seed=0)
    second = FullGaussian(**LONG).fit(first.to_model(prior=first.as_prior()), (x[15:], y[15:]), seed=0)
    assert max(whitened(second, exact)) < 5e-3


def test_learned_noise_maximises_the_evidence():
    """The bound at a Gaussian posterior is the evidence, so noise trained along is type-II maximum likelihood."""
    exact = well_conditioned(num_rows=60, bias=False)
    x, y = exact.data
    model = Model(nn.Linear(3, 1, bias=False).double(), likelihoods.Gaussian(), priors.Normal(exact.prior))
    posterior = FullGaussian(**LONG).fit(model, (x, y), seed=0)
    scales = torch.linspace(0.2, 0.8, 241).double()
    evidence = [
        MultivariateNormal(torch.zeros(60).double(), exact.prior**2 * x @ x.T + s**2 * torch.eye(60).double()).log_prob(
            y
        )
        for s in scales
    ]
    best = scales[torch.stack(evidence).argmax()]
    assert abs(posterior.fixed["likelihood.log_scale"].exp().item() / best.item() - 1) < 0.03
    assert "likelihood.log_scale" not in posterior.sample(1)


def approximations():
    torch.manual_seed(0)
    mean, noise = torch.randn(9).double(), torch.randn(9, 2).double()
    low, full = LowRankCovariance(mean, 0.4, 2, 5 * noise), FullCovariance(mean, 0.4)
    with torch.no_grad():
        for log_scale in (low.log_scale, full.log_scale):
            log_scale.add_(torch.linspace(-1, 1, 9))
        full.ties.add_(torch.randn(9, 9))
    scales = low.log_scale.exp()
    return {
        "low_rank": (low, LowRankMultivariateNormal(low.mean, low.factor, scales.square())),
        "full": (full, MultivariateNormal(full.mean, scale_tril=full._root())),
    }


def shapes():
    return FlatWeights({"net.0.weight": torch.zeros(2, 3), "net.0.bias": torch.zeros(3)})


PRIORS = {
    "normal": lambda: priors.Normal(0.7),
    "by_name": lambda: priors.ByName({"*.bias": priors.Normal(3.0), "*": priors.Normal(0.2, fan_in_scaled=True)}),
    "joint": lambda: priors.GaussianPrior(
        {"net.0.weight": torch.ones(2, 3).double(), "net.0.bias": torch.zeros(3).double()},
        torch.eye(9).double() + 0.3 * torch.ones(9, 9).double(),
    ),
}


def as_torch(prior, layout):
    if isinstance(prior, priors.GaussianPrior):
        return MultivariateNormal(prior.location, precision_matrix=prior.precision.dense())
    found = prior.distributions(layout.named(torch.zeros(9).double()))
    loc, scale = (torch.cat([getattr(found[n], part).flatten() for n in layout.shapes]) for part in ("mean", "stddev"))
    return MultivariateNormal(loc, scale_tril=scale.diag())


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("name", ["low_rank", "full"])
def test_the_divergence_is_that_of_torch_and_both_gradients_are_its(name, prior):
    """The closed form exactly; the path gradient on average, within 5 standard errors of 500 draws."""
    q, as_normal = approximations()[name]
    layout = shapes()
    term = prior_term(PRIORS[prior](), layout.named(torch.zeros(9).double()), layout)
    dense = MultivariateNormal(as_normal.mean, as_normal.covariance_matrix)
    divergence = kl_divergence(dense, as_torch(PRIORS[prior](), layout))
    expected = torch.autograd.grad(-divergence, q.leaves, retain_graph=True)
    generator = torch.Generator().manual_seed(0)
    value = DrawnWeights(q, term, layout, 1.0, path_gradient=False).step(generator, {}, 1).value
    torch.testing.assert_close(value, -divergence, rtol=1e-8, atol=1e-8)
    for ours, theirs in zip(torch.autograd.grad(value, q.leaves), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-8)
    path = DrawnWeights(q, term, layout, 1.0, path_gradient=True)
    draws = []
    for _ in range(500):
        value = path.step(generator, {}, 1).value
        torch.testing.assert_close(value, -divergence, rtol=1e-8, atol=1e-8)
        draws.append(torch.cat([each.flatten() for each in torch.autograd.grad(value, q.leaves)]))
    table = torch.stack(draws)
    errors = table.std(0) / math.sqrt(len(table)) + 1e-9
    assert ((table.mean(0) - torch.cat([each.flatten() for each in expected])).abs() < 5 * errors).all()


@pytest.mark.parametrize("name", ["low_rank", "full"])
def test_draws_and_entropy_are_those_of_the_result(name):
    q, as_normal = approximations()[name]
    covariance = q.covariance()
    torch.testing.assert_close(covariance.dense(), as_normal.covariance_matrix.detach())
    torch.testing.assert_close(q.entropy(), as_normal.entropy())
    weights = torch.randn(9).double().requires_grad_()
    (score,) = torch.autograd.grad(-as_normal.log_prob(weights), weights)
    torch.testing.assert_close(q.score(weights), score)
    variances, factor = q.parts()
    whole = factor @ factor.T + (0 if variances is None else variances.diag())
    torch.testing.assert_close(whole, as_normal.covariance_matrix)
    columns = torch.stack([q.draw(row) - q.mean for row in torch.eye(q.num_noise).double()], 1)
    torch.testing.assert_close(columns @ columns.T, as_normal.covariance_matrix)


def test_points_beside_random_weights_count_with_a_joint_prior():
    """Random and point weights under one Gaussian: the expectation is that over the random ones, here by quadrature."""
    layout = FlatWeights({"net.a": torch.zeros(1)})
    prior = priors.GaussianPrior(
        {"net.b": torch.zeros(1), "net.a": torch.ones(1)}, torch.tensor([[2.0, 0.5], [0.5, 1.0]])
    )
    term = prior_term(prior, {"net.a": torch.zeros(1)}, layout)
    points = {"net.b": torch.tensor([0.7])}
    ours = term.expected(torch.tensor([0.2]), torch.tensor([0.09]), None, points)
    grid = torch.linspace(-8, 8, 2001)
    weights = Normal(0.0, 1.0).log_prob(grid).exp() * (grid[1] - grid[0])
    values = torch.stack(
        [prior.log_prob({"net.b": points["net.b"], "net.a": (0.2 + 0.3 * z).reshape(1)}) for z in grid]
    )
    torch.testing.assert_close(ours, (weights * values).sum(), rtol=1e-4, atol=1e-4)


def test_a_covariance_that_is_too_large_is_refused_before_it_is_made():
    model = Model(nn.Linear(100, 100), likelihoods.Gaussian(100))
    with pytest.raises(NotSupportedError, match=r"10100 weights takes 2.28 GiB.*1 GiB.*LowRankGaussian"):
        FullGaussian(num_epochs=1, max_bytes=2**30).fit(model, (torch.randn(5, 100), torch.randn(5, 100)))


def test_options_are_checked():
    for rank in (0, -1, 1.5):
        with pytest.raises(ValueError, match="rank"):
            LowRankGaussian(rank)
    with pytest.raises(ValueError, match="max_bytes"):
        FullGaussian(max_bytes=0)


@pytest.mark.parametrize(
    "method", [FullGaussian, lambda **options: LowRankGaussian(3, **options)], ids=["full", "low_rank"]
)
def test_networks_learn(method, dtype):
    torch.manual_seed(1)
    x = torch.randn(100, 2, dtype=dtype)
    y = 2 * torch.tanh(x[:, 0])
    net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1)).to(dtype)
    model = Model(net, likelihoods.Gaussian())
    posterior = method(num_epochs=100, batch_size=25, learning_rate=0.03).fit(model, (x, y), seed=0)
    predicted = posterior.predict(x, seed=0)
    assert predicted.mean.dtype == dtype
    assert predicted.log_prob(y).mean() > model(x).log_prob(y).mean() + 0.3
    assert (predicted.epistemic_variance > 0).all()
