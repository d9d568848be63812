"""What a library must leave as it found it, as something that can be compared and put back."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

__all__ = ["global_state", "restore", "unchanged_global_state"]


def global_state() -> dict[str, Any]:
    """torch's switches that change the meaning of other people's code."""
    return {
        "argument validation": torch.distributions.Distribution._validate_args,
        "default dtype": torch.get_default_dtype(),
        "gradients enabled": torch.is_grad_enabled(),
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "number of threads": torch.get_num_threads(),
    }


def restore(state: dict[str, Any]) -> None:
    """Put back a state that `global_state` returned."""
    torch.distributions.Distribution.set_default_validate_args(state["argument validation"])
    torch.set_default_dtype(state["default dtype"])
    torch.set_grad_enabled(state["gradients enabled"])
    torch.use_deterministic_algorithms(state["deterministic algorithms"])
    torch.set_num_threads(state["number of threads"])


@contextlib.contextmanager
def unchanged_global_state() -> Iterator[None]:
    """Raise an AssertionError that names what the code inside changed, after putting it back."""
    before = global_state()
    try:
        yield
    finally:
        after = global_state()
        restore(before)
    changed = [f"{name}: {before[name]} -> {after[name]}" for name in before if after[name] != before[name]]
    assert not changed, f"global state of torch was changed and not put back: {'; '.join(changed)}"
