"""The laws of vectors whose elements depend on each other, of mixtures, and of what may be censored."""

import numpy as np
from laws import law_of, typical_outputs
from laws_real import softplus
from scipy import special, stats

from credibly.likelihoods import Censored, Dirichlet, MixtureDensity, MultivariateGaussian


class ElementLaw:
    """What it does not define is that of every element."""

    def __init__(self, elements):
        self.elements = elements

    def __getattr__(self, name):
        return getattr(self.elements, name)


class NormalLaw(ElementLaw):
    def __init__(self, loc, factor):
        self.loc, self.factor = loc, factor
        super().__init__(stats.norm(loc, np.sqrt((factor**2).sum(-1))))

    def joint_logpdf(self, y):
        standard = np.linalg.solve(self.factor, (y - self.loc)[..., None])[..., 0]
        return stats.norm.logpdf(standard).sum(-1) - np.linalg.slogdet(self.factor)[1]

    def rvs(self, size, random_state):
        return self.loc + (self.factor @ random_state.normal(size=(*size, 1)))[..., 0]


@law_of.register
def _(likelihood: MultivariateGaussian, outputs):
    size = likelihood.num_targets
    loc, diagonal, below = np.split(outputs, [size, 2 * size], axis=-1)
    factor = np.zeros((*outputs.shape[:-1], size, size))
    factor[..., np.arange(size), np.arange(size)] = softplus(diagonal) + likelihood.min_scale
    factor[(..., *np.tril_indices(size, -1))] = below
    return NormalLaw(loc, factor)


class DirichletLaw(ElementLaw):
    def __init__(self, concentration):
        self.concentration = concentration
        super().__init__(stats.beta(concentration, concentration.sum(-1, keepdims=True) - concentration))

    def joint_logpdf(self, y):
        a = self.concentration
        constant = special.gammaln(a.sum(-1)) - special.gammaln(a).sum(-1)
        return constant + special.xlogy(a - 1, y).sum(-1)

    def rvs(self, size, random_state):
        drawn = random_state.standard_gamma(np.broadcast_to(self.concentration, size))
        return drawn / drawn.sum(-1, keepdims=True)


@law_of.register
def _(likelihood: Dirichlet, outputs):
    return DirichletLaw(np.exp(outputs) + likelihood.min_concentration)


@typical_outputs.register
def _(likelihood: Dirichlet, normal):
    return 0.3 * normal + 1  # concentrations so small that shares round to 0 are tested apart


class MixtureLaw:
    """A mixture of normals along the axis before the elements; elements of a vector share the component."""

    def __init__(self, weights, loc, scale, *, vector):
        self.weights, self.vector = weights, vector
        self.axis = -2 if vector else -1
        self.parts = stats.norm(loc, scale)
        if vector:
            self.joint_logpdf = self._joint_logpdf

    def _average(self, values):
        weights = self.weights[..., None] if self.vector else self.weights
        return (weights * values).sum(self.axis)

    def _spread(self, y):
        return np.expand_dims(np.asarray(y), self.axis)

    def cdf(self, y):
        return self._average(self.parts.cdf(self._spread(y)))

    def sf(self, y):
        return self._average(self.parts.sf(self._spread(y)))

    def pdf(self, y):
        return self._average(self.parts.pdf(self._spread(y)))

    def logpdf(self, y):
        weights = self.weights[..., None] if self.vector else self.weights
        return special.logsumexp(np.log(weights) + self.parts.logpdf(self._spread(y)), axis=self.axis)

    def _joint_logpdf(self, y):
        each = self.parts.logpdf(self._spread(y)).sum(-1)
        return special.logsumexp(np.log(self.weights) + each, axis=-1)

    def mean(self):
        return self._average(self.parts.mean())

    def var(self):
        return self._average(self.parts.var() + (self.parts.mean() - self._spread(self.mean())) ** 2)

    def std(self):
        return np.sqrt(self.var())

    def support(self):
        return np.full(np.shape(self.mean()), -np.inf), np.full(np.shape(self.mean()), np.inf)

    def _solve(self, level, tail, ends, sign):
        """Bisection between the parts' own quantiles, element by element."""
        low, high = (np.array(np.broadcast_arrays(end, level + end)[0]) for end in ends)
        for _ in range(110):
            middle = (low + high) / 2
            beyond = sign * (tail(middle) - level) > 0
            low, high = np.where(beyond, low, middle), np.where(beyond, middle, high)
        return (low + high) / 2

    def ppf(self, level):
        each = self.parts.ppf(self._spread(level))
        return self._solve(level, self.cdf, (each.min(self.axis) - 1e-9, each.max(self.axis) + 1e-9), 1)

    def isf(self, level):
        each = self.parts.isf(self._spread(level))
        return self._solve(level, self.sf, (each.min(self.axis) - 1e-9, each.max(self.axis) + 1e-9), -1)

    def rvs(self, size, random_state):
        shape = size[:-1] if self.vector else size
        chosen = (random_state.random((*shape, 1)) > self.weights.cumsum(-1)[..., :-1]).sum(-1)
        index = np.expand_dims(chosen, (-1, -2) if self.vector else -1)
        picked = [np.take_along_axis(part, index, self.axis).squeeze(self.axis) for part in self._locations()]
        return random_state.normal(*picked, size=size)

    def _locations(self):
        return self.parts.mean(), self.parts.std()


@law_of.register
def _(likelihood: MixtureDensity, outputs):
    count, targets = likelihood.num_components, likelihood.num_targets
    logits, loc, raw = np.split(outputs, [count, count * (1 + targets)], axis=-1)
    shape = (*outputs.shape[:-1], count) + ((targets,) if targets > 1 else ())
    scale = softplus(raw).reshape(shape) + likelihood.min_scale
    return MixtureLaw(special.softmax(logits, axis=-1), loc.reshape(shape), scale, vector=targets > 1)


@typical_outputs.register
def _(likelihood: MixtureDensity, normal):
    """Components that overlap: of separate ones the scores are rare events, which draws do not average."""
    moved = 0.4 * normal
    moved[..., -likelihood.num_components * likelihood.num_targets :] += 1
    return moved


@law_of.register
def _(likelihood: Censored, outputs):
    return law_of(likelihood.of, outputs)


@typical_outputs.register
def _(likelihood: Censored, normal):
    return typical_outputs(likelihood.of, normal)
