"""Class probabilities of many rows, a block of rows at a time, and the way back to a distribution.

The float64 table of `class_log_probs` is twice the size of float32 logits, and for a mixture the draws come
on top. What is computed row by row therefore goes through blocks that fit the cache.
"""

from collections.abc import Callable, Iterator

from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Distribution, Independent

from credibly.core.errors import NotSupportedError
from credibly.distributions.classes import class_log_probs, class_masses
from credibly.distributions.kinds import base_of, kind, reference
from credibly.distributions.rows import num_rows, select

__all__ = ["check_classes", "class_distribution", "class_log_prob_blocks", "class_mass_blocks", "is_binary"]


def check_classes(d: Distribution) -> None:
    """Raise a NotSupportedError unless the prediction is one of classes."""
    if kind(d) != "class":
        raise NotSupportedError(f"`predicted` must be a prediction of classes; {type(base_of(d)).__name__} has none")


def is_binary(d: Distribution) -> bool:
    """Whether the target is a binary outcome (Bernoulli, or a mixture of them)."""
    return isinstance(base_of(d), Bernoulli)


def class_log_prob_blocks(d: Distribution, *, max_elements: int = 2**18) -> Iterator[tuple[slice, Tensor]]:
    """Slices of rows with their `class_log_probs`, (block, *event_shape, classes), in order.

    Args:
        d: a distribution over classes.
        max_elements: size of a block in numbers held by the distribution, at most; one row at least.

    Raises:
        NotSupportedError: `d` is not a distribution over classes.
    """
    return _blocks(d, class_log_probs, max_elements)


def class_mass_blocks(d: Distribution, *, max_elements: int = 2**18) -> Iterator[tuple[slice, Tensor]]:
    """Slices of rows with their `class_masses`, (block, *event_shape, classes); see `class_log_prob_blocks`."""
    return _blocks(d, class_masses, max_elements)


def _blocks(
    d: Distribution, read: Callable[[Distribution], Tensor], max_elements: int
) -> Iterator[tuple[slice, Tensor]]:
    check_classes(d)
    rows = num_rows(d)
    if rows == 0:
        yield slice(0, 0), read(d)
        return
    of_one_row = max(read(select(d, slice(0, 1))).numel(), reference(d).numel() // rows)
    block = max(1, max_elements // of_one_row)
    if block >= rows:
        yield slice(0, rows), read(d)
        return
    for start in range(0, rows, block):
        where = slice(start, min(start + block, rows))
        yield where, read(select(d, where))


def class_distribution(
    like: Distribution,
    log_probs: Tensor,  # (rows, *event_shape, classes)
) -> Distribution:
    """A plain distribution about the same target as `like`, with the given log probabilities.

    They need not be normalised. The result is a Bernoulli (several labels: an Independent of them) where
    `like` is about a binary outcome, else a Categorical.
    """
    if not is_binary(like):
        return Categorical(logits=log_probs, validate_args=False)
    binary = Bernoulli(logits=log_probs[..., 1] - log_probs[..., 0], validate_args=False)
    labels = len(like.event_shape)
    return Independent(binary, labels, validate_args=False) if labels else binary
