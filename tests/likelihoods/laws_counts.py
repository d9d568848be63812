"""The laws of counts and of ordered classes."""

import numpy as np
from laws import ClassLaw, event, law_of
from scipy import special, stats

from credibly.likelihoods import Binomial, NegativeBinomial, Ordinal, ZeroInflated


@law_of.register
def _(likelihood: NegativeBinomial, outputs):
    if likelihood.dispersion == "predicted":
        log_mean, raw = np.split(outputs, 2, axis=-1)
    else:
        log_mean, raw = outputs, likelihood.raw_dispersion.detach().double().cpu().numpy()
    size = 1 / (np.exp(raw) + likelihood.min_dispersion)
    mean, size = np.broadcast_arrays(np.exp(log_mean), size)
    return stats.nbinom(event(size), event(size / (size + mean)))


@law_of.register
def _(likelihood: Binomial, outputs):
    return stats.binom(likelihood.num_trials, event(special.expit(outputs)))


@law_of.register
def _(likelihood: ZeroInflated, outputs):
    counted, zero_logits = np.split(outputs, [likelihood.of.num_outputs], axis=-1)
    return InflatedLaw(law_of(likelihood.of, counted), event(special.expit(zero_logits)))


@law_of.register
def _(likelihood: Ordinal, outputs):
    below = special.expit(likelihood.cutpoints().detach().double().cpu().numpy() - outputs)
    ends = np.zeros_like(outputs)
    return ClassLaw(np.diff(np.concatenate([ends, below, ends + 1], -1), axis=-1))


class InflatedLaw:
    """scipy has no zero-inflated laws."""

    def __init__(self, base, zero):
        self.base, self.zero = base, zero

    def logpmf(self, y):
        counted = np.log1p(-self.zero) + self.base.logpmf(y)
        return np.where(np.asarray(y) == 0, np.logaddexp(np.log(self.zero), counted), counted)

    def cdf(self, y):
        return np.where(np.asarray(y) >= 0, self.zero + (1 - self.zero) * self.base.cdf(y), 0.0)

    def sf(self, y):
        return np.where(np.asarray(y) >= 0, (1 - self.zero) * self.base.sf(y), 1.0)

    def ppf(self, q):
        return np.where(q <= self.zero, 0.0, self.base.ppf(np.clip((q - self.zero) / (1 - self.zero), 0, 1)))

    def support(self):
        return self.base.support()

    def mean(self):
        return (1 - self.zero) * self.base.mean()

    def var(self):
        return (1 - self.zero) * (self.base.var() + self.zero * self.base.mean() ** 2)

    def std(self):
        return np.sqrt(self.var())

    def rvs(self, size, random_state):
        counts = self.base.rvs(size=size, random_state=random_state)
        return np.where(random_state.random(size) < self.zero, 0, counts)
