"""ArviZ's own functions run on what is exported, and agree with what is known exactly."""

import math
import subprocess
import sys

import pytest
import torch
from torch import nn

from credibly import Model, inference, likelihoods, priors
from credibly.diagnostics import to_arviz
from credibly.diagnostics.arviz_versions import arviz
from credibly.metrics import psis_loo
from credibly.posteriors import DrawPosterior, Info

IS_LEGACY = "InferenceData" in vars(arviz)

# deprecations inside ArviZ, of the pandas and matplotlib that it runs on
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def entry(result, *names):
    """One of several names of an entry, which ArviZ 1 changed."""
    return next(getattr(result, name) for name in names if hasattr(result, name))


# -- a conjugate model: the posterior, and every leave-one-out density, in closed form -----------------------------

ROWS, NOISE, SPREAD = 40, 0.7, 2.0


def conjugate_data():
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(ROWS, 3, generator=generator, dtype=torch.float64)
    y = x @ torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    return x, y + NOISE * torch.randn(ROWS, generator=generator, dtype=torch.float64)


def gaussian_posterior(x, y):
    covariance = torch.linalg.inv(x.T @ x / NOISE**2 + torch.eye(3, dtype=x.dtype) / SPREAD**2)
    return covariance @ x.T @ y / NOISE**2, covariance


def exact_leave_one_out(x, y):
    values = []
    for row in range(ROWS):
        rest = torch.arange(ROWS) != row
        mean, covariance = gaussian_posterior(x[rest], y[rest])
        variance = NOISE**2 + x[row] @ covariance @ x[row]
        values.append(torch.distributions.Normal(x[row] @ mean, variance.sqrt()).log_prob(y[row]))
    return torch.stack(values)


def exact_draws(x, y, num_draws, seed):
    mean, covariance = gaussian_posterior(x, y)
    noise = torch.randn(num_draws, 3, generator=torch.Generator().manual_seed(seed), dtype=x.dtype)
    weights = mean + noise @ torch.linalg.cholesky(covariance).T
    model = Model(nn.Linear(3, 1, bias=False).double(), likelihoods.Gaussian(scale=NOISE), priors.Normal(SPREAD))
    return DrawPosterior(model, Info("exact", seed), {"net.weight": weights.unsqueeze(1)})


def test_leave_one_out_of_a_conjugate_model():
    x, y = conjugate_data()
    exact = exact_leave_one_out(x, y).sum()
    estimates = []
    for seed in range(20):
        exported = to_arviz(exact_draws(x, y, 500, seed), (x, y), posterior_predictive=False, constant_data=False)
        log_likelihood = torch.tensor(exported.log_likelihood["targets"].values[0])
        estimates.append(psis_loo(log_likelihood).elpd)
    estimates = torch.stack(estimates)
    # three Monte Carlo standard errors of the mean of 20 independent posteriors: one seed in 370 fails
    assert abs(estimates.mean() - exact) < 3 * estimates.std() / 20**0.5
    whole = gaussian_posterior(x, y)
    in_sample = torch.distributions.Normal(x @ whole[0], (NOISE**2 + ((x @ whole[1]) * x).sum(1)).sqrt()).log_prob(y)
    assert in_sample.sum() - exact > 10 * estimates.std(), "the test can tell the left-out from the in-sample score"


def test_arviz_loo_of_a_conjugate_model():
    x, y = conjugate_data()
    exact = exact_leave_one_out(x, y)
    result = arviz.loo(to_arviz(exact_draws(x, y, 4000, 0), (x, y), params="net.*"), pointwise=True)
    assert abs(float(entry(result, "elpd_loo", "elpd")) - exact.sum()) < 3 * float(result.se)
    pointwise = torch.tensor(entry(result, "loo_i", "elpd_i").values)
    torch.testing.assert_close(pointwise, exact, rtol=0, atol=0.05)  # the error of a row is near 0.5 / sqrt(4000)
    # p_loo of a linear model is the trace of the hat matrix in expectation; its standard deviation here is near 0.9
    assert 0.5 < float(entry(result, "p_loo", "p")) < 6


# -- ensembles and Monte Carlo dropout -----------------------------------------------------------------------------


def net():
    return nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Dropout(0.1), nn.Linear(16, 1))


def curve(rows=60):
    generator = torch.Generator().manual_seed(0)
    x = torch.linspace(-2, 2, rows).unsqueeze(-1)
    return x, x[:, 0].sin() + 0.3 * torch.randn(rows, generator=generator)


@pytest.fixture(scope="module")
def exported():
    model = Model(net(), likelihoods.Gaussian(scale=0.3))
    train = inference.MLE(num_epochs=30, learning_rate=0.01)
    ensemble = inference.Ensemble(of=train, num_members=30).fit(model, curve(), seed=0)
    dropout = inference.MCDropout(train=train).fit(model, curve(), seed=0)
    return {
        "ensemble": to_arviz(ensemble, curve(), params="net.3.*", seed=0),
        "dropout": to_arviz(dropout, curve(), num_draws=200, seed=0),
    }


@pytest.mark.filterwarnings(
    "ignore:Estimated shape parameter"
)  # with 30 members some rows are beyond what they can say
@pytest.mark.parametrize("name", ["ensemble", "dropout"])
def test_arviz_functions_run(exported, name):
    inference_data = exported[name]
    result = arviz.loo(inference_data, pointwise=True)
    ours = psis_loo(torch.tensor(inference_data.log_likelihood["targets"].values[0]))
    assert ours.k.isfinite().all()
    if IS_LEGACY:
        torch.testing.assert_close(ours.elpd, torch.tensor(result.elpd_loo, dtype=torch.float64))
        arviz.plot_ppc(inference_data)
        arviz.plot_loo_pit(inference_data, y="targets")
    else:
        torch.testing.assert_close(ours.elpd, torch.tensor(result.elpd, dtype=torch.float64), rtol=1e-3, atol=0)
        arviz.plot_ppc_dist(inference_data, num_samples=20)
        arviz.plot_loo_pit(inference_data)


@pytest.mark.filterwarnings("ignore:Estimated shape parameter")
def test_arviz_compares(exported):
    table = arviz.compare(exported)
    assert set(table.index) == {"ensemble", "dropout"}
    column = "elpd_loo" if IS_LEGACY else "elpd"
    assert table[column].map(math.isfinite).all()


def test_too_few_members_are_arvizs_own_complaint():
    model = Model(net(), likelihoods.Gaussian(scale=0.3))
    few = inference.Ensemble(of=inference.MLE(num_epochs=1), num_members=8).fit(model, curve(), seed=0)
    inference_data = to_arviz(few, curve(), seed=0)
    if IS_LEGACY:
        with pytest.warns(UserWarning, match="shape parameter of Pareto"):
            result = arviz.loo(inference_data, pointwise=True)
        assert math.isfinite(result.elpd_loo)
    else:
        with pytest.raises(ValueError, match="at least 5"):
            arviz.loo(inference_data)
    values = torch.tensor(inference_data.log_likelihood["targets"].values[0])
    assert psis_loo(values).k.tolist() == [math.inf] * 60


# -- memory --------------------------------------------------------------------------------------------------------

MEASURE = """
import torch
from torch import nn
from credibly import Model, likelihoods
from credibly.diagnostics import to_arviz
from credibly.posteriors import DrawPosterior, Info

torch.set_num_threads(1)
rows, draws = 10_000, 1_000
x, y = torch.randn(rows, 4), torch.arange(rows) % 10
weights = {"net.weight": torch.randn(draws, 10, 4), "net.bias": torch.randn(draws, 10)}
posterior = DrawPosterior(Model(nn.Linear(4, 10), likelihoods.Categorical(10)), Info("drawn", 0), weights)

def memory(kind):  # of this process alone: what getrusage tells includes the parent's
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith(kind))

to_arviz(posterior, (x[:300], y[:300]), seed=0, posterior_predictive=False)  # what is loaded and cached on first use
before = memory("VmRSS")
exported = to_arviz(posterior, (x, y), seed=0, posterior_predictive=False)
assert exported.log_likelihood["targets"].shape == (1, draws, rows)
print(memory("VmHWM") - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the peak is read from /proc")
def test_memory_is_the_result_and_a_chunk():
    done = subprocess.run([sys.executable, "-c", MEASURE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    grown = float(done.stdout)
    result = 10_000 * 1_000 * 8 / 2**20
    assert grown > 0.9 * result, "the peak was measured"
    assert grown < result + 100, "the logits of all rows at once would take 381 MiB"
