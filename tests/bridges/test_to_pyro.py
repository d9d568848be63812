"""The log density of the program's trace is the model's log joint, and Pyro's own algorithms run on it."""

import copy
import math
import subprocess
import sys

import pyro
import pytest
import torch
from pyro import poutine
from pyro.infer import MCMC, NUTS, SVI, Predictive, Trace_ELBO
from pyro.infer.autoguide import AutoMultivariateNormal, AutoNormal
from pyro.infer.autoguide.initialization import init_to_value
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import cases
from credibly import Data, Model, Standardize, likelihoods, priors
from credibly import distributions as waist
from credibly.bridges import to_pyro
from credibly.core.errors import NotSupportedError
from credibly.core.params import trainable_params
from credibly.priors.gaussian import GaussianPrior
from inference.structured_networks import TASKS

WIDE = torch.float64


@pytest.fixture(autouse=True)
def _own_param_store():
    with pyro.get_param_store().scope():
        yield


def network(likelihood):
    net = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.BatchNorm1d(4), nn.Tanh(), cases.linear(4, likelihood))
    return net.to(WIDE)


def data(likelihood, rows=12):
    """Inputs, and targets that are plausible for outputs of 0."""
    x = torch.randn(rows, 3, dtype=WIDE)
    with torch.no_grad():
        predicted = likelihood(torch.zeros(rows, *cases.outputs_shape(likelihood), dtype=WIDE))
    return x, waist.mean(predicted) if predicted.event_shape == (4,) else waist.icdf(predicted, 0.4)


def moved(model):
    return {name: value + 0.3 * torch.randn_like(value) for name, value in trainable_params(model.core).items()}


def trace_of(program, params, *batch, **extras):
    """The trace at given weights."""
    for name in program.learned:
        pyro.param(name, params[name])
    given = {name: value for name, value in params.items() if name not in program.learned}
    return poutine.trace(poutine.condition(program, given)).get_trace(*batch, **extras)


def assert_log_joint(program, model, params, *batch, **extras):
    """To 1e-6, by the model's own definition."""
    density = trace_of(program, params, *batch, **extras).log_prob_sum()
    x, y = batch
    expected = model.log_joint(params, {}, Data(x, y, **extras), program.num_data)
    torch.testing.assert_close(density, expected, rtol=1e-9, atol=1e-6)


@pytest.mark.parametrize("sample_noise", [False, True])
@pytest.mark.parametrize("name", cases.LIKELIHOODS)
def test_the_trace_has_the_log_joint_of_every_likelihood(name, sample_noise):
    likelihood = cases.LIKELIHOODS[name]().to(WIDE)
    model = Model(network(likelihood), likelihood, noise_prior=priors.Normal(2.0))
    x, y = data(likelihood)
    program, params = to_pyro(model, num_data=50, sample_noise=sample_noise), moved(model)
    assert_log_joint(program, model, params, x, y)
    assert_log_joint(program, model, params, x[:5], y[:5], weights=torch.linspace(0, 2, 5, dtype=WIDE))
    assert_log_joint(program, model, params, x[:5], y[:5], mask=torch.arange(5) > 1)
    assert set(program.learned) == (set() if sample_noise else {k for k in params if k.startswith("likelihood.")})


@pytest.mark.parametrize("name", cases.PRIORS)
def test_the_trace_has_the_log_joint_of_every_prior(name):
    likelihood = likelihoods.Gaussian(scale=0.5)
    model = Model(network(likelihood), likelihood, cases.PRIORS[name]())
    program = to_pyro(model, num_data=30)
    assert_log_joint(program, model, moved(model), *data(likelihood))
    nodes = trace_of(program, moved(model), *data(likelihood)).nodes
    assert "prior" not in nodes, "every weight's own site has its density"


class Wide(priors.FactorisedPrior):
    """A factorised prior of a kind that Pyro has no name for here, on weights with two axes only."""

    def log_prob(self, params):
        return sum(d.log_prob(params[name]).sum() for name, d in self.distributions(params).items()) + 0.0

    def distributions(self, like):
        return {
            name: torch.distributions.Cauchy(torch.zeros_like(value), torch.ones_like(value))
            for name, value in like.items()
            if value.dim() > 1
        }


def joint(model):
    weights = trainable_params(model.core)
    size = sum(value.numel() for value in weights.values())
    root = torch.randn(size, size, dtype=WIDE)
    return GaussianPrior(weights, root @ root.T + torch.eye(size, dtype=WIDE))


@pytest.mark.parametrize("make", [lambda model: Wide(), joint])
def test_what_pyro_has_no_distribution_for_enters_as_a_factor(make):
    likelihood = likelihoods.Gaussian(scale=0.5)
    model = Model(network(likelihood), likelihood)
    model.prior = make(model)
    program = to_pyro(model, num_data=30)
    assert_log_joint(program, model, moved(model), *data(likelihood))
    assert "prior" in trace_of(program, moved(model), *data(likelihood)).nodes


def test_standardisation_stays_inside_and_values_are_in_the_units_of_the_targets():
    likelihood = likelihoods.Gaussian(scale=3.0)
    model = Model(network(likelihood), likelihood, inputs=Standardize(), targets=Standardize())
    x, y = 5 + 2 * torch.randn(40, 3, dtype=WIDE), 100 + 30 * torch.randn(40, dtype=WIDE)
    program = to_pyro(model, (x, y))
    assert program.num_data == 40
    assert_log_joint(program, program.model, moved(model), x[:7], y[:7])
    trace = trace_of(program, moved(model), x[:7], y[:7])
    assert torch.equal(trace.nodes["targets"]["value"], y[:7])
    drawn = program(x)
    assert 0 < float((drawn - 100).abs().mean()) < 300
    with pytest.raises(ValueError, match="not been fitted"):
        to_pyro(model, num_data=40)(x, y)


@pytest.mark.parametrize("name", TASKS)
def test_structured_networks(name):
    task = TASKS[name]()
    model = Model(task.net(), task.likelihood(), **task.options)
    program, params = to_pyro(model, task.data), moved(model)
    expected = model.log_joint(params, {}, task.data, program.num_data)
    torch.testing.assert_close(trace_of(program, params).log_prob_sum(), expected, rtol=1e-5, atol=1e-3)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        self.second.weight = self.first.weight
        self.last = nn.Linear(3, 1).requires_grad_(requires_grad=False)

    def forward(self, x):
        return self.last(self.second(self.first(x).tanh()).tanh())


def test_tied_weights_are_one_site_and_frozen_ones_none():
    model = Model(Tied().to(WIDE), likelihoods.Gaussian(scale=1.0))
    program = to_pyro(model, num_data=9)
    x, y = torch.randn(9, 3, dtype=WIDE), torch.randn(9, dtype=WIDE)
    trace = poutine.trace(program).get_trace(x, y)
    own = [key for key, site in trace.nodes.items() if site["type"] == "sample" and key.startswith("net.")]
    assert own == ["net.first.weight", "net.first.bias", "net.second.bias"]
    assert_log_joint(program, model, moved(model), x, y)


def test_its_own_data_come_whole_or_as_a_subsample_whose_density_is_unbiased():
    likelihood = likelihoods.Gaussian(scale=1.0)
    model = Model(network(likelihood), likelihood)
    x, y = data(likelihood)
    whole, some = to_pyro(model, (x, y)), to_pyro(model, (x, y), batch_size=3)
    params = moved(model)
    expected = trace_of(whole, params).log_prob_sum()
    torch.testing.assert_close(expected, model.log_joint(params, {}, (x, y), 12))
    densities = torch.stack([trace_of(some, params).log_prob_sum() for _ in range(400)]).detach()
    error = densities.std() / math.sqrt(400)
    assert error > 0
    assert abs(float(densities.mean() - expected)) < 5 * error  # fails once in 1.7 million seeds
    trace = trace_of(some, params)
    assert trace.nodes["targets"]["value"].shape == (3,)
    assert trace.nodes["targets"]["scale"] == 4.0
    streamed = to_pyro(model, Data((x), y, num_data=600))
    torch.testing.assert_close(trace_of(streamed, params).log_prob_sum(), model.log_joint(params, {}, (x, y), 600))


@pytest.mark.parametrize("parallel", [False, True])
def test_predictions_are_drawn_under_each_draw_of_the_weights(parallel):
    model = Model(nn.Linear(3, 1).to(WIDE), likelihoods.Gaussian(scale=1e-6))
    program = to_pyro(model, num_data=20)
    x = torch.randn(5, 3, dtype=WIDE)
    draws = {"net.weight": torch.randn(6, 1, 3, dtype=WIDE), "net.bias": torch.randn(6, 1, dtype=WIDE)}
    shaped = {name: value.unsqueeze(1) for name, value in draws.items()} if parallel else draws
    found = Predictive(program, shaped, parallel=parallel, return_sites=("targets",))(x)["targets"]
    expected = torch.einsum("kof,bf->kb", draws["net.weight"], x) + draws["net.bias"]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", ["gaussian_learned", "gaussian_vector", "categorical", "gaussian_elements"])
@pytest.mark.parametrize("prior", [priors.Normal(0.7), priors.Flat(), Wide()])
def test_particles_side_by_side_are_those_one_by_one(name, prior):
    likelihood = cases.LIKELIHOODS[name]().to(WIDE)
    model = Model(network(likelihood), likelihood, prior)
    x, y = data(likelihood)
    program = to_pyro(model, num_data=30)
    weights = {name: value for name, value in trainable_params(model.core).items() if name.startswith("net.")}
    draws = {name: value + torch.randn(4, *value.shape, dtype=WIDE) for name, value in weights.items()}
    alone = [
        trace_of(program, {**trainable_params(model.core), **{k: v[i] for k, v in draws.items()}}, x, y)
        for i in range(4)
    ]
    with pyro.plate("particles", 4, dim=-2):
        together = poutine.trace(
            poutine.condition(program, {name: value.unsqueeze(1) for name, value in draws.items()})
        ).get_trace(x, y)
    expected = sum(trace.log_prob_sum() for trace in alone)
    torch.testing.assert_close(together.log_prob_sum(), expected)


def regression(rows=40):
    x = torch.randn(rows, 2, dtype=WIDE) @ torch.tensor([[1.0, 0.8], [0.0, 0.5]], dtype=WIDE)
    y = x @ torch.tensor([1.0, -2.0], dtype=WIDE) + 0.5 * torch.randn(rows, dtype=WIDE)
    net = nn.Linear(2, 1, bias=False).to(WIDE)
    precision = x.T @ x / 0.5**2 + torch.eye(2, dtype=WIDE) / 0.7**2
    covariance = torch.linalg.inv(precision)
    return (
        Model(net, likelihoods.Gaussian(scale=0.5), priors.Normal(0.7)),
        (x, y),
        covariance @ x.T @ y / 0.25,
        covariance,
    )


def test_nuts_samples_the_exact_posterior_of_linear_regression():
    model, given, mean, covariance = regression()
    program = to_pyro(model, given)
    kernel = NUTS(program, init_strategy=init_to_value(values=program.start), full_mass=True, max_tree_depth=4)
    chain = MCMC(kernel, num_samples=150, warmup_steps=50, disable_progbar=True)
    chain.run()
    draws = chain.get_samples()["net.weight"].squeeze(1)
    # with an effective size of 60 of the 150 draws or more, 5 standard errors: fails once in some 100,000 seeds
    deviation = covariance.diagonal().sqrt()
    assert ((draws.mean(0) - mean).abs() < 5 * deviation / math.sqrt(60)).all()
    assert ((draws.std(0) / deviation - 1).abs() < 5 / math.sqrt(120)).all()


def test_a_flat_prior_begins_at_the_weights_and_cannot_be_drawn_from():
    model = Model(nn.Linear(2, 1).to(WIDE), likelihoods.Gaussian(scale=1.0), priors.Flat())
    x, y = torch.randn(9, 2, dtype=WIDE), torch.randn(9, dtype=WIDE)
    program = to_pyro(model, (x, y))
    with pytest.raises(NotSupportedError, match=r"net\.weight.*program\.start"):
        program(x, y)
    guide = AutoNormal(program, init_loc_fn=init_to_value(values=program.start))
    guide()
    assert torch.equal(guide.median()["net.weight"], model.net.weight.detach())


def test_svi_learns_the_noise_and_the_model_is_left_alone():
    model, (x, y), *_ = regression()
    model = Model(model.net, likelihoods.Gaussian())
    before = copy.deepcopy(model.state_dict())
    program = to_pyro(model, (x, y))
    assert program.learned == ("likelihood.log_scale",)
    svi = SVI(program, AutoMultivariateNormal(program), pyro.optim.Adam({"lr": 0.05}), Trace_ELBO())
    losses = [svi.step() for _ in range(300)]
    assert sum(losses[-50:]) < sum(losses[:50])
    noise = float(pyro.param("likelihood.log_scale").detach().exp())
    assert 0.3 < noise < 0.8
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_what_makes_no_sense_is_refused_by_name():
    model, (x, y), *_ = regression()
    with pytest.raises(TypeError, match="model"):
        to_pyro(model.net, num_data=3)
    with pytest.raises(ValueError, match="num_data"):
        to_pyro(model)
    with pytest.raises(ValueError, match="num_data"):
        to_pyro(model, num_data=0)
    with pytest.raises(ValueError, match="batch_size"):
        to_pyro(model, num_data=3, batch_size=2)
    loader = DataLoader(TensorDataset(x, y), batch_size=8)
    with pytest.raises(NotSupportedError, match="batch_size"):
        to_pyro(model, loader, batch_size=2)
    program = to_pyro(model, loader)
    assert program.num_data == 40
    with pytest.raises(ValueError, match=r"\(inputs, targets\)"):
        program()
    with pytest.raises(ValueError, match=r"\(8, 3\)"):
        program(x[:8], y[:8, None].expand(8, 3))


def test_pyro_loads_where_it_is_used_and_nowhere_else():
    code = (
        "import sys; from credibly import bridges, inference; inference.MLE; before = 'pyro' in sys.modules; "
        "print(before, bridges.to_pyro.__name__, inference.PyroGuide.__name__, 'pyro' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "to_pyro", "PyroGuide", "True"]
