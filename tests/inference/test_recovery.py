"""A network trained on data simulated from its likelihood recovers the truth within its error."""

import pytest
import torch
from scipy import stats
from torch import nn

from cases import LIKELIHOODS
from credibly import Model, inference, priors
from credibly.training import linear

ROWS, INPUTS = 3000, 3


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_a_trained_network_recovers_the_truth_within_its_error(name):
    """The Wald statistic of the maximum likelihood estimate is chi-squared; each case fails once in 10,000 seeds."""
    generator = torch.Generator().manual_seed(3)
    likelihood = LIKELIHOODS[name]().double()
    x = torch.randn(ROWS, INPUTS, generator=generator, dtype=torch.float64)
    truth = 0.5 * torch.randn(likelihood.num_outputs, INPUTS, generator=generator, dtype=torch.float64)
    outputs = x @ truth.T
    torch.manual_seed(5)
    targets = likelihood(outputs).sample()
    net = nn.Linear(INPUTS, likelihood.num_outputs, bias=False).double()
    method = inference.MLE(num_epochs=1500, batch_size=None, learning_rate=0.05, schedule=linear)
    posterior = method.fit(Model(net, likelihood, priors.Flat()), (x, targets), seed=0)
    estimate = posterior.model.net.weight.detach()
    information = torch.einsum("ni,ncd,nj->cidj", x, likelihood.fisher(outputs).detach(), x)
    size = estimate.numel()
    error = (estimate - truth).reshape(size)
    statistic = float(error @ information.reshape(size, size) @ error)
    # the softmax does not see a shift shared by all classes
    freedom = size - (INPUTS if name == "categorical" else 0)
    assert statistic < stats.chi2.ppf(1 - 1e-4, freedom)
    assert statistic > stats.chi2.ppf(1e-4, freedom)
    learned = posterior.sample(1).get("likelihood.log_scale")
    if learned is not None:
        scale = posterior.model.likelihood.noise_scale().detach()
        expected = likelihood.noise_scale().detach()
        # the standard error of a Gaussian's log scale is 1 / sqrt(2 n); five of them
        count = ROWS * (3 if name.endswith("shared") else 1)
        assert ((scale / expected).log().abs() < 5 / (2 * count) ** 0.5).all()
