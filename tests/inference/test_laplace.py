"""Laplace's method: exact on conjugate regression, and what it promises beyond."""

import copy
import itertools

import numpy as np
import pytest
import torch
from conjugate import Conjugate, conjugate
from scipy import integrate, optimize, stats
from torch import nn

import credibly
from credibly import Data, Model, Standardize, inference, likelihoods, posteriors, priors
from credibly.core.errors import ConvergenceWarning, NotFiniteError, NotSupportedError
from credibly.inference import (
    Dense,
    Diagonal,
    Evidence,
    Kronecker,
    Laplace,
    LargestVariance,
    LastLayer,
    LowRank,
    Named,
    ValidationLogScore,
)
from credibly.posteriors.linearised import closed_form
from credibly.training import linear

CASES = {
    "one_output": lambda: conjugate(),
    "with_bias": lambda: conjugate(bias=True),
    "several_outputs": lambda: conjugate(2),
    "several_outputs_with_bias": lambda: conjugate(3, bias=True),
}


@pytest.fixture(params=list(CASES))
def exact(request) -> Conjugate:
    return CASES[request.param]()


def fit(exact: Conjugate, structure=None, **options):
    method = Laplace(structure=structure or Dense(), **options)
    return method.fit(exact.model(), exact.data, start="current", seed=0)


def test_dense_is_the_posterior(exact):
    posterior = fit(exact)
    expected = exact.covariance()
    torch.testing.assert_close(posterior.covariance.dense(), expected, rtol=1e-6, atol=1e-10)
    torch.testing.assert_close(posterior.mean["net.weight"], exact.net().weight.detach(), rtol=1e-12, atol=1e-12)
    variances = torch.cat([value.flatten() for value in posterior.variances.values()])
    torch.testing.assert_close(variances, expected.diag(), rtol=1e-6, atol=1e-10)


def test_low_rank_of_full_rank_is_the_posterior(exact):
    size = exact.covariance().shape[0]
    posterior = fit(exact, LowRank(size))
    torch.testing.assert_close(posterior.covariance.dense(), exact.covariance(), rtol=1e-6, atol=1e-9)
    assert float(posterior.evidence()) == pytest.approx(exact.log_evidence(), abs=1e-6)


@pytest.mark.parametrize("bias", [False, True])
def test_kronecker_is_exact_where_the_curvature_is_a_product(bias):
    """With one noise for all outputs it is, but for what weight and bias have in common, which is left out."""
    exact = conjugate(2, bias=bias)
    exact = Conjugate(exact.inputs, exact.targets, torch.tensor([0.6, 0.6]).double(), 1.3, bias)
    posterior = fit(exact, Kronecker())
    precision = torch.linalg.inv(exact.covariance())
    weight = exact.inputs.shape[1] * 2
    precision[:weight, weight:] = 0
    precision[weight:, :weight] = 0
    torch.testing.assert_close(posterior.covariance.dense(), torch.linalg.inv(precision), rtol=1e-6, atol=1e-10)
    if not bias:
        assert float(posterior.evidence()) == pytest.approx(exact.log_evidence(), abs=1e-6)


def test_diagonal_is_the_inverse_of_the_diagonal_of_the_precision(exact):
    posterior = fit(exact, Diagonal())
    expected = 1 / torch.linalg.inv(exact.covariance()).diag()
    torch.testing.assert_close(posterior.covariance.diagonal(), expected, rtol=1e-6, atol=1e-10)


def test_the_prediction_is_exact(exact):
    posterior = fit(exact)
    x = 4 * torch.randn(6, 3, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    mean, variance = exact.predictive(x)
    predicted = posterior.predict(x)
    noise = exact.noise.square().expand(6, -1)
    shape = predicted.mean.shape
    torch.testing.assert_close(predicted.mean, mean.reshape(shape), rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(predicted.epistemic_variance, variance.reshape(shape), rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(predicted.aleatoric_variance, noise.reshape(shape), rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(predicted.variance, (variance + noise).reshape(shape), rtol=1e-6, atol=1e-8)


def test_the_log_evidence_is_exact(exact):
    assert float(fit(exact).evidence()) == pytest.approx(exact.log_evidence(), abs=1e-6)


def test_the_log_evidence_is_in_the_units_of_the_targets():
    exact = conjugate(bias=True)
    mean, scale = 40.0, 7.0
    targets = mean + scale * exact.targets.squeeze(1)
    transform = Standardize().fit(targets)
    own = Conjugate(
        exact.inputs,
        (targets.unsqueeze(1) - transform.loc) / transform.scale,
        torch.tensor([0.3], dtype=torch.float64),
        1.3,
        True,
    )
    noise = 0.3 * float(transform.scale)
    model = Model(own.net(), likelihoods.Gaussian(scale=noise), priors.Normal(1.3), targets=Standardize())
    posterior = Laplace(structure=Dense()).fit(model, (exact.inputs, targets), start="current")
    jacobian = len(targets) * float(transform.scale.log())
    assert float(posterior.evidence()) == pytest.approx(own.log_evidence() - jacobian, abs=1e-6)
    x = exact.inputs[:4] * 3
    value, variance = own.predictive(x)
    predicted = posterior.predict(x)
    torch.testing.assert_close(predicted.mean, transform.loc + transform.scale * value[:, 0], rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(predicted.epistemic_variance, transform.scale**2 * variance[:, 0], rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(
        predicted.aleatoric_variance, torch.full((4,), noise**2, dtype=torch.float64), rtol=1e-6, atol=1e-8
    )


def test_several_outputs_keep_their_full_covariance():
    """A layer of two outputs on one hidden unit: their functions are correlated."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 1, bias=False), nn.Linear(1, 2, bias=False)).double()
    x = torch.randn(20, 2, dtype=torch.float64)
    model = Model(net, likelihoods.Gaussian(2, scale=[0.3, 0.5]), targets=Standardize())
    y = 5 + 3 * torch.randn(20, 2, dtype=torch.float64)
    posterior = Laplace(structure=Dense()).fit(model, (x, y), start="current")
    predicted = posterior.predict(x[:5])
    slopes = torch.func.vmap(torch.func.jacrev(lambda p, row: torch.func.functional_call(net, p, row)), (None, 0))(
        {name: p.detach() for name, p in net.named_parameters()}, x[:5]
    )
    table = torch.cat([value.flatten(2) for value in slopes.values()], 2).detach()
    outputs = table @ posterior.covariance.dense() @ table.mT
    torch.testing.assert_close(posterior.output_covariance(x[:5]), outputs, rtol=1e-8, atol=1e-10)
    scale = posterior.model.targets.scale
    function = outputs * scale[:, None] * scale
    torch.testing.assert_close(predicted.function_covariance, function, rtol=1e-8, atol=1e-10)
    correlation = function[:, 0, 1] / (function[:, 0, 0] * function[:, 1, 1]).sqrt()
    assert correlation.abs().max() > 0.3, "the case must have correlated outputs"
    total = function + torch.diag(torch.tensor([0.09, 0.25], dtype=torch.float64))
    law = torch.distributions.MultivariateNormal(predicted.mean, total)
    torch.testing.assert_close(predicted.log_prob(y[:5]), law.log_prob(y[:5]), rtol=1e-6, atol=1e-8)


def test_the_covariance_between_rows(exact):
    posterior = fit(exact)
    x = exact.inputs[:4]
    joint = posterior.output_covariance(x, joint=True)
    rows = exact.of(x)
    for output in range(len(exact.noise)):
        expected = rows @ torch.linalg.solve(exact.precision(output), rows.T)
        torch.testing.assert_close(joint[:, output, :, output], expected, rtol=1e-6, atol=1e-9)
    own = torch.stack([joint[k, :, k] for k in range(4)])
    torch.testing.assert_close(posterior.output_covariance(x), own, rtol=1e-8, atol=1e-10)


def test_yesterdays_posterior_is_todays_prior(exact):
    x, y = exact.data
    today = exact.model()
    for rows in (slice(0, 9), slice(9, 10), slice(10, None)):
        so_far = Conjugate(exact.inputs[: rows.stop], exact.targets[: rows.stop], exact.noise, exact.prior, exact.bias)
        today.net.load_state_dict(so_far.net().state_dict())
        posterior = Laplace(structure=Dense()).fit(today, (x[rows], y[rows]), start="current")
        today = posterior.to_model(prior=posterior.as_prior())
    torch.testing.assert_close(posterior.covariance.dense(), exact.covariance(), rtol=1e-6, atol=1e-10)
    evidence = posterior.evidence() + sum(_first_evidences(exact))
    assert float(evidence) == pytest.approx(exact.log_evidence(), abs=1e-6)


def _first_evidences(exact):
    for stop, start in ((9, 0), (10, 9)):
        until, before = (
            Conjugate(exact.inputs[:k], exact.targets[:k], exact.noise, exact.prior, exact.bias) for k in (stop, start)
        )
        yield until.log_evidence() - (before.log_evidence() if start else 0.0)


@pytest.mark.parametrize("structure", [Diagonal(), LowRank(4)])
def test_a_structured_posterior_serves_as_prior_of_its_structure(structure):
    exact = conjugate(2)
    first = Laplace(structure=structure).fit(exact.model(), exact.data, start="current")
    again = first.to_model(prior=first.as_prior())
    second = Laplace(structure=structure).fit(again, exact.data, start="current")
    own = torch.linalg.inv(first.covariance.dense())
    curvature = own - torch.eye(len(own)).double() / exact.prior**2
    torch.testing.assert_close(torch.linalg.inv(second.covariance.dense()), own + curvature, rtol=1e-6, atol=1e-7)


def test_kronecker_products_do_not_add_up_and_say_so():
    exact = conjugate(2)
    first = Laplace().fit(exact.model(), exact.data, start="current")
    with pytest.raises(NotSupportedError, match=r"structure=Dense\(\)|Dense\(\)"):
        Laplace().fit(first.to_model(prior=first.as_prior()), exact.data, start="current")


def test_draws_of_the_linear_function_have_its_moments(exact):
    """5 standard errors of 4 x 3 means and variances: a failure in 50,000 seeds."""
    posterior, num_draws = fit(exact), 2000
    x = exact.inputs[:4]
    draws = posterior.outputs(x, num_draws=num_draws, seed=0)
    mean, variance = exact.predictive(x)
    assert bool(((draws.mean(0) - mean).abs() < 5 * (variance / num_draws).sqrt()).all())
    assert bool(((draws.var(0) / variance - 1).abs() < 5 * (2 / num_draws) ** 0.5).all())
    params = posterior.sample(3, seed=0)
    by_weights = torch.stack(
        [posterior.model.call({n: v[k] for n, v in params.items()}, {}, x) for k in range(3)]
    )  # a linear network is its own linearisation
    torch.testing.assert_close(draws[:3], by_weights, rtol=1e-9, atol=1e-9)


def test_asking_for_draws_gives_a_mixture(exact):
    posterior = fit(exact)
    x = exact.inputs[:4]
    predicted = posterior.predict(x, num_draws=7, seed=1)
    assert predicted.num_draws == 7
    assert torch.equal(predicted.mean, posterior.predict(x, num_draws=7, seed=1).mean)
    assert not torch.equal(predicted.mean, posterior.predict(x, num_draws=7, seed=2).mean)


# -- shapes of targets, frozen layers, names ------------------------------------------------------------------------


@pytest.mark.parametrize("structure", [Dense(), Diagonal(), Kronecker(), LowRank(5)])
def test_targets_of_shape_n_and_n_by_1_mean_the_same(structure):
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(10, k, generator=generator).double() for k in (5, 1))
    model = Model(nn.Linear(5, 1, bias=False).double(), likelihoods.Gaussian(scale=1.0))
    found = []
    for targets in (y, y.squeeze(1)):
        loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, targets), batch_size=5)
        for data in ((x, targets), loader):
            posterior = Laplace(structure=structure).fit(model, data, start="current", seed=0)
            found.append(posterior)
    expected = x.T @ x + torch.eye(5).double()
    if isinstance(structure, Diagonal):
        expected = expected.diag().diag()
    for posterior in found:
        torch.testing.assert_close(torch.linalg.inv(posterior.covariance.dense()), expected, rtol=1e-6, atol=1e-8)
        assert float(posterior.evidence()) == pytest.approx(float(found[0].evidence()), abs=1e-8)


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("structure", [Dense(), Diagonal(), Kronecker(), LowRank(3)])
def test_a_frozen_layer_is_not_random_wherever_it_is(place, structure):
    torch.manual_seed(0)
    sizes = (2, 3, 3, 1)
    net = nn.Sequential(*(nn.Linear(a, b) for a, b in itertools.pairwise(sizes))).double()
    net[place].requires_grad_(False)
    x, y = torch.randn(12, 2).double(), torch.randn(12).double()
    posterior = Laplace(structure=structure).fit(Model(net, likelihoods.Gaussian()), (x, y), start="current")
    names = tuple(f"net.{k}.{kind}" for k in range(3) if k != place for kind in ("weight", "bias"))
    assert posterior.names == names
    assert set(posterior.sample(2, seed=0)) == set(names)
    assert {f"net.{place}.weight", f"net.{place}.bias"} <= set(posterior.fixed)
    slopes = torch.func.vmap(torch.func.jacrev(lambda p, row: torch.func.functional_call(net, p, row)), (None, 0))(
        {name.removeprefix("net."): net.get_parameter(name.removeprefix("net.")) for name in names}, x
    )
    table = torch.cat([value.flatten(2) for value in slopes.values()], 2).detach()
    noise = float(posterior.model.likelihood.noise_scale().detach()) ** 2
    precision = table.flatten(0, 1).T @ table.flatten(0, 1) / noise + torch.eye(table.shape[-1]).double()
    if isinstance(structure, Dense):
        torch.testing.assert_close(posterior.covariance.dense(), torch.linalg.inv(precision), rtol=1e-8, atol=1e-10)
    if isinstance(structure, Diagonal):
        torch.testing.assert_close(posterior.covariance.diagonal(), 1 / precision.diag(), rtol=1e-8, atol=1e-10)
    expected = (table @ posterior.covariance.dense() @ table.mT).squeeze(-1).squeeze(-1)
    torch.testing.assert_close(posterior.predict(x).epistemic_variance, expected, rtol=1e-7, atol=1e-10)


def two_layers(num_outputs=1):
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, num_outputs)).double()


def some_data(num_rows=25):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(num_rows, 2, generator=generator, dtype=torch.float64)
    return x, x[:, 0].sin() + 0.1 * torch.randn(num_rows, generator=generator, dtype=torch.float64)


def test_the_last_layer_is_the_one_called_last():
    model = Model(two_layers(), likelihoods.Gaussian(scale=0.2))
    x, y = some_data()
    last = Laplace(structure=Dense(), subset=LastLayer()).fit(model, (x, y), start="current")
    named = Laplace(structure=Dense(), subset=Named("net.2")).fit(model, (x, y), start="current")
    assert last.names == named.names == ("net.2.weight", "net.2.bias")
    features = torch.cat([model.net[:2](x), torch.ones(25, 1)], 1).detach()
    precision = features.T @ features / 0.2**2 + torch.eye(5).double()
    for posterior in (last, named):
        torch.testing.assert_close(posterior.covariance.dense(), torch.linalg.inv(precision), rtol=1e-8, atol=1e-10)
    assert float(last.evidence()) == pytest.approx(float(named.evidence()), abs=1e-9)

    class Backwards(nn.Module):
        def __init__(self):
            super().__init__()
            self.last, self.first = nn.Linear(4, 1), nn.Linear(2, 4)

        def forward(self, x):
            return self.last(self.first(x).tanh()) * 2  # the outputs are not the layer's own

    other = Laplace(structure=Dense(), subset=LastLayer()).fit(
        Model(Backwards().double(), likelihoods.Gaussian(scale=0.2)), (x, y), start="current"
    )
    assert other.names == ("net.last.weight", "net.last.bias")
    features = torch.cat([other.model.net.first(x).tanh(), torch.ones(25, 1)], 1).detach() * 2
    precision = features.T @ features / 0.2**2 + torch.eye(5).double()
    torch.testing.assert_close(other.covariance.dense(), torch.linalg.inv(precision), rtol=1e-8, atol=1e-10)


def test_the_body_of_a_last_layer_is_evaluated_once():
    class Counting(nn.Module):
        rows = 0

        def forward(self, x):
            Counting.rows += len(x)
            return x

    net = nn.Sequential(Counting(), *two_layers())
    x, y = some_data()
    method = Laplace(subset=LastLayer(), tune=ValidationLogScore())
    Counting.rows = 0
    method.fit(Model(net, likelihoods.Gaussian(scale=0.2)), (x, y), validation=(x[:20], y[:20]), start="current")
    assert 45 <= Counting.rows < 45 + 44, "all rows once, and a few rows to look at"


def test_weights_by_name_and_pattern():
    model = Model(two_layers(), likelihoods.Gaussian(scale=0.2))
    for patterns, names in (
        (["*.bias"], ("net.0.bias", "net.2.bias")),
        ("net.2.weight", ("net.2.weight",)),
        (("net.2.bias", "net.0"), ("net.0.weight", "net.0.bias", "net.2.bias")),
    ):
        assert Laplace(subset=Named(patterns)).fit(model, some_data(), start="current").names == names
    with pytest.raises(ValueError, match=r"`net.1` names no weight of the network; the trainable ones are \['net.0.w"):
        Laplace(subset=Named("net.1")).fit(model, some_data(), start="current")
    model.net[0].requires_grad_(False)
    with pytest.raises(ValueError, match="names only frozen weights"):
        Laplace(subset=Named("net.0.weight")).fit(model, some_data(), start="current")
    model.net.requires_grad_(False)
    with pytest.raises(ValueError, match="no weight of the network is trainable"):
        Laplace().fit(model, some_data(), start="current")


def test_the_weights_of_largest_variance():
    model = Model(two_layers(), likelihoods.Gaussian(scale=0.2))
    x, y = some_data()
    whole = Laplace(structure=Dense()).fit(model, (x, y), start="current")
    diagonal = Laplace(structure=Diagonal()).fit(model, (x, y), start="current")
    variances = diagonal.covariance.diagonal()
    index = variances.topk(6).indices.sort().values
    posterior = Laplace(structure=Dense(), subset=LargestVariance(6)).fit(model, (x, y), start="current")
    precision = torch.linalg.inv(whole.covariance.dense())[index][:, index]
    expected = torch.zeros(17, 17).double()
    expected[index[:, None], index] = torch.linalg.inv(precision)
    torch.testing.assert_close(posterior.covariance.dense(), expected, rtol=1e-7, atol=1e-10)
    draws = torch.cat([value.flatten(1) for value in posterior.sample(5, seed=0).values()], 1)
    moves = (draws != draws[:1]).any(0)
    assert torch.equal(moves.nonzero().squeeze(1), index)
    assert (posterior.predict(x).epistemic_variance <= whole.predict(x).epistemic_variance + 1e-12).all()
    weights = torch.cat([p.detach().flatten() for p in model.net.parameters()])[index]
    log_joint = float(model.log_likelihood({}, {}, (x, y)).detach().sum()) + stats.norm.logpdf(weights.numpy()).sum()
    evidence = log_joint + 3 * np.log(2 * np.pi) - 0.5 * float(torch.logdet(precision))
    assert float(posterior.evidence()) == pytest.approx(evidence, abs=1e-6)
    few = Laplace(structure=Diagonal(), subset=LargestVariance(6)).fit(model, (x, y), start="current")
    torch.testing.assert_close(few.covariance.diagonal()[index], variances[index], rtol=1e-8, atol=1e-12)
    with pytest.raises(NotSupportedError, match="chooses single weights"):
        Laplace(subset=LargestVariance(6)).fit(model, (x, y), start="current")
    with pytest.raises(ValueError, match="at most the 17 trainable weights; got 18"):
        Laplace(subset=LargestVariance(18)).fit(model, (x, y), start="current")
    with pytest.raises(NotSupportedError, match="single weights"):
        posterior.as_prior()


# -- classes -----------------------------------------------------------------------------------------------------------


def test_probit_of_two_classes_is_close_to_the_integral():
    """Within 0.02 for a sigmoid under a Gaussian (MacKay 1992), where the plain sigmoid is wrong by up to 0.3."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40, 2, generator=generator, dtype=torch.float64)
    y = (x[:, 0] + 0.5 * torch.randn(40, generator=generator, dtype=torch.float64) > 0).double()
    net = nn.Linear(2, 1).double()
    with torch.no_grad():
        net.weight.copy_(torch.tensor([[2.0, 0.2]]))
    posterior = Laplace(structure=Dense()).fit(Model(net, likelihoods.Bernoulli()), (x, y), start="current")
    grid = torch.tensor([[k, j] for k in (-6.0, -2.0, -0.3, 1.0, 4.0) for j in (-8.0, 0.0, 3.0)]).double()
    predicted = posterior.predict(grid)
    outputs, variances = posterior.model.call({}, {}, grid).detach(), posterior.output_covariance(grid)
    for p, m, v in zip(predicted.probs, outputs.flatten().tolist(), variances.flatten().tolist(), strict=True):
        law = stats.norm(m, v**0.5)
        integral, _ = integrate.quad(lambda f: law.pdf(f) / (1 + np.exp(-f)), m - 12 * v**0.5, m + 12 * v**0.5)  # noqa: B023
        assert float(p) == pytest.approx(integral, abs=0.02)
    plain = torch.sigmoid(outputs.flatten())
    assert (plain - predicted.probs).abs().max() > 0.1
    with pytest.raises(NotSupportedError, match="mutual_information"):
        predicted.mutual_information()


def three_classes(num_rows=60):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(num_rows, 2, generator=generator, dtype=torch.float64)
    return x, (x[:, 0] > 0.3).long() + (x[:, 1] > 0.3).long()


def test_probit_of_several_classes_is_close_to_draws():
    x, y = three_classes()
    method = inference.MAP(num_epochs=150, batch_size=None, learning_rate=0.05)
    model = Model(two_layers(3), likelihoods.Categorical(3))
    posterior = Laplace(structure=Dense(), train=method).fit(model, (x, y), seed=0)
    closed, drawn = posterior.predict(x), posterior.predict(x, num_draws=500, seed=0)
    assert (closed.probs.sum(-1) - 1).abs().max() < 1e-12
    assert (closed.probs - drawn.probs).abs().max() < 0.1
    assert (closed.probs - drawn.probs).abs().mean() < 0.03
    assert (drawn.mutual_information() > 0).all()
    by_draws = posteriors.LinearizedPosterior(posterior.of, probit=False)
    assert torch.equal(by_draws.predict(x, seed=0).probs, posterior.predict(x, num_draws=100, seed=0).probs)
    at_weights = Laplace(structure=Dense(), linearized=False).fit(model, (x, y), start=posterior)
    assert isinstance(at_weights, posteriors.LaplacePosterior)
    assert at_weights.predict(x, seed=0).num_draws == 100
    assert float(at_weights.evidence()) == pytest.approx(float(posterior.evidence()), abs=1e-9)


def test_probit_does_not_see_the_level_of_the_logits():
    """A number added to all logits of a row is nothing to the classes, nor is how unsure it is."""
    generator = torch.Generator().manual_seed(0)
    mean = torch.randn(50, 5, generator=generator, dtype=torch.float64)
    root = torch.randn(50, 5, 5, generator=generator, dtype=torch.float64)
    form = closed_form(likelihoods.Categorical(5), probit=True)
    plain = form(mean, root @ root.mT).probs
    torch.testing.assert_close(form(mean + 100, root @ root.mT).probs, plain)
    torch.testing.assert_close(form(mean, root @ root.mT + 1e4).probs, plain, rtol=1e-6, atol=0)
    assert (plain - form(mean, 4 * root @ root.mT).probs).abs().max() > 0.05, "differences of logits are seen"


def test_probit_of_two_classes_is_that_of_their_difference():
    generator = torch.Generator().manual_seed(0)
    mean = 3 * torch.randn(50, 2, generator=generator, dtype=torch.float64)
    root = 2 * torch.randn(50, 2, 2, generator=generator, dtype=torch.float64)
    covariance = root @ root.mT
    two = closed_form(likelihoods.Categorical(2), probit=True)(mean, covariance).probs[:, 1]
    contrast = torch.tensor([[-1.0, 1.0]], dtype=torch.float64)
    one = closed_form(likelihoods.Bernoulli(), probit=True)(mean @ contrast.mT, contrast @ covariance @ contrast.mT)
    torch.testing.assert_close(two, one.probs)


@pytest.mark.parametrize("num_classes", [3, 10])
def test_probit_of_many_classes_is_close_to_the_integral(num_classes):
    """By the divergence from it, under logits whose level is less sure than their differences."""
    generator = torch.Generator().manual_seed(0)
    mean = 3 * torch.randn(400, num_classes, generator=generator, dtype=torch.float64)
    root = 0.5 * torch.randn(400, num_classes, num_classes, generator=generator, dtype=torch.float64)
    covariance = root @ root.mT + 9
    noise = torch.randn(4000, 400, num_classes, 1, generator=generator, dtype=torch.float64)
    exact = (mean + (torch.linalg.cholesky(covariance) @ noise).squeeze(-1)).softmax(-1).mean(0)

    def lost(probs):
        return float((exact * (exact / probs).log()).sum(-1).mean())

    ours = lost(closed_form(likelihoods.Categorical(num_classes), probit=True)(mean, covariance).probs)
    bare = mean / torch.sqrt(1 + torch.pi / 8 * covariance.diagonal(dim1=-2, dim2=-1))
    assert ours < 0.05
    assert ours < lost(bare.softmax(-1)) / 2.5, "each bare logit by its own variance"
    assert ours < lost(mean.softmax(-1)) / 1.5, "no variance at all"


@pytest.mark.parametrize("structure", [Dense(), Kronecker(), Diagonal(), LowRank(10)])
def test_far_away_inputs_are_uncertain_where_the_network_is_not(structure):
    x, y = three_classes()
    method = inference.MAP(num_epochs=150, batch_size=None, learning_rate=0.05)
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 3)).double()
    point = method.fit(Model(net, likelihoods.Categorical(3), priors.Normal(3.0)), (x, y), seed=0)
    posterior = Laplace(structure=structure).fit(point.model, (x, y), start="current")
    far = 1000 * x
    assert point.predict(far).entropy().mean() < 0.01, "the network itself is certain there"
    assert posterior.predict(far).entropy().mean() > 0.3
    if isinstance(structure, Dense):
        assert posterior.predict(far).entropy().mean() > posterior.predict(x).entropy().mean()


@pytest.mark.parametrize("likelihood", [likelihoods.Poisson(), likelihoods.HeteroscedasticGaussian()])
def test_other_likelihoods_predict_by_draws(likelihood):
    x, y = some_data()
    model = Model(two_layers(likelihood.num_outputs), likelihood)
    posterior = Laplace(structure=Dense()).fit(model, (x, (4 + 2 * y).round().clamp(min=0)), start="current")
    predicted = posterior.predict(x, seed=0)
    assert predicted.num_draws == 100
    assert (predicted.epistemic_variance > 0).all()
    assert torch.equal(predicted.mean, posterior.predict(x, seed=0).mean)


# -- the linearised view -----------------------------------------------------------------------------------------------


def test_the_linearised_view_of_any_gaussian():
    model = Model(two_layers(2), likelihoods.Gaussian(2, scale=0.3))
    x, _ = some_data()
    names = ("net.0.weight", "net.0.bias", "net.2.weight", "net.2.bias")
    covariance = credibly.core.linalg.Diagonal(torch.linspace(0.1, 1, 22).double())
    gaussian = posteriors.GaussianPosterior(model, posteriors.Info("test", 0), names=names, covariance=covariance)
    view = posteriors.LinearizedPosterior(gaussian)
    draws, weights = view.outputs(x, num_draws=6, seed=0), view.sample(6, seed=0)
    assert all(torch.equal(weights[name], gaussian.sample(6, seed=0)[name]) for name in names)
    step = 1e-6
    for k in range(6):
        mean = view.mean
        ahead, behind = (
            model.call({n: mean[n] + sign * step * (weights[n][k] - mean[n]) for n in names}, {}, x) for sign in (1, -1)
        )
        expected = model.call({}, {}, x) + (ahead - behind) / (2 * step)
        torch.testing.assert_close(draws[k], expected.detach(), rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(view.outputs(x[3:5], num_draws=3, seed=0), draws[:3, 3:5])
    with pytest.raises(NotSupportedError, match="evidence is not available"):
        view.evidence()
    with pytest.raises(TypeError, match="GaussianPosterior"):
        posteriors.LinearizedPosterior(view)


def test_recurrent_networks_are_linearised_by_two_backward_passes():
    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.read = nn.GRU(2, 3, batch_first=True), nn.Linear(3, 1)

        def forward(self, x):
            return self.read(self.body(x)[0][:, -1])

    torch.manual_seed(0)
    model = Model(Reader().double(), likelihoods.Gaussian(scale=0.3))
    names = tuple(name for name, _ in model.core.named_parameters())
    size = sum(p.numel() for p in model.parameters())
    covariance = credibly.core.linalg.Diagonal(torch.full((size,), 0.3).double())
    gaussian = posteriors.GaussianPosterior(model, posteriors.Info("test", 0), names=names, covariance=covariance)
    view, x = posteriors.LinearizedPosterior(gaussian), torch.randn(4, 5, 2).double()
    draws, weights, mean, step = view.outputs(x, num_draws=3, seed=0), view.sample(3, seed=0), view.mean, 1e-6
    assert not draws.requires_grad
    for k in range(3):
        ahead, behind = (
            model.call({n: mean[n] + sign * step * (weights[n][k] - mean[n]) for n in names}, {}, x) for sign in (1, -1)
        )
        expected = model.call({}, {}, x) + (ahead - behind) / (2 * step)
        torch.testing.assert_close(draws[k], expected.detach(), rtol=1e-6, atol=1e-7)


def test_a_mixture_of_laplace_approximations():
    x, y = three_classes()
    model = Model(two_layers(3), likelihoods.Categorical(3))
    method = Laplace(train=inference.MAP(num_epochs=20))
    mixture = inference.Ensemble(of=method, num_members=3).fit(model, (x, y), seed=0)
    assert isinstance(mixture, posteriors.MixturePosterior)
    assert all(isinstance(member, posteriors.LinearizedPosterior) for member in mixture.members)
    predicted = mixture.predict(x, num_draws=300, seed=0)
    each = torch.stack([member.predict(x, num_draws=100, seed=5).probs for member in mixture.members]).mean(0)
    assert (predicted.probs - each).abs().max() < 0.1
    assert (predicted.mutual_information() > 0).all()
    bagged = inference.Ensemble(of=method, num_members=2, bootstrap=True).fit(model, (x, y), seed=0)
    assert bagged.predict(x, num_draws=4, seed=0).probs.isfinite().all()


# -- tuning ------------------------------------------------------------------------------------------------------------


def fixed_point(exact, tune, num_rounds=12):
    """Tune at the exact mean under the prior as tuned, until neither moves."""
    model = exact.model()
    for _ in range(num_rounds):
        posterior = Laplace(structure=Dense(), tune=tune).fit(model, exact.data, start="current")
        model = posterior.to_model()
        scale = float(model.prior.distributions(posterior.mean)["net.weight"].scale.flatten()[0])
        own = Conjugate(exact.inputs, exact.targets, model.likelihood.noise_scale().detach().reshape(1), scale, False)
        model.net.load_state_dict(own.net().state_dict())
    return own


def test_the_evidence_finds_the_prior_that_is_exactly_best():
    exact = conjugate()
    found = fixed_point(exact, Evidence(per="all"))

    def minus_evidence(log_precision):
        own = Conjugate(exact.inputs, exact.targets, exact.noise, float(np.exp(-0.5 * log_precision)), False)
        return -own.log_evidence()

    best = optimize.minimize_scalar(minus_evidence, bounds=(-6, 6), method="bounded", options={"xatol": 1e-9})
    assert found.prior**-2 == pytest.approx(float(np.exp(best.x)), rel=1e-4)


def test_the_evidence_finds_prior_and_noise_together():
    exact = conjugate(num_rows=50)
    noise = likelihoods.Gaussian(initial_scale=1.7)
    model = Model(exact.net(), noise, priors.Normal(0.3))
    for _ in range(15):
        posterior = Laplace(structure=Dense(), tune=Evidence(per="all")).fit(model, exact.data, start="current")
        model = posterior.to_model()
        scale = float(model.prior.distributions(posterior.mean)["net.weight"].scale.flatten()[0])
        own = Conjugate(
            exact.inputs, exact.targets, model.likelihood.noise_scale().detach().double().reshape(1), scale, False
        )
        model.net.load_state_dict(own.net().state_dict())

    def minus_evidence(logs):
        prior, noise = np.exp(-0.5 * logs)
        return -Conjugate(
            exact.inputs, exact.targets, torch.tensor([noise], dtype=torch.float64), float(prior), False
        ).log_evidence()

    best = optimize.minimize(minus_evidence, [0.0, 0.0], method="Nelder-Mead", options={"xatol": 1e-7, "fatol": 1e-11})
    assert own.prior**-2 == pytest.approx(float(np.exp(best.x[0])), rel=1e-4)
    assert float(own.noise) ** -2 == pytest.approx(float(np.exp(best.x[1])), rel=1e-4)
    assert float(posterior.evidence()) == pytest.approx(-best.fun, abs=1e-6)
    predicted = posterior.predict(exact.inputs[:2])
    torch.testing.assert_close(predicted.aleatoric_variance, own.noise.square().expand(2), rtol=1e-4, atol=0)


@pytest.mark.parametrize("structure", [Dense(), Kronecker(), Diagonal(), LowRank(6)])
@pytest.mark.parametrize("per", ["all", "layer", "tensor"])
def test_tuning_raises_the_evidence_to_a_stationary_point(structure, per):
    model = Model(two_layers(), likelihoods.Gaussian(initial_scale=0.5))
    x, y = some_data()
    before = Laplace(structure=structure).fit(model, (x, y), start="current")
    after = Laplace(structure=structure, tune=Evidence(per=per)).fit(model, (x, y), start="current")
    assert after.evidence() > before.evidence()
    again = Laplace(structure=structure).fit(after.to_model(), (x, y), start="current")
    assert float(again.evidence()) == pytest.approx(float(after.evidence()), abs=1e-6)
    scales = {n: d.scale for n, d in after.model.prior.distributions(after.mean).items()}
    groups = {"all": lambda n: "", "layer": lambda n: n[:5], "tensor": lambda n: n}[per]
    for group in {groups(n) for n in scales}:
        for factor in (0.99, 1.01):
            other = {
                n: priors.Normal(float(s.flatten()[0]) * (factor if groups(n) == group else 1))
                for n, s in scales.items()
            }
            near = Laplace(structure=structure).fit(after.to_model(prior=priors.ByName(other)), (x, y), start="current")
            assert near.evidence() <= after.evidence() + 1e-7
    for factor in (0.99, 1.01):
        louder = after.to_model()
        with torch.no_grad():
            louder.likelihood.log_scale.add_(np.log(factor))
        assert Laplace(structure=structure).fit(louder, (x, y), start="current").evidence() <= after.evidence() + 1e-7


def test_tuning_keeps_the_proportions_of_a_prior_and_what_is_not_random():
    model = Model(two_layers(), likelihoods.Gaussian(scale=0.2), priors.Normal(0.7, fan_in_scaled=True))
    posterior = Laplace(tune=Evidence(per="all")).fit(model, some_data(), start="current")
    own, given = (prior.distributions(posterior.mean) for prior in (posterior.model.prior, model.prior))
    ratios = torch.stack([own[name].scale.flatten()[0] / given[name].scale.flatten()[0] for name in own])
    torch.testing.assert_close(ratios, ratios[:1].expand_as(ratios))
    part = Laplace(tune=Evidence(), subset=LastLayer()).fit(model, some_data(), start="current")
    every = dict(model.core.named_parameters())
    assert torch.equal(
        part.model.prior.distributions(every)["net.0.weight"].scale,
        model.prior.distributions(every)["net.0.weight"].scale,
    )


def test_rounds_of_training_and_tuning_reach_the_exact_optimum():
    exact = conjugate(num_rows=40)
    train = inference.MAP(num_epochs=400, batch_size=None, learning_rate=0.05, schedule=linear)
    method = Laplace(structure=Dense(), train=train, tune=Evidence(per="all", num_rounds=4))
    posterior = method.fit(exact.model(), exact.data, start="current", seed=0)
    found = fixed_point(exact, Evidence(per="all"))
    scale = float(posterior.model.prior.distributions(posterior.mean)["net.weight"].scale.flatten()[0])
    assert scale == pytest.approx(found.prior, rel=1e-2)


def test_the_validation_score_chooses_the_best_of_the_grid():
    x, y = three_classes()
    model = Model(two_layers(3), likelihoods.Categorical(3))
    train = inference.MAP(num_epochs=60, batch_size=None, learning_rate=0.05)
    point = train.fit(model, (x[:40], y[:40]), seed=0)
    factors = (1e-3, 0.1, 1.0, 10.0, 1e2, 1e3, 1e6)
    tune = ValidationLogScore(factors=factors)
    posterior = Laplace(tune=tune).fit(point.model, (x[:40], y[:40]), validation=(x[40:], y[40:]), start="current")
    scores = {}
    for factor in factors:
        own = point.to_model(prior=priors.Normal(factor**-0.5))
        fitted = Laplace().fit(own, (x[:40], y[:40]), start="current")
        scores[factor] = float(fitted.predict(x[40:]).log_prob(y[40:]).mean())
    best = max(scores, key=scores.get)
    assert len(set(scores.values())) == len(factors)
    torch.testing.assert_close(
        posterior.model.prior.distributions(posterior.mean)["net.0.bias"].scale, torch.full((4,), best**-0.5).double()
    )
    with pytest.raises(ValueError, match="needs validation data"):
        Laplace(tune=tune).fit(point.model, (x, y), start="current")
    with pytest.warns(ConvergenceWarning, match="0.1, is at the end of those tried, and better than the next by"):
        Laplace(tune=ValidationLogScore(factors=(1e-3, 0.1))).fit(
            point.model, (x[:40], y[:40]), validation=(x[40:], y[40:]), start="current"
        )


def test_a_prior_precision_takes_the_place_of_the_models_prior():
    exact = conjugate()
    own = Conjugate(exact.inputs, exact.targets, exact.noise, 4.0**-0.5, False)
    posterior = Laplace(structure=Dense(), prior_precision=4.0).fit(exact.model(), exact.data, start="current")
    torch.testing.assert_close(posterior.covariance.dense(), own.covariance(), rtol=1e-6, atol=1e-10)
    train = inference.MAP(num_epochs=600, batch_size=None, learning_rate=0.05, schedule=linear)
    trained = Laplace(structure=Dense(), prior_precision=4.0, train=train).fit(exact.model(), exact.data, seed=0)
    torch.testing.assert_close(trained.mean["net.weight"], own.net().weight.detach(), rtol=1e-4, atol=1e-4)


# -- data --------------------------------------------------------------------------------------------------------------


def test_row_weights_masks_and_stated_numbers_of_rows_count():
    exact = conjugate()
    x, y = exact.data
    twice = torch.cat([x, x[:5]]), torch.cat([y, y[:5]])
    weights = torch.ones(30).double()
    weights[:5] = 2
    expected = Laplace(structure=Dense()).fit(exact.model(), twice, start="current")
    weighted = Laplace(structure=Dense()).fit(exact.model(), Data(x, y, weights=weights), start="current")
    torch.testing.assert_close(weighted.covariance.dense(), expected.covariance.dense())
    assert float(weighted.evidence()) == pytest.approx(float(expected.evidence()), abs=1e-8)
    some = Laplace(structure=Dense()).fit(exact.model(), (x[5:], y[5:]), start="current")
    masked = Laplace(structure=Dense()).fit(exact.model(), Data(x, y, mask=torch.arange(30) >= 5), start="current")
    torch.testing.assert_close(masked.covariance.dense(), some.covariance.dense())
    assert float(masked.evidence()) == pytest.approx(float(some.evidence()), abs=1e-8)
    stated = Laplace(structure=Dense()).fit(exact.model(), Data(x, y, num_data=90), start="current")
    thrice = Laplace(structure=Dense()).fit(
        exact.model(), Data(x, y, weights=3 * torch.ones(30).double()), start="current"
    )
    torch.testing.assert_close(stated.covariance.dense(), thrice.covariance.dense())


def test_a_learned_scale_stays_at_its_value():
    exact = conjugate()
    model = Model(exact.net(), likelihoods.Gaussian(initial_scale=0.4), priors.Normal(exact.prior))
    posterior = Laplace(structure=Dense()).fit(model, exact.data, start="current")
    assert posterior.names == ("net.weight",)
    own = Conjugate(
        exact.inputs, exact.targets, model.likelihood.noise_scale().detach().double().reshape(1), exact.prior, False
    )
    torch.testing.assert_close(posterior.covariance.dense(), own.covariance(), rtol=1e-6, atol=1e-9)


# -- seeds, files, refusals --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("structure", [Dense(), Kronecker(), Diagonal(), LowRank(4)])
@pytest.mark.parametrize("linearized", [True, False])
def test_it_comes_back_from_a_file(structure, linearized, tmp_path):
    x, y = three_classes()
    model = Model(two_layers(3), likelihoods.Categorical(3))
    posterior = Laplace(structure=structure, linearized=linearized, tune=Evidence()).fit(
        model, (x, y), start="current", seed=0
    )
    credibly.save(posterior, tmp_path / "laplace")
    loaded = credibly.load(tmp_path / "laplace", net=two_layers(3))
    assert type(loaded) is type(posterior)
    assert torch.equal(loaded.predict(x, seed=1).probs, posterior.predict(x, seed=1).probs)
    assert torch.equal(loaded.predict(x, num_draws=3, seed=1).probs, posterior.predict(x, num_draws=3, seed=1).probs)
    assert float(loaded.evidence()) == float(posterior.evidence())
    some = Laplace(structure=Dense(), subset=LargestVariance(5)).fit(model, (x, y), start="current")
    credibly.save(some, tmp_path / "some")
    assert torch.equal(credibly.load(tmp_path / "some", net=two_layers(3)).predict(x).probs, some.predict(x).probs)


def test_seeds_fix_training_and_draws_and_the_model_is_left_alone():
    x, y = three_classes()
    model = Model(two_layers(3), likelihoods.Categorical(3))
    before = copy.deepcopy(model.state_dict())
    method = Laplace(train=inference.MAP(num_epochs=3), tune=Evidence(per="tensor"))
    state = torch.get_rng_state()
    first, second, other = (method.fit(model, (x, y), seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(first.predict(x).probs, second.predict(x).probs)
    assert not torch.equal(first.predict(x).probs, other.predict(x).probs)
    assert first.info.method == "Laplace"
    assert len(first.info.history.loss) == 3
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert isinstance(model.prior, priors.Normal)
    assert all(not part._forward_hooks and not part._forward_pre_hooks for part in model.modules())


def test_a_start_is_needed_without_a_recipe():
    model = Model(two_layers(), likelihoods.Gaussian())
    with pytest.raises(ValueError, match=r"does not train by itself.*Laplace\(train=MAP\(\)\)"):
        Laplace().fit(model, some_data())
    with pytest.raises(ValueError, match="fresh members would stay untrained"):
        inference.Ensemble(of=Laplace()).fit(model, some_data())
    with pytest.raises(NotSupportedError, match=r"turn it round: Ensemble\(of=Laplace"):
        Laplace(train=inference.Ensemble())
    with pytest.raises(ValueError, match=r"num_rounds > 1.*train=MAP"):
        Laplace(tune=Evidence(num_rounds=2))
    several = inference.Ensemble(of=inference.MAP(num_epochs=1), num_members=2).fit(model, some_data(), seed=0)
    with pytest.raises(ValueError, match="several networks"):
        Laplace().fit(model, some_data(), start=several)
    for name in ("structure", "subset", "curvature", "train", "tune"):
        with pytest.raises(TypeError, match=f"`{name}` must be a"):
            Laplace(**{name: "kron"})


@pytest.mark.parametrize(
    "prior",
    [priors.Laplace(), priors.StudentT(), priors.ScaleMixture([1.0, 0.1]), priors.ByName({"*": priors.Laplace()})],
)
def test_a_prior_that_is_not_gaussian_is_refused_before_training(prior):
    model = Model(two_layers(), likelihoods.Gaussian(), prior)
    with pytest.raises(NotSupportedError, match=r"needs a Gaussian prior, and .*prior_precision"):
        Laplace(train=inference.MAP(num_epochs=10**6)).fit(model, some_data())
    assert (
        Laplace(prior_precision=1.0)
        .fit(model, some_data(), start="current")
        .predict(some_data()[0])
        .mean.isfinite()
        .all()
    )


def test_a_flat_prior_has_no_evidence_and_needs_data_that_determine_all_weights():
    exact = conjugate()
    model = exact.model()
    model.prior = priors.Flat()
    posterior = Laplace(structure=Dense()).fit(model, exact.data, start="current")
    x = exact.inputs
    torch.testing.assert_close(posterior.covariance.dense(), torch.linalg.inv(x.T @ x) * 0.4**2, rtol=1e-6, atol=1e-9)
    with pytest.raises(NotSupportedError, match="there is no evidence"):
        posterior.evidence()
    for structure in (Dense(), Kronecker(), LowRank(3)):
        with pytest.raises(NotFiniteError, match=r"(do not determine|not positive definite)"):
            Laplace(structure=structure).fit(model, (x[:2], exact.data[1][:2]), start="current")
    with pytest.raises(NotSupportedError, match="tuned prior must be a Normal"):
        Laplace(tune=Evidence()).fit(model, exact.data, start="current")
    model.prior = priors.WeightsOnly(priors.Normal())
    Laplace(tune=Evidence()).fit(model, exact.data, start="current")


def test_a_training_head_is_refused():
    head = likelihoods.QuantileHead([0.1, 0.5, 0.9])
    with pytest.raises(NotSupportedError, match="training head without a density"):
        Laplace().fit(Model(two_layers(3), head), some_data(), start="current")


def test_tuning_in_single_precision_and_on_any_device(device):
    net = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1)).to(device)
    x, y = (part.float().to(device) for part in some_data())
    model = Model(net, likelihoods.Gaussian(), inputs=Standardize(), targets=Standardize())
    for structure in (Dense(), Kronecker(), Diagonal(), LowRank(4)):
        posterior = Laplace(structure=structure, tune=Evidence()).fit(model, (x, y), start="current")
        predicted = posterior.predict(x)
        assert predicted.variance.dtype == torch.float32
        assert predicted.variance.device.type == device.type
        assert (predicted.epistemic_variance > 0).all()


# -- what is looked at twice -------------------------------------------------------------------------------------------


class Tied(nn.Module):
    """The last layer's matrix is also the table of the first."""

    def __init__(self, *, bias, last_first=False):
        super().__init__()
        parts = {"table": nn.Embedding(4, 3), "head": nn.Linear(3, 4, bias=bias)}
        for name in reversed(parts) if last_first else parts:
            self.add_module(name, parts[name])
        self.head.weight = self.table.weight

    def forward(self, tokens):
        return self.head(torch.tanh(self.table(tokens)))


@pytest.mark.parametrize("last_first", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_a_tied_last_layer_is_random_wherever_it_is_used(bias, last_first):
    torch.manual_seed(0)
    tokens = torch.randint(0, 4, (50,))
    net = Tied(bias=bias, last_first=last_first).double()
    model = Model(net, likelihoods.Categorical(4))
    name = "net.head.weight" if last_first else "net.table.weight"
    posterior = Laplace(structure=Dense(), subset=LastLayer()).fit(model, (tokens, tokens), start="current")
    assert set(posterior.names) == {name} | ({"net.head.bias"} if bias else set())
    every = Laplace(structure=Dense()).fit(model, (tokens, tokens), start="current")
    torch.testing.assert_close(posterior.covariance.dense(), every.covariance.dense())
    for alias in ("net.head.weight", "net.table"):
        assert Laplace(subset=Named(alias), structure=Dense()).fit(model, (tokens, tokens), start="current").names == (
            name,
        )


class Unused(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.unused = nn.Linear(2, 3), nn.Linear(2, 7)

    def forward(self, x):
        return self.used(x)


@pytest.mark.parametrize("structure", [Dense(), Kronecker(), Diagonal(), LowRank(10)])
def test_a_layer_that_is_not_used_keeps_its_prior(structure):
    torch.manual_seed(0)
    x, y = three_classes()
    model = Model(Unused().double(), likelihoods.Categorical(3), priors.Normal(2.0))
    posterior = Laplace(structure=structure).fit(model, (x, y), start="current")
    torch.testing.assert_close(posterior.variances["net.unused.weight"], torch.full((7, 2), 4.0).double())
    used = Laplace(structure=structure, subset=Named("net.used")).fit(model, (x, y), start="current")
    torch.testing.assert_close(posterior.output_covariance(x[:4]), used.output_covariance(x[:4]), rtol=1e-6, atol=1e-9)


def test_predictions_in_inference_mode_are_the_same():
    x, y = three_classes()
    posterior = Laplace().fit(Model(two_layers(3), likelihoods.Categorical(3)), (x, y), start="current")
    expected = posterior.predict(x).probs
    with torch.inference_mode():
        torch.testing.assert_close(posterior.predict(x).probs, expected)
        torch.testing.assert_close(posterior.predict(x.clone()).probs, expected)


def test_a_result_is_not_changed_through_what_it_gives():
    x, y = three_classes()
    posterior = Laplace().fit(Model(two_layers(3), likelihoods.Categorical(3)), (x, y), start="current")
    expected = posterior.predict(x).probs
    for value in posterior.mean.values():
        value.zero_()
    assert torch.equal(posterior.predict(x).probs, expected)


def test_the_density_of_chosen_weights_is_0_where_another_moves():
    x, y = three_classes()
    method = Laplace(subset=LargestVariance(4), structure=Dense())
    posterior = method.fit(Model(two_layers(3), likelihoods.Categorical(3)), (x, y), start="current")
    at_mean, draw = posterior.log_prob(posterior.mean), posterior.sample(1, seed=0)
    assert at_mean > posterior.log_prob({name: value[0] for name, value in draw.items()}) > -torch.inf
    assert posterior.log_prob({name: value + 1 for name, value in posterior.mean.items()}) == -torch.inf
    chosen = posterior.covariance.of.dense()
    torch.testing.assert_close(at_mean, -0.5 * torch.logdet(2 * torch.pi * chosen))
    single = posterior.log_prob({name: value.float() for name, value in posterior.mean.items()})
    torch.testing.assert_close(single, at_mean, rtol=1e-4, atol=1e-3)


def test_weak_priors_in_single_precision_are_told():
    torch.manual_seed(0)
    x, y = torch.randn(300, 10), torch.randint(0, 5, (300,))
    net = nn.Sequential(nn.Linear(10, 30), nn.Tanh(), nn.Linear(30, 5))
    model = Model(net, likelihoods.Categorical(5))
    with pytest.warns(ConvergenceWarning, match="rounding has a share of some .*%"):
        Laplace(prior_precision=1e-6).fit(model, (x, y), start="current")
    with pytest.raises(NotFiniteError, match="not positive definite"):
        Laplace(structure=Dense(), prior_precision=1e-6).fit(model, (x, y), start="current")
    for structure in (Kronecker(), Dense()):
        Laplace(structure=structure, prior_precision=1.0).fit(model, (x, y), start="current")
    double = Model(copy.deepcopy(net).double(), likelihoods.Categorical(5))
    Laplace(prior_precision=1e-6).fit(double, (x.double(), y), start="current")
    line = Model(nn.Linear(10, 5), likelihoods.Categorical(5), priors.Flat())  # the level of the logits is free
    for structure in (Kronecker(), Dense()):
        with pytest.raises(NotFiniteError):
            Laplace(structure=structure).fit(line, (x, y), start="current")


def test_options_of_the_wrong_type_are_refused():
    for options in ({"linearized": "no"}, {"probit": 1}):
        with pytest.raises(TypeError, match="must be True or False"):
            Laplace(**options)
    with pytest.raises(ValueError, match="max_bytes"):
        Laplace(max_bytes=-1)
    with pytest.raises(TypeError, match="a string or a sequence of strings; got 3"):
        Named(3)
    with pytest.raises(TypeError, match="`train` must be an inference method"):
        Laplace(train="MAP")
    model = Model(two_layers(3).half(), likelihoods.Categorical(3))
    with pytest.raises(NotSupportedError, match=r"float32 or float64; the network has weights of torch.float16"):
        Laplace().fit(
            model, tuple(part.half() if k == 0 else part for k, part in enumerate(three_classes())), start="current"
        )


def test_an_evidence_without_an_optimum_is_told():
    x, y = three_classes()
    net = two_layers(3)
    with torch.no_grad():
        for weight in net.parameters():
            weight.zero_()
    with pytest.warns(ConvergenceWarning, match="no best strength of the prior was found"):
        Laplace(tune=Evidence()).fit(Model(net, likelihoods.Categorical(3)), (x, y), start="current")


def test_a_tuned_prior_can_be_read():
    x, y = three_classes()
    posterior = Laplace(tune=Evidence(per="all")).fit(
        Model(two_layers(3), likelihoods.Categorical(3)), (x, y), start="current"
    )
    scale = float(posterior.model.prior.distributions(posterior.mean)["net.0.bias"].scale[0])
    assert f"Normal(scale={scale:g})" in repr(posterior.model.prior)
