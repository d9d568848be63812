"""A network trained on data simulated from its likelihood recovers the truth within its error."""

import pytest
import torch
from scipy import stats

import cases
from credibly import Model, inference, priors
from credibly.training import linear

ROWS, INPUTS = 1500, 3


def identified(likelihood, x, outputs, targets):
    """How many parameters the targets depend on: what shifts all logits of a softmax alike, for one, is none."""
    outputs = outputs.clone().requires_grad_()
    total = likelihood.log_prob(likelihood.parameters_of(outputs), targets).sum()
    scores = torch.einsum("nc,ni->nci", torch.autograd.grad(total, outputs)[0].flatten(1), x).flatten(1)
    rank = int(torch.linalg.matrix_rank(scores.T @ scores, hermitian=True, rtol=1e-10))
    return rank + sum(parameter.numel() for parameter in likelihood.parameters())


@pytest.mark.parametrize("name", cases.LIKELIHOODS)
def test_a_trained_network_recovers_the_truth_within_its_error(name):
    """Twice the gain in log likelihood over the truth is chi-squared (Wilks 1938), also where components have no order.

    Too large, and the truth lies outside the confidence region; too small, and training did not arrive. Each case fails
    once in 5,000 seeds.
    """
    generator = torch.Generator().manual_seed(3)
    likelihood = cases.LIKELIHOODS[name]().double()
    x = torch.randn(ROWS, INPUTS, generator=generator, dtype=torch.float64)
    net = cases.linear(INPUTS, likelihood, bias=False).double()
    truth = 0.5 * torch.randn(net[0].weight.shape, generator=generator, dtype=torch.float64)
    net[0].weight.data = truth
    outputs = net(x).detach()
    torch.manual_seed(5)
    targets = likelihood(outputs).sample()
    # not far from the truth: the question is where the likelihood has its maximum; a mixture has others besides
    net[0].weight.data = truth + 0.2 * torch.randn(truth.shape, generator=generator, dtype=torch.float64)
    method = inference.MLE(num_epochs=300, batch_size=None, learning_rate=0.05, schedule=linear)
    model = method.fit(Model(net, likelihood, priors.Flat()), (x, targets), seed=0).model
    best = model.log_likelihood({}, {}, (x, targets)).sum().detach()
    true = likelihood.log_prob(likelihood.parameters_of(outputs), targets).sum().detach()
    gain, freedom = 2 * float(best - true), identified(likelihood, x, outputs, targets)
    assert stats.chi2.ppf(1e-4, freedom) < gain < stats.chi2.ppf(1 - 1e-4, freedom)
