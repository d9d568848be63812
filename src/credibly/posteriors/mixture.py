"""A mixture of posteriors: an ensemble whose members are themselves more than points."""

from collections.abc import Sequence

import torch
from torch import Tensor

from credibly.core.randomness import base_seed, derived_seed
from credibly.core.typing import ArrayLike
from credibly.model import Model
from credibly.posteriors.base import DEFAULT_NUM_DRAWS, Posterior
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

    def _shares(self, num_draws: int | None) -> list[int]:
        total = DEFAULT_NUM_DRAWS if num_draws is None else num_draws
        share, rest = divmod(total, len(self.members))
        if share == 0:
            raise ValueError(f"`num_draws` must be at least the number of members, {len(self.members)}; got {total}")
        return [share + (index < rest) for index in range(len(self.members))]

    def parameters(
        self, inputs: ArrayLike, *, num_draws: int | None = None, seed: int | None = None
    ) -> dict[str, Tensor]:
        """The members' parameters one after another on the draw axis, as equal a number from each as can be."""
        parts = [
            member.parameters(inputs, num_draws=share, seed=derived_seed(base, "member", index))
            for base in [base_seed(seed)]
            for index, (member, share) in enumerate(zip(self.members, self._shares(num_draws), strict=True))
        ]
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}

    def outputs(self, inputs: ArrayLike, *, num_draws: int | None = None, seed: int | None = None) -> Tensor:
        """The members' outputs one after another on the draw axis."""
        base = base_seed(seed)
        shares = zip(self.members, self._shares(num_draws), strict=True)
        return torch.cat(
            [
                member.outputs(inputs, num_draws=share, seed=derived_seed(base, "member", index))
                for index, (member, share) in enumerate(shares)
            ]
        )

    def to_model(self, *, draw: int | None = None, prior: Prior | None = None) -> Model:
        """The fitted model of member `draw`."""
        if draw is None or not 0 <= draw < len(self.members):
            raise ValueError(
                f"a mixture has no single set of weights; name a member with `draw`, 0 to {len(self.members) - 1}; "
                f"got {draw}"
            )
        return self.members[draw].to_model(prior=prior)
