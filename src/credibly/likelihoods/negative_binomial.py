"""Counts that vary more than a Poisson allows: the negative binomial by its mean and dispersion.

    p(y) = Gamma(y + r) / (Gamma(r) y!) (r / (r + mean))^r (mean / (r + mean))^y,   r = 1 / dispersion
    variance = mean + dispersion mean^2

the form called NB2 (Negative Binomial and Mixed Poisson Regression, Lawless 1987). As the dispersion tends to 0 it is a
Poisson. Mean and dispersion are orthogonal, so that the Fisher matrix is diagonal: mean / (1 + dispersion mean) for the
log mean; for the log dispersion an integral without a closed form,

    integral over s > 0 of s exp(-s) / f (1 - (1 + dispersion mean f)^-r) ds - mean / (1 + dispersion mean)

with f = 1 - exp(-dispersion s), from trigamma(x) = integral of t exp(-x t) / (1 - exp(-t)) dt under the expectation
over counts. In log s its integrand is analytic and dies out at both ends, so that the trapezoidal rule is exact to
rounding (The Exponentially Convergent Trapezoidal Rule, Trefethen and Weideman 2014).
"""

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, distributions, nn
from torch.distributions import Distribution

from credibly.core.checks import check_count, check_positive
from credibly.likelihoods.base import Likelihood
from credibly.likelihoods.elements import blocks, bounded, element_fisher, joined, joint_density, stirling_error
from credibly.likelihoods.offsets import add_offset

__all__ = ["NegativeBinomial", "negative_binomial_log_prob"]

_LARGEST = 25.0  # exp(25) = 7e10: a larger dispersion is no different, and its product with a mean must not overflow
_STEP = 0.25  # the integrand is analytic within pi/2 of the real line: an error of exp(-pi^2 / step) = 7e-18
_FROM, _TO = -45.0, 4.5


class NegativeBinomial(Likelihood):
    """`y ~ NegativeBinomial(mean = exp(output), dispersion)`, with variance `mean + dispersion * mean^2`.

    Args:
        num_targets: the number of counts per row; with 1 a target is a number, otherwise a vector.
        dispersion: "learned" is one number per target for all rows, a parameter `raw_dispersion` trained with the
            weights; "predicted" reads one per row and target from the network, which then gives `2 * num_targets`
            outputs, log means first.
        initial_dispersion: where a learned dispersion starts.
        min_dispersion: the floor of the dispersion; the default is a Poisson but for means of 10,000 and more.

    The dispersion is `exp(raw) + min_dispersion`. Means are kept within exp(-60) and exp(60). An offset (log exposure)
    is added to the log means alone.
    """

    def __init__(
        self,
        num_targets: int = 1,
        *,
        dispersion: Literal["learned", "predicted"] = "learned",
        initial_dispersion: float = 1.0,
        min_dispersion: float = 1e-6,
    ) -> None:
        super().__init__()
        self.num_targets = check_count("num_targets", num_targets)
        if dispersion not in ("learned", "predicted"):
            raise ValueError(f'`dispersion` must be "learned" or "predicted"; got {dispersion!r}')
        self.dispersion: Literal["learned", "predicted"] = dispersion
        self.min_dispersion = check_positive("min_dispersion", min_dispersion)
        if not min_dispersion < initial_dispersion < math.inf:
            raise ValueError(
                f"`initial_dispersion` must be finite and above {min_dispersion}; got {initial_dispersion}"
            )
        self.initial_dispersion = initial_dispersion
        self.num_outputs = num_targets if dispersion == "learned" else 2 * num_targets
        self.raw_dispersion: nn.Parameter | None = None
        if dispersion == "learned":
            self.raw_dispersion = nn.Parameter(torch.empty((num_targets,) if num_targets > 1 else ()))
            self.reset_parameters()

    def reset_parameters(self) -> None:
        """Put a learned dispersion back to its start."""
        if self.raw_dispersion is not None:
            nn.init.constant_(self.raw_dispersion, math.log(self.initial_dispersion - self.min_dispersion))

    def parameters_of(self, outputs: Tensor) -> dict[str, Tensor]:
        """`log_mean` and `log_dispersion`, each (*batch,) or (*batch, num_targets)."""
        log_mean, raw = self._blocks(outputs)
        return {"log_mean": bounded(log_mean), "log_dispersion": self._log_dispersion(raw)}

    def distribution(self, parameters: dict[str, Tensor]) -> Distribution:
        """Torch's NegativeBinomial; over several counts, an Independent of them."""
        wide = torch.promote_types(parameters["log_mean"].dtype, torch.float32)
        log_mean, log_dispersion = parameters["log_mean"].to(wide), parameters["log_dispersion"].to(wide)
        counts = distributions.NegativeBinomial(
            (-log_dispersion).exp(), logits=log_mean + log_dispersion, validate_args=False
        )
        return joined(counts, self.num_targets)

    def log_prob(self, parameters: dict[str, Tensor], targets: Tensor) -> Tensor:
        """The log probability, -inf for negative and broken counts; precise also where it is nearly a Poisson."""
        is_count = (targets >= 0) & (targets == targets.floor()) & targets.isfinite()
        log_mean, log_dispersion = parameters["log_mean"], parameters["log_dispersion"]
        wide = torch.promote_types(log_mean.dtype, torch.float32)  # in half precision 1 / dispersion overflows
        counts = torch.where(is_count, targets, 0).to(wide)
        density = negative_binomial_log_prob(log_mean.to(wide), log_dispersion.to(wide), counts)
        return joint_density(density.to(log_mean.dtype), is_count, self.num_targets)

    def fisher(self, outputs: Tensor) -> Tensor:
        """Diagonal: closed for log means, quadrature for a predicted dispersion."""
        log_mean, raw = self._blocks(outputs.double())
        log_mean, log_dispersion = bounded(log_mean), self._log_dispersion(raw)
        of_mean = (log_mean + F.logsigmoid(-log_mean - log_dispersion)).exp()
        if self.num_targets == 1:
            of_mean, log_mean, log_dispersion, raw = (t.unsqueeze(-1) for t in (of_mean, log_mean, log_dispersion, raw))
        if self.raw_dispersion is not None:
            return torch.diag_embed(of_mean).to(outputs.dtype)
        slope = torch.sigmoid(raw - math.log(self.min_dispersion))
        of_raw = (_trapezoid(log_mean, log_dispersion) - of_mean).clamp(min=0) * slope.square()
        return element_fisher(of_mean.to(outputs.dtype), of_raw.to(outputs.dtype))

    def with_offset(self, outputs: Tensor, offset: Tensor) -> Tensor:
        """The outputs with the offset (log exposure) added to the log means, not to the dispersion."""
        return add_offset(outputs, offset, first=self.num_targets)

    def _blocks(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Log means and raw dispersions."""
        if self.raw_dispersion is None:
            log_mean, raw = blocks(outputs, 2, self.num_targets)
            return log_mean, raw
        (log_mean,) = blocks(outputs, 1, self.num_targets)
        return log_mean, self.raw_dispersion.to(outputs.dtype).expand_as(log_mean)

    def _log_dispersion(self, raw: Tensor) -> Tensor:
        """`log(exp(raw) + min_dispersion)`."""
        floor = torch.full_like(raw, math.log(self.min_dispersion))
        return torch.logaddexp(raw, floor).clamp(max=_LARGEST)


def negative_binomial_log_prob(log_mean: Tensor, log_dispersion: Tensor, counts: Tensor) -> Tensor:
    """The log probability of counts 0, 1, 2, ..., none of whose terms is larger than the deviance or the result.

    Logarithms of large Gamma functions would cancel; what remains of them beside Stirling's formula is small (Fast
    and Accurate Computation of Binomial Probabilities, Loader 2000).
    """
    mean, size = log_mean.exp(), (-log_dispersion).exp()
    some = counts > 0
    y = torch.where(some, counts, 1.0)
    excess = y - mean
    from_size = _log_ratio(y + size, mean + size, excess)
    # log of y / mean over (y + size) / (mean + size)
    log_odds = _log1p_ratio(
        size / (y + size) * excess, mean, y.log() - log_mean - (y + size).log() + (mean + size).log()
    )
    constant = stirling_error(y + size) - stirling_error(size) - stirling_error(y) - 0.5 * torch.log1p(y / size)
    log_some = constant - 0.5 * torch.log(2 * math.pi * y) - y * log_odds + size * from_size
    return torch.where(some, log_some, size * F.logsigmoid(-log_mean - log_dispersion))


def _log_ratio(a: Tensor, b: Tensor, difference: Tensor) -> Tensor:
    """`log(a / b)` from `a - b`, which keeps its digits where the two are close."""
    return _log1p_ratio(difference, b, a.log() - b.log())


def _log1p_ratio(difference: Tensor, b: Tensor, plain: Tensor) -> Tensor:
    """`log(1 + difference / b)`, which is `plain` up to rounding, where the ratio is not small."""
    close = difference.abs() < 0.5 * b
    near = torch.log1p(torch.where(close, difference, 0.0) / torch.where(close, b, 1.0))
    return torch.where(close, near, plain)


def _trapezoid(log_mean: Tensor, log_dispersion: Tensor) -> Tensor:
    """The integral of the module's head, elementwise."""
    u = torch.arange(_FROM, _TO, _STEP, dtype=log_mean.dtype, device=log_mean.device)
    logits, log_dispersion = (log_mean + log_dispersion).unsqueeze(-1), log_dispersion.unsqueeze(-1)
    log_fraction = torch.log(-torch.expm1(-(u + log_dispersion).exp()))  # of 1 - exp(-dispersion s)
    none = -torch.expm1((-log_dispersion).exp() * F.logsigmoid(-logits - log_fraction))
    return _STEP * (torch.exp(2 * u - u.exp() - log_fraction) * none).sum(-1)
