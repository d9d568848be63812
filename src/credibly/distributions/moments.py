"""Means, variances and entropies, element by element, refused where they would mean nothing."""

from typing import Any, NoReturn

from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Distribution, Independent

from credibly.distributions.classes import class_entropy, class_log_probs
from credibly.distributions.kinds import reference
from credibly.distributions.operations import Operation, own_method

__all__ = ["entropy", "mean", "variance"]

NO_MOMENTS = "class indices are names, not numbers; use `probs` or class_log_probs(d)"


@Operation
def mean(d: Distribution) -> Tensor:
    """The mean of every element: shape batch_shape + event_shape, in the units of the targets.

    Raises:
        NotSupportedError: unordered classes, or a distribution without a stated mean.
    """
    value = own_method(d, "mean")
    return mean.refuse(d) if value is NotImplemented else value  # type: ignore[no-any-return]


@Operation
def variance(d: Distribution) -> Tensor:
    """The variance of every element: shape batch_shape + event_shape.

    Raises:
        NotSupportedError: unordered classes, or a distribution without a stated variance.
    """
    value = own_method(d, "variance")
    return variance.refuse(d) if value is NotImplemented else value  # type: ignore[no-any-return]


@mean.register(Categorical)
def _(d: Categorical) -> NoReturn:
    mean.refuse(d, NO_MOMENTS)


@variance.register(Categorical)
def _(d: Categorical) -> NoReturn:
    variance.refuse(d, NO_MOMENTS)


@mean.register(Independent)
def _(d: "Independent[Any]") -> Tensor:
    return mean(d.base_dist)


@variance.register(Independent)
def _(d: "Independent[Any]") -> Tensor:
    return variance(d.base_dist)


@Operation
def entropy(d: Distribution) -> Tensor:
    """Entropy in nats of every element: shape batch_shape + event_shape.

    Raises:
        NotSupportedError: no closed form is known.
    """
    value = own_method(d, "entropy")
    return entropy.refuse(d) if value is NotImplemented else value  # type: ignore[no-any-return]


@entropy.register(Independent)
def _(d: "Independent[Any]") -> Tensor:
    return entropy(d.base_dist)


@entropy.register(Bernoulli, Categorical)
def _(d: Distribution) -> Tensor:
    return class_entropy(class_log_probs(d)).to(reference(d).dtype)
