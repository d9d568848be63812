"""The contract of recalibration: a recipe is fitted to forecasts and outcomes, the result maps forecasts.

Both sides of the map are distributions. A recalibration acts on the marginal prediction and returns a plain
distribution; what acts inside the members of an ensemble says so in its name.
"""

from abc import ABC, abstractmethod
from typing import Any

from torch.distributions import Distribution

from credibly.core.typing import ArrayLike

__all__ = ["Recalibration", "Recalibrator"]


class Recalibration(ABC):
    """A fitted map from distributions to distributions. Immutable; a frozen dataclass (eq=False).

    Attributes:
        report: how the fit went; a frozen dataclass of numbers.
    """

    report: Any

    @abstractmethod
    def __call__(self, predicted: Distribution) -> Distribution:
        """The recalibrated forecasts: the same rows, the same kind of target."""


class Recalibrator(ABC):
    """A recipe for recalibration: a frozen dataclass of options. It holds no fitted state."""

    @abstractmethod
    def fit(self, predicted: Distribution, targets: ArrayLike) -> Recalibration:
        """Fit the map on forecasts and outcomes that were not used to train what made the forecasts.

        Args:
            predicted: forecasts, one a row.
            targets: what came, (rows, *event_shape).
        """
