"""The contract of predictions: a torch distribution over rows that can also say where its spread comes from.

Every method goes through the tables of this package, where each final form (mixture, Gaussian, class
probabilities, view) registers its formulas. What a form cannot give is refused by name.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, NoReturn

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

from credibly.core.checks import check_coverage
from credibly.core.errors import NotSupportedError
from credibly.core.randomness import base_seed, seeded
from credibly.core.typing import ArrayLike
from credibly.distributions.classes import class_probs
from credibly.distributions.crps import crps
from credibly.distributions.cumulative import cdf, icdf
from credibly.distributions.density import element_log_prob, log_prob, safe_log_prob
from credibly.distributions.drawing import drawable
from credibly.distributions.kinds import base_of, reference
from credibly.distributions.moments import entropy, mean, variance
from credibly.distributions.operations import Operation
from credibly.distributions.rows import rebuild

__all__ = ["Predictive"]


class Predictive(Distribution):
    """A distribution with batch_shape (rows,) and one target as its event; abstract.

    A subclass registers its formulas in the tables and implements `_draw`. `log_prob` and `joint_log_prob`
    are joint over the event; everything else is per element.
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {}

    def __init__(self, batch_shape: torch.Size, event_shape: torch.Size) -> None:
        super().__init__(batch_shape, event_shape, validate_args=False)

    @property
    def support(self) -> Any:
        """Where targets may lie: a constraint over the event."""
        each = self._element_support()
        missing = len(self.event_shape) - each.event_dim
        return constraints.independent(each, missing) if missing else each  # type: ignore[no-untyped-call]

    @property
    def mean(self) -> Tensor:
        """The mean, (batch, *event), in the units of the targets."""
        return mean(self)

    @property
    def variance(self) -> Tensor:
        """The variance, (batch, *event)."""
        return variance(self)

    @property
    def stddev(self) -> Tensor:
        """The standard deviation, (batch, *event)."""
        return self.variance.sqrt()

    @property
    def aleatoric_variance(self) -> Tensor:
        """The part of the variance that more data would not remove, (batch, *event)."""
        self._refuse("aleatoric_variance")

    @property
    def epistemic_variance(self) -> Tensor:
        """The part of the variance that comes from not knowing the function, (batch, *event)."""
        self._refuse("epistemic_variance")

    @property
    def probs(self) -> Tensor:
        """Class probabilities: (batch, *event) of a Bernoulli, (batch, *event, classes) of a Categorical."""
        return class_probs(self)

    def mutual_information(self) -> Tensor:
        """Information that the class would give about the function, in nats, between 0 and the entropy."""
        self._refuse("mutual_information")

    def log_prob(self, value: ArrayLike) -> Tensor:
        """Log density of checked targets (batch, *event), joint over the event: (batch,)."""
        return log_prob(self, value)

    def joint_log_prob(self, value: ArrayLike) -> Tensor:
        """Log density of all rows together, under one function: a scalar."""
        self._refuse("joint_log_prob")

    def cdf(self, value: ArrayLike) -> Tensor:
        """P(Y <= value) per element; see `credibly.distributions.functions.cdf`."""
        return cdf(self, value)

    def icdf(self, value: ArrayLike) -> Tensor:
        """Quantiles per element, at one level or one a row; see `credibly.distributions.functions.icdf`."""
        return icdf(self, value)

    def interval(self, coverage: float) -> tuple[Tensor, Tensor]:
        """The equal-tailed interval (lower, upper), each (batch, *event).

        Coverage 0 gives the median twice, coverage 1 the ends of the support.

        Raises:
            ValueError: the coverage lies outside [0, 1].
        """
        tail = (1 - check_coverage(coverage)) / 2
        return self.icdf(tail), self.icdf(1 - tail)

    def entropy(self) -> Tensor:
        """Entropy in nats per element, (batch, *event)."""
        return entropy(self)

    def draw(self, shape: int | Sequence[int] = (), seed: int | None = None) -> Tensor:
        """Draws of targets, (*shape, batch, *event), without a graph.

        Args:
            shape: how many.
            seed: equal seeds give equal draws and leave torch's global generator as found; None takes one
                number from it.

        Raises:
            NotFiniteError: the prediction holds NaN.
            ValueError: a negative shape.
        """
        size = torch.Size((shape,) if isinstance(shape, int) else tuple(shape))
        if any(length < 0 for length in size):
            raise ValueError(f"`shape` must hold whole numbers, 0 or more; got {shape}")
        with torch.no_grad(), seeded(base_seed(seed), "predict", device=reference(self).device):
            some = size if size.numel() else torch.Size([1])  # torch cannot draw 0 classes
            precise = drawable(self)
            draws = precise._draw(some)
        if precise is not self and draws.is_floating_point():
            draws = draws.to(reference(self).dtype)
        return draws if size.numel() else draws[:0].reshape(size + draws.shape[1:])

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Torch's name for `draw` without a seed."""
        return self.draw(sample_shape)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Draws that carry gradients, where `has_rsample` says so.

        Raises:
            NotSupportedError: draws of this distribution have no gradients.
        """
        if not self.has_rsample:
            self._refuse("rsample")
        return self._draw(torch.Size(sample_shape))

    def expand(self, batch_shape: Any, _instance: Any = None) -> NoReturn:
        """Not supported: the batch is the rows, and a row is predicted once."""
        self._refuse("expand")

    def _element_support(self) -> Any:
        """Where one element may lie: by default the support of what the prediction is made of."""
        return base_of(self).support

    @abstractmethod
    def _draw(self, shape: torch.Size) -> Tensor:
        """Draws under torch's global generator, with gradients where the distribution has them."""
        raise NotImplementedError

    def _refuse(self, name: str, advice: str = "") -> NoReturn:
        reason = f"; {advice}" if advice else ""
        raise NotSupportedError(f"{name} is not available for {type(self).__name__}{reason}")

    def __repr__(self) -> str:
        batch, event = tuple(self.batch_shape), tuple(self.event_shape)
        return f"{type(self).__name__}(batch_shape={batch}, event_shape={event})"


# A form without an entry of its own must not fall back on its methods: they come here.
def _refused_unless_registered(operation: Operation[..., Any]) -> None:
    @operation.register(Predictive)
    def _(d: Predictive, *_: Any) -> NoReturn:
        operation.refuse(d)


for _operation in (mean, variance, entropy, cdf, icdf, crps, safe_log_prob, element_log_prob, rebuild):
    _refused_unless_registered(_operation)
