"""Named constructors of every distribution that the waist serves, each with four rows."""

import math
from collections.abc import Callable

import scipy.stats
import torch
from torch import Tensor
from torch.distributions import (
    Bernoulli,
    Beta,
    Binomial,
    Categorical,
    Distribution,
    Exponential,
    Gamma,
    Geometric,
    HalfNormal,
    Independent,
    Laplace,
    LogNormal,
    NegativeBinomial,
    Normal,
    Poisson,
    StudentT,
    Uniform,
    Weibull,
)

from credibly.distributions.affine import AffineView
from credibly.distributions.class_predictive import ClassPredictive
from credibly.distributions.empirical import Empirical
from credibly.distributions.gaussian import GaussianPredictive
from credibly.distributions.mixture import MixturePredictive
from credibly.distributions.multivariate_predictive import MultivariateGaussianPredictive
from credibly.distributions.quantiles import QuantileForecast
from credibly.distributions.rows import to

ROWS, DRAWS, OUTPUTS, CLASSES = 4, 3, 2, 3

Build = Callable[[torch.dtype], Distribution]


def numbers(*shape: int, dtype: torch.dtype, low: float = -1.0, high: float = 1.0) -> Tensor:
    """Numbers spread evenly over [low, high] and shuffled: the same in every precision."""
    count = torch.Size(shape).numel()
    order = torch.randperm(count, generator=torch.Generator().manual_seed(count))
    return torch.linspace(low, high, count, dtype=torch.float64)[order].reshape(shape).to(dtype)


def _normal(dtype: torch.dtype, *shape: int) -> Normal:
    loc, scale = numbers(*shape, dtype=dtype), numbers(*shape, dtype=dtype, low=0.5, high=2.0)
    return Normal(loc, scale, validate_args=False)


def _positive(dtype: torch.dtype, *shape: int) -> Tensor:
    return numbers(*shape, dtype=dtype, low=0.6, high=4.0)


PLAIN: dict[str, Build] = {
    "normal": lambda t: _normal(t, ROWS),
    "laplace": lambda t: Laplace(
        numbers(ROWS, dtype=t), numbers(ROWS, dtype=t, low=0.5, high=2.0), validate_args=False
    ),
    "log_normal": lambda t: LogNormal(
        numbers(ROWS, dtype=t), numbers(ROWS, dtype=t, low=0.3, high=0.9), validate_args=False
    ),
    "exponential": lambda t: Exponential(_positive(t, ROWS), validate_args=False),
    "gamma": lambda t: Gamma(_positive(t, ROWS), _positive(t, ROWS).flip(0), validate_args=False),
    "beta": lambda t: Beta(_positive(t, ROWS), _positive(t, ROWS).flip(0), validate_args=False),
    "uniform": lambda t: Uniform(numbers(ROWS, dtype=t), 2 + numbers(ROWS, dtype=t), validate_args=False),
    "student_t": lambda t: StudentT(
        3 + _positive(t, ROWS), numbers(ROWS, dtype=t), _positive(t, ROWS), validate_args=False
    ),
    "half_normal": lambda t: HalfNormal(_positive(t, ROWS), validate_args=False),
    "weibull": lambda t: Weibull(_positive(t, ROWS), _positive(t, ROWS).flip(0), validate_args=False),
    "poisson": lambda t: Poisson(3 * _positive(t, ROWS), validate_args=False),
    "negative_binomial_logits": lambda t: NegativeBinomial(
        _positive(t, ROWS), logits=numbers(ROWS, dtype=t), validate_args=False
    ),
    "negative_binomial_probs": lambda t: NegativeBinomial(
        _positive(t, ROWS), probs=numbers(ROWS, dtype=t, low=0.1, high=0.7), validate_args=False
    ),
    "geometric_logits": lambda t: Geometric(logits=numbers(ROWS, dtype=t), validate_args=False),
    "geometric_probs": lambda t: Geometric(probs=numbers(ROWS, dtype=t, low=0.1, high=0.7), validate_args=False),
    "binomial_logits": lambda t: Binomial(
        torch.tensor([12.0, 40.0, 30.0, 13.0], dtype=t), logits=numbers(ROWS, dtype=t), validate_args=False
    ),
    "binomial_probs": lambda t: Binomial(
        torch.tensor([12.0, 40.0, 30.0, 13.0], dtype=t),
        probs=numbers(ROWS, dtype=t, low=0.1, high=0.7),
        validate_args=False,
    ),
    "bernoulli_logits": lambda t: Bernoulli(logits=2 * numbers(ROWS, dtype=t), validate_args=False),
    "bernoulli_probs": lambda t: Bernoulli(probs=numbers(ROWS, dtype=t, low=0.1, high=0.9), validate_args=False),
    "categorical_logits": lambda t: Categorical(logits=2 * numbers(ROWS, CLASSES, dtype=t), validate_args=False),
    "categorical_probs": lambda t: Categorical(
        probs=numbers(ROWS, CLASSES, dtype=t, low=0.1, high=0.9), validate_args=False
    ),
    "independent_normal": lambda t: Independent(_normal(t, ROWS, OUTPUTS), 1, validate_args=False),
    "independent_poisson": lambda t: Independent(
        Poisson(_positive(t, ROWS, OUTPUTS), validate_args=False), 1, validate_args=False
    ),
    "independent_bernoulli": lambda t: Independent(
        Bernoulli(logits=numbers(ROWS, OUTPUTS, dtype=t), validate_args=False), 1, validate_args=False
    ),
}

MIXTURES: dict[str, Build] = {
    "mixture_normal": lambda t: MixturePredictive(_normal(t, DRAWS, ROWS)),
    "mixture_weighted": lambda t: MixturePredictive(_normal(t, DRAWS, ROWS), torch.tensor([0.0, 1.0, -1.0], dtype=t)),
    "mixture_outputs": lambda t: MixturePredictive(
        Independent(_normal(t, DRAWS, ROWS, OUTPUTS), 1, validate_args=False)
    ),
    "mixture_gamma": lambda t: MixturePredictive(
        Gamma(_positive(t, DRAWS, ROWS), _positive(t, DRAWS, ROWS).flip(0), validate_args=False)
    ),
    "mixture_uniform": lambda t: MixturePredictive(
        Uniform(numbers(DRAWS, ROWS, dtype=t), 2 + numbers(DRAWS, ROWS, dtype=t), validate_args=False)
    ),
    "mixture_poisson": lambda t: MixturePredictive(Poisson(_positive(t, DRAWS, ROWS), validate_args=False)),
    "mixture_negative_binomial": lambda t: MixturePredictive(
        NegativeBinomial(_positive(t, DRAWS, ROWS), logits=numbers(DRAWS, ROWS, dtype=t), validate_args=False)
    ),
    "mixture_geometric": lambda t: MixturePredictive(
        Geometric(logits=numbers(DRAWS, ROWS, dtype=t), validate_args=False)
    ),
    "mixture_bernoulli": lambda t: MixturePredictive(
        Bernoulli(logits=2 * numbers(DRAWS, ROWS, dtype=t), validate_args=False)
    ),
    "mixture_categorical": lambda t: MixturePredictive(
        Categorical(logits=2 * numbers(DRAWS, ROWS, CLASSES, dtype=t), validate_args=False),
        torch.tensor([0.0, 1.0, -1.0], dtype=t),
    ),
}

FORMS: dict[str, Build] = {
    "gaussian": lambda t: GaussianPredictive(numbers(ROWS, dtype=t), _positive(t, ROWS), 0.25),
    "gaussian_outputs": lambda t: GaussianPredictive(
        numbers(ROWS, OUTPUTS, dtype=t), _positive(t, ROWS, OUTPUTS), _positive(t, OUTPUTS)
    ),
    "multivariate_gaussian": lambda t: MultivariateGaussianPredictive(
        numbers(ROWS, OUTPUTS, dtype=t),
        torch.diag_embed(_positive(t, ROWS, OUTPUTS)) + 0.3,
        torch.diag(_positive(t, OUTPUTS)),
    ),
    "class_event": lambda t: ClassPredictive(2 * numbers(ROWS, dtype=t)),
    "classes": lambda t: ClassPredictive(2 * numbers(ROWS, CLASSES, dtype=t)),
    "view_gamma": lambda t: AffineView(Gamma(_positive(t, ROWS), _positive(t, ROWS).flip(0)), -1.0, 2.5),
    "view_outputs": lambda t: AffineView(
        Independent(Gamma(_positive(t, ROWS, OUTPUTS), _positive(t, ROWS, OUTPUTS)), 1), 1.0, [0.5, 3.0]
    ),
    "mixture_view": lambda t: MixturePredictive(
        AffineView(Gamma(_positive(t, DRAWS, ROWS), _positive(t, DRAWS, ROWS)), numbers(ROWS, dtype=t), 2.0)
    ),
}

SAMPLED: dict[str, Build] = {
    "empirical": lambda t: Empirical(numbers(7, ROWS, dtype=t)),
    "empirical_weighted": lambda t: Empirical(
        numbers(7, ROWS, OUTPUTS, dtype=t), numbers(7, dtype=t, low=-2.0, high=0.0)
    ),
}

QUANTILES: dict[str, Build] = {
    "quantiles": lambda t: QuantileForecast([0.1, 0.25, 0.5, 0.9], numbers(ROWS, 4, dtype=t)),
}

PREDICTIVE = MIXTURES | FORMS | SAMPLED
ALL = PLAIN | PREDICTIVE | QUANTILES
WITH_DENSITY = PLAIN | MIXTURES | FORMS

SCIPY = {
    "normal": (lambda t: Normal(*pair(t, 2, 3)), scipy.stats.norm(2, 3)),
    "laplace": (lambda t: Laplace(*pair(t, 2, 3)), scipy.stats.laplace(2, 3)),
    "log_normal": (
        lambda t: LogNormal(*pair(t, 0.5, 0.75)),
        scipy.stats.lognorm(0.75, scale=math.exp(0.5)),
    ),
    "exponential": (lambda t: Exponential(pair(t, 2)[0]), scipy.stats.expon(scale=0.5)),
    "gamma": (lambda t: Gamma(*pair(t, 2.5, 4)), scipy.stats.gamma(2.5, scale=0.25)),
    "gamma_small_shape": (lambda t: Gamma(*pair(t, 0.125, 4)), scipy.stats.gamma(0.125, scale=0.25)),
    "gamma_large_shape": (lambda t: Gamma(*pair(t, 1000, 4)), scipy.stats.gamma(1000, scale=0.25)),
    "beta": (lambda t: Beta(*pair(t, 2.5, 0.5)), scipy.stats.beta(2.5, 0.5)),
    "beta_large": (lambda t: Beta(*pair(t, 200, 3000)), scipy.stats.beta(200, 3000)),
    "uniform": (lambda t: Uniform(*pair(t, -1, 3)), scipy.stats.uniform(-1, 4)),
    "student_t": (lambda t: StudentT(*pair(t, 3, 1, 2)), scipy.stats.t(3, 1, 2)),
    "student_t_heavy": (lambda t: StudentT(*pair(t, 0.5, 0, 2)), scipy.stats.t(0.5, 0, 2)),
    "half_normal": (lambda t: HalfNormal(*pair(t, 3)), scipy.stats.halfnorm(scale=3)),
    "weibull": (lambda t: Weibull(*pair(t, 3, 1.75)), scipy.stats.weibull_min(1.75, scale=3)),
    "weibull_heavy": (lambda t: Weibull(*pair(t, 3, 0.25)), scipy.stats.weibull_min(0.25, scale=3)),
    "poisson": (lambda t: Poisson(pair(t, 3.5)[0]), scipy.stats.poisson(3.5)),
    "poisson_large": (lambda t: Poisson(pair(t, 4096)[0]), scipy.stats.poisson(4096)),
    "negative_binomial": (
        lambda t: NegativeBinomial(*pair(t, 2.5, 0.75)),
        scipy.stats.nbinom(2.5, 0.25),
    ),
    "negative_binomial_small": (
        lambda t: NegativeBinomial(*pair(t, 0.125, 0.875)),
        scipy.stats.nbinom(0.125, 0.125),
    ),
    "negative_binomial_large": (
        lambda t: NegativeBinomial(pair(t, 2048)[0], logits=pair(t, 0)[0]),
        scipy.stats.nbinom(2048, 0.5),
    ),
    "geometric": (lambda t: Geometric(*pair(t, 0.125)), scipy.stats.geom(0.125, loc=-1)),
    "geometric_logits": (lambda t: Geometric(logits=pair(t, 0)[0]), scipy.stats.geom(0.5, loc=-1)),
    "binomial": (lambda t: Binomial(*pair(t, 20, 0.375)), scipy.stats.binom(20, 0.375)),
    "binomial_large": (lambda t: Binomial(*pair(t, 4096, 0.125)), scipy.stats.binom(4096, 0.125)),
    "bernoulli": (lambda t: Bernoulli(probs=pair(t, 0.125)[0]), scipy.stats.bernoulli(0.125)),
}
"""Distributions with one row and their scipy counterparts; all parameters are exact in float32."""


def pair(dtype: torch.dtype, *values: float) -> list[Tensor]:
    """Parameters of one row."""
    return [torch.tensor([value], dtype=dtype) for value in values]


def build(name: str, dtype: torch.dtype, device: torch.device) -> Distribution:
    """The named distribution on a device."""
    return to(ALL[name](dtype), device=device)


def targets(d: Distribution, seed: int = 0) -> Tensor:
    """One draw of targets from a distribution; from quantiles, which cannot be drawn, the middle one."""
    if isinstance(d, QuantileForecast):
        return d.values[:, 1]
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return d.sample()
