"""Successes out of a known number of trials, from logits: proportions whose totals count.

    log p(y) = log(n choose y) + y log sigmoid(output) + (n - y) log sigmoid(-output)

The number of trials is a constant, or belongs to the row: then it is an input that the network does not see, since it
says how much a row tells and nothing about its probability. `Model(net, Binomial(), offset="trials")` hands it to the
likelihood beside the network's outputs, in fit and predict alike, so that a prediction is a Binomial with its own
number of trials, one distribution per row, and everything that reads distributions of counts reads it.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, distributions
from torch.distributions import Distribution

from credibly.core.checks import check_count
from credibly.core.errors import ShapeError, SupportError
from credibly.core.typing import ArrayLike
from credibly.distributions.targets import outside_trials
from credibly.likelihoods.base import Likelihood
from credibly.likelihoods.elements import blocks, joined, joint_density
from credibly.likelihoods.offsets import matching_offset

__all__ = ["Binomial"]


class Binomial(Likelihood):
    """`y ~ Binomial(num_trials, sigmoid(output))`; targets are numbers of successes.

    Args:
        num_targets: the number of counts per row; with 1 a target is a number, otherwise a vector.
        num_trials: how many trials every row has. None: each row has its own, an input named by
            `Model(..., offset=...)`, (rows,) or (rows, num_targets). The likelihood then reads `2 * num_targets`
            outputs: logits, which the network gives, and numbers of trials, which are put behind them.

    A target that is no whole number, below 0 or above its row's number of trials is refused.
    """

    def __init__(self, num_targets: int = 1, *, num_trials: int | None = None) -> None:
        super().__init__()
        self.num_targets = check_count("num_targets", num_targets)
        self.num_trials = None if num_trials is None else check_count("num_trials", num_trials)
        self.needs_offset = num_trials is None
        self.num_outputs = num_targets if num_trials is not None else 2 * num_targets

    def parameters_of(self, outputs: Tensor) -> dict[str, Tensor]:
        """`logits` and `num_trials`, each (*batch,) or (*batch, num_targets)."""
        if self.num_trials is None:
            logits, trials = blocks(outputs, 2, self.num_targets)
            return {"logits": logits, "num_trials": trials.detach()}
        (logits,) = blocks(outputs, 1, self.num_targets)
        return {"logits": logits, "num_trials": torch.full_like(logits, self.num_trials)}

    def distribution(self, parameters: dict[str, Tensor]) -> Distribution:
        """Torch's Binomial; over several counts, an Independent of them."""
        wide = torch.promote_types(parameters["logits"].dtype, torch.float32)  # torch draws none in half precision
        trials, logits = parameters["num_trials"].to(wide), parameters["logits"].to(wide)
        return joined(distributions.Binomial(trials, logits=logits, validate_args=False), self.num_targets)

    def log_prob(self, parameters: dict[str, Tensor], targets: Tensor) -> Tensor:
        """The log probability, -inf for broken counts, negative ones, and those above the number of trials."""
        logits, trials = parameters["logits"], parameters["num_trials"]
        possible = (targets >= 0) & (targets <= trials) & (targets == targets.floor())
        wide = torch.promote_types(logits.dtype, torch.float32)
        trials = trials.to(wide)
        successes = torch.where(possible, targets, 0).to(wide)
        failures = torch.where(possible, trials - successes, 0)
        arrangements = torch.lgamma(successes + failures + 1) - torch.lgamma(successes + 1) - torch.lgamma(failures + 1)
        density = arrangements + _times(successes, logits.to(wide)) + _times(failures, -logits.to(wide))
        return joint_density(density.to(logits.dtype), possible, self.num_targets)

    def fisher(self, outputs: Tensor) -> Tensor:
        """`diag(n p (1 - p))`; 0 for the numbers of trials, which are known."""
        logits = outputs[..., : self.num_targets]
        variance = torch.sigmoid(logits) * torch.sigmoid(-logits)
        if self.num_trials is not None:
            return torch.diag_embed(self.num_trials * variance)
        trials = outputs[..., self.num_targets :]
        return torch.diag_embed(torch.cat([trials * variance, torch.zeros_like(trials)], -1))

    def with_offset(self, outputs: Tensor, offset: Tensor) -> Tensor:
        """With a constant number of trials, logits shifted by the offset; else the rows' numbers behind the logits."""
        if self.num_trials is not None:
            return super().with_offset(outputs, offset)
        return torch.cat([outputs, matching_offset(offset, outputs)], -1)

    def match_targets(self, targets: ArrayLike, outputs: Tensor) -> Tensor:
        """The targets, checked against the constant number of trials, or as whole numbers from 0."""
        if self.num_trials is None:
            # the outputs are a template of any rows: their numbers of trials are not those of the targets
            logits = outputs[..., : self.num_targets]
            outputs = torch.cat([logits, torch.full_like(logits, torch.inf)], -1)
        return super().match_targets(targets, outputs)

    def check_offset(self, targets: Tensor, offset: Tensor) -> None:
        """Refuse a number of successes above its row's number of trials."""
        if self.num_trials is not None:
            return
        trials = offset.reshape(len(targets), -1).expand(-1, self.num_targets).reshape(targets.shape)
        above = targets > trials
        if bool(above.any()):
            place = tuple(above.nonzero()[0].tolist())
            raise SupportError(outside_trials(float(targets[place]), place[0], float(trials[place])))

    def check_outputs(self, outputs: Tensor) -> None:
        """Raise a ShapeError unless the last axis has `num_outputs` entries."""
        if self.num_trials is None and outputs.dim() > 0 and outputs.shape[-1] == self.num_targets:
            raise ShapeError(
                "Binomial(num_trials=None) needs each row's number of trials as an input that is not given to the "
                "network: Model(..., offset=key or position); or give one number for all rows: num_trials=10"
            )
        if self.num_trials is None and outputs.dim() > 0 and outputs.shape[-1] > self.num_outputs:
            raise ShapeError(
                f"Binomial(num_trials=None) reads {self.num_targets} outputs of the network, logits, and as many "
                "numbers of trials, which are not outputs but an input, Model(..., offset=key or position); with the "
                f"offset they are {tuple(outputs.shape)}"
            )
        super().check_outputs(outputs)


def _times(counts: Tensor, logits: Tensor) -> Tensor:
    """`counts log sigmoid(logits)`, 0 where nothing is counted, however improbable."""
    counted = counts > 0
    return torch.where(counted, counts * F.logsigmoid(torch.where(counted, logits, 0.0)), 0.0)
