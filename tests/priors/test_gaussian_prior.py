"""The joint Gaussian prior, and yesterday's posterior as today's prior."""

import copy
import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn
from torch.func import vmap

import credibly
from credibly.core.errors import NotFiniteError, NotSupportedError, ShapeError
from credibly.core.linalg import Dense
from credibly.inference import MAP, MLE, Ensemble, MCDropout
from credibly.likelihoods import Gaussian
from credibly.model import Model
from credibly.posteriors import DrawPosterior, Info
from credibly.priors import GaussianPrior, Normal
from credibly.standardization import Standardize


def pieces(dense, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    mean = {
        "net.weight": torch.randn(2, 3, generator=generator).to(dtype),
        "net.bias": torch.randn(2, generator=generator).to(dtype),
    }
    root = torch.randn(8, 8, generator=generator, dtype=torch.float64)
    precision = root @ root.T + torch.eye(8, dtype=torch.float64) if dense else root[0].square() + 0.1
    return mean, precision.to(dtype)


def vector(params):
    return torch.cat([value.reshape(-1) for value in params.values()])


DENSE = pytest.mark.parametrize("dense", [False, True])


@DENSE
def test_log_prob_is_scipys_and_passes_through_vmap(dense, dtype):
    mean, precision = pieces(dense, dtype)
    prior = GaussianPrior(mean, precision)
    matrix = precision if dense else precision.diag()
    law = stats.multivariate_normal(vector(mean).numpy(), torch.linalg.inv(matrix.double()).numpy())
    draws = {name: value + torch.ones(3, 1).to(dtype).reshape(3, *[1] * value.dim()) for name, value in mean.items()}
    tolerance = 1e-4 if dtype == torch.float32 else 1e-9
    mapped = vmap(prior.log_prob)(draws)
    assert mapped.dtype == dtype
    for index in range(3):
        params = {name: value[index] for name, value in draws.items()}
        expected = law.logpdf(vector(params).double().numpy())
        assert mapped[index].item() == pytest.approx(expected, rel=tolerance)
        reordered = dict(reversed(params.items()))
        assert prior.log_prob(reordered).item() == pytest.approx(expected, rel=tolerance)


@DENSE
def test_draws_have_its_moments(dense):
    mean, precision = pieces(dense)
    prior, num_draws = GaussianPrior(mean, precision), 4000
    draws = prior.sample(mean, num_draws, seed=0)
    assert {name: value.shape for name, value in draws.items()} == {"net.weight": (4000, 2, 3), "net.bias": (4000, 2)}
    flat = torch.cat([value.reshape(num_draws, -1) for value in draws.values()], 1)
    covariance = torch.linalg.inv(precision if dense else precision.diag())
    # 5 standard errors of 8 means and 64 covariances: a failure in 20,000 seeds
    error = (covariance.diag() / num_draws).sqrt()
    assert bool(((flat.mean(0) - vector(mean)).abs() < 5 * error).all())
    variances = covariance.diag()
    error = ((covariance.square() + variances.outer(variances)) / num_draws).sqrt()
    assert bool(((torch.cov(flat.T) - covariance).abs() < 5 * error).all())
    torch.testing.assert_close(prior.sample(mean, 3, seed=0)["net.bias"], draws["net.bias"][:3])


@DENSE
def test_moments_of_draws(dense):
    generator = torch.Generator().manual_seed(1)
    draws = {"net.a": torch.randn(12, 2, 2, generator=generator), "net.b": torch.randn(12, generator=generator)}
    prior = GaussianPrior.from_draws(draws, dense=dense)
    table = torch.cat([draws["net.a"].reshape(12, 4), draws["net.b"].reshape(12, 1)], 1).double()
    covariance = np.cov(table.numpy().T)
    expected = np.linalg.inv(covariance) if dense else 1 / covariance.diagonal()
    np.testing.assert_allclose(prior.precision.dense(), expected if dense else np.diag(expected), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(prior.mean["net.a"], draws["net.a"].mean(0))
    assert prior.names == ("net.a", "net.b")
    few = {name: value[:5] for name, value in draws.items()}
    if dense:
        with pytest.raises(ValueError, match="moments of 5 weights need at least 6 draws; got 5"):
            GaussianPrior.from_draws(few, dense=True)
    with pytest.raises(ValueError, match=r"at least .* draws; got 1"):
        GaussianPrior.from_draws({name: value[:1] for name, value in draws.items()}, dense=dense)
    with pytest.raises(ValueError, match=r"`net.b` has entries that are the same in all draws"):
        GaussianPrior.from_draws({**draws, "net.b": torch.ones(12)}, dense=dense)


@DENSE
def test_a_gaussian_prior_comes_back_from_a_file(dense, tmp_path):
    mean, precision = pieces(dense, torch.float32)
    prior = GaussianPrior(mean, precision)
    credibly.save(prior, tmp_path / "prior")
    loaded = credibly.load(tmp_path / "prior")
    params = {name: value + 1 for name, value in mean.items()}
    assert torch.equal(loaded.log_prob(params), prior.log_prob(params))
    assert torch.equal(copy.deepcopy(prior).log_prob(params), prior.log_prob(params))


def test_the_callers_tensors_are_not_shared():
    mean, precision = pieces(False)
    prior = GaussianPrior(mean, precision)
    before = prior.log_prob(mean)
    precision.mul_(2)
    mean["net.bias"].add_(1)
    assert prior.log_prob(prior.mean) == before


def test_refusals():
    mean, precision = pieces(True)
    prior = GaussianPrior(mean, precision)
    with pytest.raises(ValueError, match=r"missing \['net.bias'\], unknown \['net.other'\]"):
        prior.log_prob({"net.weight": mean["net.weight"], "net.other": mean["net.bias"]})
    with pytest.raises(ShapeError, match=r"`params\['net.bias'\]` must have shape \(2,\); got \(3,\)"):
        prior.log_prob({**mean, "net.bias": torch.zeros(3)})
    with pytest.raises(ShapeError, match=r"`precision` must have shape \(8,\) or \(8, 8\); got \(7,\)"):
        GaussianPrior(mean, torch.ones(7))
    for bad in (-torch.eye(8), torch.zeros(8), torch.full((8,), math.inf), torch.eye(8) + torch.eye(8).roll(1, 0) / 4):
        with pytest.raises(ValueError, match="`precision` must be"):
            GaussianPrior(mean, bad)
    with pytest.raises(NotFiniteError, match="`mean`"):
        GaussianPrior({"net.a": torch.tensor([math.nan])}, torch.ones(1))
    with pytest.raises(ValueError, match="at least one weight"):
        GaussianPrior({}, torch.ones(0))


# -- posteriors as priors --------------------------------------------------------------------------------------------


def data(rows=30, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 2, generator=generator, dtype=torch.float64)
    return x, x @ torch.tensor([1.0, -2.0]).double() + 0.5 * torch.randn(rows, generator=generator).double()


@DENSE
def test_yesterdays_posterior_as_todays_prior_is_the_posterior_of_both(dense):
    # conjugate: exact draws of the first posterior, whose moments are the prior of the second; MAP of the second on the
    # moments is the solution of the joint normal equations up to the moments' own error (none for the mean used here)
    (x1, y1), (x2, y2) = data(seed=1), data(seed=2)
    design1, design2 = (torch.cat([x, torch.ones(len(x), 1).double()], 1) for x in (x1, x2))
    precision1 = torch.eye(3).double() + design1.T @ design1 / 0.25
    mean1 = torch.linalg.solve(precision1, design1.T @ y1 / 0.25)
    prior = GaussianPrior(
        {"net.weight": mean1[:2].reshape(1, 2), "net.bias": mean1[2:]}, precision1 if dense else precision1.diag()
    )
    model = Model(nn.Linear(2, 1).double(), Gaussian(scale=0.5), prior)
    joint = torch.eye(3).double() + (design1.T @ design1 + design2.T @ design2) / 0.25
    exact = torch.linalg.solve(joint, (design1.T @ y1 + design2.T @ y2) / 0.25)
    params = {"net.weight": exact[:2].reshape(1, 2).requires_grad_(), "net.bias": exact[2:].clone().requires_grad_()}
    gradients = torch.autograd.grad(model.log_joint(params, {}, (x2, y2), len(x2)), list(params.values()))
    size = max(float(g.abs().max()) for g in gradients)
    assert (size < 1e-9) == dense  # only the full covariance carries everything over


def test_an_ensemble_as_prior_covers_the_network_alone_and_trains_on():
    model = Model(nn.Linear(2, 1).double(), Gaussian(), inputs=Standardize(), targets=Standardize())
    posterior = Ensemble(of=MAP(num_epochs=2, batch_size=8), num_members=3).fit(model, data(), seed=0)
    prior = posterior.as_prior()
    assert isinstance(prior, GaussianPrior)
    assert prior.names == ("net.weight", "net.bias")
    draws = posterior.sample(3)
    torch.testing.assert_close(prior.mean["net.bias"], draws["net.bias"].mean(0))
    torch.testing.assert_close(1 / prior.precision.diagonal()[-1], draws["net.bias"].var())
    again = posterior.to_model(draw=0, prior=prior)
    fitted = MAP(num_epochs=1, batch_size=8).fit(again, data(seed=3), start="current", seed=0)
    assert fitted.model.prior.names == prior.names
    assert fitted.model.inputs.same_as(posterior.model.inputs)  # one standardisation for both


def test_dense_moments_need_more_draws_than_weights():
    model = Model(nn.Linear(2, 1).double(), Gaussian(scale=1.0))
    generator = torch.Generator().manual_seed(0)
    draws = {
        "net.weight": torch.randn(9, 1, 2, generator=generator).double(),
        "net.bias": torch.randn(9, 1, generator=generator).double(),
    }
    posterior = DrawPosterior(model, Info("test", 0), draws)
    assert isinstance(posterior.as_prior(dense=True).precision, Dense)
    few = DrawPosterior(model, Info("test", 0), {name: value[:3] for name, value in draws.items()})
    with pytest.raises(ValueError, match="at least 4 draws; got 3"):
        few.as_prior(dense=True)


def test_one_set_of_weights_is_refused_by_name():
    model = Model(nn.Linear(2, 1).double(), Gaussian(scale=1.0), Normal())
    point = MLE(num_epochs=1, batch_size=8).fit(model, data(), seed=0)
    with pytest.raises(NotSupportedError, match="PointPosterior holds one set of weights, which has no spread"):
        point.as_prior()
    assert not hasattr(MCDropout, "as_prior")
