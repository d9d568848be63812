"""MLE and MAP against closed forms and against other libraries."""

import math

import pytest
import torch
from sklearn.linear_model import Lasso, LogisticRegression
from torch import nn

from credibly import Data, Model, Standardize, inference, likelihoods, priors
from credibly.training import linear


def regression(num_rows=60, num_inputs=4, *, noise=0.5):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(num_rows, num_inputs, generator=generator, dtype=torch.float64)
    x = x @ torch.randn(num_inputs, num_inputs, generator=generator, dtype=torch.float64)
    truth = torch.tensor([1.5, -2.0, 0.0, 0.3], dtype=torch.float64)[:num_inputs]
    y = x @ truth + noise * torch.randn(num_rows, generator=generator, dtype=torch.float64)
    return x, y


def linear_model(num_inputs, prior, *, scale=0.5):
    net = nn.Linear(num_inputs, 1, bias=False).double()
    return Model(net, likelihoods.Gaussian(scale=scale), prior)


def lbfgs_like(num_epochs=400):
    """Full-batch steps that converge far below the tolerances of these tests."""
    return {"num_epochs": num_epochs, "batch_size": None, "learning_rate": 0.05, "schedule": linear}


def weights_of(posterior):
    return posterior.model.net.weight.detach().squeeze(0)


def test_map_with_a_normal_prior_is_ridge_regression():
    x, y = regression()
    posterior = inference.MAP(**lbfgs_like(2000)).fit(linear_model(4, priors.Normal(0.7)), (x, y), seed=0)
    ridge = torch.linalg.solve(x.T @ x / 0.5**2 + torch.eye(4, dtype=torch.float64) / 0.7**2, x.T @ y / 0.5**2)
    torch.testing.assert_close(weights_of(posterior), ridge, atol=1e-5, rtol=1e-5)


def test_map_equals_training_with_the_converted_weight_decay():
    x, y = regression()
    prior = priors.Normal(0.7)
    by_prior = inference.MAP(**lbfgs_like(2000)).fit(linear_model(4, prior), (x, y), seed=0)

    def decayed(params, lr):
        return torch.optim.Adam(params, lr=lr, weight_decay=prior.weight_decay(len(x)))

    by_decay = inference.MLE(**lbfgs_like(2000), optimizer=decayed).fit(linear_model(4, prior), (x, y), seed=0)
    torch.testing.assert_close(weights_of(by_decay), weights_of(by_prior), atol=1e-5, rtol=1e-5)
    assert priors.Normal.from_weight_decay(prior.weight_decay(60), 60).scale == pytest.approx(0.7)


def test_map_with_a_laplace_prior_is_the_lasso():
    x, y = regression(noise=1.0)
    b = 0.02
    # the lasso's penalty on the mean of squares / 2: sigma^2 / (N b)
    lasso = Lasso(alpha=1.0 / (len(x) * b), fit_intercept=False, tol=1e-12).fit(x.numpy(), y.numpy())
    model = linear_model(4, priors.Laplace(b), scale=1.0)
    posterior = inference.MAP(**lbfgs_like(4000)).fit(model, (x, y), seed=0)
    assert (lasso.coef_ == 0).any(), "the case must have a weight at the kink"
    torch.testing.assert_close(weights_of(posterior), torch.as_tensor(lasso.coef_), atol=1e-3, rtol=1e-3)


def test_map_classification_is_penalised_logistic_regression():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(80, 3, generator=generator, dtype=torch.float64)
    y = (x[:, 0] - x[:, 1] + torch.randn(80, generator=generator, dtype=torch.float64) > 0).double()
    net = nn.Linear(3, 1).double()
    model = Model(net, likelihoods.Bernoulli(), priors.WeightsOnly(priors.Normal(1.0)))
    posterior = inference.MAP(**lbfgs_like(2000)).fit(model, (x, y), seed=0)
    oracle = LogisticRegression(C=1.0, tol=1e-10, max_iter=10_000).fit(x.numpy(), y.numpy())
    torch.testing.assert_close(weights_of(posterior), torch.as_tensor(oracle.coef_[0]), atol=1e-5, rtol=1e-4)
    assert float(posterior.model.net.bias.detach()) == pytest.approx(oracle.intercept_[0], abs=1e-4)


def test_row_weights_count_a_row_that_often():
    x, y = regression()
    weights = torch.ones(60, dtype=torch.float64)
    weights[:10] = 3.0
    method = inference.MLE(**lbfgs_like(2000))
    weighted = method.fit(linear_model(4, None), Data(x, y, weights=weights), seed=0)
    w = torch.diag(weights)
    exact = torch.linalg.solve(x.T @ w @ x, x.T @ w @ y)
    torch.testing.assert_close(weights_of(weighted), exact, atol=1e-5, rtol=1e-5)


def test_a_learned_noise_scale_is_the_residual_deviation_in_the_units_of_the_targets():
    x, y = regression(num_rows=200)
    y = 1000 + 250 * y
    net = nn.Linear(4, 1).double()
    model = Model(net, likelihoods.Gaussian(), priors.Flat(), inputs=Standardize(), targets=Standardize())
    posterior = inference.MLE(**lbfgs_like(2000)).fit(model, (x, y), seed=0)
    design = torch.cat([x, torch.ones(200, 1, dtype=torch.float64)], 1)
    residual = y - design @ torch.linalg.lstsq(design, y).solution
    predicted = posterior.predict(x)
    torch.testing.assert_close(predicted.stddev, residual.square().mean().sqrt().expand(200), rtol=1e-4, atol=0)
    torch.testing.assert_close(predicted.mean, y - residual, rtol=1e-5, atol=1e-2)
    expected = -0.5 * math.log(2 * math.pi) - float(residual.square().mean().sqrt().log()) - 0.5
    assert float(predicted.log_prob(y).mean()) == pytest.approx(expected, abs=1e-4)
    assert posterior.info.history.loss[-1] == pytest.approx(-expected, abs=1e-4)


def test_a_fixed_noise_scale_is_in_the_units_of_the_targets():
    x, y = regression()
    model = Model(nn.Linear(4, 1).double(), likelihoods.Gaussian(scale=30.0), targets=Standardize())
    posterior = inference.MLE(num_epochs=1).fit(model, (x, 100 * y), seed=0)
    torch.testing.assert_close(posterior.predict(x).stddev, torch.full((60,), 30.0, dtype=torch.float64))


def test_targets_of_shape_n_and_n_by_1_train_alike():
    x, y = regression()
    method = inference.MAP(num_epochs=3)
    flat = method.fit(linear_model(4, None), (x, y), start="current", seed=0)
    model = linear_model(4, None)
    model.net.load_state_dict(flat.model.net.state_dict())
    one = method.fit(model, (x, y), seed=5)
    two = method.fit(model, (x, y.unsqueeze(1)), seed=5)
    assert torch.equal(weights_of(one), weights_of(two))
    with pytest.raises(ValueError, match=r"\(60, 3\)"):
        method.fit(model, (x, y.unsqueeze(1).expand(-1, 3)), seed=5)
