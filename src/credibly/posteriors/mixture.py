"""A mixture of posteriors: an ensemble whose members are themselves more than points."""

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from credibly.core.checks import check_count
from credibly.core.params import module_device
from credibly.core.randomness import base_seed, derived_seed
from credibly.core.typing import ArrayLike
from credibly.distributions.mixture import combined
from credibly.distributions.predictive import Predictive
from credibly.model import Model
from credibly.posteriors.base import DEFAULT_NUM_DRAWS, Posterior, check_alike, stored_draws
from credibly.posteriors.evaluation import concatenated
from credibly.posteriors.info import Info
from credibly.priors.base import Prior

__all__ = ["MixturePosterior"]


class MixturePosterior(Posterior):
    """Equal belief in each member.

    Args:
        members: posteriors of one model.
        info: how the mixture came to be.
    """

    def __init__(self, members: Sequence[Posterior], info: Info) -> None:
        if not members:
            raise ValueError("`members` must hold at least one posterior; got none")
        check_alike(members)
        super().__init__(members[0].model, info)
        self.members = list(members)

    @property
    def num_stored(self) -> int | None:
        """All members' stored draws; None where any makes its draws as needed."""
        stored = [member.num_stored for member in self.members]
        return None if None in stored else sum(number for number in stored if number is not None)

    def _stored(self) -> Tensor:
        """The number of stored draws of each member."""
        return torch.tensor([member.num_stored for member in self.members])

    def _shares(self, num_draws: int | None) -> list[int]:
        """How many draws each member gives."""
        if self.num_stored is not None:
            taken = stored_draws(num_draws, self.num_stored)
            owner = torch.arange(len(self.members)).repeat_interleave(self._stored())
            if len(taken) < len(self.members):
                return torch.bincount(owner[taken], minlength=len(self.members)).tolist()
            return _shared_out(len(taken), self._stored().tolist())
        total = DEFAULT_NUM_DRAWS if num_draws is None else check_count("num_draws", num_draws)
        share, rest = divmod(total, len(self.members))
        if share == 0:
            raise ValueError(f"`num_draws` must be at least the number of members, {len(self.members)}; got {total}")
        wanted = [share + (index < rest) for index in range(len(self.members))]
        return [min(own, member.num_stored or own) for own, member in zip(wanted, self.members, strict=True)]

    def _asked(self, num_draws: int | None, seed: int | None) -> Iterator[tuple[Posterior, int, int]]:
        base = base_seed(seed)
        for index, (member, share) in enumerate(zip(self.members, self._shares(num_draws), strict=True)):
            if share:
                yield member, share, derived_seed(base, "member", index)

    def parameters(
        self, inputs: ArrayLike, *, num_draws: int | None = None, seed: int | None = None
    ) -> dict[str, Tensor]:
        """The members' parameters one after another on the draw axis, as equal a number from each as can be.

        A member that stores fewer gives those; `predict` weighs members alike all the same.
        """
        return concatenated(
            [
                member.parameters(inputs, num_draws=share, seed=own)
                for member, share, own in self._asked(num_draws, seed)
            ]
        )

    def outputs(self, inputs: ArrayLike, *, num_draws: int | None = None, seed: int | None = None) -> Tensor:
        """The members' outputs one after another on the draw axis."""
        asked = self._asked(num_draws, seed)
        return torch.cat([member.outputs(inputs, num_draws=share, seed=own) for member, share, own in asked])

    def _predictive(self, parameters: dict[str, Tensor], num_draws: int | None) -> Predictive:
        """Members weigh the same, also where they gave different numbers of draws."""
        return combined(self.model.distribution(parameters), self._log_weights(num_draws))

    def _log_weights(self, num_draws: int | None) -> Tensor:
        """Of every draw that the members give, one after another."""
        device = module_device(self.model)
        parts = []
        for member, share in zip(self.members, self._shares(num_draws), strict=True):
            if isinstance(member, MixturePosterior) and share:
                parts.append(member._log_weights(share))
            elif share:
                parts.append(torch.full((share,), -math.log(share), dtype=torch.float64, device=device))
        return torch.cat(parts) - math.log(len(parts))

    def to_model(self, *, draw: int | None = None, prior: Prior | None = None) -> Model:
        """The model of one stored draw, counted over all members; where draws are made as needed, of one member."""
        last = len(self.members) - 1 if self.num_stored is None else self.num_stored - 1
        if draw is None or not 0 <= draw <= last:
            raise ValueError(f"a mixture has no single set of weights; name one with `draw`, 0 to {last}; got {draw}")
        if self.num_stored is None:
            return self.members[draw].to_model(prior=prior)
        for member, stored in zip(self.members, self._stored().tolist(), strict=True):
            if draw < stored:
                return member.to_model(draw=draw if stored > 1 else None, prior=prior)
            draw -= stored
        raise AssertionError("the draw was checked")


def _shared_out(total: int, most: list[int]) -> list[int]:
    """As equal a number to each as can be, none above its most, `total` together."""
    shares = [0] * len(most)
    while total:
        open_ones = [index for index, share in enumerate(shares) if share < most[index]]
        each = max(1, total // len(open_ones))
        for index in open_ones:
            given = min(each, most[index] - shares[index], total)
            shares[index] += given
            total -= given
    return shares
