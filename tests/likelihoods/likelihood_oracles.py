"""What scipy and brute force say about a likelihood, computed in float64 from the outputs alone."""

import itertools

import numpy as np
import torch
from laws import ClassLaw, law_of

from credibly.distributions.kinds import kind
from credibly.likelihoods import Bernoulli, Gaussian, HeteroscedasticGaussian


def outputs_for(likelihood, *leading, dtype=torch.float64, seed=0):
    """Outputs of moderate size: (*leading, num_outputs)."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(*leading, likelihood.num_outputs, generator=generator, dtype=torch.float64)
    return values.to(dtype)


def scipy_law(likelihood, outputs):
    """The frozen scipy law of every element of the target, with arrays (*batch, *event) as parameters."""
    return law_of(likelihood, outputs.detach().double().cpu().numpy())


def log_density(law, y):
    """The elements' log density or log probability at y."""
    return law.logpdf(y) if hasattr(law.__class__, "pdf") else law.logpmf(y)


def is_vector(likelihood):
    """Whether a target is a vector."""
    return len(likelihood(torch.zeros(1, likelihood.num_outputs)).event_shape) > 0


def kind_of(likelihood):
    """What its target is: "real", "count" or "class"."""
    return kind(likelihood(torch.zeros(1, likelihood.num_outputs)))


def draw_targets(likelihood, outputs, seed=0):
    """Targets (*batch, *event) of the law, by numpy."""
    law = scipy_law(likelihood, outputs)
    drawn = law.rvs(size=np.shape(law.mean()), random_state=np.random.RandomState(seed))
    return torch.as_tensor(np.asarray(drawn, dtype=float)).to(outputs.dtype)


def expectation_nodes(likelihood, outputs):
    """Targets (K, *event) for one row of outputs, and their masses (K,): products over the elements.

    Scores of Gaussians are polynomials in the target, so six nodes of Gauss and Hermite are exact.
    """
    law = scipy_law(likelihood, outputs)
    if isinstance(law, ClassLaw):
        return torch.arange(len(law.probs), dtype=torch.float64), torch.as_tensor(law.probs)
    if isinstance(likelihood, (Gaussian, HeteroscedasticGaussian)):
        nodes, masses = np.polynomial.hermite_e.hermegauss(6)
        values = np.atleast_1d(law.mean())[:, None] + np.atleast_1d(law.std())[:, None] * nodes
        probs = np.broadcast_to(masses / masses.sum(), values.shape)
    else:
        top = 2 if isinstance(likelihood, Bernoulli) else 60
        values = np.broadcast_to(np.arange(float(top)), (np.size(law.mean()), top))
        probs = np.stack([law.pmf(np.full(np.shape(law.mean()), float(k))).reshape(-1) for k in range(top)], -1)
    targets = torch.tensor(list(itertools.product(*values)), dtype=torch.float64)
    masses = torch.tensor([np.prod(row) for row in itertools.product(*probs)], dtype=torch.float64)
    return targets if is_vector(likelihood) else targets.squeeze(-1), masses


def brute_fisher(likelihood, outputs):
    """The expected outer product of the score of torch's own log density, for one row of outputs (C,)."""
    targets, masses = expectation_nodes(likelihood, outputs)
    repeated = outputs.expand(len(targets), -1).clone().requires_grad_()
    scores = torch.autograd.grad(likelihood(repeated).log_prob(targets).sum(), repeated)[0]
    return torch.einsum("k,kc,kd->cd", masses, scores, scores)
