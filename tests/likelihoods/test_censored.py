"""Censored targets in models: closed estimates, recovery, refusals, data with infinite bounds."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from credibly import Data, Model, inference, load, priors, save
from credibly.core.errors import NotFiniteError, NotSupportedError
from credibly.distributions import functions as waist
from credibly.likelihoods import (
    Bernoulli,
    Censored,
    Gamma,
    Gaussian,
    HeteroscedasticGaussian,
    Laplace,
    Likelihood,
    LogNormal,
    MixtureDensity,
    Poisson,
    StudentT,
    Weibull,
)
from credibly.metrics import log_score
from credibly.standardization import Standardize
from credibly.training import linear

INF = math.inf
FAMILIES = [Gaussian, HeteroscedasticGaussian, Laplace, LogNormal, Gamma, Weibull, lambda: MixtureDensity(2)]


class Exponential(Likelihood):
    """y ~ Exponential(exp(output)): the smallest likelihood of one's own."""

    num_outputs = 1

    def parameters_of(self, outputs):
        return {"log_rate": outputs.squeeze(-1)}

    def distribution(self, parameters):
        return torch.distributions.Exponential(parameters["log_rate"].exp(), validate_args=False)


class Bias(nn.Module):
    """The same outputs for every row."""

    def __init__(self, num_outputs):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(num_outputs, dtype=torch.float64))

    def forward(self, x):
        return self.bias.expand(len(x), -1)


def right_censored(times, ends):
    """Pairs of bounds (rows, 2)."""
    return torch.stack([torch.minimum(times, ends), torch.where(times <= ends, times, INF)], -1)


def train(likelihood, y, *, num_epochs=250):
    model = Model(Bias(likelihood.num_outputs), likelihood, priors.Flat())
    method = inference.MLE(num_epochs=num_epochs, batch_size=None, learning_rate=0.1, schedule=linear)
    return method.fit(model, (torch.zeros(len(y), 1, dtype=torch.float64), y), seed=0)


def survival_data(rows=500, seed=0):
    generator = torch.Generator().manual_seed(seed)
    times = -torch.rand(rows, generator=generator, dtype=torch.float64).log() * 2.0
    return times, 4 * torch.rand(rows, generator=generator, dtype=torch.float64)


def test_the_exponential_estimate_is_events_over_total_time():
    times, ends = survival_data()
    y = right_censored(times, ends)
    posterior = train(Censored(Exponential()), y, num_epochs=1000)
    events, total = int((times <= ends).sum()), float(torch.minimum(times, ends).sum())
    rate = float(posterior.model.net.bias.detach().exp())
    assert rate == pytest.approx(events / total, rel=1e-6)
    # the maximum of the log likelihood: events log rate - rate * total time
    expected = (events * math.log(rate) - rate * total) / len(y)
    assert float(log_score(posterior.predict(torch.zeros(len(y), 1).double()), y)) == pytest.approx(expected, rel=1e-9)


def kaplan_meier(times, ends, at):
    """The product-limit estimate of P(Y > at) and Greenwood's standard error."""
    observed, event = np.minimum(times, ends), times <= ends
    survival, variance = 1.0, 0.0
    for when in np.sort(observed[event & (observed <= at)]):
        at_risk = (observed >= when).sum()
        survival *= 1 - 1 / at_risk
        variance += 1 / (at_risk * (at_risk - 1))
    return survival, survival * np.sqrt(variance)


def test_a_survival_table_agrees_with_kaplan_and_meier():
    times, ends = survival_data(800, seed=1)
    predicted = train(Censored(Weibull()), right_censored(times, ends)).predict(torch.zeros(1, 1).double())
    for at in (0.3, 1.0, 2.0, 3.0):
        survival, error = kaplan_meier(times.numpy(), ends.numpy(), at)
        # the parametric estimate is the more precise one; 4 standard errors of the other at 4 times
        assert abs(1 - float(predicted.cdf(at)) - survival) < 4 * error


@pytest.mark.parametrize("make", [lambda: Gaussian(scale=0.7), *FAMILIES[1:-1]])
def test_a_network_recovers_the_truth_from_censored_targets(make):
    """The estimate lies within 5 standard errors, from the curvature of the log likelihood at the truth."""
    of = make().double()
    truth = torch.tensor([0.4, 0.3, -0.2][: of.num_outputs], dtype=torch.float64)
    torch.manual_seed(2)
    y = of(truth.expand(400, -1)).sample().detach()
    ends = of(truth.expand(400, -1)).sample().detach()
    pairs = right_censored(y, ends)
    pairs[::5] = torch.stack([y[::5] - 0.3 * y[::5].abs(), y[::5] + 0.4], -1)  # between two visits
    likelihood = Censored(of)
    posterior = train(likelihood, pairs)

    def total(outputs):
        return likelihood.log_prob(likelihood.parameters_of(outputs.expand(400, -1)), pairs).sum()

    estimate = posterior.model.net.bias.detach()
    information = -torch.autograd.functional.hessian(total, estimate)
    error = estimate - truth
    # the chi-squared distance, beyond its bound once in 10^6
    assert float(error @ information @ error) < stats.chi2(len(truth)).isf(1e-6)
    score = torch.autograd.functional.jacobian(total, estimate)
    assert float(score @ torch.linalg.solve(information, score)) < 1e-3  # it is the maximum


def bounds(kind, y):
    """Pairs of which about half are censored, from ends that do not depend on y; of an interval all are."""
    median = y.median()
    ends = median + 0.5 * y.std() * torch.randn(len(y), generator=torch.Generator().manual_seed(4)).double()
    if kind == "right":
        return torch.stack([torch.minimum(y, ends), torch.where(y <= ends, y, INF)], -1)
    if kind == "left":
        return torch.stack([torch.where(y >= ends, y, -INF), torch.maximum(y, ends)], -1)
    width = y.std() / 2
    lower = (y / width).floor() * width
    return torch.stack([lower, lower + width], -1)


@pytest.mark.parametrize("kind", ["left", "right", "interval"])
@pytest.mark.parametrize("make", [Gaussian, Laplace, Weibull])
def test_a_network_recovers_the_truth_from_targets_censored_on_either_side_or_both(make, kind):
    """Twice the gain in log likelihood over the truth is chi-squared (Wilks 1938): once in 5,000 seeds each fails."""
    generator = torch.Generator().manual_seed(3)
    likelihood = Censored(make()).double()
    x = torch.randn(600, 2, generator=generator, dtype=torch.float64)
    net = nn.Linear(2, likelihood.num_outputs).double()
    truth = {name: 0.4 * torch.randn(p.shape, generator=generator).double() for name, p in net.named_parameters()}
    net.load_state_dict(truth)
    torch.manual_seed(5)
    with torch.no_grad():
        outputs = net(x)
        pairs = bounds(kind, likelihood.of(outputs).sample())
        for name, p in net.named_parameters():
            p.copy_(truth[name] + 0.2 * torch.randn(p.shape, generator=generator).double())
    assert 0.3 < float((pairs[:, 0] < pairs[:, 1]).double().mean()) <= 1
    method = inference.MLE(num_epochs=150, batch_size=None, learning_rate=0.05, schedule=linear)
    model = method.fit(Model(net, likelihood, priors.Flat()), (x, pairs), seed=0).model
    best = model.log_likelihood({}, {}, (x, pairs)).sum().detach()
    true = likelihood.log_prob(likelihood.parameters_of(outputs), pairs).sum().detach()
    gain, freedom = 2 * float(best - true), sum(p.numel() for p in model.core.parameters())
    assert stats.chi2.ppf(1e-4, freedom) < gain < stats.chi2.ppf(1 - 1e-4, freedom)


def test_leaving_out_or_trusting_censored_rows_is_biased_and_censoring_is_not():
    times, ends = survival_data(1000, seed=3)
    pairs = right_censored(times, ends)
    events = times <= ends
    means = {
        name: float(train(Censored(Exponential()), y).predict(torch.zeros(1, 1).double()).mean)
        for name, y in (("censored", pairs), ("trusted", pairs[:, 0]), ("dropped", pairs[events]))
    }
    error = 2.0 / int(events.sum()) ** 0.5
    assert abs(means["censored"] - 2.0) < 5 * error
    assert means["trusted"] < 2.0 - 5 * error
    assert means["dropped"] < 2.0 - 5 * error


@pytest.mark.parametrize("make", FAMILIES)
def test_stacked_members_weights_masks_and_validation(make):
    x = torch.randn(60, 2)
    y = torch.rand(60) + 0.1
    pairs = torch.stack([y, torch.where(torch.arange(60) % 3 == 0, INF, y)], -1)
    mask = torch.arange(60) % 7 > 0
    pairs[~mask] = math.nan
    likelihood = Censored(make())
    model = Model(nn.Linear(2, likelihood.num_outputs), likelihood)
    data = Data(x, pairs, weights=torch.rand(60), mask=mask)
    method = inference.Ensemble(of=inference.MAP(num_epochs=3, batch_size=16), num_members=3)
    posterior = method.fit(model, data, validation=(x[mask], pairs[mask]), seed=0)
    assert posterior.info.stacked
    assert all(np.isfinite(history.validation_log_prob).all() for history in posterior.info.histories)
    predicted = posterior.predict(x)
    assert predicted.log_prob(torch.where(mask.unsqueeze(1), pairs, 1.0)).isfinite().all()
    rows = posterior.model.log_likelihood({}, {}, data)
    assert bool((rows[~mask] == 0).all())


def test_exact_targets_are_the_likelihood_itself(dtype):
    of = Gaussian(scale=0.7)
    x, y = torch.randn(30, 2, dtype=dtype), torch.randn(30, dtype=dtype)
    posteriors = []
    for likelihood, targets in ((of, y), (Censored(of), y), (Censored(of), torch.stack([y, y], -1))):
        torch.manual_seed(0)
        model = Model(nn.Linear(2, 1).to(dtype), likelihood)
        posteriors.append(inference.MAP(num_epochs=5).fit(model, (x, targets), seed=0))
    for other in posteriors[1:]:
        torch.testing.assert_close(other.model.net.weight, posteriors[0].model.net.weight)
        torch.testing.assert_close(waist.crps(other.predict(x), y), waist.crps(posteriors[0].predict(x), y))


def test_far_censoring_has_finite_loss_and_gradients(dtype):
    for make in FAMILIES:
        likelihood = Censored(make()).to(dtype)
        outputs = torch.zeros(4, likelihood.num_outputs, dtype=dtype, requires_grad=True)
        pairs = torch.tensor([[1e4, INF], [1e4, 1.1e4], [1e4, 1e4 + 1], [0.0, 1e-12]], dtype=dtype)
        density = likelihood.log_prob(likelihood.parameters_of(outputs), pairs)
        assert bool(density.isfinite().all())
        parameters = [outputs, *likelihood.parameters()]
        gradients = torch.autograd.grad(density.sum(), parameters, allow_unused=True)
        assert all(g is None or bool(g.isfinite().all()) for g in gradients)
        assert gradients[0].abs().sum() > 0


def test_what_cannot_be_censored_is_refused_by_name():
    for of in (Poisson(), Bernoulli(), Gaussian(2), StudentT()):
        with pytest.raises(NotSupportedError):
            Censored(of)
    with pytest.raises(NotSupportedError, match="Censored cannot be standardised"):
        Model(nn.Linear(2, 1), Censored(Gaussian()), targets=Standardize())
    model = Model(nn.Linear(2, 2), Censored(Weibull()))
    method = inference.MLE(num_epochs=1)
    with pytest.raises(ValueError, match=r"row 1 holds \[2, 1\]"):
        method.fit(model, (torch.zeros(2, 2), torch.tensor([[1.0, 2.0], [2.0, 1.0]])), seed=0)
    with pytest.raises(NotFiniteError, match="targets"):
        method.fit(model, (torch.zeros(2, 2), torch.tensor([[1.0, 2.0], [math.nan, 1.0]])), seed=0)
    with pytest.raises(NotFiniteError, match="targets"):  # no other likelihood takes infinite targets
        method.fit(Model(nn.Linear(2, 1), Gaussian()), (torch.zeros(2, 2), torch.tensor([1.0, INF])), seed=0)


def test_a_censored_posterior_is_saved_and_loaded(tmp_path):
    x, y = torch.randn(20, 2), torch.rand(20) + 0.1
    model = Model(nn.Linear(2, 2), Censored(Gamma()))
    posterior = inference.MAP(num_epochs=1).fit(model, (x, torch.stack([y, y + 1], -1)), seed=0)
    save(posterior, tmp_path / "censored.credibly")
    again = load(tmp_path / "censored.credibly", net=nn.Linear(2, 2))
    assert torch.equal(again.predict(x).mean, posterior.predict(x).mean)
