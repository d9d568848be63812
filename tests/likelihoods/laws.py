"""The law of every element of a likelihood's target: one entry a likelihood, in a module a family (`laws_real`, ...).

An entry takes the likelihood and its outputs as a float64 array (*batch, num_outputs), and gives a frozen scipy law
whose parameters are arrays (*batch, *event), or an object with its methods: `cdf`, `mean`, `var`, `support`, `rvs`, and
`logpdf` and `ppf` for real numbers or `logpmf` for others. Parameters are computed from the outputs by numpy alone.

Where the elements depend on each other the law is that of every element alone, `rvs` draws them together, and
`joint_logpdf(y)` is the log density of vectors, (*batch,).
"""

import functools

import numpy as np
from scipy import special, stats

from credibly.likelihoods import Bernoulli, Categorical, Poisson


@functools.singledispatch
def law_of(likelihood, outputs):
    raise NotImplementedError(f"register the law of {type(likelihood).__name__}: @law_of.register")


def event(values):
    """The last axis, dropped where a target is one number."""
    return values[..., 0] if values.shape[-1] == 1 else values


@functools.singledispatch
def typical_outputs(likelihood, normal):
    """Outputs (*batch, num_outputs) of moderate size, from standard normal numbers; an array like `normal`."""
    return normal


@law_of.register
def _(likelihood: Bernoulli, outputs):
    return stats.bernoulli(event(special.expit(outputs)))


@law_of.register
def _(likelihood: Poisson, outputs):
    return stats.poisson(event(np.exp(outputs)))


@law_of.register
def _(likelihood: Categorical, outputs):
    return ClassLaw(special.softmax(outputs, axis=-1))


class ClassLaw:
    """scipy has no categorical law with a row of probabilities each."""

    def __init__(self, probs):
        self.probs = probs

    def logpmf(self, y):
        index = np.asarray(y).astype(int)[..., None]
        table = np.broadcast_to(self.probs, (*index.shape[:-1], self.probs.shape[-1]))
        return np.log(np.take_along_axis(table, index, -1)[..., 0])

    def cdf(self, y):
        below = np.arange(self.probs.shape[-1]) <= np.asarray(y)[..., None]
        return (self.probs * below).sum(-1)

    def sf(self, y):
        above = np.arange(self.probs.shape[-1]) > np.asarray(y)[..., None]
        return (self.probs * above).sum(-1)

    def support(self):
        zeros = np.zeros(self.probs.shape[:-1])
        return zeros, zeros + self.probs.shape[-1] - 1

    def mean(self):
        return self.probs @ np.arange(self.probs.shape[-1])

    def var(self):
        return self.probs @ np.arange(self.probs.shape[-1]) ** 2 - self.mean() ** 2

    def rvs(self, size, random_state):
        draws = random_state.random((*size, 1)) > self.probs.cumsum(-1)
        return draws[..., :-1].sum(-1).astype(float)
