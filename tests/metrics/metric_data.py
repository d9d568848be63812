"""Predictions and targets of every kind that a metric reads, with rows that can be selected and joined."""

import torch
from torch.distributions import Independent, Normal

from credibly import distributions
from credibly.distributions.rows import concatenate, select


def make(kind, num_rows, seed=0, dtype=torch.float64):
    """A pair that a metric of this kind is called with, with ties and with probabilities of exactly 0 and 1."""
    generator = torch.Generator().manual_seed(seed)
    return MAKERS[kind](num_rows, generator, dtype)


def _classes(num_rows, generator, dtype):
    logits = (2 * torch.randn(num_rows, 4, generator=generator, dtype=dtype)).round(decimals=1)
    targets = torch.multinomial((0.7 * logits).softmax(-1), 1, generator=generator).squeeze(1)
    probs = logits.softmax(-1)
    sure = torch.arange(num_rows) % 7 == 3
    probs[sure] = torch.nn.functional.one_hot(targets[sure], 4).to(dtype)
    return distributions.from_probs(probs), targets


def _events(num_rows, generator, dtype):
    p = torch.rand(num_rows, generator=generator, dtype=dtype).mul(20).round().div(20)
    targets = (torch.rand(num_rows, generator=generator, dtype=dtype) < p).long()
    return distributions.from_probs(p), targets


def _labels(num_rows, generator, dtype):
    logits = torch.randn(num_rows, 3, generator=generator, dtype=dtype)
    several = torch.distributions.Bernoulli(logits=logits, validate_args=False)
    return Independent(several, 1, validate_args=False), torch.randint(0, 2, (num_rows, 3), generator=generator)


def _reals(num_rows, generator, dtype):
    loc, targets = torch.randn(2, num_rows, generator=generator, dtype=dtype)
    return Normal(loc, 0.4 + loc.abs() / 2), targets


def _draws(num_rows, generator, dtype):
    draws = torch.randn(6, num_rows, 2, generator=generator, dtype=dtype)
    return distributions.from_draws(draws), torch.randn(num_rows, 2, generator=generator, dtype=dtype)


def _scores(num_rows, generator, dtype):
    inside = torch.randn(num_rows, generator=generator, dtype=dtype).round(decimals=1)
    outside = 1 + torch.randn(num_rows, generator=generator, dtype=dtype).round(decimals=1)
    return inside, outside


MAKERS = {
    "classes": _classes,
    "events": _events,
    "labels": _labels,
    "reals": _reals,
    "draws": _draws,
    "scores": _scores,
}


def pick(pair, rows):
    """The given rows of both."""
    predicted, targets = pair
    return predicted[rows] if isinstance(predicted, torch.Tensor) else select(predicted, rows), targets[rows]


def join(pairs):
    """All rows, in order."""
    predicted, targets = zip(*pairs, strict=True)
    joined = torch.cat(predicted) if isinstance(predicted[0], torch.Tensor) else concatenate(predicted)
    return joined, torch.cat(targets)
