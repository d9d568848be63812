"""A Gaussian over weights: its draws, its density, and itself as a prior, in every structure."""

import pytest
import torch
from torch import nn
from torch.distributions import MultivariateNormal

import credibly
from credibly import Model, likelihoods
from credibly.core.errors import NotSupportedError, ShapeError
from credibly.core.linalg import Blocks, Dense, Diagonal, Inverse, Kronecker, LowRankPlusDiagonal
from credibly.posteriors import GaussianPosterior, Info, gaussian

INFO = Info("test", 0, [])
NAMES = ("net.0.weight", "net.0.bias", "net.2.weight", "net.2.bias")  # 4 + 2 + 2 + 1 weights


def model(dtype=torch.float64):
    net = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 1)).to(dtype)
    with torch.no_grad():
        for index, weight in enumerate(net.parameters()):
            weight.copy_(torch.linspace(-1, 1, weight.numel()).reshape(weight.shape) + index)
    return Model(net, likelihoods.Gaussian(scale=0.5))


def matrix(generator, size):
    root = torch.randn(size, size, generator=generator, dtype=torch.float64)
    return root @ root.T / size + 0.5 * torch.eye(size, dtype=torch.float64)


def covariances():
    g = torch.Generator().manual_seed(3)
    values = torch.rand(9, generator=g, dtype=torch.float64) + 0.2
    factor = torch.randn(9, 2, generator=g, dtype=torch.float64)
    blocks = (Kronecker.of_factors(matrix(g, 2), matrix(g, 2)), Diagonal(values[:2]), Dense(matrix(g, 3)))
    return {
        "diagonal": Diagonal(values),
        "low_rank": LowRankPlusDiagonal(values, factor),
        "dense": Dense(matrix(g, 9)),
        "blocks": Blocks(blocks),
        "precision": Inverse(Blocks(blocks)),
    }


@pytest.fixture(params=list(covariances()))
def covariance(request):
    return covariances()[request.param]


def flat(params):
    return torch.cat([value.flatten(1) for value in params.values()], 1)


def test_draws_have_its_moments(covariance):
    """5 standard errors of 9 means and 81 covariances: a failure in 20,000 seeds."""
    posterior, num_draws = GaussianPosterior(model(), INFO, names=NAMES, covariance=covariance), 4000
    draws = posterior.sample(num_draws, seed=0)
    assert {name: value.shape[1:] for name, value in draws.items()} == {n: v.shape for n, v in posterior.mean.items()}
    table, expected = flat(draws), covariance.dense()
    mean = torch.cat([value.flatten() for value in posterior.mean.values()])
    variances = expected.diag()
    assert bool(((table.mean(0) - mean).abs() < 5 * (variances / num_draws).sqrt()).all())
    error = ((expected.square() + variances.outer(variances)) / num_draws).sqrt()
    assert bool(((torch.cov(table.T) - expected).abs() < 5 * error).all())
    torch.testing.assert_close(torch.cat([v.flatten() for v in posterior.variances.values()]), variances)


def test_the_density_is_that_of_a_multivariate_normal(covariance):
    posterior = GaussianPosterior(model(), INFO, names=NAMES, covariance=covariance)
    mean = torch.cat([value.flatten() for value in posterior.mean.values()])
    draws = posterior.sample(3, seed=1)
    law = MultivariateNormal(mean, covariance.dense())
    for index in range(3):
        params = {name: value[index] for name, value in draws.items()}
        torch.testing.assert_close(posterior.log_prob(params), law.log_prob(flat(draws)[index]))
        for dense in (False, True):
            prior = posterior.as_prior(dense=dense)
            torch.testing.assert_close(prior.log_prob(params), law.log_prob(flat(draws)[index]))


def test_predictions_are_those_of_its_draws_at_any_chunk_size(covariance, monkeypatch):
    posterior = GaussianPosterior(model(), INFO, names=NAMES, covariance=covariance)
    x = torch.randn(7, 2, dtype=torch.float64)
    draws = posterior.sample(10, seed=4)
    one_by_one = [posterior.model.call({n: v[k] for n, v in draws.items()}, {}, x) for k in range(10)]
    whole = posterior.outputs(x, num_draws=10, seed=4)
    torch.testing.assert_close(whole, torch.stack(one_by_one))
    monkeypatch.setattr(gaussian, "_CHUNK_WEIGHTS", 27)
    torch.testing.assert_close(posterior.outputs(x, num_draws=10, seed=4), whole)
    assert posterior.outputs(x).shape == (100, 7, 1)
    assert posterior.parameters(x, num_draws=3)["loc"].shape[0] == 3


def test_some_weights_only():
    posterior = GaussianPosterior(model(), INFO, names=NAMES[2:], covariance=Diagonal(torch.ones(3).double()))
    assert set(posterior.sample(2, seed=0)) == set(NAMES[2:])
    assert set(posterior.fixed) == set(NAMES[:2])
    first, second = posterior.outputs(torch.randn(4, 2).double(), num_draws=2, seed=0)
    assert not torch.equal(first, second)
    with pytest.raises(NotSupportedError, match=r"\['net.0.weight', 'net.0.bias'\] have no density"):
        posterior.as_prior()


def test_a_tied_weight_is_one_weight():
    net = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False), nn.Linear(2, 1, bias=False))
    net[1].weight = net[0].weight
    posterior = GaussianPosterior(
        Model(net, likelihoods.Gaussian()),
        INFO,
        names=("net.0.weight", "net.2.weight"),
        covariance=Diagonal(torch.ones(6)),
    )
    x, draws = torch.randn(5, 2), posterior.sample(3, seed=0)
    for out, shared, last in zip(
        posterior.outputs(x, num_draws=3, seed=0), draws["net.0.weight"], draws["net.2.weight"], strict=True
    ):
        torch.testing.assert_close(out, x @ shared.T @ shared.T @ last.T)


def test_it_comes_back_from_a_file(covariance, tmp_path):
    posterior = GaussianPosterior(model(), INFO, names=NAMES, covariance=covariance)
    credibly.save(posterior, tmp_path / "posterior")
    loaded = credibly.load(tmp_path / "posterior", net=model().net)
    x = torch.randn(5, 2, dtype=torch.float64)
    assert torch.equal(loaded.outputs(x, seed=0), posterior.outputs(x, seed=0))


def test_refusals():
    with pytest.raises(ValueError, match=r"at least one; got \['net.1.weight'\]"):
        GaussianPosterior(model(), INFO, names=("net.1.weight",), covariance=Diagonal(torch.ones(2)))
    with pytest.raises(ValueError, match="at least one"):
        GaussianPosterior(model(), INFO, names=(), covariance=Diagonal(torch.ones(0)))
    with pytest.raises(ShapeError, match="over the 9 weights that are named; got 8"):
        GaussianPosterior(model(), INFO, names=NAMES, covariance=Diagonal(torch.ones(8)))
    posterior = GaussianPosterior(model(), INFO, names=NAMES, covariance=covariances()["diagonal"])
    with pytest.raises(ValueError, match="num_draws"):
        posterior.sample(0)
    with pytest.raises(NotSupportedError, match="stores no draws"):
        posterior.to_model(draw=0)
