"""Proportions strictly between 0 and 1: a Beta distribution by its mean and precision.

    a = mean * precision,  b = (1 - mean) * precision,  variance = mean (1 - mean) / (precision + 1)

Beta Regression for Modelling Rates and Proportions, Ferrari and Cribari-Neto 2004. The log density is put together as

    -precision KL(mean || y) + log(a b / (2 pi precision)) / 2 + s(precision) - s(a) - s(b) - log y - log(1 - y)

where KL is between two Bernoulli distributions and s the remainder of Stirling's formula: no large terms cancel.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, distributions
from torch.distributions import Distribution

from credibly.core.checks import check_count, check_positive
from credibly.core.errors import SupportError
from credibly.likelihoods.base import Likelihood
from credibly.likelihoods.elements import (
    blocks,
    element_fisher,
    joined,
    joint_density,
    shape_of,
    stirling_error,
    trigamma_excess,
)
from credibly.likelihoods.offsets import add_offset

__all__ = ["Beta"]

_BOUND = 30.0  # means within 1e-13 of 0 and 1


class Beta(Likelihood):
    """`y ~ Beta(a, b)` with `mean = sigmoid(output)` and `precision = exp(raw) + min_precision`.

    Args:
        num_targets: the number of targets per row; the network gives `2 * num_targets` outputs, logits first.
        min_precision: the floor of the precision a + b.

    Targets lie strictly between 0 and 1. The logit of the mean is kept within -30 and 30.
    """

    def __init__(self, num_targets: int = 1, *, min_precision: float = 1e-2) -> None:
        super().__init__()
        self.num_targets = check_count("num_targets", num_targets)
        self.num_outputs = 2 * num_targets
        self.min_precision = check_positive("min_precision", min_precision)

    def parameters_of(self, outputs: Tensor) -> dict[str, Tensor]:
        """`logit` (of the mean) and `precision`, each (*batch,) or (*batch, num_targets)."""
        logit, raw = blocks(outputs, 2, self.num_targets)
        return {"logit": logit.clamp(-_BOUND, _BOUND), "precision": shape_of(raw) + self.min_precision}

    def distribution(self, parameters: dict[str, Tensor]) -> Distribution:
        """A Beta; over vectors, an Independent of them."""
        a, b = _concentrations(parameters["logit"], parameters["precision"])
        return joined(distributions.Beta(a, b, validate_args=False), self.num_targets)

    def log_prob(self, parameters: dict[str, Tensor], targets: Tensor) -> Tensor:
        """The log density, -inf unless a target lies between 0 and 1; large precisions keep it precise."""
        logit, precision = parameters["logit"], parameters["precision"]
        a, b = _concentrations(logit, precision)
        inside = (targets > 0) & (targets < 1)
        y = torch.where(inside, targets, 0.5)
        log_y, log_rest = y.log(), torch.log1p(-y)
        # the mean less the target, from the smaller of the parts above and below
        difference = torch.where(logit < 0, logit.sigmoid() - y, (1 - y) - (-logit).sigmoid())
        divergence = a * _log_ratio(difference, y, F.logsigmoid(logit) - log_y)
        divergence = divergence + b * _log_ratio(-difference, 1 - y, F.logsigmoid(-logit) - log_rest)
        constant = 0.5 * (a.log() + b.log() - precision.log() - math.log(2 * math.pi))
        constant = constant + stirling_error(precision) - stirling_error(a) - stirling_error(b)
        return joint_density(constant - divergence - log_y - log_rest, inside, self.num_targets)

    def fisher(self, outputs: Tensor) -> Tensor:
        """With trigamma functions of a, b and the precision; couples the mean and the precision weakly."""
        logit, raw = outputs.double().chunk(2, -1)
        mean, rest, slope = logit.sigmoid(), (-logit).sigmoid(), shape_of(raw)
        precision = slope + self.min_precision
        # trigamma(x) = 1 / x + excess, and the terms 1 / x cancel where they would be large
        a, b, total = (trigamma_excess(x) for x in (mean * precision, rest * precision, precision))
        mean_slope = precision * mean * rest
        entries = (
            (a + b) * mean_slope**2 + mean_slope,
            (a * mean**2 + b * rest**2 - total) * slope**2,
            (a * mean - b * rest) * mean_slope * slope,
        )
        return element_fisher(*(entry.to(outputs.dtype) for entry in entries))

    def with_offset(self, outputs: Tensor, offset: Tensor) -> Tensor:
        """The outputs with the offset added to the logits, not to the raw precisions."""
        return add_offset(outputs, offset, first=self.num_targets)

    def check_targets(self, targets: Tensor) -> None:
        """Refuse exactly 0 and 1, whose density is 0 or infinite."""
        ends = targets[(targets == 0) | (targets == 1)]
        if ends.numel():
            raise SupportError(
                f"target {ends[0].item():g} lies outside the support of Beta: numbers between 0 and 1, both excluded; "
                "for k successes out of n use Binomial, for all or nothing Bernoulli, and rounded proportions of n "
                "rows may be moved inside by (y * (n - 1) + 0.5) / n"
            )


def _concentrations(logit: Tensor, precision: Tensor) -> tuple[Tensor, Tensor]:
    return logit.sigmoid() * precision, (-logit).sigmoid() * precision


def _log_ratio(difference: Tensor, y: Tensor, direct: Tensor) -> Tensor:
    """`log(1 + difference / y)`, to the precision of the difference where that is small."""
    near = difference.abs() < 0.5 * y
    return torch.where(near, torch.log1p(torch.where(near, difference / y, 0.0)), direct)
