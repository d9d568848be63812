r"""Evidence that a risk is small: p-values and upper bounds for the mean of losses in [0, 1].

For losses L_1, ..., L_n, independent with mean R, each gives a p-value of the hypothesis R > a (its probability of
being at most delta is at most delta, if the hypothesis is true) and an upper bound of confidence 1 - delta, the
smallest a that is rejected at delta.

- `ExactBinomial`, losses of 0 and 1 only: P(Bin(n, a) <= n R^), the one-sided interval of Clopper and Pearson (1934).
- `HoeffdingBentkus` ("Distribution-Free, Risk-Controlling Prediction Sets", Bates, Angelopoulos, Lei, Malik, Jordan,
  2021): min( exp(-n h(min(R^, a), a)), e P(Bin(n, a) <= ceil(n R^)) ), h(x, a) = x log(x/a) + (1-x) log((1-x)/(1-a)).
- `Betting` ("Estimating Means of Bounded Random Variables by Betting", Waudby-Smith, Ramdas, 2024): the wealth
  K_t = prod_{i<=t} (1 - nu_i (L_i - a)) of a gambler who bets against the hypothesis is a supermartingale under it, so
  1 / sup_t K_t is a p-value. Bets follow the running variance and are small where the losses vary little.

n R^ is the sum of the losses, so that 7 losses of 1 are 7; a sum that differs from a whole number by rounding is that
number.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from credibly.core.checks import as_tensor, check_finite
from credibly.core.errors import ShapeError, SupportError
from credibly.core.typing import ArrayLike
from credibly.distributions.special import betainc, betainccinv

__all__ = ["Betting", "ExactBinomial", "HoeffdingBentkus", "RiskBound"]

_ROUNDING = 2.0**-48
_NUM_HALVINGS = 52


class RiskBound(ABC):
    """A test of the mean of losses. A frozen dataclass of options."""

    def p_values(self, losses: ArrayLike, risk: float, *, delta: float = 0.1) -> Tensor:
        """The p-value of the hypothesis that the mean loss is above `risk`.

        Args:
            losses: numbers in [0, 1], (rows, ...); axes after the first are separate tests.
            risk: the risk to rule out, in [0, 1].
            delta: the error probability at which the p-value will be used; only `Betting` is tuned to it, and it is
                valid at every other.

        Returns:
            One p-value a test, (...), float64.

        Raises:
            ShapeError: no rows.
            NotFiniteError: NaN or infinite losses.
            SupportError: losses outside [0, 1].
            ValueError: `risk` outside [0, 1], or `delta` not between 0 and 1.
        """
        if not 0 <= risk <= 1:
            raise ValueError(f"`risk` must lie in [0, 1]; got {risk}")
        check_delta(delta)
        table = self._checked(losses)
        return self._p_values(table, table.new_full(table.shape[1:], risk), delta)

    def upper_bound(self, losses: ArrayLike, delta: float) -> Tensor:
        """A number that is at least the mean loss with probability 1 - delta, (...), float64; at most 1.

        Args:
            losses: as in `p_values`.
            delta: the probability of being wrong, between 0 and 1.

        Raises:
            ShapeError: no rows.
            NotFiniteError: NaN or infinite losses.
            SupportError: losses outside [0, 1].
            ValueError: `delta` not between 0 and 1.
        """
        check_delta(delta)
        return self._upper_bound(self._checked(losses), delta)

    def _checked(self, losses: ArrayLike) -> Tensor:
        table = check_finite("losses", as_tensor(losses)).detach().to(torch.float64)
        if not table.dim() or not len(table):
            raise ShapeError(f"`losses` must have shape (rows, ...) with one row or more; got {tuple(table.shape)}")
        if bool(((table < 0) | (table > 1)).any()):
            raise SupportError(f"`losses` must lie in [0, 1]; they range from {table.min():g} to {table.max():g}")
        return table

    @abstractmethod
    def _p_values(self, losses: Tensor, risk: Tensor, delta: float) -> Tensor: ...

    @abstractmethod
    def _upper_bound(self, losses: Tensor, delta: float) -> Tensor: ...


def check_delta(delta: float) -> float:
    """The probability itself, or a ValueError unless it lies between 0 and 1."""
    if not 0 < delta < 1:
        raise ValueError(f"`delta` must lie between 0 and 1; got {delta}")
    return delta


def _smallest_rejected(p_values: Callable[[Tensor], Tensor], start: Tensor, delta: float) -> Tensor:
    """The smallest risk with a p-value of at most delta, by bisection, from above; 1 where there is none."""
    low, high = start, torch.ones_like(start)
    for _ in range(_NUM_HALVINGS):
        middle = (low + high) / 2
        rejected = p_values(middle) <= delta
        low, high = torch.where(rejected, low, middle), torch.where(rejected, middle, high)
    return high


@dataclass(frozen=True)
class ExactBinomial(RiskBound):
    """The binomial tail; losses are 0 or 1."""

    def _checked(self, losses: ArrayLike) -> Tensor:
        table = super()._checked(losses)
        if bool(((table != 0) & (table != 1)).any()):
            raise SupportError("ExactBinomial needs `losses` of 0 and 1; use HoeffdingBentkus or Betting for others")
        return table

    def _p_values(self, losses: Tensor, risk: Tensor, delta: float) -> Tensor:
        return binomial_cdf(losses.sum(0), len(losses), risk)

    def _upper_bound(self, losses: Tensor, delta: float) -> Tensor:
        return _binomial_upper_bound(losses.sum(0), len(losses), delta)


@dataclass(frozen=True)
class HoeffdingBentkus(RiskBound):
    """The smaller of Hoeffding's and Bentkus's tail; any losses in [0, 1]."""

    def _p_values(self, losses: Tensor, risk: Tensor, delta: float) -> Tensor:
        rows, total = len(losses), losses.sum(0)
        bentkus = math.e * binomial_cdf(whole_above(total), rows, risk)
        return _hoeffding(total / rows, rows, risk).minimum(bentkus).clamp(max=1.0)

    def _upper_bound(self, losses: Tensor, delta: float) -> Tensor:
        rows, total = len(losses), losses.sum(0)
        mean = total / rows
        hoeffding = _smallest_rejected(lambda risk: _hoeffding(mean, rows, risk), mean, delta)
        return hoeffding.minimum(_binomial_upper_bound(whole_above(total), rows, delta / math.e))


@dataclass(frozen=True)
class Betting(RiskBound):
    """The largest wealth of a gambler who bets against the hypothesis; any losses in [0, 1], in the order given.

    Bets are nu_i = min(1, sqrt(2 log(1/delta) / (n v_{i-1}))), v_i the running variance; they do not depend on the risk
    that is tested, so the wealth grows with it and the upper bound is found by bisection.
    """

    def _p_values(self, losses: Tensor, risk: Tensor, delta: float) -> Tensor:
        return _inverse_wealth(losses, _bets(losses, delta), risk)

    def _upper_bound(self, losses: Tensor, delta: float) -> Tensor:
        bets = _bets(losses, delta)
        return _smallest_rejected(lambda risk: _inverse_wealth(losses, bets, risk), torch.zeros_like(losses[0]), delta)


def _bets(losses: Tensor, delta: float) -> Tensor:
    """What is staked on each loss, (rows, ...), from the losses before it alone."""
    rows = len(losses)
    count = torch.arange(1, rows + 1, dtype=losses.dtype, device=losses.device)
    count = count.reshape(-1, *[1] * (losses.dim() - 1))
    mean = (0.5 + losses.cumsum(0)) / (1 + count)
    variance = (0.25 + (losses - mean).square_().cumsum(0)) / (1 + count)
    before = torch.cat([torch.full_like(variance[:1], 0.25), variance[:-1]])
    return (2 * math.log(1 / delta) / (rows * before)).sqrt_().clamp_(max=1.0)


def _inverse_wealth(losses: Tensor, bets: Tensor, risk: Tensor) -> Tensor:
    """One over the largest wealth along the path, the 1 at its start included."""
    log_wealth = torch.log1p(-bets * (losses - risk)).cumsum(0)
    return torch.exp(-log_wealth.amax(0).clamp(min=0.0))


def whole_above(total: Tensor) -> Tensor:
    """The smallest whole number that is at least the total, up to rounding."""
    return torch.ceil(total * (1 - _ROUNDING))


def binomial_cdf(count: Tensor, num_trials: int, probability: Tensor) -> Tensor:
    """P(Bin(n, p) <= k), float64."""
    below = count < num_trials
    left = torch.where(below, num_trials - count, 1.0)
    return torch.where(below, betainc(left, count + 1, 1 - probability, probability), 1.0)


def _binomial_upper_bound(count: Tensor, num_trials: int, delta: float) -> Tensor:
    """The p with P(Bin(n, p) <= k) = delta; 1 for k = n."""
    below = count < num_trials
    left = torch.where(below, num_trials - count, 1.0)
    return torch.where(below, betainccinv(count + 1, left, torch.full_like(left, delta)), 1.0)


def _hoeffding(mean: Tensor, num_rows: int, risk: Tensor) -> Tensor:
    """Hoeffding's bound for the probability of so small a mean."""
    return torch.exp(-num_rows * _divergence(mean.minimum(risk), risk))


def _divergence(x: Tensor, a: Tensor) -> Tensor:
    """The divergence x log(x/a) + (1-x) log((1-x)/(1-a)) for x <= a, with 0 log 0 = 0; infinite for x < a = 1."""
    inner = torch.xlogy(x, x / a.clamp(min=torch.finfo(a.dtype).tiny))
    outer = torch.where(x < 1, (1 - x) * (torch.log1p(-x) - torch.log1p(-a)), 0.0)
    return (inner + outer).clamp(min=0.0)
