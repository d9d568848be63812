"""What one target of a prediction is, in words: what must agree between batches that are scored together."""

from torch.distributions import Bernoulli, Categorical, Distribution

from credibly.core.errors import NotSupportedError
from credibly.distributions.kinds import Kind, base_of, kind
from credibly.distributions.operations import Operation, check_distribution
from credibly.distributions.ordinal import Ordinal

__all__ = ["check_order", "outcome"]

_ONE: dict[Kind, str] = {"real": "a number", "count": "a count", "class": "a class"}
_MANY: dict[Kind, str] = {"real": "numbers", "count": "counts", "class": "classes"}


def outcome(d: Distribution) -> str:
    """What one target is, as in "a number", "an event", "one of 3 classes" or "counts of shape (4,)".

    Raises:
        NotSupportedError: the distribution does not state its support.
    """
    one, many = _names(base_of(d))
    return f"{many} of shape {tuple(d.event_shape)}" if d.event_shape else one


@Operation
def _names(base: Distribution) -> tuple[str, str]:
    """One target, and several."""
    return _ONE[kind(base)], _MANY[kind(base)]


@_names.register(Bernoulli)
def _(base: Bernoulli) -> tuple[str, str]:  # noqa: ARG001
    return "an event", "events"


@_names.register(Categorical)
def _(base: Categorical) -> tuple[str, str]:
    return f"one of {base._num_events} classes", f"classes out of {base._num_events}"


@_names.register(Ordinal)
def _(base: Ordinal) -> tuple[str, str]:
    return f"one of {base.num_classes} classes in order", f"classes in order out of {base.num_classes}"


def check_order(d: Distribution, name: str) -> None:
    """Raise a NotSupportedError where classes are mere names, whose numbering would change the result.

    Args:
        d: the prediction; numbers, counts, events and `Ordinal` classes are in order, a choice among classes is not.
        name: of what needs an order.
    """
    check_distribution(d)
    if isinstance(base_of(d), Categorical):
        raise NotSupportedError(
            f"{name} needs targets in order; {type(d).__name__} is over classes without one, whose numbering would "
            "change the result: see metrics.ClasswiseECE and prediction sets (conformal), or likelihoods.Ordinal"
        )
