"""Work on parts that share nothing, in as many threads as torch may use.

It pays where what takes the time runs without the interpreter's lock and on one core, as numpy's sort does.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

__all__ = ["in_threads", "num_threads"]

Part = TypeVar("Part")
Result = TypeVar("Result")


def num_threads(device: torch.device, *, most: int) -> int:
    """How many threads to use for work on a device: those of torch, `most` of them; one where the CPU only waits."""
    return max(1, min(torch.get_num_threads(), most)) if device.type == "cpu" else 1


def in_threads(work: Callable[[Part], Result], parts: Sequence[Part]) -> list[Result]:
    """`work` at every part, each in a thread of its own, in order; torch opens no further threads in them."""
    if len(parts) == 1:
        return [work(parts[0])]
    inference = torch.is_inference_mode_enabled()  # which every thread has for itself
    grad = torch.is_grad_enabled()
    num = torch.get_num_threads()  # which every thread has too, and new ones take from where it was last set

    def alike(part: Part) -> Result:
        torch.set_num_threads(1)
        with torch.inference_mode(inference), torch.set_grad_enabled(grad):
            return work(part)

    try:
        with ThreadPoolExecutor(len(parts)) as pool:
            return list(pool.map(alike, parts))
    finally:
        torch.set_num_threads(num)
