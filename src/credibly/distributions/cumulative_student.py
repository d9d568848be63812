"""Distribution function and quantiles of Student's t.

P(T < -|z|) = I_x(df/2, 1/2)/2 with x = df/(df + z^2). Few degrees of freedom reach so far out that x underflows:
there I_x(a, 1/2) = x^a / (a B(a, 1/2)) to all digits, and everything is computed from log x.
"""

import math

import torch
from torch import Tensor
from torch.distributions import StudentT

from credibly.distributions.cumulative_tables import cdf, icdf
from credibly.distributions.shapes import broadcast
from credibly.distributions.special import betainc, betainccinv, betaincinv, log_gamma_ratio

__all__ = ["lower_student"]

FAR = 1e-60
"""Below this x the next term of the power series, of the order of x, is far below the precision."""
CENTRAL = 1e-60
"""Below this |z| the distribution function is a straight line."""


def lower_student(d: StudentT, value: Tensor) -> Tensor:
    """P(Y < value) in float64; the upper tail is that of the mirrored value, 2 loc - value."""
    df, z = broadcast(d.df.double(), (value.double() - d.loc) / d.scale)
    tail = _tail(df, z)
    return torch.where(z < 0, tail, 1 - tail)


@cdf.register(StudentT)
def _(d: StudentT, value: Tensor) -> Tensor:
    return lower_student(d, value).to(value.dtype)


def _tail(df: Tensor, z: Tensor) -> Tensor:
    """P(T < -|z|)."""
    distance = z.abs()
    far, central = distance > (df / FAR).sqrt(), distance < CENTRAL
    inner = torch.where(far | central, 1.0, distance)
    x, y = df / (df + inner * inner), inner * inner / (df + inner * inner)
    middle = 0.5 * betainc(df / 2, torch.full_like(df, 0.5), x, y)
    log_x = torch.log(df) - 2 * torch.log(torch.where(far, distance, 1.0))
    power = 0.5 * torch.exp(df / 2 * log_x - _log_constant(df))
    line = 0.5 - distance * torch.exp(_log_density_at_0(df))
    return torch.where(far, power, torch.where(central, line, middle))


def _log_constant(df: Tensor) -> Tensor:
    """log(a B(a, 1/2)) for a = df/2."""
    return 0.5 * math.log(math.pi) + torch.log(df / 2) - log_gamma_ratio(df / 2, torch.full_like(df, 0.5))


def _log_density_at_0(df: Tensor) -> Tensor:
    return log_gamma_ratio(df / 2, torch.full_like(df, 0.5)) - 0.5 * torch.log(math.pi * df)


@icdf.register(StudentT)
def _(d: StudentT, q: Tensor) -> Tensor:
    df, level = broadcast(d.df.detach().double(), q.detach().double())
    tail = torch.minimum(level, 1 - level)
    half = torch.full_like(df, 0.5)
    x, y = betaincinv(df / 2, half, 2 * tail), betainccinv(half, df / 2, 2 * tail)
    log_x = (torch.log(2 * tail) + _log_constant(df)) * 2 / df
    far = torch.exp(0.5 * (torch.log(df) - log_x))
    size = torch.where(log_x < math.log(FAR), far, (df * y / torch.where(x > 0, x, 1.0)).sqrt())
    return (d.loc + d.scale * torch.sign(level - 0.5) * size).to(q.dtype)
