"""What scipy and brute force say about a likelihood, computed in float64 from the outputs alone."""

import itertools

import numpy as np
import torch
from scipy import special, stats

from credibly.likelihoods import Bernoulli, Categorical, Gaussian, HeteroscedasticGaussian, Poisson


def outputs_for(likelihood, *leading, dtype=torch.float64, seed=0):
    """Outputs of moderate size: (*leading, num_outputs)."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(*leading, likelihood.num_outputs, generator=generator, dtype=torch.float64)
    return values.to(dtype)


def scipy_law(likelihood, outputs):
    """The frozen scipy law of every element of the target, with arrays (*batch, *event) as parameters."""
    values = outputs.detach().double().numpy()
    if isinstance(likelihood, HeteroscedasticGaussian):
        loc, raw = np.split(values, 2, axis=-1)
        return stats.norm(_event(loc), _event(np.logaddexp(0, raw) + likelihood.min_scale))
    if isinstance(likelihood, Gaussian):
        scale = likelihood.noise_scale().detach().double().numpy()
        return stats.norm(_event(values), _event(np.broadcast_to(scale, values.shape)))
    if isinstance(likelihood, Bernoulli):
        return stats.bernoulli(_event(special.expit(values)))
    if isinstance(likelihood, Poisson):
        return stats.poisson(_event(np.exp(values)))
    return CategoricalLaw(special.softmax(values, axis=-1))


def _event(values):
    return values[..., 0] if values.shape[-1] == 1 else values


class CategoricalLaw:
    """scipy has no categorical law with a row of probabilities each."""

    def __init__(self, probs):
        self.probs = probs

    def logpmf(self, y):
        index = np.asarray(y).astype(int)[..., None]
        return np.log(np.take_along_axis(np.broadcast_to(self.probs, (*index.shape[:-1], 4)), index, -1)[..., 0])

    def cdf(self, y):
        below = np.arange(self.probs.shape[-1]) <= np.asarray(y)[..., None]
        return (self.probs * below).sum(-1)

    def mean(self):
        return self.probs @ np.arange(self.probs.shape[-1])

    def var(self):
        return self.probs @ np.arange(self.probs.shape[-1]) ** 2 - self.mean() ** 2

    def rvs(self, size, random_state):
        draws = random_state.random((*size, 1)) > self.probs.cumsum(-1)
        return draws[..., :-1].sum(-1).astype(float)


def log_density(law, y):
    """The elements' log density or log probability at y."""
    return law.logpdf(y) if hasattr(law.__class__, "pdf") else law.logpmf(y)


def is_vector(likelihood):
    """Whether a target is a vector."""
    return not isinstance(likelihood, Categorical) and len(likelihood(torch.zeros(likelihood.num_outputs)).event_shape)


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
    if isinstance(law, CategoricalLaw):
        return torch.arange(4.0, dtype=torch.float64), torch.as_tensor(law.probs)
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
