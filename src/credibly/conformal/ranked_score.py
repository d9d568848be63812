"""Scores that never fall as the probability of the class falls, and so need no table of all classes.

Such a score is one formula over the place of a class among the others of its row, and u, one number in [0, 1] a row
for all of its classes. A target's place takes no sort. A region takes the sorted values of the row: the formula at
a position, as if nothing were tied and u were 0, is at most the score of the last class that stands there, and at
least the score of every larger value. The first position whose bound does not exceed the threshold therefore names
the one value that needs to be looked at; more probable classes are in the set, less probable ones are not.

Nearly all rows are decided by a sort of values rounded to float32; see `rounded_rows`.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator
from itertools import chain, pairwise

import torch
from torch import Tensor
from torch.distributions import Distribution

from credibly.conformal.class_score import ClassScore
from credibly.conformal.rounded_rows import RoundedRows
from credibly.conformal.standing import SortedRows, Standing, Unsorted
from credibly.core.threads import in_threads, num_threads
from credibly.distributions.class_rows import class_mass_blocks
from credibly.distributions.kinds import reference
from credibly.distributions.rows import num_rows, select

__all__ = ["RankedScore", "least_probability", "on_grid"]

_BLOCK = 2**19  # probabilities at a time: threads wait for each other's turn in the interpreter where they are fewer
_PER_THREAD = 2**17  # probabilities that are worth a thread


class RankedScore(ClassScore):
    """A score by the place of a class in its row. A frozen dataclass of options.

    Attributes:
        randomized: whether each row draws its own u, which makes the coverage exact; else u = 1 for all rows, in
            calibration and prediction alike.
    """

    randomized: bool

    @property
    def uses_uniforms(self) -> bool:
        """Whether `score` and `region` read `u`."""
        return self.randomized

    @abstractmethod
    def formula(self, place: Standing, u: Tensor) -> Tensor:
        """The scores of the classes that stand there. It must not fall as the mass or the rank reached grows."""

    def values(self, probs: Tensor) -> Tensor:
        """What classes are ordered by and what masses add up, (rows, classes): their probabilities."""
        return probs

    def impossible(self, num_classes: int) -> float | None:
        """The score of classes of probability 0, at least that of any other; None for what the formula says."""
        return None

    def least_value(self, thresholds: Tensor, num_classes: int) -> Tensor | None:
        """A value below which no class of the row can be in the set, (rows, 1); None if nothing is known."""
        return None

    def blocks(self, predicted: Distribution) -> Iterator[tuple[slice, Tensor]]:
        """Some rows at a time, with their class probabilities, (rows, classes), float64."""
        return class_mass_blocks(predicted, max_elements=_BLOCK)

    def over_blocks(
        self, predicted: Distribution, work: Callable[[slice, Tensor], Tensor], *, first: int = 0
    ) -> list[Tensor]:
        """What `work` gives for some rows after the other, in as many threads as torch may use."""
        probs, rows = reference(predicted), num_rows(predicted)
        threads = num_threads(probs.device, most=min(probs.numel() // _PER_THREAD, rows))
        ends = [rows * share // threads for share in range(threads + 1)]

        def one(share: slice) -> list[Tensor]:
            return super(RankedScore, self).over_blocks(select(predicted, share), work, first=first + share.start)

        return list(chain.from_iterable(in_threads(one, [slice(*pair) for pair in pairwise(ends)])))

    def table(self, probs: Tensor, u: Tensor) -> Tensor:
        """The scores of all classes, (rows, classes)."""
        values = self.values(probs)
        return self._with_impossible(self.formula(SortedRows(values).at(values), u), probs, probs.shape[-1])

    def of_targets(self, probs: Tensor, targets: Tensor, u: Tensor) -> Tensor:
        """The scores of one class a row, without a sort."""
        values = self.values(probs)
        scores = self.formula(Unsorted(values, values.gather(-1, targets)), u)
        return self._with_impossible(scores, probs.gather(-1, targets), probs.shape[-1])

    def members(self, probs: Tensor, thresholds: Tensor, u: Tensor) -> Tensor:
        """Whether each class's score is at most its threshold; `thresholds` broadcast to (rows, classes)."""
        if thresholds.shape[-1] != 1:
            return self.table(probs, u) <= thresholds
        last, least = self.impossible(probs.shape[-1]), self.least_value(thresholds, probs.shape[-1])
        inside, unsure = RoundedRows(probs, least).members(self.formula, thresholds, u)
        if bool(unsure.any()):
            left = probs[unsure]
            exact = self._members_by_sort(self.values(left), thresholds[unsure], u[unsure])
            inside[unsure] = exact if last is None else exact & (left > 0)
        if last is not None:
            everything = thresholds >= last
            return inside | everything if bool(everything.any()) else inside
        return inside

    def _members_by_sort(self, values: Tensor, thresholds: Tensor, u: Tensor) -> Tensor:
        rows = SortedRows(values)
        first = (self.formula(rows.positions(), u) > thresholds).sum(-1, keepdim=True)
        last_place = values.shape[-1] - 1
        cutoff = rows.ordered.gather(-1, first.clamp(max=last_place)).masked_fill_(first > last_place, torch.inf)
        included = self.formula(rows.at(cutoff), u) <= thresholds
        return values >= torch.where(included, cutoff, torch.nextafter(cutoff, cutoff.new_tensor(torch.inf)))

    def _with_impossible(self, scores: Tensor, probs: Tensor, num_classes: int) -> Tensor:
        last = self.impossible(num_classes)
        return scores if last is None else scores.masked_fill(probs == 0, last)


def least_probability(thresholds: Tensor, num_classes: int) -> Tensor:
    """What a class must have for the mass above it to be at most the threshold.

    It and the less probable ones together have 1 less the threshold, and none of them has more than it. The factor
    makes up for the rounding of the quotient and of the sum of the row.
    """
    return (1 - thresholds) / num_classes * (1 - 2.0**-30)


def on_grid(probs: Tensor) -> Tensor:
    """The probabilities rounded to multiples of 2^-52, which add up exactly: 1 + p has no finer ones."""
    return (probs + 1).sub_(1)
