"""IVON against its algorithm written out, and against the mean-field optimum of conjugate regression."""

import pytest
import torch
from torch import nn

import cases
from credibly import Data, Model, Standardize, inference, likelihoods, priors
from credibly.core.errors import ConvergenceWarning, NotFiniteError, NotSupportedError
from credibly.core.linalg import Diagonal
from credibly.core.randomness import Stream
from credibly.training import EarlyStopping, constant
from credibly.training.ivon import update_hess_

SCALE = 0.5


def regression(num_rows=60, num_inputs=4, dtype=torch.float64):
    """Correlated inputs of unlike sizes, and a target with noise of standard deviation `SCALE`."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(num_rows, num_inputs, generator=generator, dtype=torch.float64)
    x = x @ torch.randn(num_inputs, num_inputs, generator=generator, dtype=torch.float64)
    truth = torch.tensor([1.5, -2.0, 0.0, 0.3], dtype=torch.float64)[:num_inputs]
    y = x @ truth + SCALE * torch.randn(num_rows, generator=generator, dtype=torch.float64)
    return x.to(cases.DEVICE, dtype), y.to(cases.DEVICE, dtype)


def linear_model(prior, dtype=torch.float64):
    net = nn.Linear(4, 1, bias=False).to(cases.DEVICE, dtype)
    return Model(net, likelihoods.Gaussian(scale=SCALE), prior)


def exact(x, y, prior_scale):
    """The posterior's mean and precision."""
    precision = x.T @ x / SCALE**2 + torch.eye(4).to(x) / prior_scale**2
    return torch.linalg.solve(precision, x.T @ y / SCALE**2), precision


def written_out(x, y, m, method, seed, *, prior_scale, num_steps):
    """Algorithm 1 of the paper on all rows of a linear regression, with the gradient by hand."""
    n, (b1, b2) = len(x), (method.beta1, method.beta2)
    ess, d = n / method.temperature, 1 / (n * prior_scale**2)
    g, h = torch.zeros_like(m), torch.full_like(m, method.hess_init)
    rate = method.learning_rate * (method.hess_init + d if method.rescale else 1)
    noise = Stream(seed, "perturb", m.device)
    for t in range(1, num_steps + 1):
        s = 1 / (ess * (h + d)).sqrt()
        g_hat, h_hat = torch.zeros_like(m), torch.zeros_like(m)
        for draw in range(method.num_samples):
            index = (t - 1) * method.num_samples + draw
            w = m + s * noise.normal(4, index, index + 1, m.dtype)[0]
            gradient = -(x.T @ (y - x @ w)) / SCALE**2 / n
            g_hat = g_hat + gradient / method.num_samples
            h_hat = h_hat + gradient * (w - m) / s**2 / method.num_samples
        g = b1 * g + (1 - b1) * g_hat
        h = b2 * h + (1 - b2) * h_hat + 0.5 * (1 - b2) ** 2 * (h - h_hat) ** 2 / (h + d)
        m = m - rate * (g / (1 - b1**t) + d * m) / (h + d)
    return m, 1 / (ess * (h + d))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_samples": 3},
        {"rescale": False, "learning_rate": 0.01},
        {"temperature": 0.3},
        {"beta1": 0.0, "beta2": 0.9, "hess_init": 20.0},
    ],
)
@pytest.mark.parametrize("fan_in", [False, True])
def test_steps_are_those_of_the_algorithm(options, fan_in, dtype):
    x, y = regression(dtype=dtype)
    ours = linear_model(priors.Normal(0.7, fan_in_scaled=fan_in), dtype)
    method = inference.IVON(num_epochs=6, batch_size=None, schedule=None, **options)
    posterior = method.fit(ours, (x, y), seed=5)
    start = ours.net.weight.detach().flatten()
    scale = 0.7 / 2 if fan_in else 0.7  # four inputs
    # the order of the rows, and with it the rounding of their sum, differs
    mean, variance = written_out(x, y, start, method, 5, prior_scale=scale, num_steps=6)
    tolerance = {"rtol": 1e-10, "atol": 1e-12} if dtype == torch.float64 else {"rtol": 1e-3, "atol": 1e-4}
    torch.testing.assert_close(posterior.model.net.weight.detach().flatten(), mean, **tolerance)
    assert isinstance(posterior.covariance, Diagonal)
    torch.testing.assert_close(posterior.covariance.diagonal(), variance, **tolerance)
    assert posterior.info.temperature == method.temperature


@pytest.mark.parametrize("beta2", [0.0, 0.5, 0.999])
def test_the_correction_keeps_the_hessian_above_minus_the_decay(beta2):
    decay = torch.full((5,), 0.1, dtype=torch.float64)
    for size in (1e-3, 1.0, 1e3, 1e6):
        hess = torch.ones(5, dtype=torch.float64)
        estimate = size * torch.tensor([-1.0, -0.5, 0.0, 0.5, 1.0], dtype=torch.float64)
        expected = beta2 * hess + (1 - beta2) * estimate
        expected = expected + 0.5 * (1 - beta2) ** 2 * (hess - estimate) ** 2 / (hess + decay)
        update_hess_(hess, estimate, decay, beta2)
        torch.testing.assert_close(hess, expected)
        assert (hess + decay >= 0.5 * 1.1 * (1 - 1e-9)).all()  # 1 + x + x^2 / 2 is 1/2 or more


def spread_of_estimates(precision, prior_precision, num_data):
    """Of h^ at the optimum: its mean is the Hessian's diagonal, its variance that of sum_j H_ij s_j e_j e_i / s_i."""
    hess = (precision - prior_precision * torch.eye(len(precision)).to(precision)) / num_data
    s = precision.diagonal().rsqrt()
    ratios = hess * s / s.unsqueeze(1)
    return hess.diagonal(), ratios.square().sum(1) + ratios.diagonal().square()


def test_conjugate_regression_ends_near_the_mean_field_optimum():
    x, y = regression()
    mean, precision = exact(x, y, 0.7)
    beta2, steps = 0.998, 2500
    method = inference.IVON(num_epochs=steps, batch_size=None, beta2=beta2, hess_init=10.0)
    posterior = method.fit(linear_model(priors.Normal(0.7)), (x, y), seed=0)
    hess, variance = spread_of_estimates(precision, 1 / 0.7**2, 60)
    # a running mean of independent estimates has (1 - b2) / (1 + b2) of their variance; the correction lifts it by
    # (1 - b2) Var / (2 h); what is left of the first value is b2^steps
    error = 5 * (variance * (1 - beta2) / (1 + beta2)).sqrt() + (1 - beta2) * variance / (2 * hess)
    error = error + beta2**steps * (hess - 10).abs()
    assert (error < 0.4 * hess).all(), "the test must be able to fail"
    found = 1 / (60 * posterior.covariance.diagonal()) - 1 / (60 * 0.7**2)
    assert ((found - hess).abs() < error).all()
    # the step is about lr h0 / h of the way, so that the mean's noise is below half a standard deviation
    off = (posterior.model.net.weight.detach().flatten() - mean) * precision.diagonal().sqrt()
    assert (off.abs() < 0.5).all()


def test_the_running_hessian_of_a_quadratic_settles_at_its_diagonal():
    x, y = regression()
    _, precision = exact(x, y, 0.7)
    hess, variance = spread_of_estimates(precision, 1 / 0.7**2, 60)
    generator = torch.Generator().manual_seed(0)
    whole = (precision - torch.eye(4).to(precision) / 0.7**2) / 60
    decay = torch.full((4,), 1 / (60 * 0.7**2)).to(precision)
    beta2, steps, h = 0.99, 20_000, torch.ones(4).to(precision)
    total = torch.zeros_like(h)
    for _ in range(steps):
        s = 1 / (60 * (h + decay)).sqrt()
        noise = torch.randn(4, generator=generator, dtype=torch.float64).to(h)
        update_hess_(h, (whole @ (s * noise)) * noise / s, decay, beta2)
        total += h
    # the mean of a running mean is that of the estimates: their standard error, and the lift by the correction
    error = 5 * (variance / steps).sqrt() + 2 * (1 - beta2) * variance / (2 * hess)
    assert ((total / steps - hess).abs() < error).all()


def test_accumulated_batches_are_one_batch(dtype):
    x, y = regression(30, dtype=dtype)
    weights = torch.linspace(0.5, 2, 30, dtype=dtype, device=cases.DEVICE)
    ours = linear_model(priors.Normal(), dtype)
    options = {"num_epochs": 4, "num_samples": 2}
    parts = inference.IVON(batch_size=4, accumulate=3, **options).fit(ours, Data(x, y, weights=weights), seed=0)
    whole = inference.IVON(batch_size=12, **options).fit(ours, Data(x, y, weights=weights), seed=0)
    tolerance = {"rtol": 1e-9, "atol": 1e-12} if dtype == torch.float64 else {"rtol": 1e-3, "atol": 1e-4}
    torch.testing.assert_close(parts.mean["net.weight"], whole.mean["net.weight"], **tolerance)
    torch.testing.assert_close(parts.covariance.values, whole.covariance.values, **tolerance)


def deep(*layers):
    net = nn.Sequential(nn.Linear(4, 8), *layers, nn.Tanh(), nn.Linear(8, 1)).to(cases.DEVICE)
    return Model(net, likelihoods.Gaussian(), inputs=Standardize(), targets=Standardize())


def test_lower_precision_of_the_forward_pass_keeps_weights_and_variances_whole():
    x, y = regression(dtype=torch.float32)
    ours = deep()
    full = inference.IVON(num_epochs=20).fit(ours, (x, y), seed=0)
    low = inference.IVON(num_epochs=20, autocast=torch.bfloat16).fit(ours, (x, y), seed=0)
    assert low.covariance.values.dtype == torch.float32
    assert not torch.equal(low.covariance.values, full.covariance.values), "autocast must have had an effect"
    assert low.info.history.loss[-1] == pytest.approx(full.info.history.loss[-1], abs=0.2)
    half = Model(nn.Linear(4, 1).bfloat16(), likelihoods.Gaussian())
    with pytest.raises(NotSupportedError, match=r"bfloat16.*autocast"):
        inference.IVON(num_epochs=1).fit(half, (x.bfloat16(), y.bfloat16()))


def test_it_learns_and_learns_the_noise_too():
    x, y = regression(200, dtype=torch.float32)
    ours = deep()
    posterior = inference.IVON(num_epochs=60, num_samples=2).fit(ours, (x, y), validation=(x, y), seed=0)
    history = posterior.info.history
    assert history.loss[-1] < history.loss[0] - 0.5
    assert len(history.validation_log_prob) == 60
    score = float(posterior.to_model()(x).log_prob(y).mean().detach())
    assert score == pytest.approx(history.validation_log_prob[-1], rel=1e-4)
    scales = posterior.parameters(x, num_draws=4, seed=0)["scale"]
    assert (scales == scales.flatten()[0]).all()
    assert float(scales.flatten()[0]) != pytest.approx(float(ours.likelihood(torch.zeros(1, 1)).stddev.detach()))
    assert posterior.sample(2, seed=0).keys() == {"net.0.weight", "net.0.bias", "net.2.weight", "net.2.bias"}


def test_callbacks_see_the_mean_and_an_exception_leaves_the_users_model():
    x, y = regression(dtype=torch.float32)
    ours = deep(nn.BatchNorm1d(8), nn.Dropout(0.1))
    before = {name: value.clone() for name, value in ours.state_dict().items()}
    seen = []

    def look(epoch):
        seen.append({name: p.detach().clone() for name, p in epoch.model.core.named_parameters()})
        if len(seen) == 5:
            raise KeyboardInterrupt

    posterior = inference.IVON(num_epochs=3, schedule=None, callbacks=[look]).fit(ours, (x, y), seed=0)
    assert all(torch.equal(seen[2][name], value) for name, value in posterior.mean.items())
    with pytest.raises(KeyboardInterrupt):
        inference.IVON(num_epochs=9, schedule=None, callbacks=[look]).fit(ours, (x, y), seed=0)
    assert all(torch.equal(seen[3][name], value) for name, value in seen[0].items()), "the same seed, the same course"
    assert all(torch.equal(value, before[name]) for name, value in ours.state_dict().items())


def test_a_loss_that_is_not_finite_keeps_the_best_mean_and_variances():
    x, y = regression(dtype=torch.float32)
    ours = linear_model(priors.Normal(), torch.float32)
    with pytest.raises(NotFiniteError, match="epoch") as caught:
        inference.IVON(num_epochs=50, learning_rate=1e30, schedule=constant).fit(ours, (x, y), seed=0)
    kept = caught.value.posterior
    assert kept.predict(x).mean.isfinite().all()
    assert kept.covariance.values.isfinite().all()
    bounded = inference.IVON(num_epochs=2, learning_rate=1e30, clip_radius=1e-31, rescale=False, schedule=None)
    moved = bounded.fit(ours, (x, y), seed=0).model.net.weight - ours.net.weight
    assert float(moved.detach().abs().max()) <= 0.1 * 2 * 2 + 1e-6  # two batches an epoch


def test_early_stopping_goes_back_to_mean_and_variances_of_the_best_epoch():
    x, y = regression(20, dtype=torch.float32)
    kept = []

    def look(epoch):
        kept.append([p.detach().clone() for p in epoch.model.net.parameters()])

    method = inference.IVON(
        num_epochs=60, learning_rate=0.5, schedule=None, early_stopping=EarlyStopping(patience=3), callbacks=[look]
    )
    held_out = regression(40, dtype=torch.float32)
    posterior = method.fit(deep(), (x, y), validation=(held_out[0], held_out[1].flip(0)), seed=0)
    history = posterior.info.history
    assert history.stopped_early
    best = kept[history.best_epoch]
    assert all(torch.equal(a, b) for a, b in zip(best, posterior.model.net.parameters(), strict=True))


def test_frozen_and_tied_weights():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
            self.second.weight = self.first.weight
            self.read = nn.Linear(4, 1)
            self.read.bias.requires_grad_(requires_grad=False)

        def forward(self, x):
            return self.read(self.second(torch.tanh(self.first(x))))

    x, y = regression(dtype=torch.float32)
    ours = Model(Tied().to(cases.DEVICE), likelihoods.Gaussian())
    posterior = inference.IVON(num_epochs=3).fit(ours, (x, y), seed=0)
    net = posterior.model.net
    assert net.second.weight is net.first.weight
    assert posterior.covariance.size == 16 + 4 + 4 + 4
    assert torch.equal(net.read.bias, ours.net.read.bias)
    assert not torch.equal(net.first.weight, ours.net.first.weight)


@pytest.mark.parametrize(
    ("prior", "match"),
    [
        (lambda: priors.Laplace(), "Laplace"),
        (lambda: priors.Flat(), "Flat"),
        (lambda: priors.StudentT(4.0), "StudentT"),
        (lambda: priors.WeightsOnly(priors.Normal()), r"WeightsOnly.*net\.0\.bias"),
    ],
)
def test_other_priors_are_refused_by_name(prior, match):
    ours = deep()
    ours.prior = prior()
    with pytest.raises(NotSupportedError, match=match):
        inference.IVON(num_epochs=1).fit(ours, regression(dtype=torch.float32))


def test_what_has_no_density_or_no_weights_is_refused():
    data = regression(dtype=torch.float32)
    with pytest.raises(NotSupportedError, match="QuantileHead"):
        inference.IVON(num_epochs=1).fit(Model(nn.Linear(4, 2), likelihoods.QuantileHead([0.1, 0.9])), data)
    fixed = Model(nn.Linear(4, 1).requires_grad_(requires_grad=False), likelihoods.Gaussian())
    with pytest.raises(ValueError, match="requires a gradient"):
        inference.IVON(num_epochs=1).fit(fixed, data)


def test_normal_priors_by_name_are_taken():
    ours = deep()
    ours.prior = priors.ByName({"*.bias": priors.Normal(0.01), "*": priors.Normal(1.0)})
    posterior = inference.IVON(num_epochs=2, hess_init=1e-6, learning_rate=1e-6).fit(
        ours, regression(dtype=torch.float32), seed=0
    )
    biases = posterior.covariance.values[32:40]
    assert float(biases.max()) <= 0.01**2 * 2.001  # h + d never falls below half of what it was, per step


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"num_samples": 0}, "num_samples"),
        ({"temperature": 0.0}, "temperature"),
        ({"hess_init": -1.0}, "hess_init"),
        ({"beta1": 1.0}, "beta1"),
        ({"beta2": 1.0}, "beta2"),
        ({"clip_radius": 0.0}, "clip_radius"),
        ({"noise_learning_rate": 0.0}, "noise_learning_rate"),
        ({"num_epochs": 0}, "num_epochs"),
        ({"accumulate": 0}, "accumulate"),
        ({"learning_rate": 0.0}, "learning_rate"),
    ],
)
def test_senseless_options_are_refused(options, match):
    with pytest.raises(ValueError, match=match):
        inference.IVON(**options)


def test_a_loss_that_grows_is_told():
    torch.manual_seed(0)
    x = torch.linspace(-2, 2, 100).unsqueeze(1)
    y = torch.sin(2 * x[:, 0])
    net = nn.Sequential(nn.Linear(1, 30), nn.Tanh(), nn.Linear(30, 1))
    model = Model(net, likelihoods.Gaussian(scale=0.1))
    with pytest.warns(ConvergenceWarning, match=r"IVON: the loss rose from .* use a smaller `learning_rate`"):
        inference.IVON(num_epochs=20, hess_init=100.0).fit(model, (x, y), seed=0)
    found = inference.IVON(num_epochs=100, hess_init=100.0, learning_rate=1e-3).fit(model, (x, y), seed=0)
    assert found.info.history.loss[-1] < found.info.history.loss[0]
