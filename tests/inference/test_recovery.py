"""A network trained on data simulated from its likelihood recovers the truth within its error."""

import pytest
import torch
from scipy import stats
from torch import nn

from cases import LIKELIHOODS
from credibly import Model, inference, priors
from credibly.training import linear

ROWS, INPUTS = 1500, 3


def identified(likelihood, x, outputs, targets):
    """How many parameters the targets depend on: what shifts all logits of a softmax alike, for one, is none."""
    outputs = outputs.clone().requires_grad_()
    total = likelihood.log_prob(likelihood.parameters_of(outputs), targets).sum()
    scores = torch.einsum("nc,ni->nci", torch.autograd.grad(total, outputs)[0], x).flatten(1)
    rank = int(torch.linalg.matrix_rank(scores.T @ scores, hermitian=True, rtol=1e-10))
    return rank + sum(parameter.numel() for parameter in likelihood.parameters())


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_a_trained_network_recovers_the_truth_within_its_error(name):
    """Twice the gain in log likelihood over the truth is chi-squared (Wilks 1938), also where components have no order.

    Too large, and the truth lies outside the confidence region; too small, and training did not arrive. Each case fails
    once in 5,000 seeds.
    """
    generator = torch.Generator().manual_seed(3)
    likelihood = LIKELIHOODS[name]().double()
    x = torch.randn(ROWS, INPUTS, generator=generator, dtype=torch.float64)
    truth = 0.5 * torch.randn(likelihood.num_outputs, INPUTS, generator=generator, dtype=torch.float64)
    outputs = x @ truth.T
    torch.manual_seed(5)
    targets = likelihood(outputs).sample()
    net = nn.Linear(INPUTS, likelihood.num_outputs, bias=False).double()
    # not far from the truth: the question is where the likelihood has its maximum; a mixture has others besides
    net.weight.data = truth + 0.2 * torch.randn(truth.shape, generator=generator, dtype=torch.float64)
    method = inference.MLE(num_epochs=300, batch_size=None, learning_rate=0.05, schedule=linear)
    model = method.fit(Model(net, likelihood, priors.Flat()), (x, targets), seed=0).model
    best = model.log_likelihood({}, {}, (x, targets)).sum().detach()
    true = likelihood.log_prob(likelihood.parameters_of(outputs), targets).sum().detach()
    gain, freedom = 2 * float(best - true), identified(likelihood, x, outputs, targets)
    assert stats.chi2.ppf(1e-4, freedom) < gain < stats.chi2.ppf(1 - 1e-4, freedom)
