"""Noise, bias and variance of methods whose own are known in closed form."""

from dataclasses import dataclass

import pytest
import torch
from torch import nn

from credibly import Model, inference, likelihoods
from credibly.core.errors import ShapeError
from credibly.diagnostics import bias_variance
from credibly.inference import InferenceMethod
from credibly.posteriors import Info, PointPosterior

NOISE, PENALTY = 0.8, 6.0


@dataclass(frozen=True, eq=False)
class Ridge(InferenceMethod):
    """Ridge regression in closed form: its predictions are linear in the targets."""

    penalty: float = PENALTY

    def fit(self, model, data, *, validation=None, start=None, seed=None, progress=None):
        x, y = data
        fitted = Model(nn.Linear(x.shape[1], 1, bias=False).to(x), likelihoods.Gaussian(scale=NOISE))
        fitted.net.weight.data = (smoother(x, self.penalty) @ y).unsqueeze(0)
        return PointPosterior(fitted, Info("Ridge", 0))


def smoother(x, penalty):
    return torch.linalg.solve(x.T @ x + penalty * torch.eye(x.shape[1], dtype=x.dtype), x.T)


def design(rows, seed):
    return torch.randn(rows, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


X, POINTS = design(12, 0), design(25, 1)
WEIGHTS = torch.tensor([1.0, -1.0, 2.0, 0.0], dtype=torch.float64)
MODEL = Model(nn.Linear(4, 1, bias=False).double(), likelihoods.Gaussian(scale=NOISE))
TRUTH = torch.distributions.Normal(POINTS @ WEIGHTS, torch.tensor(NOISE, dtype=torch.float64))


def simulate(seed):
    noise = torch.randn(12, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return X, X @ WEIGHTS + NOISE * noise


def run(num_datasets, seed=0, penalty=PENALTY):
    method = Ridge(penalty)
    return bias_variance(method, MODEL, simulate, POINTS, truth=TRUTH, num_datasets=num_datasets, seed=seed)


def exact(penalty=PENALTY):
    hat = POINTS @ smoother(X, penalty)
    bias = (hat @ X @ WEIGHTS - POINTS @ WEIGHTS) ** 2
    return bias, NOISE**2 * hat.square().sum(1)


def test_ridge_regression_in_closed_form():
    result = run(400)
    bias, variance = exact()
    # five standard errors: a part fails for one seed in 1.7 million
    assert abs(result.bias - bias.mean()) < 5 * result.standard_error.bias
    assert abs(result.variance - variance.mean()) < 5 * result.standard_error.variance
    assert abs(result.error - (bias + variance).mean() - NOISE**2) < 5 * result.standard_error.error
    assert result.noise == pytest.approx(NOISE**2)
    assert result.standard_error.noise == 0
    assert result.standard_error.bias < 0.1 * bias.mean(), "the test can tell a wrong bias"
    torch.testing.assert_close(result.rows.variance, variance, rtol=0.5, atol=0)


def test_the_parts_add_up_to_the_error_on_fresh_targets():
    result = run(300)
    torch.testing.assert_close(result.noise + result.bias + result.variance, result.error, rtol=1e-12, atol=0)
    rows = result.rows
    torch.testing.assert_close(rows.noise + rows.bias + rows.variance, rows.error, rtol=1e-12, atol=0)
    with torch.random.fork_rng():
        torch.manual_seed(5)
        fresh = TRUTH.sample((300,))
    losses = ((fresh - result.means) ** 2).mean(1)
    assert abs(losses.mean() - result.error) < 5 * losses.std() / 300**0.5


def test_few_data_sets_leave_no_excess_in_the_bias():
    # an unpenalised fit has no bias; the squared distance of the mean of 4 predictions is a quarter of the variance
    repeats = [run(4, seed, penalty=0.0) for seed in range(200)]
    biases = torch.stack([result.bias for result in repeats])
    variances = torch.stack([result.variance for result in repeats])
    _, variance = exact(0.0)
    assert abs(biases.mean()) < 5 * biases.std() / 200**0.5
    assert abs(variances.mean() - variance.mean()) < 5 * variances.std() / 200**0.5
    assert variance.mean() / 4 > 10 * biases.std() / 200**0.5, "the uncorrected bias would be found"


def test_standard_errors_are_those_of_repetition():
    repeats = [run(20, seed) for seed in range(100, 200)]
    for part in ("bias", "variance", "error"):
        values = torch.stack([getattr(result, part) for result in repeats])
        claimed = torch.stack([getattr(result.standard_error, part) for result in repeats])
        # 100 repeats know the spread to 7 %; the jackknife itself is right to order 1 / 20
        assert abs(claimed.mean() / values.std() - 1) < 5 * 0.07, part


def test_seeds_models_and_the_global_state():
    def network():
        return Model(nn.Sequential(nn.Linear(1, 4), nn.Tanh(), nn.Linear(4, 1)), likelihoods.Gaussian(scale=0.3))

    def noisy(seed):
        x = torch.rand(16, 1)  # under the seed, like anything that uses torch's global generator
        return x, x[:, 0] + 0.3 * torch.randn(16)

    points = torch.linspace(0, 1, 5).unsqueeze(-1)
    truth = torch.distributions.Normal(points[:, 0], 0.3)
    method = inference.MAP(num_epochs=2)
    before = torch.get_rng_state()
    fresh = [
        bias_variance(method, network, noisy, points, truth=truth, num_datasets=4, seed=seed).means
        for seed in (1, 1, 2)
    ]
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(fresh[0], fresh[1])
    assert not torch.equal(fresh[0], fresh[2])
    model = network()
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    shared = bias_variance(method, model, noisy, points, truth=truth, num_datasets=20, seed=1)
    own = bias_variance(method, network, noisy, points, truth=truth, num_datasets=20, seed=1)
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    assert own.variance > 2 * shared.variance, "fresh initialisations add their variance after two epochs"


def test_vector_targets_and_standardised_shapes():
    points, weights = POINTS[:6], torch.eye(4, dtype=torch.float64)[:2]
    truth = torch.distributions.Independent(torch.distributions.Normal(points @ weights.T, 1.0), 1)

    def two(seed):
        y = X @ weights.T + torch.randn(12, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        return X, y

    model = Model(nn.Linear(4, 2).double(), likelihoods.Gaussian(2, scale=[1.0, 1.0]))
    result = bias_variance(inference.MAP(num_epochs=1), model, two, points, truth=truth, num_datasets=3, seed=0)
    assert result.means.shape == (3, 6, 2)
    assert result.rows.bias.shape == (6, 2)
    assert result.error.shape == ()


def test_refusals():
    with pytest.raises(ValueError, match="3 or more; got 2"):
        run(2)
    with pytest.raises(ValueError, match="num_datasets"):
        run(0)
    with pytest.raises(TypeError, match="Distribution"):
        bias_variance(Ridge(), MODEL, simulate, POINTS, truth=POINTS @ WEIGHTS, num_datasets=3)
    wide = torch.distributions.Normal(POINTS @ torch.zeros(4, 2, dtype=torch.float64), 1.0)
    with pytest.raises(ShapeError, match=r"`truth`.*\(25,\).*\(25, 2\)"):
        bias_variance(Ridge(), MODEL, simulate, POINTS, truth=wide, num_datasets=3)
