"""What every comparison is made of: a line of results, and forecasts whose truth is known."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributions import Distribution, Normal

from credibly import distributions
from credibly.conformal import Intervals, PredictionSets

__all__ = ["Row", "classes", "events", "from_events", "largest_gap", "points", "share_and_size", "table"]


@dataclass(frozen=True)
class Row:
    """What is computed, what the peer gives, and what we give; None where the first number compares the two already."""

    what: str
    theirs: object
    ours: object = None


def events(rows: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Uniform probabilities of an event, float64, and outcomes drawn from them."""
    generator = torch.Generator().manual_seed(seed)
    probs = torch.rand(rows, generator=generator, dtype=torch.float64)
    return probs, torch.bernoulli(probs, generator=generator).long()


def classes(rows: int, num_classes: int = 10, scale: float = 2.0, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Class probabilities, float64, and classes drawn from them; a larger scale of the logits is more confident."""
    generator = torch.Generator().manual_seed(seed)
    probs = (scale * torch.randn(rows, num_classes, generator=generator, dtype=torch.float64)).softmax(-1)
    return probs, torch.multinomial(probs, 1, generator=generator).squeeze(1)


def from_events(probs: list[float]) -> Distribution:
    """The forecasts of an event, in float64."""
    return distributions.from_probs(torch.tensor(probs, dtype=torch.float64))


def points(centres: Tensor) -> Distribution:
    """Forecasts of numbers of which only the mean will be used."""
    return Normal(centres, torch.ones_like(centres), validate_args=False)


def share_and_size(sets: Tensor | PredictionSets, targets: Tensor) -> tuple[float, float]:
    """The share of targets inside, and the mean number of classes."""
    members = (sets.members if isinstance(sets, PredictionSets) else sets).bool()
    share = members.gather(1, targets.unsqueeze(1)).double().mean()
    return round(float(share), 4), round(float(members.sum(1).double().mean()), 4)


def table(intervals: Intervals) -> Tensor:
    """Lower and upper ends, (rows, 2)."""
    return torch.stack([intervals.lower, intervals.upper], 1)


def largest_gap(theirs: object, ours: Tensor) -> str:
    """The largest difference of numbers that should be equal; 0 is equality of every bit."""
    return f"largest difference {float((torch.as_tensor(theirs) - ours).abs().max()):.1g}"
