"""The scipy laws of real targets: on the whole line, above 0, and between 0 and 1."""

import numpy as np
from laws import event, law_of, typical_outputs
from scipy import special, stats

from credibly.likelihoods import Beta, Gamma, Gaussian, HeteroscedasticGaussian, Laplace, LogNormal, StudentT, Weibull


def softplus(raw):
    return np.logaddexp(0, raw)


def halves(outputs):
    """The blocks of two parameters, each (*batch, *event)."""
    first, second = np.split(outputs, 2, axis=-1)
    return event(first), event(second)


@law_of.register
def _(likelihood: Gaussian, outputs):
    scale = likelihood.noise_scale().detach().double().cpu().numpy()
    return stats.norm(event(outputs), event(np.broadcast_to(scale, outputs.shape)))


@law_of.register
def _(likelihood: HeteroscedasticGaussian, outputs):
    loc, raw = halves(outputs)
    return stats.norm(loc, softplus(raw) + likelihood.min_scale)


@law_of.register
def _(likelihood: Laplace, outputs):
    loc, raw = halves(outputs)
    return stats.laplace(loc, softplus(raw) + likelihood.min_scale)


@law_of.register
def _(likelihood: StudentT, outputs):
    loc, raw = halves(outputs)
    df = likelihood.df
    if df is None:
        df = 2 + likelihood.log_excess_df.detach().double().exp().item()
    return stats.t(np.full(loc.shape, df), loc, softplus(raw) + likelihood.min_scale)


@law_of.register
def _(likelihood: LogNormal, outputs):
    loc, raw = halves(outputs)
    return stats.lognorm(softplus(raw) + likelihood.min_scale, scale=np.exp(loc))


@law_of.register
def _(likelihood: Gamma, outputs):
    log_mean, raw = halves(outputs)
    shape = np.exp(raw) + likelihood.min_shape
    return stats.gamma(shape, scale=np.exp(log_mean) / shape)


@law_of.register
def _(likelihood: Weibull, outputs):
    log_scale, raw = halves(outputs)
    return stats.weibull_min(softplus(raw) + likelihood.min_concentration, scale=np.exp(log_scale))


@law_of.register
def _(likelihood: Beta, outputs):
    logit, raw = halves(outputs)
    precision = np.exp(raw) + likelihood.min_precision
    return stats.beta(special.expit(logit) * precision, special.expit(-logit) * precision)


@typical_outputs.register(Gamma)
def _(likelihood, normal):
    """Shapes of three or so: with small ones targets underflow to 0."""
    return normal * np.repeat([1.0, 0.5], likelihood.num_targets) + np.repeat([0.0, 1.0], likelihood.num_targets)


@typical_outputs.register(Weibull)
def _(likelihood, normal):
    """Shapes of two or so: with small ones targets underflow to 0."""
    return normal + np.repeat([0.0, 2.0], likelihood.num_targets)


@typical_outputs.register(Beta)
def _(likelihood, normal):
    """Precisions about 8 and means about a half: with small ones targets round to 0 and 1."""
    return normal * np.repeat([0.5, 0.3], likelihood.num_targets) + np.repeat([0.0, 2.0], likelihood.num_targets)
