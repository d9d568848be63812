"""A mixture of posteriors: an ensemble whose members are themselves more than points."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from credibly.core.checks import check_count
from credibly.core.params import module_device
from credibly.core.randomness import base_seed, derived_seed
from credibly.core.typing import ArrayLike
from credibly.distributions.mixture import MixturePredictive
from credibly.distributions.predictive import Predictive
from credibly.model import Model
from credibly.posteriors.base import DEFAULT_NUM_DRAWS, Posterior
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
        super().__init__(members[0].model, info)
        self.members = list(members)

    @property
    def num_stored(self) -> int | None:
        """All members' stored draws; None where any makes its draws as needed."""
        stored = [member.num_stored for member in self.members]
        return None if None in stored else sum(number for number in stored if number is not None)

    def _shares(self, num_draws: int | None) -> list[int]:
        """How many draws each member gives."""
        if num_draws is None and self.num_stored is not None:
            return [member.num_stored or 0 for member in self.members]
        total = DEFAULT_NUM_DRAWS if num_draws is None else check_count("num_draws", num_draws)
        share, rest = divmod(total, len(self.members))
        if share == 0:
            raise ValueError(f"`num_draws` must be at least the number of members, {len(self.members)}; got {total}")
        return [share + (index < rest) for index in range(len(self.members))]

    def _asked(self, num_draws: int | None, seed: int | None) -> Iterator[tuple[Posterior, int, int]]:
        base = base_seed(seed)
        for index, (member, share) in enumerate(zip(self.members, self._shares(num_draws), strict=True)):
            yield member, share, derived_seed(base, "member", index)

    def parameters(
        self, inputs: ArrayLike, *, num_draws: int | None = None, seed: int | None = None
    ) -> dict[str, Tensor]:
        """The members' parameters one after another on the draw axis, as equal a number from each as can be."""
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
        shares = torch.tensor(self._shares(num_draws), device=module_device(self.model))
        log_weights = -shares.double().log().repeat_interleave(shares)
        return MixturePredictive(self.model.distribution(parameters), log_weights)

    def to_model(self, *, draw: int | None = None, prior: Prior | None = None) -> Model:
        """The fitted model of member `draw`."""
        if draw is None or not 0 <= draw < len(self.members):
            raise ValueError(
                f"a mixture has no single set of weights; name a member with `draw`, 0 to {len(self.members) - 1}; "
                f"got {draw}"
            )
        return self.members[draw].to_model(prior=prior)
