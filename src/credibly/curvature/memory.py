"""How much memory a curvature takes, known before anything is computed."""

from collections.abc import Sequence

from credibly.core.errors import NotSupportedError
from credibly.core.params import floating_dtype
from credibly.curvature.plan import owners, random_weights
from credibly.curvature.structures import Structure
from credibly.model import Model

__all__ = ["MAX_BYTES", "bytes_needed", "check_bytes"]

MAX_BYTES = 4 * 2**30
"""The most that a curvature may take if nothing else is said."""


def bytes_needed(model: Model, names: Sequence[str], structure: Structure) -> int:
    """What the result of `curvature` holds, in bytes; decomposing or inverting it takes two to three times that."""
    core = model.core
    weights = random_weights(core, names)
    return structure.num_numbers(weights, owners(core, weights)) * floating_dtype(model).itemsize


def check_bytes(model: Model, names: Sequence[str], structure: Structure, max_bytes: int = MAX_BYTES) -> None:
    """Raise a NotSupportedError with the figure, and what takes less, if that is more than `max_bytes`."""
    needed = bytes_needed(model, names, structure)
    if needed > max_bytes:
        size = sum(weight.numel() for weight in random_weights(model.core, names).values())
        raise NotSupportedError(
            f"{structure} of {size:,} weights takes {_gigabytes(needed)}, more than the limit of "
            f"{_gigabytes(max_bytes)} (max_bytes={max_bytes}); use Diagonal(), or Kronecker() if this is not it, or "
            "fewer random weights, such as those of the last layer"
        )


def _gigabytes(size: int) -> str:
    return f"{size / 2**30:.3g} GiB"
