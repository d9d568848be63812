"""Counts with structural zeros: what is never counted, beside what happened to be counted zero times.

With probability pi = sigmoid(last output) a row is a structural zero, otherwise it follows another likelihood of counts
(Zero-Inflated Poisson Regression, with an Application to Defects in Manufacturing, Lambert 1992). With I the Fisher
matrix of that likelihood, p(0) its probability of a zero, s the gradient of log p(0), and a = pi + (1 - pi) p(0), that
of the whole is closed:

    outputs of the count     (1 - pi) I - (1 - pi) p(0) pi / a  s s^T
    zero logit               pi^2 (1 - pi) (1 - p(0)) / a
    between them             pi (1 - pi) p(0) / a  s
"""

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import Distribution, Independent

from credibly.core.errors import NotSupportedError
from credibly.distributions.kinds import kind
from credibly.distributions.zero_inflated import ZeroInflated as Inflated
from credibly.distributions.zero_inflated import inflated_log_prob
from credibly.likelihoods.base import Likelihood
from credibly.likelihoods.elements import blocks, joined

__all__ = ["ZeroInflated"]


class ZeroInflated(Likelihood):
    """`y = 0` with probability `sigmoid(zero logit)`, otherwise `y ~ of`.

    Args:
        of: the likelihood of the counts, such as `Poisson()` or `NegativeBinomial()`. With D counts per row its outputs
            lie in blocks of D, one block a parameter. The network gives its outputs first and then D zero logits.

    An offset belongs to `of`, and not to the zero logit.
    """

    def __init__(self, of: Likelihood) -> None:
        super().__init__()
        with torch.no_grad():
            example = of(torch.zeros(1, of.num_outputs))
        if kind(example) != "count" or len(example.event_shape) > 1:
            raise NotSupportedError(f"`of` must be a likelihood of counts; got {type(of).__name__}")
        self.of = of
        self.num_targets = max(example.event_shape.numel(), 1)
        self.num_outputs = of.num_outputs + self.num_targets

    def parameters_of(self, outputs: Tensor) -> dict[str, Tensor]:
        """Those of the count, and `zero_logits`, (*batch,) or (*batch, num_targets)."""
        counted, last = self._split(outputs)
        (zero_logits,) = blocks(last, 1, self.num_targets)
        return {**self.of.parameters_of(counted), "zero_logits": zero_logits}

    def distribution(self, parameters: dict[str, Tensor]) -> Distribution:
        """A zero-inflated distribution; over several counts, an Independent of them."""
        base = self.of.distribution(_without_zero_logits(parameters))
        each = base.base_dist if isinstance(base, Independent) else base
        return joined(Inflated(each, parameters["zero_logits"]), self.num_targets)

    def log_prob(self, parameters: dict[str, Tensor], targets: Tensor) -> Tensor:
        """The log probability, -inf outside the support of the count."""
        each = self._counted_log_prob(_without_zero_logits(parameters), targets)
        density = inflated_log_prob(parameters["zero_logits"], each, targets)
        return density.sum(-1) if self.num_targets > 1 else density

    def fisher(self, outputs: Tensor) -> Tensor:
        """Closed, given that of the count."""
        counted, zero_logits = (part.double() for part in self._split(outputs))
        log_none, score = self._log_none(counted)  # (*batch, D), (*batch, C)
        log_zero, log_not = F.logsigmoid(zero_logits), F.logsigmoid(-zero_logits)
        log_share = log_zero + log_not - torch.logaddexp(log_zero, log_not + log_none)  # of pi (1 - pi) / a
        times = self.of.num_outputs // self.num_targets
        same = torch.eye(self.num_targets, dtype=score.dtype, device=score.device).repeat(times, 1)  # (C, D)
        removed = (log_share + log_none).exp() @ same.T
        pairs = score.unsqueeze(-1) * score.unsqueeze(-2) * (same @ same.T)
        top = (log_not.exp() @ same.T).unsqueeze(-1) * self.of.fisher(counted) - removed.unsqueeze(-1) * pairs
        cross = (score * removed).unsqueeze(-1) * same
        corner = torch.diag_embed((log_zero + log_share).exp() * -torch.expm1(log_none))
        upper = torch.cat([top, cross], -1)
        return torch.cat([upper, torch.cat([cross.mT, corner], -1)], -2).to(outputs.dtype)

    def with_offset(self, outputs: Tensor, offset: Tensor) -> Tensor:
        """The outputs with the offset given to the count; one of the shape of all outputs is added to all."""
        if offset.shape == outputs.shape:
            return super().with_offset(outputs, offset)
        own = outputs.shape[-1] - self.num_targets
        return torch.cat([self.of.with_offset(outputs[..., :own], offset), outputs[..., own:]], -1)

    def _split(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """The outputs of the count, and the zero logits, (*batch, num_targets)."""
        return outputs[..., : self.of.num_outputs], outputs[..., self.of.num_outputs :]

    def _counted_log_prob(self, parameters: dict[str, Tensor], targets: Tensor) -> Tensor:
        """Each element's log probability under the likelihood of the count."""
        if self.num_targets == 1:
            return self.of.log_prob(parameters, targets)
        # with a further axis of size 1 each element is a row with one count
        each = {name: value.unsqueeze(-1) for name, value in parameters.items()}
        return self.of.log_prob(each, targets.unsqueeze(-1))

    def _log_none(self, counted: Tensor) -> tuple[Tensor, Tensor]:
        """The log probability that a count is 0, (*batch, num_targets), and its gradient in the outputs."""

        def log_none(outputs: Tensor) -> tuple[Tensor, Tensor]:
            parameters = self.of.parameters_of(outputs)
            values = self._counted_log_prob(parameters, torch.zeros_like(next(iter(parameters.values()))))
            return values.sum(), values if self.num_targets > 1 else values.unsqueeze(-1)

        gradient, values = torch.func.grad(log_none, has_aux=True)(counted)
        return values, gradient


def _without_zero_logits(parameters: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value for name, value in parameters.items() if name != "zero_logits"}
